"""Spans of time drawn as a row of character cells, at a resolution of an eighth of a cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairbed.coordinator.tui.phase_spans import OVER, Span

EIGHTHS = " ▏▎▍▌▋▊▉█"
"""Block i fills i eighths of a cell from the left."""


@dataclass(frozen=True, slots=True)
class BarCell:
    """One character: `glyph` in the colour of one phase on the colour of another."""

    glyph: str
    foreground: str | None
    """Phase; None for the background of the widget."""
    background: str | None
    """Phase; None for the background of the widget."""


def bar(
    spans: Sequence[Span], scale_s: float, width: int, letters: Mapping[str, str] | None = None
) -> list[BarCell]:
    """Draw spans that do not overlap, in order, `scale_s` seconds over `width` cells.

    Each span takes at least an eighth of a cell, if necessary at the cost of the next one.

    Args:
        spans: The spans.
        scale_s: Duration of the whole width, seconds.
        width: Cells.
        letters: Letter of each phase, to fill a cell with that of its longest phase; without them
            colours alone distinguish phases.
    """
    eighths: list[str | None] = [None] * (8 * width)
    filled = 0
    for span in spans:
        if span.phase == OVER:
            continue
        start = max(round(8 * width * span.start_s / scale_s), filled) if scale_s > 0 else 0
        end = round(8 * width * span.end_s / scale_s) if scale_s > 0 else 0
        end = min(max(end, start + 1), len(eighths))
        eighths[start:end] = [span.phase] * max(end - start, 0)
        filled = max(filled, end)
    cells = [eighths[8 * i : 8 * i + 8] for i in range(width)]
    return [_cell(cell) if letters is None else _lettered(cell, letters) for cell in cells]


def gauge(ratio: float, width: int) -> str:
    """Return a bar of `width` cells that is filled to `ratio`, 0 to 1."""
    filled = round(8 * width * min(max(ratio, 0.0), 1.0))
    whole, rest = divmod(filled, 8)
    return ("█" * whole + (EIGHTHS[rest] if rest else "")).ljust(width)


def _cell(eighths: Sequence[str | None]) -> BarCell:
    """Reduce eight eighths to two colours: that of the first, and the most frequent other."""
    first = eighths[0]
    rest = [phase for phase in eighths if phase != first]
    if not rest:
        return BarCell(" " if first is None else "█", first, None)
    other = max(dict.fromkeys(rest), key=rest.count)
    return BarCell(EIGHTHS[8 - len(rest)], first, other)


def _lettered(eighths: Sequence[str | None], letters: Mapping[str, str]) -> BarCell:
    """Reduce eight eighths to the letter of the most frequent phase."""
    phases = [phase for phase in eighths if phase is not None]
    if not phases:
        return BarCell(" ", None, None)
    longest = max(dict.fromkeys(phases), key=phases.count)
    return BarCell(letters[longest], longest, None)
