"""Factorial contrasts against numbers by hand, scipy, and drawn grids without an effect."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy import stats

from benchmarks import contrasts
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.comparison import Comparison
from fairbed.testbed.compare.contrasts import (
    Effect,
    equivalence_p,
    power_line,
    seeds_for,
    sign_flip_p,
    smallest_effect,
)
from fairbed.testbed.compare.folder import grid_folder
from fairbed.testbed.compare.grid import Grid, load_grid
from fairbed.testbed.compare.table import effects_csv, plain
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import ExperimentError
from tests.testbed.compare.results import compared, result, results

GRID = """
name = "factors"
seeds = {seeds}
set = {{ "replay.training" = true }}
primary = "accuracy_mean"
[axes]
"selection.policy" = ["uniform", "rbcs-f"]
"aggregation.rule" = ["fedavg", "q-fedavg", "term"]
[[contrast]]
name = "fair"
{contrast}
[experiment]
[experiment.selection]
per_round = 1
beta = 0.15
[experiment.training]
max_steps = 1
[[experiment.fleet]]
count = 3
"""
FACTORS = (
    'factors = { "selection.policy" = ["uniform", "rbcs-f"], '
    '"aggregation.rule" = ["fedavg", ["q-fedavg", "term"]] }\n'
)


def grid_of(folder: Path, contrast: str = FACTORS, seeds: int = 8) -> Grid:
    path = folder / "grid.toml"
    path.write_text(GRID.format(seeds=seeds, contrast=contrast), encoding="utf-8")
    return load_grid(path)


def arm(policy: str, rule: str) -> str:
    return f"policy-{policy}_rule-{rule}"


NOISE: Floats = np.random.default_rng(3).normal(0.0, 0.01, (6, 40))
MEANS = {
    arm("uniform", "fedavg"): 0.50,
    arm("uniform", "q-fedavg"): 0.54,
    arm("uniform", "term"): 0.52,
    arm("rbcs-f", "fedavg"): 0.51,
    arm("rbcs-f", "q-fedavg"): 0.61,
    arm("rbcs-f", "term"): 0.59,
}
"""Rule +0.03 with uniform and +0.09 with rbcs-f; policy +0.01 with fedavg and +0.07 with the
others: main effects +0.06 and +0.04, interaction +0.06."""


def accuracy(name: str, seed: int) -> float:
    return MEANS[name] + 0.1 * math.sin(seed) + float(NOISE[list(MEANS).index(name), seed])


def trained(name: str, seed: int) -> CellResult:
    return result(name, seed, accuracy_mean=accuracy(name, seed), accuracy_worst10=0.4)


def found_in(comparison: Comparison, metric: str = "accuracy_mean") -> dict[str, Effect]:
    return {effect.effect: effect for effect in comparison.effects if effect.metric == metric}


POLICY, RULE = "policy uniform to rbcs-f", "rule fedavg to q-fedavg or term"


def test_effects_are_those_of_the_cells_seed_by_seed(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    effects = found_in(compared(grid, results(grid, trained)))
    values = {name: np.array([accuracy(name, seed) for seed in range(8)]) for name in MEANS}
    fair = {
        policy: (values[arm(policy, "q-fedavg")] + values[arm(policy, "term")]) / 2
        for policy in ("uniform", "rbcs-f")
    }
    plain_rule = {policy: values[arm(policy, "fedavg")] for policy in ("uniform", "rbcs-f")}
    selection = (fair["rbcs-f"] - fair["uniform"], plain_rule["rbcs-f"] - plain_rule["uniform"])
    merge = (fair["rbcs-f"] - plain_rule["rbcs-f"], fair["uniform"] - plain_rule["uniform"])
    by_hand = {
        POLICY: sum(selection) / 2,
        RULE: sum(merge) / 2,
        f"{POLICY} x {RULE}": selection[0] - selection[1],
        f"{POLICY}, at rule q-fedavg or term": selection[0],
        f"{POLICY}, at rule fedavg": selection[1],
        f"{RULE}, at policy rbcs-f": merge[0],
        f"{RULE}, at policy uniform": merge[1],
    }
    assert effects.keys() == by_hand.keys()
    for name, expected in by_hand.items():
        gap = effects[name].estimate
        assert gap.mean == pytest.approx(expected.mean())
        ends = stats.t.interval(0.95, 7, expected.mean(), stats.sem(expected))
        assert (gap.low, gap.high) == pytest.approx(ends)
        if effects[name].kind == "simple":
            assert (gap.p, gap.judgement) == (None, "no verdict")
        else:
            assert gap.p == pytest.approx(stats.ttest_1samp(expected, 0.0).pvalue)
            assert gap.judgement == "better"
            assert effects[name].p_sign_flip == pytest.approx(2 / 2**8), "of one sign in all seeds"


def test_effects_and_arms_are_one_family_that_begins_with_the_effects(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    found = compared(grid, results(grid, trained))
    tested = [effect for effect in found.effects if effect.kind != "simple"]
    gaps = [gap for one in found.arms for gap in one.differences.values() if gap.p is not None]
    assert found.comparisons == len(tested) + len(gaps) == 3 + len(gaps)
    worst = max(tested, key=lambda effect: effect.estimate.p or 0.0).estimate
    assert worst.p is not None
    assert worst.p_family == pytest.approx(worst.p / 0.8, rel=0.6)
    level = 0.05 * 0.8 / 3
    assert {effect.smallest for effect in tested} == {smallest_effect(8, level)}
    text = plain(found)
    assert "contrast fair: final accuracy (more is better)" in text
    assert "contrasts begin with 80 % of the level" in text
    assert "Power: 8 seeds show an effect of" in text
    rows = list(csv.DictReader(io.StringIO(effects_csv(found))))
    assert len(rows) == 7
    assert {row["judgement"] for row in rows if row["kind"] == "interaction"} == {"better"}


def test_too_few_seeds_have_no_power_and_an_absent_metric_no_verdict(tmp_path: Path) -> None:
    few = grid_of(tmp_path, seeds=5)
    for effect in compared(few, results(few, trained)).effects:
        expected = "no verdict" if effect.kind == "simple" else "no power"
        assert (effect.estimate.judgement, effect.estimate.p_family) == (expected, None)
        assert (effect.p_sign_flip, effect.smallest) == (None, None)

    def failing(name: str, seed: int) -> CellResult:
        is_lost = name == arm("rbcs-f", "term") and seed == 3
        return result(name, seed, problem="killed") if is_lost else trained(name, seed)

    grid = grid_of(tmp_path)
    effects = compared(grid, results(grid, failing)).effects
    assert {effect.estimate.judgement for effect in effects} == {"no verdict"}
    assert {effect.estimate.n for effect in effects} == {7, 8}, "8 where the arm is not used"
    assert effects[0].estimate.reason == f"undefined in a seed of {arm('rbcs-f', 'term')}"


def test_times_have_ratios_of_ratios(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, FACTORS + 'metrics = ["virtual_s"]\n')
    rule = {"fedavg": 1.0, "q-fedavg": 1.5, "term": 1.5}

    def timed(name: str, seed: int) -> CellResult:
        policy, _, merge = name.removeprefix("policy-").partition("_rule-")
        both = 0.8 if policy == "rbcs-f" and merge != "fedavg" else 1.0
        selector = 0.5 if policy == "rbcs-f" else 1.0
        took = 100.0 * (1.0 + seed) * rule[merge] * selector * both
        return result(name, seed, round_s=took / 10, accuracy_mean=0.5)

    effects = found_in(compared(grid, results(grid, timed)), "virtual_s")
    assert effects[f"{POLICY} x {RULE}"].estimate.mean == pytest.approx(-0.2)
    assert effects[f"{POLICY}, at rule fedavg"].estimate.mean == pytest.approx(-0.5)
    assert effects[POLICY].estimate.mean == pytest.approx(math.sqrt(0.5 * 0.4) - 1.0)


def test_an_effect_within_the_margin_is_shown_to_be_small(tmp_path: Path) -> None:
    contrast = FACTORS + "equivalent = { accuracy_mean = 0.2 }\n"
    grid = grid_of(tmp_path, contrast)
    found = compared(grid, results(grid, trained))
    pair = found_in(found)[RULE].equivalence
    assert pair is not None
    assert (pair.margin, pair.is_shown) == (0.2, True)
    assert "within 0.2, p <0.001" in plain(found)
    narrow = grid_of(tmp_path, contrast.replace("0.2", "0.05"))
    assert not any(
        effect.equivalence and effect.equivalence.is_shown
        for effect in compared(narrow, results(narrow, trained)).effects
        if effect.effect == RULE
    )


def test_p_values_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0.3, 1.0, 12)
    both = [
        stats.ttest_1samp(values, -1.0, alternative="greater").pvalue,
        stats.ttest_1samp(values, 1.0, alternative="less").pvalue,
    ]
    assert equivalence_p(values, 1.0) == pytest.approx(max(both))
    assert equivalence_p(np.full(6, 0.1), 0.2) == 0.0
    assert equivalence_p(np.full(6, 0.3), 0.2) == 1.0
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=5000
    ).pvalue
    assert sign_flip_p(values) == pytest.approx(expected)
    many = rng.normal(0.5, 1.0, 30)
    assert sign_flip_p(many) == pytest.approx(stats.ttest_1samp(many, 0.0).pvalue, abs=0.01)


@pytest.mark.parametrize(("n", "level"), [(3, 0.05), (6, 0.05), (10, 0.01), (40, 0.05)])
def test_the_smallest_effect_has_the_power(n: int, level: float) -> None:
    delta = smallest_effect(n, level)
    assert delta is not None
    critical = stats.t.ppf(1.0 - level / 2.0, n - 1)
    shift = delta * math.sqrt(n)
    power = stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift)
    assert power == pytest.approx(0.8, abs=1e-4)


def test_three_seeds_need_large_effects() -> None:
    assert smallest_effect(3, 0.05) == pytest.approx(3.26, abs=0.01)
    assert smallest_effect(3, 0.05 / 12) == pytest.approx(11.3, abs=0.1)
    assert smallest_effect(1, 0.05) is None
    n = seeds_for(1.0, 3)
    level = 0.05 * 0.8 / 3
    assert (smallest_effect(n, level) or 9.0) <= 1.0 < (smallest_effect(n - 1, level) or 0.0)


BROKEN = {
    FACTORS.replace('"term"]', '"aaggff-d"]'): (
        "contrast 'fair': must have an arm for every combination, got none with "
        'selection.policy = "uniform", aggregation.rule = "aaggff-d"'
    ),
    'factors = { "aggregation.rule" = ["fedavg", "term"] }': (
        "contrast 'fair': must have one arm for a combination, got policy-uniform_rule-fedavg and "
        'policy-rbcs-f_rule-fedavg with aggregation.rule = "fedavg"; set where'
    ),
    'factors = { "aggregation.rule" = ["fedavg", ["term", "fedavg"]] }': (
        "factors.aggregation.rule: must have two levels without a common value"
    ),
    FACTORS + 'metrics = ["speed"]': "metrics: must be a metric of this grid, got 'speed'",
    FACTORS + "equivalent = { virtual_s = 0.1 }": (
        "equivalent: must be of its metrics, got 'virtual_s'; add it to metrics"
    ),
    FACTORS + "equivalent = { accuracy_mean = 0 }": "accuracy_mean",
    'factors = { "aggregation.rule" = ["fedavg"] }': "factors",
    FACTORS + '[[contrast]]\nname = "fair"\n' + FACTORS: "names must be distinct, got 'fair' twice",
}


@pytest.mark.parametrize("contrast", BROKEN)
def test_a_contrast_that_the_grid_cannot_answer_is_refused(contrast: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as refused:
        grid_of(tmp_path, contrast)
    assert BROKEN[contrast] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_where_chooses_the_arms(tmp_path: Path) -> None:
    contrast = (
        'factors = { "aggregation.rule" = ["fedavg", "term"] }\n'
        'where = { "selection.policy" = "rbcs-f" }\n'
    )
    grid = grid_of(tmp_path, contrast)
    (effect,) = compared(grid, results(grid, trained)).effects
    assert (effect.kind, effect.effect) == ("main", "rule fedavg to term")
    assert grid.contrasts[0].arms == [arm("rbcs-f", "fedavg"), arm("rbcs-f", "term")]


def test_a_contrast_does_not_change_after_the_first_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with grid_folder(out, grid_of(tmp_path)):
        pass
    with grid_folder(out, grid_of(tmp_path, FACTORS)):
        pass
    later = grid_of(tmp_path, FACTORS + 'metrics = ["accuracy_worst10"]\n')
    for other in (later, replace(later, contrasts=())):
        refused = pytest.raises(ExperimentError, match="contrasts must be unchanged since the grid")
        with refused, grid_folder(out, other):
            pass


def test_the_power_is_said_before_the_run(tmp_path: Path) -> None:
    declared = grid_of(tmp_path).contrasts
    assert power_line(declared, 5) == (
        "contrasts: 3 tests with 5 seeds: no power, a verdict needs 6 seeds; add seeds"
    )
    found = smallest_effect(10, 0.05 * 0.8 / 3)
    assert power_line(declared, 10) == (
        f"contrasts: 3 tests with 10 seeds show effects of {found:.2f} standard deviations (of an "
        f"effect over seeds) in 80 % of grids; an effect of 1 needs {seeds_for(1.0, 3)} seeds"
    )


def test_few_grids_of_equal_arms_have_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """The family holds 5 %: of 60 grids, 99.9 % of such samples have at most 9."""
    assert contrasts.main(["--draws", "60", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(row["any verdict"] <= 0.15 for row in found["verdicts"])
    assert all(row["without correction"] > 0.2 for row in found["verdicts"])
    normal = [row for row in found["coverage"] if row["noise"] == "normal"]
    assert all(row[key] >= 0.85 for row in normal for key in ("main effect", "interaction"))
    with pytest.raises(UsageError, match="--draws: must be at least 1, got 0"):
        contrasts.main(["--draws", "0"])


def test_the_json_of_a_comparison_has_its_effects(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    content = json.loads(msgspec.json.encode(compared(grid, results(grid, trained))))
    interaction = next(x for x in content["effects"] if x["kind"] == "interaction")
    assert interaction["estimate"]["judgement"] == "better"
