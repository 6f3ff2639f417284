"""Where the time of a round went: each exchange a bar, each phase a colour."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, zip_longest
from typing import ClassVar, NamedTuple, TypeAlias

from rich.segment import Segment
from rich.style import Style
from textual.events import Resize
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from fairbed.coordinator.report.quantities import seconds
from fairbed.coordinator.tui.bars import bar
from fairbed.coordinator.tui.phase_spans import MISSED, PHASES
from fairbed.coordinator.tui.view import ExchangeView, RoundView

NAME_WIDTH = 16
"""Always granted to names; more where that leaves the bars two thirds of the line."""
NUMBER_WIDTH = 6
MIN_BAR_WIDTH = 8
MIN_ROUND_HEIGHT = 3
"""A round is begun where its title and two exchanges fit."""
SHORT = {
    "download": "down",
    "decode": "dec",
    "evaluate": "eval",
    "encode": "enc",
    "queued": "wait",
    "upload": "up",
}
"""Names in the legend where the whole ones do not fit."""
LINES_KEPT = 512
"""Exchanges whose lines need not be drawn again; some screens full."""


class Run(NamedTuple):
    """Characters of one style."""

    text: str
    ink: str | None = ""
    """Component class without its prefix; empty is the widget's own, None its background."""
    paper: str | None = None
    """Component class whose colour lies behind; None is the widget's own background."""


Line: TypeAlias = tuple[Run, ...]


class RoundTimeline(Widget):
    """The newest rounds, newest first, all on one scale; only lines that changed are drawn."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"timeline--{phase}" for phase in (*PHASES, MISSED)),
        "timeline--title",
        "timeline--dim",
        "timeline--bad",
    }

    rounds: reactive[tuple[RoundView, ...]] = reactive((), repaint=False)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Rounds by phase"
        self._lines: Sequence[Line] = ()

    def watch_rounds(self, rounds: tuple[RoundView, ...]) -> None:
        """Draw what is new, and say below which round is shown."""
        newest = f"round {rounds[-1].round}" if rounds else ""
        if newest != (self.border_subtitle or ""):
            self.border_subtitle = newest
        if self.is_on_screen:
            self._draw()

    def on_resize(self, _event: Resize) -> None:
        """Draw everything anew; a hidden timeline is drawn when it is shown."""
        self._draw()

    def render_line(self, y: int) -> Strip:
        """Return one line of the picture."""
        ground, width = self.rich_style, self.content_size.width
        if y >= len(self._lines):
            return Strip.blank(width, ground)
        segments = [Segment(run.text, ground + self._style(run)) for run in self._lines[y]]
        return Strip(segments).adjust_cell_length(width, ground)

    def _draw(self) -> None:
        before, self._lines = self._lines, picture(self.rounds, *self.content_size)
        for y, (old, new) in enumerate(zip_longest(before, self._lines)):
            if old != new:
                self.refresh(Region(0, y, self.content_size.width, 1))

    def _style(self, run: Run) -> Style:
        paper = Style(bgcolor=self._component(run.paper).color) if run.paper else Style.null()
        if run.ink is None:
            return Style(color=self.rich_style.bgcolor) + paper
        return (self._component(run.ink) if run.ink else Style.null()) + paper

    def _component(self, name: str) -> Style:
        return self.get_component_rich_style(f"timeline--{name}", partial=True)


def picture(rounds: tuple[RoundView, ...], width: int, height: int) -> list[Line]:
    """Return the lines of as many rounds as fit into `width` columns and `height` lines."""
    shown = fitting(rounds, height - 1)
    if not shown:
        return [(Run("no round yet", "dim"),)]
    scale_s = max(
        [round_.duration_s for round_ in shown]
        + [x.spans[-1].end_s for r in shown for x in r.exchanges if x.spans]
    )
    name_width = width_of_names([x.device for r in shown for x in r.exchanges], width)
    lines = [legend(width)]
    for round_ in shown:
        lines.append(title_line(round_))
        lines += [exchange_line(x, scale_s, name_width, width) for x in round_.exchanges]
    return lines[:height]


@lru_cache(maxsize=8)
def legend(width: int) -> Line:
    """Return the names of the phases beside their colours, shortened where they do not fit."""
    for names in ({}, SHORT):
        runs = tuple(
            run
            for phase in PHASES
            for run in (Run("■ ", phase), Run(f"{names.get(phase, phase)} ", "dim"))
        )
        if sum(len(run.text) for run in runs) <= width:
            break
    return runs


def title_line(round_: RoundView) -> Line:
    """Return the title of a round: its number, duration and result."""
    done = sum(x.outcome == "done" for x in round_.exchanges)
    if round_.status == "open":
        what = f"open for {seconds(round_.duration_s)} s"
    elif not round_.exchanges:
        what = f"void, no device available for {seconds(round_.duration_s)} s"
    else:
        what = f"{seconds(round_.duration_s)} s, {done} of {len(round_.exchanges)} aggregated"
    return (Run(f"round {round_.round} ", "title"), Run(what, "dim"))


@lru_cache(maxsize=LINES_KEPT)
def exchange_line(exchange: ExchangeView, scale_s: float, name_width: int, width: int) -> Line:
    """Return the name of a device, its bar, and its exchange time or outcome."""
    bar_width = max(width - name_width - NUMBER_WIDTH, 1)
    cells = bar(exchange.spans, scale_s, bar_width)
    runs = [
        Run("".join(cell.glyph for cell in same), ink, paper)
        for (ink, paper), same in groupby(cells, key=lambda cell: (cell.ink, cell.paper))
    ]
    if exchange.outcome in ("", "done"):
        end = Run((seconds(exchange.tau_s) if exchange.outcome else "…").rjust(NUMBER_WIDTH))
    else:
        end = Run(exchange.outcome[: NUMBER_WIDTH - 1].rjust(NUMBER_WIDTH), "bad")
    name = shortened(exchange.device, name_width - 1).ljust(name_width)
    return (Run(name), *runs, end)


def width_of_names(names: Sequence[str], width: int) -> int:
    """Return how many of `width` columns names get, with the space after them."""
    longest = max((len(name) + 1 for name in names), default=0)
    wished = max(NAME_WIDTH, min(longest, width // 3))
    return min(wished, max(width - NUMBER_WIDTH - MIN_BAR_WIDTH, 0))


def shortened(name: str, width: int) -> str:
    """Return a name in at most `width` characters; its end tells devices of a kind apart."""
    if len(name) <= width:
        return name
    return f"…{name[len(name) - width + 1 :]}" if width > 0 else ""


def fitting(rounds: tuple[RoundView, ...], height: int) -> list[RoundView]:
    """Return the newest rounds for `height` lines, newest first; the last one may be cut."""
    kept: list[RoundView] = []
    for round_ in reversed(rounds):
        if height < min(1 + len(round_.exchanges), MIN_ROUND_HEIGHT):
            break
        kept.append(round_)
        height -= 1 + len(round_.exchanges)
    return kept
