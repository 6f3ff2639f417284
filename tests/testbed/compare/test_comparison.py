"""Comparisons against numbers by hand, and their tables, CSV and LaTeX."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.comparison import Comparison, Difference, compare
from fairbed.testbed.compare.grid import Grid, load_grid
from fairbed.testbed.compare.measures import MACHINE_TIME, METRICS
from fairbed.testbed.compare.report import escaped, tex
from fairbed.testbed.compare.table import cells_csv, metrics_csv, plain, print_rich, with_interval
from tests.testbed.compare.results import result, results

GRID = """
name = "front_1"
seeds = {seeds}
{target}
[[arm]]
name = "uniform"
set = {{ "selection.policy" = "uniform" }}
[[arm]]
name = "rbcs_f"
axes = {{ "selection.V" = [5, 50] }}
[experiment]
[experiment.selection]
per_round = 1
beta = 0.15
[[experiment.fleet]]
model = "linear"
theta = [1.0, 1.0, 0.2]
count = 3
"""
TRAINING = 'set = { "replay.training" = true }'
FAST, FASTER = "rbcs_f,V=5", "rbcs_f,V=50"


def grid_of(tmp_path: Path, seeds: int = 10, target: str = "") -> Grid:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(seeds=seeds, target=target), encoding="utf-8")
    return load_grid(path)


def compared(grid: Grid, found: list[CellResult]) -> Comparison:
    return compare(grid, "hash", "1.0", found)


def cell(arm: str, seed: int) -> CellResult:
    """Return a cell in which the effect of the seed is the same for every arm."""
    seed_effect = float(np.random.default_rng(seed).normal())
    base = {"uniform": 300.0, FAST: 200.0, FASTER: 150.0}[arm]
    rate = {"uniform": 0.19, FAST: 0.16, FASTER: 0.16}[arm]
    noise = 0.0 if arm == "uniform" else 0.01 * (-1) ** seed
    return result(
        arm,
        seed,
        round_s=(base + 40.0 * seed_effect) / 10.0,
        min_rate_selected=rate,
        jain=0.9 + noise,
        queue_mean_total=base / 10.0,
    )


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    grid = grid_of(tmp_path)
    return compared(grid, results(grid, cell))


def test_differences_are_taken_seed_by_seed(comparison: Comparison) -> None:
    uniform, fast, _ = comparison.arms
    gap = fast.differences["virtual_s"]
    assert gap.mean == pytest.approx(-100.0)
    assert gap.low == pytest.approx(-100.0)
    assert gap.high == pytest.approx(-100.0)
    assert uniform.differences == {}
    own = fast.values["virtual_s"]
    assert own.low is not None
    assert own.high is not None
    assert own.high - own.low > 30.0, "the seeds alone differ by far more"


def test_an_arm_is_better_only_where_zero_is_outside(comparison: Comparison) -> None:
    fast = comparison.arms[1].differences
    judged = {key: gap.judgement for key, gap in fast.items()}
    assert judged == {
        "virtual_s": "better",
        "min_rate_selected": "worse",
        "jain": "unclear",
        "queue_mean_total": "better",
        "at_equal_rounds": "unclear",
        "at_equal_time": "better",
        "at_equal_device_s": "better",
    }


def test_a_metric_that_only_describes_is_shown_and_not_tested(tmp_path: Path) -> None:
    """Weights far from the shares of the examples are neither better nor worse."""

    def make(arm: str, seed: int) -> CellResult:
        return result(arm, seed, weight_divergence=0.3 if arm == FAST else 0.01 * seed)

    grid = grid_of(tmp_path, seeds=5)
    found = compared(grid, results(grid, make))
    metric = next(metric for metric in found.metrics if metric.key == "weight_divergence")
    assert metric.better is None
    fast = next(arm for arm in found.arms if arm.name == FAST)
    assert fast.values[metric.key].mean == pytest.approx(0.3)
    assert metric.key not in fast.differences
    assert "KL of n, nats" in plain(found)


def test_metrics_that_are_mostly_noise_are_one_line_with_the_number_of_cells(
    tmp_path: Path,
) -> None:
    """Shares are shown beside the corrected numbers, and not tested."""

    def make(arm: str, seed: int) -> CellResult:
        share = 0.9 if arm == FAST or seed == 0 else 0.3
        return result(
            arm,
            seed,
            accuracy_worst10_shrunken=0.8 + 0.01 * seed,
            accuracy_worst10_noise=share,
            accuracy_variance_noise=0.5,
            benign_accuracy_variance_noise=None if arm == FAST else 0.8,
        )

    grid = grid_of(tmp_path, seeds=5)
    found = compared(grid, results(grid, make))
    (line,) = [text for text in found.warnings if "noise" in text]
    others = len(grid.arms) - 1
    assert line.startswith(
        f"mostly noise of the test sets: accuracy_worst10 in {5 + others} of {5 * len(grid.arms)} "
        f"cells, benign_accuracy_variance in {5 * others} of {5 * others} cells; read the columns "
        "shrunken and corrected, or give devices more test examples (data.test_fraction, "
    )
    fast = next(arm for arm in found.arms if arm.name == FAST)
    assert fast.values["accuracy_worst10_noise"].mean == pytest.approx(0.9)
    assert "accuracy_worst10_noise" not in fast.differences
    assert "accuracy_worst10_shrunken" in fast.differences
    assert "worst 10 %, shrunken (more is better)" in plain(found)
    quiet = compared(grid, results(grid, lambda arm, seed: result(arm, seed)))
    assert not any("noise" in text for text in quiet.warnings)


def noise(dice: np.random.Generator, *, effect_s: float = 0.0) -> Callable[[str, int], CellResult]:
    """Return cells of equal arms: every metric is noise, half of it common to all metrics."""

    def make(arm: str, seed: int) -> CellResult:
        common = dice.normal()
        values: dict[str, Any] = {metric.key: 9.0 + common + dice.normal() for metric in METRICS}
        round_s = 90.0 + common + dice.normal() + (effect_s if arm == FAST else 0.0)
        return result(arm, seed, round_s=round_s, **(values | {"virtual_s": round_s}))

    return make


@pytest.mark.full
def test_of_grids_of_equal_arms_five_percent_have_a_verdict(tmp_path: Path) -> None:
    """Without the correction a third of them and more would have one, over metrics and arms."""
    grid, dice = grid_of(tmp_path, seeds=5), np.random.default_rng(14)
    tested = [metric.key for metric in METRICS if metric.better and metric.key != MACHINE_TIME]
    n_grids, naive, wrong = 800, 0, 0  # sd of the share: 0.008
    for _ in range(n_grids):
        found = compared(grid, results(grid, noise(dice)))
        gaps = [gap for arm in found.arms for gap in arm.differences.values()]
        assert found.comparisons == len(gaps) == 2 * (len(tested) + 3)  # budgets
        naive += any(gap.p is not None and gap.p <= 0.05 for gap in gaps)
        wrong += any(gap.judgement != "unclear" for gap in gaps)
    assert naive / n_grids > 0.33
    assert 0.0 < wrong / n_grids <= 0.06


def test_the_primary_metric_needs_less_evidence_than_the_others(tmp_path: Path) -> None:
    shown = {}
    for primary in ("virtual_s", "jain"):
        grid = grid_of(tmp_path, 5, f'primary = "{primary}"')
        dice, verdicts = np.random.default_rng(3), 0
        for _ in range(60):
            found = compared(grid, results(grid, noise(dice, effect_s=-4.0)))
            verdicts += found.arms[1].differences["virtual_s"].judgement == "better"
        shown[primary] = verdicts
    assert shown["virtual_s"] > 2 * shown["jain"]


def test_the_primary_metric_is_named_and_comes_first(comparison: Comparison) -> None:
    text = plain(comparison)
    assert comparison.primary == "virtual_s"
    assert "Primary metric: total time (key `primary` of a grid file)" in text
    assert "total*, s" in text
    assert text.index("primary metric: total time, s (less is better)") < text.index("Pareto")
    assert "the primary metric is total time" in tex(comparison)
    assert json.loads(msgspec.json.encode(comparison))["primary"] == "virtual_s"


def test_a_primary_metric_that_no_run_has_is_one_line(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, 10, 'primary = "mape"')
    found = compared(grid, results(grid, cell))
    (line,) = found.warnings
    assert line.startswith("primary: must be a metric of these runs, got 'mape', which none has;")
    assert "one of: virtual_s, " in line
    assert found.arms[1].differences["virtual_s"].judgement == "better", "others have the level"


def test_one_seed_is_one_line(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, seeds=1)
    found = compared(grid, results(grid, cell))
    (line,) = found.warnings
    assert "at least 5, got 1: there is no interval and no verdict" in line
    assert found.comparisons == 0
    assert f"warning: {line}" in plain(found)
    assert "(Student's t). No difference was tested." in plain(found)


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    nearly = {"uniform": 1.0, FAST: 1.0 + 1e-14, FASTER: 1.0 + 1e-6}
    found = compared(grid, results(grid, lambda arm, seed: result(arm, seed, jain=nearly[arm])))
    assert [arm.differences["jain"].judgement for arm in found.arms[1:]] == ["unclear", "better"]


def test_the_front_has_the_arms_that_are_not_dominated(comparison: Comparison) -> None:
    assert [arm.is_on_front for arm in comparison.arms] == [True, False, True]


def test_the_order_of_results_changes_nothing(tmp_path: Path, comparison: Comparison) -> None:
    grid = grid_of(tmp_path)
    assert compared(grid, results(grid, cell)[::-1]) == comparison


def test_the_same_in_any_process(comparison: Comparison) -> None:
    again = msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison)
    assert again == comparison


def test_few_seeds_give_a_warning_and_no_verdict(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, seeds=4)
    few = compared(grid, results(grid, cell))
    assert "without training needs at least 10, got 4" in few.warnings[0]
    assert {gap.judgement for arm in few.arms for gap in arm.differences.values()} == {"unclear"}
    text = plain(few)
    assert "better" not in text.replace("is better", "").replace("better or worse", "")


def test_with_training_five_seeds_are_enough(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, seeds=5)
    assert compared(grid, results(grid, trained)).warnings == []
    grid = grid_of(tmp_path, seeds=4)
    assert "with training needs at least 5" in compared(grid, results(grid, trained)).warnings[0]


def trained(arm: str, seed: int) -> CellResult:
    slope, round_s = {"uniform": (0.08, 20.0), FAST: (0.08, 10.0), FASTER: (0.04, 5.0)}[arm]
    return result(arm, seed, slope=slope, round_s=round_s)


def test_times_to_a_share_of_the_baselines_final_accuracy(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, 5, "target = { share = [0.75] }")
    found = compared(grid, results(grid, trained))
    (target,) = found.targets
    assert target.accuracy == pytest.approx(0.75 * 0.64), "the mean of evaluations 6 to 10"
    assert target.rule == "75 % of 0.640, the mean of the last 5 evaluations of uniform"
    assert found.horizon_s == 50.0, "the shortest run"
    # 0.48 is reached by the mean of evaluations 4 to 8, at 0.08 a round; never at 0.04.
    assert [arm.reached[target.key] for arm in found.arms] == ["5/5", "5/5", "0/5"]
    assert [arm.values[target.key].mean for arm in found.arms] == [50.0, 50.0, 50.0]


def test_a_given_target_and_a_given_horizon(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, 5, "target = { accuracy = [0.24], horizon_s = 45 }")
    found = compared(grid, results(grid, trained))
    (target,) = found.targets
    assert (target.key, found.horizon_s) == ("time_to_0.24", 45.0)
    # the mean of evaluations 1 to 5 is 0.24 at 0.08 a round: after 100, 50 s; never at 0.04 in time
    assert [arm.values[target.key].mean for arm in found.arms] == [45.0, 45.0, 40.0]
    assert [arm.reached[target.key] for arm in found.arms] == ["5/5", "5/5", "5/5"]


def test_arms_are_compared_at_the_largest_budgets_that_all_runs_reached(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, 5, TRAINING)
    found = compared(grid, results(grid, trained))
    assert [(b.key, b.amount, b.text) for b in found.budgets] == [
        ("at_equal_rounds", 10, "10 rounds"),
        ("at_equal_time", 50.0, "50.0 s"),
        ("at_equal_device_s", 100.0, "100.0 device-s"),
    ]
    # in 50 s: 2 rounds of 20 s, 5 of 10 s, 10 of 5 s; a round costs twice its time in device-s
    means = {b.key: [arm.values[b.key].mean for arm in found.arms] for b in found.budgets}
    assert means["at_equal_rounds"] == pytest.approx([0.8, 0.8, 0.4])
    assert means["at_equal_time"] == pytest.approx([0.16, 0.4, 0.4])
    assert means["at_equal_device_s"] == pytest.approx([0.16, 0.4, 0.4])
    text = plain(found)
    assert "\naccuracy at the largest budgets that every run reached" in text
    assert "at 50.0 s" in text
    keys = {row["metric"] for row in csv.DictReader(io.StringIO(metrics_csv(found)))}
    assert keys >= means.keys()


def test_without_training_updates_are_compared_at_equal_budgets(comparison: Comparison) -> None:
    assert comparison.budget_metric == "updates"
    uniform, _, faster = comparison.arms
    assert uniform.values["at_equal_rounds"].mean == 30.0
    assert faster.values["at_equal_time"].mean > uniform.values["at_equal_time"].mean


def test_a_run_without_a_value_within_a_budget_has_none(tmp_path: Path) -> None:
    """One arm is so fast that the others have evaluated nothing when its runs end."""
    grid = grid_of(tmp_path, 5, TRAINING)
    slow = {"uniform": 20.0, FAST: 10.0, FASTER: 1.0}
    found = compared(
        grid, results(grid, lambda arm, seed: result(arm, seed, slope=0.05, round_s=slow[arm]))
    )
    assert ["at_equal_time" in arm.values for arm in found.arms] == [False, True, True]
    assert "–" in plain(found)


def test_without_evaluations_there_is_no_target(comparison: Comparison) -> None:
    assert (comparison.targets, comparison.horizon_s, comparison.has_training) == ([], None, False)


def test_a_failed_cell_is_named_and_left_out_of_pairs(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    found = [
        result(r.arm, r.seed, problem="no result") if (r.arm, r.seed) == (FAST, 3) else r
        for r in results(grid, cell)
    ]
    some = compared(grid, found)
    assert [one.problem for one in some.problems] == ["no result"]
    assert some.arms[1].differences["virtual_s"].n == 9
    assert some.arms[2].differences["virtual_s"].n == 10
    assert "seeds without a result: rbcs_f,V=5 9/10" in some.warnings[0]


def test_a_grid_in_which_all_cells_failed_has_a_report(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    none = compared(grid, results(grid, lambda arm, seed: result(arm, seed, problem="no")))
    assert none.metrics == []
    for text in (plain(none), tex(none), metrics_csv(none), cells_csv(none)):
        assert text


def test_the_table_has_a_line_for_every_arm(comparison: Comparison) -> None:
    lines = plain(comparison).splitlines()
    (overview,) = (line for line in lines if line.startswith("  rbcs_f,V=5 ") and "10" in line[:24])
    mean_s = 200.0 + 40.0 * np.mean([np.random.default_rng(seed).normal() for seed in range(10)])
    assert overview.split()[:4] == ["rbcs_f,V=5", "10", "0.15", f"{mean_s:.1f}+"]
    assert any("-100.0 [-100.0, -100.0]" in line and line.endswith("better") for line in lines)


def test_a_terminal_shows_the_same(
    comparison: Comparison, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_rich(comparison)
    drawn = [line.split() for line in capsys.readouterr().out.splitlines()]
    wanted = [
        line.split() for line in plain(comparison).splitlines() if line.startswith("  rbcs_f")
    ]
    assert wanted
    assert all(words in drawn for words in wanted)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_narrow_terminal_shortens_no_number(
    columns: str,
    comparison: Comparison,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_rich(comparison)
    drawn = capsys.readouterr().out
    assert "…" not in drawn
    assert "(continued)" in drawn
    in_plain = re.findall(r"[+-]?[0-9][0-9,.]*", plain(comparison))
    assert set(in_plain) <= set(re.findall(r"[+-]?[0-9][0-9,.]*", drawn))


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (-1234.56, -1300.0, -1200.0, "-1,234.6 [-1,300.0, -1,200.0]"),
        (0.0123, 0.011, 0.014, "+0.012 [+0.011, +0.014]"),
        (0.0, 0.0, 0.0, "+0.0 [+0.0, +0.0]"),
        (1e-9, 1e-9, 1e-9, "+0.000000 [+0.000000, +0.000000]"),
    ],
)
def test_a_small_difference_is_not_shown_as_none(
    mean: float, low: float, high: float, text: str
) -> None:
    found = Difference(mean=mean, low=low, high=high, n=9, p=0.01, p_family=0.02, judgement="worse")
    assert with_interval(found, 1) == text


def test_csv_reads_back(comparison: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(metrics_csv(comparison))))
    (row,) = (r for r in rows if (r["arm"], r["metric"]) == (FAST, "virtual_s"))
    assert float(row["difference"]) == pytest.approx(-100.0)
    assert (row["n"], row["judgement"]) == ("10", "better")
    cells = list(csv.DictReader(io.StringIO(cells_csv(comparison))))
    assert len(cells) == 30
    assert float(cells[0]["virtual_s"]) == comparison.cells[0].values["virtual_s"]


def test_latex_has_balanced_environments(comparison: Comparison) -> None:
    text = tex(comparison)
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert sorted(opened) == sorted(re.findall(r"\\end\{(\w+)\}", text))
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == opened.count("tabular") > 0
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    for body in text.split(r"\begin{tabular}")[1:]:
        columns = body[1 : body.index("}")]
        rows = [row for row in body.splitlines() if row.endswith(r" \\")]
        assert len(rows) == 1 + 3 + 2, "headings, arms, and differences of all but the baseline"
        for row in rows:
            assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1
    content = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    content = re.sub(r"\\label\{[^}]*\}", "", content)
    assert not re.search(r"(?<!\\)[%#_~^]", content)
    assert r"rbcs\_f,V=5" in text


def test_latex_escapes_any_text() -> None:
    assert escaped(r"a_b & 5% {x} \y ~^$#") == (
        r"a\_b \& 5\% \{x\} \textbackslash{}y \textasciitilde{}\textasciicircum{}\$\#"
    )


def test_the_weights_of_updates_are_named_where_arms_differ(tmp_path: Path) -> None:
    """A difference between rules may come from their weights alone."""
    text = GRID.format(seeds=5, target="").replace(
        '"selection.policy" = "uniform"',
        '"selection.policy" = "uniform", "aggregation.rule" = "corefed"',
    )
    path = tmp_path / "grid.toml"
    path.write_text(text, encoding="utf-8")
    grid = load_grid(path)
    trained = compared(grid, results(grid, lambda arm, seed: result(arm, seed, slope=0.05)))
    assert [arm.weights for arm in trained.arms] == ["equal", "n", "n"]
    line = (
        "aggregation.weights differ: equal (default of corefed) in uniform; "
        f"n (default of fedavg) in {FAST}, {FASTER}"
    )
    assert line in plain(trained)
    assert escaped(line) in tex(trained)
    assert plain(trained).splitlines()[1].split()[3] == "weights"
    untrained = compared(grid, results(grid, lambda arm, seed: result(arm, seed)))
    assert "weights" not in plain(untrained)
    same = grid_of(tmp_path, seeds=5)
    trained = compared(same, results(same, lambda arm, seed: result(arm, seed, slope=0.05)))
    assert "aggregation.weights: n (default of fedavg) in all arms" in plain(trained)
