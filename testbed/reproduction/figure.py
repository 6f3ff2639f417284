"""A figure of a study: the published numbers beside ours, one part for each panel."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairbed.coordinator.report.figure_style import COLOURS, INK, SIZE_IN, save, styled
from fairbed.testbed.reproduction.measures import MEASURES
from fairbed.testbed.reproduction.results import PanelResult, StudyResult

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

ROW_IN, HEAD_IN, LEGEND_IN = 0.26, 0.75, 0.3
"""Height of a row, of the title and axis of a part, and of the legend, inches."""


def figure_svg(result: StudyResult) -> bytes | None:
    """Return the figure as SVG; None if no panel has a number.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    shown = [(panel, _metric(result, panel)) for panel in result.panels if _has_numbers(panel)]
    if not shown:
        return None
    heights = [HEAD_IN + ROW_IN * len(panel.rows) for panel, _ in shown]
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(SIZE_IN[0], LEGEND_IN + sum(heights)))
        parts = figure.subplots(
            len(shown), 1, squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        for axes, (panel, metric) in zip(parts[:, 0], shown, strict=True):
            _draw(axes, panel, metric)
        handles, labels = _entries(list(parts[:, 0]))
        figure.legend(handles, labels, loc="outside upper left", ncols=2)
        file = io.BytesIO()
        save(figure, file, "svg")
    return file.getvalue()


def _entries(parts: "Sequence[Axes]") -> "tuple[list[Artist], list[str]]":
    """Return what the legend explains, each once: a part without published numbers lacks one."""
    found = {
        label: handle
        for axes in parts
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    return list(found.values()), list(found)


def _has_numbers(panel: PanelResult) -> bool:
    return any(n.mean is not None for row in panel.rows for n in row.numbers.values())


def _metric(result: StudyResult, panel: PanelResult) -> str:
    """Return the metric of the first claim about a panel, if it is a column; else the first."""
    of_claims = (claim.metric for claim in result.claims if claim.panel == panel.name)
    return next((metric for metric in of_claims if metric in panel.metrics), panel.metrics[0])


def _draw(axes: "Axes", panel: PanelResult, metric: str) -> None:
    numbers = [row.numbers[metric] for row in panel.rows]
    published = [(y, n.published) for y, n in enumerate(numbers) if n.published is not None]
    ours = [(y, n) for y, n in enumerate(numbers) if n.mean is not None]
    if published:
        axes.plot(
            [x for _, x in published],
            [y for y, _ in published],
            linestyle="none",
            marker="D",
            color=INK,
            fillstyle="none",
            label="source",
        )
    axes.plot(
        [n.mean for _, n in ours if n.mean is not None],
        [y for y, _ in ours],
        linestyle="none",
        marker="o",
        color=COLOURS[0],
        label="here, 95 % interval over seeds",
    )
    for y, number in ours:
        if number.low is not None and number.high is not None:
            axes.plot([number.low, number.high], [y, y], color=COLOURS[0])
    measure = MEASURES[metric]
    axes.set_yticks(range(len(numbers)), [row.label for row in panel.rows])
    axes.set_ylim(len(numbers) - 0.5, -0.5)
    axes.set_xlabel(f"{measure.heading}, {measure.unit}" if measure.unit else measure.heading)
    axes.set_title(panel.title, loc="left")
