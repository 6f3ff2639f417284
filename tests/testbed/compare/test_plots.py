"""The figures of a comparison: every arm is in each, and nine arms are readable."""

from collections.abc import Callable
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fairbed.coordinator.report.figure_style import styled
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.comparison import Comparison
from fairbed.testbed.compare.plots import by_round, figures_of
from tests.testbed.compare.results import compared, grid_of, result, results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytestmark = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="the extra `figures` is not installed"
)
NINE = """
set = { "replay.training" = true }
[[arm]]
name = "an-arm-with-quite-a-long-name"
axes = { "aggregation.rule" = ["fedavg", "q-fedavg"], "selection.V" = [1, 2, 5, 10] }
"""


def nine(tmp_path: Path) -> tuple[Comparison, list[CellResult]]:
    """Return the comparison of eleven arms: one lacks its accuracy in two seeds, one a run."""
    grid = grid_of(tmp_path, 5, NINE)
    lacks = grid.arms[3].name

    def make(arm: str, seed: int) -> CellResult:
        if arm == grid.arms[0].name and seed == 4:
            return result(arm, seed, problem="a failure")
        is_known = arm != lacks or seed > 1
        return result(
            arm,
            seed,
            slope=0.05 + 0.004 * seed if is_known else None,
            accuracy_mean=0.5 + 0.01 * seed if is_known else None,
            min_rate_selected=0.1 + 0.01 * seed,
            queue_mean_total=5.0 + seed,
        )

    found = results(grid, make)
    return compared(grid, found), found


@pytest.fixture
def drawn(tmp_path: Path) -> Callable[[str], "Figure"]:
    from matplotlib.figure import Figure

    comparison, found = nine(tmp_path)
    paints = figures_of(comparison, found)

    def draw(name: str) -> Figure:
        with styled():
            figure = Figure(figsize=(6.0, 3.8))
            paints[name](figure.add_subplot())
            figure.draw_without_rendering()
        return figure

    return draw


@pytest.mark.parametrize("name", ["accuracy-rounds", "accuracy-time", "front", "queue-against-V"])
def test_every_arm_is_in_the_legend_outside_the_axes(
    name: str, drawn: Callable[[str], "Figure"]
) -> None:
    figure = drawn(name)
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    wanted = 4 if name in ("front", "queue-against-V") else 11
    assert len([label for label in labels if label != "guaranteed"]) == wanted
    (axes,) = figure.axes
    around = axes.get_tightbbox()
    assert around is not None
    assert legend.get_window_extent().y1 <= around.y0 + 1.0
    assert axes.get_window_extent().height > 200.0, "the legend takes no height of the axes"


def test_curves_have_distinct_markers_and_whiskers_at_places_of_their_own(
    drawn: Callable[[str], "Figure"],
) -> None:
    figure = drawn("accuracy-rounds")
    lines = figure.legends[0].get_lines()
    looks = [(str(line.get_marker()), line.get_color(), line.get_linestyle()) for line in lines]
    assert len(set(looks)) == 11
    places = [set(np.round(found[0].get_xdata(), 9)) for found in figure.axes[0].containers]
    assert len(places) == 11
    assert all(len(own) > 3 for own in places)
    assert not any(one & other for one, other in combinations(places, 2))


def test_an_arm_that_lacks_seeds_has_their_number(drawn: Callable[[str], "Figure"]) -> None:
    labels = [text.get_text() for text in drawn("accuracy-rounds").legends[0].get_texts()]
    assert sum(label.endswith(" (n=3/5)") for label in labels) == 1
    beside = [text.get_text() for text in drawn("primary").axes[0].texts]
    assert [text for text in beside if text] == ["n=3/5", "n=4/5"]
    labels = [text.get_text() for text in drawn("front").legends[0].get_texts()]
    assert "an-arm-with-quite-a-long-name_rule-fedavg (n=4/5)" in labels, "a run failed"


def test_seeds_without_a_curve_do_not_hide_those_with_one(tmp_path: Path) -> None:
    _, found = nine(tmp_path)
    of_arm = [
        r.outcome.measured.curves
        for r in found
        if r.outcome.measured is not None and r.arm == found[3].arm
    ]
    curve = by_round(of_arm, "accuracy")
    assert curve is not None
    assert curve.n == 3
