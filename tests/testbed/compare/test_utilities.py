"""Ratio sums and core margins of arms against the tables of CoreFed, and why there is none."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.grid import Grid, load_grid
from fairbed.testbed.compare.measures import CORE_MARGIN, RATIO_SUM
from fairbed.testbed.compare.statistics import dominators
from fairbed.testbed.compare.table import metrics_csv, plain
from fairbed.testbed.compare.utilities import (
    ALONE,
    NOT_ALL,
    OTHER_DEVICES,
    UNKNOWN,
    Losses,
    pairs_of,
    utilities_of,
)
from tests.testbed.compare.results import compared, result, results

PAPER = {
    "Adult": ([2.59, 0.77, 1.46], [2.62, 0.90, 1.53], 2.798, 1.0116),
    "MNIST": ([0.34, 0.29, 0.92], [0.36, 0.41, 0.91], 2.663, 0.989),
    "CIFAR-10": ([0.63, 1.40, 0.51], [0.73, 1.35, 0.71], 2.618, 0.964),
    "noisy": ([3.28, 3.30, 1.42], [3.26, 3.27, 1.95], 2.744, 0.991),
    "ten agents": (
        [2.11, 2.30, 3.04, 3.28, 1.15, 2.70, 2.00, 2.72, 2.76, 3.14],
        [2.26, 2.50, 3.12, 3.32, 1.42, 2.50, 1.99, 2.80, 2.65, 2.99],
        9.774,
        0.926,
    ),
}
"""Utilities of FedAvg and of CoreFed, the ratio sum, and the core margin of FedAvg's row with
CoreFed's as the other model: Ray Chaudhury et al., Tables 1, 3 and 4."""
M = 5.0


def losses(utilities: list[float]) -> Losses:
    return {f"agent-{at}": M - u for at, u in enumerate(utilities)}


@pytest.mark.parametrize("name", PAPER)
def test_the_tables_of_the_paper(name: str) -> None:
    fedavg, corefed, ratio_sum, margin = PAPER[name]
    found = pairs_of({"fedavg": losses(fedavg), "corefed": losses(corefed)}, M, "fedavg")
    assert found["corefed"][RATIO_SUM] == pytest.approx(ratio_sum, abs=1e-3)
    assert found["fedavg"][CORE_MARGIN] == pytest.approx(margin, abs=1e-3)
    assert found["fedavg"][RATIO_SUM] == len(fedavg)


def test_the_margin_is_that_of_the_best_other_arm() -> None:
    """(1.6, 1.5, 0.5) / 1: two of three devices gain half again, which is their share."""
    seed = {
        "a": losses([1.0, 1.0, 1.0]),
        "b": losses([1.6, 1.5, 0.5]),
        "c": losses([1.1, 0.9, 0.8]),
    }
    assert pairs_of(seed, M, "a")["a"][CORE_MARGIN] == pytest.approx(1.0)
    alone = pairs_of({k: seed[k] for k in "ac"}, M, "a")["a"][CORE_MARGIN]
    assert alone == pytest.approx(0.8), "all three would have to accept 0.8"


def test_why_there_is_none() -> None:
    one, high = losses([1.0, 2.0]), losses([-0.5, 2.0])
    diverged = {**one, "agent-0": None}
    assert pairs_of({"a": one}, M, "a")["a"] == {RATIO_SUM: 2.0, CORE_MARGIN: ALONE}
    assert pairs_of({"a": one, "b": None}, M, "a").keys() == {"a"}, "b has failed"
    assert pairs_of({"a": one, "b": None}, M, "a")["a"][CORE_MARGIN] == NOT_ALL
    assert pairs_of({"a": one, "b": {}}, M, "a")["b"][CORE_MARGIN] == UNKNOWN
    other = {"agent-0": 0.1, "agent-7": 0.1}
    assert pairs_of({"a": one, "b": other}, M, "a")["b"][RATIO_SUM] == OTHER_DEVICES
    for bad in (high, diverged):
        found = pairs_of({"a": bad, "b": one}, M, "b")["a"]
        assert found[CORE_MARGIN] == "the loss of a device is at least aggregation.M = 5"
    found = pairs_of({"a": diverged, "b": one}, M, "a")["b"]
    assert found[RATIO_SUM] == "the baseline has diverged"
    assert found[CORE_MARGIN] == pytest.approx(0.5), "no device gains by a model that diverged"
    assert set(utilities_of(high, M).values()) == {
        "the loss of a device is at least aggregation.M = 5"
    }
    assert set(utilities_of({}, M).values()) == {UNKNOWN}
    many = {f"device-{at}": 0.0 for at in range(800)}
    assert "too large" in str(utilities_of(many, M)["utility_product"])


GRID = """
name = "served"
seeds = {seeds}
set = {{ "replay.training" = true }}
{more}
[[arm]]
name = "fedavg"
[[arm]]
name = "ditto"
set = {{ {own} }}
[[arm]]
name = "corefed"
set = {{ "aggregation.rule" = "corefed", "aggregation.M" = {M} }}
[experiment]
[experiment.selection]
per_round = 1
[[experiment.fleet]]
count = 3
"""
DITTO = '"personalisation.method" = "ditto"'


def grid_of(folder: Path, more: str = "", own: str = DITTO, M: float = 3.0, seeds: int = 6) -> Grid:
    path = folder / "grid.toml"
    text = GRID.format(more=more, own=own, M=M, seeds=seeds)
    path.write_text(text, encoding="utf-8")
    return load_grid(path)


MEANS = {"fedavg": 0.80, "ditto": 0.90, "corefed": 0.78}
WORST = {"fedavg": 0.50, "ditto": 0.70, "corefed": 0.55}


def cell(arm: str, seed: int, **values: Any) -> CellResult:
    noise = 0.3 if (arm, seed) == ("fedavg", 5) else 0.002 * seed
    found = result(
        arm,
        seed,
        slope=0.08,
        accuracy_mean=0.8,
        accuracy_worst10=0.5,
        served_accuracy_mean=MEANS[arm] + noise,
        served_accuracy_worst10=WORST[arm] + noise,
        **values,
    )
    u = {"fedavg": [2.0, 1.0], "ditto": [2.0, 1.0], "corefed": [1.9, 1.4]}[arm]
    measured = found.outcome.measured
    assert measured is not None
    own = {f"d{at}": 3.0 - one for at, one in enumerate(u)}
    outcome = msgspec.structs.replace(
        found.outcome, measured=msgspec.structs.replace(measured, losses=own)
    )
    return msgspec.structs.replace(found, outcome=outcome)


def test_a_grid_states_what_dominates_what_and_how_utilities_are_counted(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    found = compared(grid, results(grid, cell))
    text = plain(found)
    by_name = {arm.name: arm for arm in found.arms}
    assert found.pareto == ["served_accuracy_mean", "served_accuracy_worst10"]
    assert by_name["ditto"].dominated_by == {}
    assert by_name["fedavg"].dominated_by == {"ditto": "5/6"}
    assert by_name["corefed"].dominated_by == {"ditto": "6/6"}
    assert "Pareto front: served accuracy against served worst 10 %, by means, not tested" in text
    assert re.search(r"fedavg +0\.853 +0\.553 +no +ditto \(5/6 seeds\)", text)
    assert by_name["corefed"].values[RATIO_SUM].mean == pytest.approx(2 / 1.9 + 1 / 1.4)
    assert by_name["fedavg"].values[RATIO_SUM].mean == 2.0
    assert by_name["fedavg"].values[CORE_MARGIN].mean == 1.0, "Ditto has the same global model"
    assert by_name["corefed"].values[CORE_MARGIN].mean == pytest.approx(1 / 1.4)
    assert "of the global model on held-out examples, M = 3 (that of all)" in text
    assert "core margin" in metrics_csv(found).replace("core_margin", "core margin")


def test_metrics_that_are_only_shown_have_intervals_and_no_part_in_the_family(
    tmp_path: Path,
) -> None:
    grid = grid_of(tmp_path)
    plain_family = compared(grid, results(grid, cell)).comparisons
    more = compared(
        grid, results(grid, lambda arm, seed: cell(arm, seed, utility_least=1.0 + 0.1 * seed))
    )
    gap = {arm.name: arm for arm in more.arms}["ditto"].differences["utility_least"]
    assert (gap.p, gap.p_family, gap.judgement, gap.reason) == (None, None, "no verdict", "")
    assert gap.low is not None
    assert more.comparisons == plain_family
    text = plain(more)
    assert "served: means over seeds, whose differences are not tested unless a grid" in text
    assert re.search(r"ditto +0\.\d+ \[.*not tested", text)
    assert "No verdict:" not in text
    declared = grid_of(tmp_path, 'primary = "served_accuracy_mean"')
    tested = compared(declared, results(declared, cell))
    gap = {arm.name: arm for arm in tested.arms}["corefed"].differences["served_accuracy_mean"]
    assert gap.p_family is not None
    assert tested.comparisons == plain_family + 2


def test_without_personal_models_the_served_ones_are_the_global_ones(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, own='"aggregation.rule" = "term"')
    found = compared(grid, results(grid, cell))
    assert found.pareto == ["accuracy_mean", "accuracy_worst10"]
    assert not [metric.key for metric in found.metrics if metric.group == "served"]
    with pytest.raises(Exception, match="primary: must be a metric of this grid, got 'served_"):
        grid_of(tmp_path, 'primary = "served_accuracy_mean"', '"aggregation.rule" = "term"')


def test_utilities_of_arms_have_one_m(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, 'report = ["core_margin"]', M=4.0)

    def make(arm: str, seed: int) -> CellResult:
        return cell(arm, seed, utility_average=-1.0, utility_least=-1.0)

    found = compared(grid, results(grid, make))
    values = {arm.name: arm.values for arm in found.arms}
    assert values["fedavg"]["utility_average"].mean == pytest.approx(2.5)
    assert values["corefed"]["utility_least"].mean == pytest.approx(2.4)
    assert "M = 4 (the largest aggregation.M of the arms, for all of them)" in found.utilities
    assert "core_margin" in found.report
    other = grid_of(tmp_path, own='"model.name" = "softmax"')
    apart = compared(other, results(other, cell))
    assert CORE_MARGIN not in [metric.key for metric in apart.metrics]
    assert apart.cells[0].missing == {} or "core" not in json.dumps(apart.cells[0].missing)
    assert apart.utilities == ""


def test_one_arm_dominates_another_by_means_over_the_seeds_of_both() -> None:
    nan = np.nan
    scores = np.array([[[1.0, 2.0, nan], [1.5, 1.5, 9.0]], [[0.5, 0.5, nan], [0.5, 0.6, 0.0]]])
    assert dominators(scores, 0) == [(1, 1, 2)]
    assert dominators(scores, 1) == []
    assert dominators(scores[:, :1], 0) == [], "equal scores do not"
    lonely = np.full((2, 2, 3), nan)
    assert dominators(lonely, 0) == []
