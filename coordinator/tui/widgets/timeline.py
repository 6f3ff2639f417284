"""Timeline of rounds: one bar per exchange, one colour per phase."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, zip_longest
from textwrap import wrap
from typing import ClassVar, NamedTuple, TypeAlias

from rich.markup import escape
from rich.segment import Segment
from rich.style import Style
from textual.events import Resize
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from fairbed.coordinator.report.quantities import device_time, energy, seconds
from fairbed.coordinator.tui.bars import bar
from fairbed.coordinator.tui.phase_spans import MISSED, PHASES
from fairbed.coordinator.tui.view import ExchangeView, RoundView, RunView

NAME_WIDTH = 16
"""Columns for device names; more if the bars keep two thirds of the line."""
NUMBER_WIDTH = 6
MIN_BAR_WIDTH = 8
MIN_ROUND_HEIGHT = 3
"""Lines needed to start a round: its title and two exchanges."""
SHORT = {
    "download": "down",
    "decode": "dec",
    "evaluate": "eval",
    "personal": "own",
    "encode": "enc",
    "queued": "wait",
    "upload": "up",
}
"""Short phase names for a legend that is too wide."""
LINES_CACHED = 512
"""Lines of exchanges in the cache: a few screens."""


class StyledText(NamedTuple):
    """Characters of one style."""

    text: str
    foreground: str | None = ""
    """Component class without its prefix; "" is the widget's style, None its background."""
    background: str | None = None
    """Component class of the background colour; None is the widget's background."""


Line: TypeAlias = tuple[StyledText, ...]


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
    waiting: reactive[str] = reactive("", repaint=False)
    """The report of the wait for round 1, shown while there is no round."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = self._title = "Rounds by phase"
        self._lines: Sequence[Line] = ()

    def show(self, view: RunView) -> None:
        """Show aggregation, epsilon, energy, device-seconds and newest round in the border."""
        steps = view.info.plan.steps if view.info else ""
        title = f"Rounds by phase · {escape(steps)}" if steps else "Rounds by phase"
        if title != self._title:
            self.border_title = self._title = title
        newest = f"round {view.rounds[-1].round}" if view.rounds else ""
        spent = f"{device_time(view.device_s)} device-seconds · " if view.device_s else ""
        if view.energy_j is not None:
            spent = f"{energy(view.energy_j)} · {spent}"
        if view.epsilon is not None:
            spent = f"epsilon ≤ {view.epsilon:.3g} · {spent}"
        if spent + newest != (self.border_subtitle or ""):
            self.border_subtitle = spent + newest
        self.waiting = view.waiting
        self.rounds = view.rounds

    def watch_rounds(self, rounds: tuple[RoundView, ...]) -> None:
        """Draw the changed lines."""
        if self.is_on_screen:
            self._draw()

    def watch_waiting(self) -> None:
        """Draw the new report."""
        if self.is_on_screen:
            self._draw()

    def on_resize(self, _event: Resize) -> None:
        """Draw all lines again; a hidden timeline is drawn when it is shown."""
        self._draw()

    def render_line(self, y: int) -> Strip:
        """Return one line of the timeline."""
        base, width = self.rich_style, self.content_size.width
        if y >= len(self._lines):
            return Strip.blank(width, base)
        segments = [Segment(part.text, base + self._style(part)) for part in self._lines[y]]
        return Strip(segments).adjust_cell_length(width, base)

    def _draw(self) -> None:
        width, height = self.content_size
        before = self._lines
        self._lines = timeline_lines(self.rounds, width, height, self.waiting)
        for y, (old, new) in enumerate(zip_longest(before, self._lines)):
            if old != new:
                self.refresh(Region(0, y, self.content_size.width, 1))

    def _style(self, part: StyledText) -> Style:
        background = Style.null()
        if part.background:
            background = Style(bgcolor=self._component(part.background).color)
        if part.foreground is None:
            return Style(color=self.rich_style.bgcolor) + background
        return (self._component(part.foreground) if part.foreground else Style.null()) + background

    def _component(self, name: str) -> Style:
        return self.get_component_rich_style(f"timeline--{name}", partial=True)


def timeline_lines(
    rounds: tuple[RoundView, ...], width: int, height: int, waiting: str = ""
) -> list[Line]:
    """Return the lines of as many rounds as fit into `width` columns and `height` lines.

    Without a round they are `waiting`, the report of the wait for round 1.
    """
    shown = fitting(rounds, height - 1)
    if not shown:
        report = "" if rounds else waiting
        parts = wrap(report or "no round yet", max(1, width))
        return [(StyledText(part, "dim"),) for part in parts[: max(1, height)]]
    scale_s = max(
        [round_.duration_s for round_ in shown]
        + [x.spans[-1].end_s for r in shown for x in r.exchanges if x.spans]
    )
    name_width = width_of_names([x.device for r in shown for x in r.exchanges], width)
    phases = {span.phase for r in shown for x in r.exchanges for span in x.spans}
    lines = [legend(width, is_personal="personal" in phases)]
    for round_ in shown:
        lines.append(title_line(round_))
        lines += [exchange_line(x, scale_s, name_width, width) for x in round_.exchanges]
    return lines[:height]


@lru_cache(maxsize=8)
def legend(width: int, *, is_personal: bool = False) -> Line:
    """Return the names of the phases beside their colours, shortened if they do not fit.

    Args:
        width: Columns.
        is_personal: Some exchange trained a personal model; few runs have that phase.
    """
    for names in ({}, SHORT):
        parts = tuple(
            part
            for phase in PHASES
            if is_personal or phase != "personal"
            for part in (StyledText("■ ", phase), StyledText(f"{names.get(phase, phase)} ", "dim"))
        )
        if sum(len(part.text) for part in parts) <= width:
            break
    return parts


def title_line(round_: RoundView) -> Line:
    """Return the title of a round: its number, duration and result."""
    done = sum(x.outcome == "done" for x in round_.exchanges)
    if round_.status == "open":
        result = f"open for {seconds(round_.duration_s)} s"
    elif not round_.exchanges:
        result = f"void, no device available for {seconds(round_.duration_s)} s"
    else:
        result = f"{seconds(round_.duration_s)} s, {done} of {len(round_.exchanges)} aggregated"
    return (StyledText(f"round {round_.round} ", "title"), StyledText(result, "dim"))


@lru_cache(maxsize=LINES_CACHED)
def exchange_line(exchange: ExchangeView, scale_s: float, name_width: int, width: int) -> Line:
    """Return the name of a device, its bar, and its exchange time or outcome."""
    bar_width = max(width - name_width - NUMBER_WIDTH, 1)
    cells = bar(exchange.spans, scale_s, bar_width)
    colours = groupby(cells, key=lambda cell: (cell.foreground, cell.background))
    parts = [
        StyledText("".join(cell.glyph for cell in same), foreground, background)
        for (foreground, background), same in colours
    ]
    if exchange.outcome in ("", "done"):
        end = StyledText((seconds(exchange.tau_s) if exchange.outcome else "…").rjust(NUMBER_WIDTH))
    else:
        end = StyledText(exchange.outcome[: NUMBER_WIDTH - 1].rjust(NUMBER_WIDTH), "bad")
    name = shortened(exchange.device, name_width - 1).ljust(name_width)
    return (StyledText(name), *parts, end)


def width_of_names(names: Sequence[str], width: int) -> int:
    """Return the columns for device names out of `width`, including the space after them."""
    longest = max((len(name) + 1 for name in names), default=0)
    wanted = max(NAME_WIDTH, min(longest, width // 3))
    return min(wanted, max(width - NUMBER_WIDTH - MIN_BAR_WIDTH, 0))


def shortened(name: str, width: int) -> str:
    """Return a name in at most `width` characters; a longer one keeps its end, which is unique."""
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
