"""Timeline of rounds: one bar per exchange, one colour or letter per phase."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, zip_longest
from textwrap import wrap
from typing import ClassVar, NamedTuple, TypeAlias

from rich.markup import escape
from rich.segment import Segment
from rich.style import Style
from textual.events import Resize
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from fairbed.coordinator.report.quantities import device_time, energy, seconds
from fairbed.coordinator.tui.bars import bar
from fairbed.coordinator.tui.phase_spans import LETTERS, MISSED, PHASES
from fairbed.coordinator.tui.view import ExchangeView, RoundView, RunView
from fairbed.coordinator.tui.widgets.plot import LETTERED

NAME_WIDTH = 16
"""Columns for device names; more if the bars keep two thirds of the line."""
NUMBER_WIDTH = 6
MIN_BAR_WIDTH = 8
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
SHORTEST = {phase: phase[:2] for phase in PHASES}
"""Names for a legend that is too wide even with the short ones."""
READING = "reading"
"""Status of a round whose exchanges have not been read."""
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


class RoundTimeline(ScrollView, can_focus=True):
    """Rounds, newest first, those on the screen on one scale; draws only lines that changed.

    The legend stays while the rounds scroll; scrolled rounds do not move when a new one appears.
    """

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"timeline--{phase}" for phase in (*PHASES, MISSED)),
        "timeline--title",
        "timeline--dim",
        "timeline--bad",
    }

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = self._title = "Rounds by phase"
        self._rounds: tuple[RoundView, ...] = ()
        self._waiting = ""
        self._lines: Sequence[Line] = ()

    def show(self, view: RunView) -> None:
        """Show the rounds of a view that changed."""
        self._show_border(view)
        if (view.rounds, view.waiting) != (self._rounds, self._waiting):
            before, self._rounds, self._waiting = self._rounds, view.rounds, view.waiting
            self.virtual_size = Size(0, 1 + sum(height_of(round_) for round_ in view.rounds))
            if self.scroll_offset.y > 0:
                self.scroll_to(y=self.scroll_offset.y + added(before, view.rounds), animate=False)
            if self.is_on_screen:
                self._draw()

    def _show_border(self, view: RunView) -> None:
        """Show aggregation, epsilon, energy, device-seconds and newest round in the border."""
        steps = view.info.plan.steps if view.info else ""
        title = f"Rounds by phase · {escape(steps)}" if steps else "Rounds by phase"
        if title != self._title:
            self.border_title = self._title = title
        newest = f"round {view.rounds[-1].round}" if view.rounds else ""
        spent = f"{device_time(view.device_s)} device-seconds · " if view.device_s else ""
        if view.energy_j:
            spent = f"{energy(view.energy_j)} · {spent}"
        if view.epsilon is not None:
            spent = f"epsilon ≤ {view.epsilon:.3g} · {spent}"
        if spent + newest != (self.border_subtitle or ""):
            self.border_subtitle = spent + newest

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Draw the lines at the new position."""
        super().watch_scroll_y(old_value, new_value)
        self._draw()

    def watch_show_vertical_scrollbar(self) -> None:
        """Draw all lines in the width that the scrollbar leaves."""
        self._draw()

    def on_resize(self, _event: Resize) -> None:
        """Draw all lines again; a hidden timeline is drawn when it is shown."""
        self._draw()

    def redraw(self) -> None:
        """Draw all lines again, in another theme or with other glyphs."""
        self._draw()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one line of the timeline."""
        base, width = self.rich_style, self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, base)
        segments = [Segment(part.text, base + self._style(part)) for part in self._lines[y]]
        return Strip(segments).adjust_cell_length(width, base)

    def _draw(self) -> None:
        width, height = self.scrollable_content_region.size
        before, self._lines = self._lines, self._lines_in(width, height)
        for y, (old, new) in enumerate(zip_longest(before, self._lines)):
            if old != new:
                self.refresh(Region(0, y, width, 1))

    def _lines_in(self, width: int, height: int) -> Sequence[Line]:
        """Return the lines that are seen now."""
        return timeline_lines(
            self._rounds,
            width,
            height,
            self._waiting,
            first=self.scroll_offset.y,
            is_lettered=self.app.has_class(LETTERED),
        )

    def _style(self, part: StyledText) -> Style:
        background = Style.null()
        if part.background:
            background = Style(bgcolor=self._component(part.background).color)
        if part.foreground is None:
            return Style(color=self.rich_style.bgcolor) + background
        return (self._component(part.foreground) if part.foreground else Style.null()) + background

    def _component(self, name: str) -> Style:
        return self.get_component_rich_style(f"timeline--{name}", partial=True)


def height_of(round_: RoundView) -> int:
    """Return the lines of a round: its title and its exchanges."""
    return 1 + len(round_.exchanges)


def added(before: Sequence[RoundView], after: Sequence[RoundView]) -> int:
    """Return by how many lines the rounds in both have moved down, newest first."""

    def lines_above(rounds: Sequence[RoundView], number: int) -> int:
        return sum(height_of(round_) for round_ in rounds if round_.round > number)

    common = {round_.round for round_ in before} & {round_.round for round_ in after}
    if not common:
        return 0
    return lines_above(after, min(common)) - lines_above(before, min(common))


def timeline_lines(
    rounds: tuple[RoundView, ...],
    width: int,
    height: int,
    waiting: str = "",
    *,
    first: int = 0,
    is_lettered: bool = False,
    marked: int | None = None,
) -> list[Line]:
    """Return the legend and the rounds in `width` columns and `height` lines.

    Without a round they are `waiting`, the report of the wait for round 1; on one or two lines the
    rounds have no legend.

    Args:
        rounds: Oldest first; shown newest first.
        width: Columns.
        height: Lines.
        waiting: The report, or empty.
        first: Number of lines of rounds that are scrolled away.
        is_lettered: Draw each phase with its letter.
        marked: The round under the cursor; None without a cursor.
    """
    if not rounds:
        texts = (waiting or "no round yet").split("\n")
        parts = [part for text in texts for part in wrap(text, max(1, width))]
        others = "" if waiting else "dim"
        return [
            (StyledText(part, others if line or not waiting else "title"),)
            for line, part in enumerate(parts[: max(1, height)])
        ]
    has_legend = height > 2
    shown = window(rounds, first, height - has_legend)
    exchanges = [x for _, xs, _ in shown for x in xs]
    scale_s = max(
        [0.0]
        + [round_.duration_s for round_, xs, _ in shown if xs]
        + [x.spans[-1].end_s for x in exchanges if x.spans]
    )
    name_width = width_of_names([x.device for x in exchanges], width)
    phases = {span.phase for x in exchanges for span in x.spans}
    lines = []
    if has_legend:
        lines.append(legend(width, is_personal="personal" in phases, is_lettered=is_lettered))
    for round_, xs, is_titled in shown:
        if is_titled:
            mark = "" if marked is None else "▸ " if round_.round == marked else "  "
            lines.append(title_line(round_, mark))
        lines += [exchange_line(x, scale_s, name_width, width, is_lettered) for x in xs]
    return lines


def window(
    rounds: Sequence[RoundView], first: int, height: int
) -> list[tuple[RoundView, tuple[ExchangeView, ...], bool]]:
    """Return the rounds in some lines, newest first: the exchanges, and whether the title is there.

    Args:
        rounds: Oldest first.
        first: The first of the lines; line 0 is the title of the newest round.
        height: Number of lines.
    """
    found = []
    start = 0
    for round_ in reversed(rounds):
        if start >= first + height:
            break
        low, high = first - start, first + height - start
        start += height_of(round_)
        if start > first:
            exchanges = round_.exchanges[max(low - 1, 0) : max(high - 1, 0)]
            found.append((round_, exchanges, low <= 0))
    return found


@lru_cache(maxsize=8)
def legend(width: int, *, is_personal: bool = False, is_lettered: bool = False) -> Line:
    """Return the names of the phases beside their colours, shortened if they do not fit.

    Args:
        width: Columns.
        is_personal: Some exchange trained a personal model; few runs have that phase.
        is_lettered: Show the letter of each phase.
    """
    for names in ({}, SHORT, SHORTEST):
        parts = tuple(
            part
            for phase in PHASES
            if is_personal or phase != "personal"
            for part in (
                StyledText(f"{LETTERS[phase] if is_lettered else '■'} ", phase),
                StyledText(f"{names.get(phase, phase)} ", "dim"),
            )
        )
        if sum(len(part.text) for part in parts) <= width:
            break
    return parts


def title_line(round_: RoundView, mark: str = "") -> Line:
    """Return the title of a round after a mark: its number, duration and result."""
    done = sum(x.outcome == "done" for x in round_.exchanges)
    if round_.status == "open":
        result = f"open for {seconds(round_.duration_s)} s"
    elif round_.status == READING:
        result = "…"
    elif not round_.exchanges:
        result = f"void, no device available for {seconds(round_.duration_s)} s"
    else:
        result = f"{seconds(round_.duration_s)} s, {done} of {len(round_.exchanges)} aggregated"
    return (StyledText(f"{mark}round {round_.round} ", "title"), StyledText(result, "dim"))


@lru_cache(maxsize=LINES_CACHED)
def exchange_line(
    exchange: ExchangeView, scale_s: float, name_width: int, width: int, is_lettered: bool
) -> Line:
    """Return the name of a device, its bar, and its exchange time or outcome."""
    bar_width = max(width - name_width - NUMBER_WIDTH, 1)
    cells = bar(exchange.spans, scale_s, bar_width, LETTERS if is_lettered else None)
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
