"""Comparisons against numbers by hand, and their tables, CSV and LaTeX."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from scipy import stats

from fairbed.testbed.compare.cell import CellOutcome, CellResult
from fairbed.testbed.compare.comparison import Comparison, MetricSummary
from fairbed.testbed.compare.differences import Difference, Estimate
from fairbed.testbed.compare.grid import load_grid
from fairbed.testbed.compare.measures import MACHINE_TIME, known_metrics
from fairbed.testbed.compare.report import tex
from fairbed.testbed.compare.table import cells_csv, metrics_csv, plain, print_rich, shown_number
from fairbed.wire.printable import latex
from tests.testbed.compare.results import (
    FAST,
    FASTER,
    GRID,
    TRAINING,
    cell,
    compared,
    grid_of,
    result,
    results,
)


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    grid = grid_of(tmp_path)
    return compared(grid, results(grid, cell))


def test_differences_are_taken_seed_by_seed(comparison: Comparison) -> None:
    uniform, fast, _ = comparison.arms
    gap = fast.differences["queue_mean_total"]
    assert gap.mean == pytest.approx(-10.0)
    assert gap.resolution == pytest.approx(0.1), "one selection in 10 rounds"
    assert gap.low == pytest.approx(-10.0 - 2.262 * 0.1 / 10**0.5, rel=1e-4)
    assert uniform.differences == {}
    own, gap = fast.values["virtual_s"], fast.differences["virtual_s"]
    assert width(own) > 30.0
    assert width(gap) < 0.1, "the seeds alone differ by far more: 30 of 200 s"


def width(found: Estimate | Difference) -> float:
    assert found.low is not None
    assert found.high is not None
    return found.high - found.low


def test_times_have_geometric_means_and_relative_differences(comparison: Comparison) -> None:
    uniform, fast, _ = comparison.arms
    logs = {
        arm.name: np.log(
            [c.values["virtual_s"] or 0.0 for c in comparison.cells if c.arm == arm.name]
        )
        for arm in (uniform, fast)
    }
    gap = fast.differences["virtual_s"]
    paired = logs[fast.name] - logs["uniform"]
    ends = stats.t.interval(0.95, 9, paired.mean(), stats.sem(paired))
    assert gap.mean == pytest.approx(np.expm1(paired.mean()))
    assert (gap.low, gap.high) == pytest.approx(tuple(np.expm1(ends)))
    assert gap.p == pytest.approx(stats.ttest_1samp(paired, 0.0).pvalue)
    assert uniform.values["virtual_s"].mean == pytest.approx(np.exp(logs["uniform"].mean()))
    ratio = fast.values["virtual_s"].mean / uniform.values["virtual_s"].mean
    assert gap.mean == pytest.approx(ratio - 1.0)
    (line,) = [line for line in plain(comparison).splitlines() if line.startswith("Geometric")]
    assert line.endswith("tested on logarithms): total time.")
    metric = next(metric for metric in comparison.metrics if metric.key == "virtual_s")
    assert metric.scale == "log"


def test_an_arm_is_better_only_where_zero_is_outside(comparison: Comparison) -> None:
    fast = comparison.arms[1].differences
    judged = {key: gap.judgement for key, gap in fast.items()}
    assert judged == {
        "virtual_s": "better",
        "min_rate_selected": "unclear",
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


def test_shares_of_noise_stand_beside_the_corrected_numbers_and_are_not_tested(
    tmp_path: Path,
) -> None:
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
    fast = next(arm for arm in found.arms if arm.name == FAST)
    assert fast.values["accuracy_worst10_noise"].mean == pytest.approx(0.9)
    assert "accuracy_worst10_noise" not in fast.differences
    assert "accuracy_worst10_shrunken" in fast.differences
    assert "worst 10 %, shrunken (more is better)" in plain(found)


def noise(dice: np.random.Generator, *, effect_s: float = 0.0) -> Callable[[str, int], CellResult]:
    """Return cells of equal arms: every metric is noise, half of it common to all metrics."""

    def make(arm: str, seed: int) -> CellResult:
        common = dice.normal()
        values: dict[str, Any] = {
            metric.key: 9.0 + common + dice.normal() for metric in known_metrics()
        }
        round_s = 90.0 + common + dice.normal() + (effect_s if arm == FAST else 0.0)
        return result(arm, seed, round_s=round_s, **(values | {"virtual_s": round_s}))

    return make


@pytest.mark.full
def test_of_grids_of_equal_arms_five_percent_have_a_verdict(tmp_path: Path) -> None:
    """Without the correction a third of them and more would have one, over metrics and arms."""
    grid, dice = grid_of(tmp_path, seeds=6), np.random.default_rng(14)
    tested = [
        metric.key
        for metric in known_metrics()
        if metric.better and metric.is_tested and metric.key != MACHINE_TIME
    ]
    n_grids, naive, wrong = 800, 0, 0  # sd of the share: 0.008
    for _ in range(n_grids):
        found = compared(grid, results(grid, noise(dice)))
        gaps = [gap for arm in found.arms for gap in arm.differences.values() if gap.p is not None]
        assert found.comparisons == len(gaps) == 2 * (len(tested) + 3)  # budgets
        naive += any(gap.p <= 0.05 for gap in gaps if gap.p is not None)
        wrong += any(gap.judgement != "unclear" for gap in gaps)
    assert naive / n_grids > 0.33
    assert 0.0 < wrong / n_grids <= 0.06


def test_the_primary_metric_needs_less_evidence_than_the_others(tmp_path: Path) -> None:
    shown = {}
    for primary in ("virtual_s", "jain"):
        grid = grid_of(tmp_path, 6, f'primary = "{primary}"')
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
    assert r" & total time, s$^{*}$ & " in tex(comparison)
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
    assert "at least 6, got 1: there is no interval and no verdict" in line
    assert found.comparisons == 0
    assert f"warning: {line}" in plain(found)
    assert "(Student's t). No difference was tested." in plain(found)


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    nearly = {"uniform": 0.5, FAST: 0.5 + 1e-14, FASTER: 0.5 + 1e-6}
    found = compared(grid, results(grid, lambda arm, seed: result(arm, seed, jain=nearly[arm])))
    assert [arm.differences["jain"].mean for arm in found.arms[1:]] == [0.0, pytest.approx(1e-6)]


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
    assert "a verdict needs at least 6, got 4: no power" in few.warnings[0]
    assert {gap.judgement for arm in few.arms for gap in arm.differences.values()} == {"no power"}
    text = plain(few)
    assert "better" not in text.replace("is better", "").replace("better or worse", "")


def test_with_training_six_seeds_are_enough(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, seeds=6)
    assert compared(grid, results(grid, trained)).warnings == []
    assert "without training needs at least 10" in compared(grid, results(grid, cell)).warnings[0]
    grid = grid_of(tmp_path, seeds=5)
    few = compared(grid, results(grid, trained))
    assert "a verdict needs at least 6, got 5" in few.warnings[0]
    assert few.comparisons == 0


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
    judged = {gap.judgement for gap in some.arms[1].differences.values()}
    assert judged == {"no verdict"}, "the failed seed may be one in which the arm is bad"
    assert some.arms[2].differences["virtual_s"].judgement == "better"
    assert some.warnings[1] == (
        f"primary: total time is undefined in 1 of 10 seeds of {FAST} (the run failed); these "
        "arms have no verdict"
    )
    (row,) = [line for line in plain(some).splitlines() if line.split()[:2] == [FAST, "9/10"]]
    assert "n=" not in row
    assert "seeds without a result: rbcs_f_V-5 9/10" in some.warnings[0]


def test_a_metric_that_some_seeds_lack_has_its_own_n_and_no_verdict(tmp_path: Path) -> None:
    """Other metrics of the arm do: the seeds without it are chosen by nothing that they measure."""
    grid = grid_of(tmp_path)

    def known(arm: str, seed: int) -> CellResult:
        found = cell(arm, seed).outcome.measured
        assert found is not None
        is_known = arm != FAST or seed > 3
        mape = (0.2 if arm == FAST else 0.1) + 0.001 * seed if is_known else None
        return result(arm, seed, round_s=found.curves.closed_s[0], mape=mape)

    some = compared(grid, results(grid, known))
    _, fast, faster = some.arms
    assert fast.values["mape"].n == fast.differences["mape"].n == 6
    assert fast.differences["mape"].judgement == "no verdict"
    assert (
        fast.differences["mape"].reason
        == f"mean error of predictions is undefined in 4 of 10 seeds of {FAST} (a reason)"
    )
    assert fast.differences["virtual_s"].judgement == "better"
    assert faster.differences["mape"].judgement == "unclear"
    assert fast.missing["mape"].seeds == [0, 1, 2, 3]
    text = plain(some)
    assert f"Undefined: mean error of predictions: 4 of 10 seeds of {FAST} (a reason)." in text
    (row,) = [line for line in text.splitlines() if line.split()[:2] == [FAST, "0.207"]]
    assert row.split()[4:5] == ["6/10"]


def test_a_value_of_zero_keeps_arithmetic_means_and_a_note_names_the_metric(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, 5, f'{TRAINING}\nbudget_metric = "accuracy_variance"')

    def make(arm: str, seed: int) -> CellResult:
        slope = 0.0 if (arm, seed) == ("uniform", 0) else 0.001
        return result(arm, seed, slope=slope, accuracy_variance=slope, accuracy_mean=0.5)

    found = compared(grid, results(grid, make))
    scales = {metric.key: metric.scale for metric in found.metrics}
    assert (scales["accuracy_variance"], scales["at_equal_rounds"]) == ("linear", "linear")
    assert scales["virtual_s"] == "log"
    assert found.arms[0].values["accuracy_variance"].mean == pytest.approx(0.0008)
    (line,) = [line for line in plain(found).splitlines() if line.startswith("Arithmetic means")]
    assert "because a value is 0: variance, variance at 10 rounds" in line


def test_too_few_evaluations_are_no_time_to_a_target(tmp_path: Path) -> None:
    """The mean of five is unknown, which counted as never reached."""
    grid = grid_of(tmp_path, 5, "target = { accuracy = [0.01] }")

    def make(arm: str, seed: int) -> CellResult:
        found = result(arm, seed, slope=0.05)
        run = found.outcome.measured
        assert run is not None
        curves = run.curves
        if arm == FAST and seed == 2:
            scores = {key: values[:4] for key, values in curves.scores.items()}
            curves = msgspec.structs.replace(curves, evaluated=curves.evaluated[:4], scores=scores)
        measured = msgspec.structs.replace(run, curves=curves)
        return msgspec.structs.replace(found, outcome=CellOutcome(measured=measured))

    fast = compared(grid, results(grid, make)).arms[1]
    assert fast.values["time_to_0.01"].n == 4
    assert fast.reached["time_to_0.01"] == "4/4"
    assert fast.missing["time_to_0.01"].reason.startswith("it has fewer than 5 evaluations")


def test_a_grid_in_which_all_cells_failed_has_a_report(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    none = compared(grid, results(grid, lambda arm, seed: result(arm, seed, problem="no")))
    assert none.metrics == []
    for text in (plain(none), tex(none), metrics_csv(none), cells_csv(none)):
        assert text


def test_the_table_has_a_line_for_every_arm(comparison: Comparison) -> None:
    lines = plain(comparison).splitlines()
    (overview,) = (line for line in lines if line.startswith("  rbcs_f_V-5 ") and "10" in line[:24])
    mean_s = comparison.arms[1].values["virtual_s"].mean
    assert overview.split()[:4] == ["rbcs_f_V-5", "10", "0.15", f"{mean_s:.1f}+"]
    assert any("-10.0 [-10.1, -9.9]" in line or "% [-3" in line for line in lines)


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


def metric_of(digits: int, scale: Literal["linear", "log"] = "linear") -> MetricSummary:
    return MetricSummary(
        key="m",
        group="time",
        heading="a metric",
        short="m",
        unit="",
        better="less",
        digits=digits,
        is_tested=True,
        scale=scale,
        lowest=None,
        highest=None,
    )


def difference(mean: float, low: float | None, high: float | None) -> Difference:
    return Difference(
        mean=mean,
        low=low,
        high=high,
        is_clipped=False,
        n=9,
        resolution=0.0,
        p=0.01,
        p_family=0.02,
        judgement="worse",
        reason="",
    )


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (-1234.56, -1300.0, -1200.0, "-1,234.6 [-1,300.0, -1,200.0]"),
        (0.0123, 0.011, 0.014, "+0.0123 [+0.0110, +0.0140]"),
        (0.0, 0.0, 0.0, "+0.0 [+0.0, +0.0]"),
        (1e-9, 1e-9, 1e-9, "+0.000000 [+0.000000, +0.000000]"),
    ],
)
def test_a_small_difference_is_not_shown_as_none(
    mean: float, low: float, high: float, text: str
) -> None:
    assert str(shown_number(difference(mean, low, high), metric_of(1))) == text


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (0.8132, 0.7961, 0.8311, "0.813 [0.796, 0.831]"),
        (0.8614, 0.8607, 0.8622, "0.86140 [0.86070, 0.86220]"),
        (3274.5, 3252.5, 3296.5, "3,274 [3,252, 3,296]"),
        (0.35, None, None, "0.35"),
    ],
)
def test_a_paper_has_two_significant_digits_of_half_the_interval(
    mean: float, low: float | None, high: float | None, text: str
) -> None:
    found = Estimate(mean=mean, low=low, high=high, is_clipped=False, n=5)
    assert str(shown_number(found, metric_of(1), by_interval=True)) == text


def test_a_relative_difference_is_in_percent() -> None:
    shown = shown_number(difference(-0.4876, -0.491, -0.484), metric_of(1, "log"))
    assert str(shown) == "-48.8 % [-49.1, -48.4]"


def test_csv_reads_back(comparison: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(metrics_csv(comparison))))
    (row,) = (r for r in rows if (r["arm"], r["metric"]) == (FAST, "virtual_s"))
    assert float(row["difference"]) == comparison.arms[1].differences["virtual_s"].mean
    assert (row["n"], row["seeds"], row["judgement"]) == ("10", "10", "better")
    assert (row["scale"], row["difference_n"], row["no_verdict"]) == ("log", "10", "")
    cells = list(csv.DictReader(io.StringIO(cells_csv(comparison))))
    assert len(cells) == 30
    assert float(cells[0]["virtual_s"]) == comparison.cells[0].values["virtual_s"]


def steps_compared(tmp_path: Path, uniform: str, shared: str = "") -> Comparison:
    """Return a comparison with keys for the arm `uniform`, and others for all arms."""
    text = GRID.format(seeds=5, target="").replace('"uniform" }', f'"uniform", {uniform} }}')
    text = text.replace("[experiment]", f"[experiment]\naggregation = {{ {shared} }}")
    path = tmp_path / "grid.toml"
    path.write_text(text, encoding="utf-8")
    grid = load_grid(path)
    return compared(grid, results(grid, lambda arm, seed: result(arm, seed, slope=0.05)))


COREFED = '"aggregation.rule" = "corefed"'


def test_arms_with_steps_of_another_length_give_a_warning(tmp_path: Path) -> None:
    """CoreFed at M = 5 takes a third of FedAvg's step, and looks worse for that alone."""
    found = steps_compared(tmp_path, f'{COREFED}, "aggregation.M" = 5.0')
    line = (
        f'aggregation.step: as-published (set by rule "corefed") in uniform; as-published in {FAST}'
    )
    assert line in plain(found)
    assert [arm.rescaled_by for arm in found.arms] == [['rule "corefed"'], [], []]
    (warning,) = [one for one in found.warnings if one.startswith("step: ")]
    assert f'other lengths in uniform (rule "corefed"), beside {FAST}, {FASTER}: ' in warning
    assert warning in plain(found)
    untrained = compared(load_grid(tmp_path / "grid.toml"), [])
    assert untrained.steps == ""
    assert not any("step: " in one for one in untrained.warnings)


@pytest.mark.parametrize(
    ("uniform", "shared", "line"),
    [
        ('"aggregation.rule" = "fedavg"', "", ""),
        (f'{COREFED}, "aggregation.step" = "normalised"', "", "aggregation.step: normalised in "),
        (
            '"selection.V" = 1.0',
            'rule = "corefed"',
            'aggregation.step: as-published (set by rule "corefed") in all arms',
        ),
    ],
    ids=["means", "normalised", "one law"],
)
def test_arms_whose_steps_have_one_law_give_no_warning(
    tmp_path: Path, uniform: str, shared: str, line: str
) -> None:
    found = steps_compared(tmp_path, uniform, shared)
    assert not any(one.startswith("step: ") for one in found.warnings)
    assert found.steps.startswith(line)
    assert bool(found.steps) == bool(line)


def test_one_rule_with_two_bounds_has_steps_of_two_lengths(tmp_path: Path) -> None:
    found = steps_compared(tmp_path, '"aggregation.M" = 9.0', 'rule = "corefed"')
    assert any(one.startswith("step: ") for one in found.warnings)


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
    assert latex(line) in tex(trained)
    assert plain(trained).splitlines()[1].split()[3] == "weights"
    untrained = compared(grid, results(grid, lambda arm, seed: result(arm, seed)))
    assert "weights" not in plain(untrained)
    same = grid_of(tmp_path, seeds=5)
    trained = compared(same, results(same, lambda arm, seed: result(arm, seed, slope=0.05)))
    assert "aggregation.weights: n (default of fedavg) in all arms" in plain(trained)


def test_the_order_in_which_cells_end_changes_nothing(tmp_path: Path) -> None:
    def make(arm: str, seed: int) -> CellResult:
        made = result(arm, seed, accuracy_mean=0.1 * seed)
        assert made.outcome.measured is not None
        warned = msgspec.structs.replace(made.outcome.measured, warnings={"kind": f"{arm} {seed}"})
        outcome = msgspec.structs.replace(made.outcome, measured=warned)
        return msgspec.structs.replace(made, outcome=outcome)

    grid = grid_of(tmp_path, seeds=3)
    found = results(grid, make)
    assert msgspec.json.encode(compared(grid, found[::-1])) == msgspec.json.encode(
        compared(grid, found)
    )
