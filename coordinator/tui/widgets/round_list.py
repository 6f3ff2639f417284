"""All rounds of a run by phase, read from the store in windows around those on the screen."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.view import ExchangeView, RoundView, RunView, round_views
from fairbed.coordinator.tui.widgets.plot import LETTERED
from fairbed.coordinator.tui.widgets.timeline import (
    READING,
    Line,
    RoundTimeline,
    height_of,
    timeline_lines,
)


class RoundWindow(NamedTuple):
    """Rounds that were read."""

    heights: Ints
    """Lines of each closed round from round 1 on: its title and its exchanges."""
    rounds: Sequence[RoundView]
    """Successive rounds, oldest first."""


def read_window(
    reader: RunReader, heights: Ints, newest: int, first: int, lines: int
) -> RoundWindow:
    """Read the closed rounds on some lines of the list.

    Args:
        reader: Reads the run.
        heights: Lines of the rounds that are known already, from round 1 on.
        newest: Newest round of the list.
        first: First of the lines; line 0 is the title of round `newest`.
        lines: Number of lines.
    """
    with reader.snapshot():
        counts = reader.exchange_counts(len(heights), newest)
        heights = np.concatenate([heights, 1 + np.array(counts, dtype=np.int64)])
        oldest, last = rounds_on(heights[:newest], first, lines)
        rows = reader.rounds(oldest - 1, last)
        exchanges = reader.exchanges(oldest - 1, last)
    is_personal = reader.plan.personalisation.method != "none"
    return RoundWindow(heights, round_views(rows, exchanges, is_personal=is_personal))


def rounds_on(heights: Ints, first: int, lines: int) -> tuple[int, int]:
    """Return the oldest and the newest round on some lines of a list, newest round first.

    Args:
        heights: Lines of each round, from round 1 on, shape (T,).
        first: First of the lines, may be negative; line 0 is the title of round T.
        lines: Number of lines.

    Returns:
        (1, 0) for a list without rounds.
    """
    ends = np.cumsum(heights)
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        return 1, 0
    top = total - min(max(first, 0), total - 1)
    bottom = max(total - (first + lines - 1), 1)
    oldest, newest = (int(np.searchsorted(ends, line)) + 1 for line in (bottom, top))
    return min(oldest, newest), newest


def line_of(heights: Ints, round_id: int) -> int:
    """Return the line of the title of a round in the list."""
    return int(heights[round_id:].sum())


NO_HEIGHTS: Ints = np.zeros(0, dtype=np.int64)


class RoundList(RoundTimeline):
    """The rounds of a run with a cursor; those beyond the view are read when they are needed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Round", id="round", tooltip="Why its devices were selected"),
        Binding("down", "move(-1)", "Older", id="older", show=False, tooltip="The round before"),
        Binding("up", "move(1)", "Newer", id="newer", show=False, tooltip="The round after"),
        Binding(
            "pagedown", "page(1)", "Page down", id="older_page", show=False, tooltip="Older rounds"
        ),
        Binding(
            "pageup", "page(-1)", "Page up", id="newer_page", show=False, tooltip="Newer rounds"
        ),
        Binding("home", "newest", "Newest", id="newest", show=False, tooltip="The newest round"),
        Binding("end", "oldest", "Oldest", id="oldest", show=False, tooltip="The first round"),
    ]

    class Opened(Message):
        """The screen of a round was requested."""

        def __init__(self, round_id: int) -> None:
            self.round = round_id
            super().__init__()

    class Uncovered(Message):
        """Rounds are on the screen that were not read."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._resumes, self._newest = -1, 0
        self._heights = NO_HEIGHTS
        """Lines of the closed rounds that are known."""
        self._read: Sequence[RoundView] = ()
        """The window that was read last."""
        self._cursor: int | None = None
        """None follows the newest round."""
        self._total = 0
        """Lines of the list when it was last drawn."""

    @property
    def selected_round(self) -> int | None:
        """The round under the cursor; None without a round."""
        count = len(self._listed)
        return min(self._cursor or count, count) or None

    def show(self, view: RunView) -> None:
        """Show the newest rounds of a view; older ones are read."""
        self._show_border(view)
        if view.cursor.resumes != self._resumes:
            self._heights, self._read, self._resumes = NO_HEIGHTS, (), view.cursor.resumes
        if (view.rounds, view.waiting, view.cursor.round) != (
            self._rounds,
            self._waiting,
            self._newest,
        ):
            self._rounds, self._waiting = view.rounds, view.waiting
            self._newest = view.cursor.round
            for round_ in view.rounds:
                if round_.round == len(self._heights) + 1 <= self._newest:
                    self._heights = np.append(self._heights, height_of(round_))
            self._resize()

    def wanted(self) -> tuple[Ints, int, int, int] | None:
        """Return the arguments of `read_window` if rounds on the screen were not read."""
        if len(self._heights) >= self._newest and all(map(self._known, range(*self._on_screen()))):
            return None
        height = max(self.size.height, 1)
        above = self._heights_of_open
        first = self.scroll_offset.y - above - height
        return self._heights, self._newest, first, 3 * height

    def receive(self, window: RoundWindow) -> None:
        """Show rounds that were read."""
        if len(window.heights) > len(self._heights):
            self._heights = window.heights
        self._read = window.rounds
        self._resize()

    def on_resize(self, event: Resize) -> None:
        """Draw all lines again, and read what appears."""
        super().on_resize(event)
        self._ask()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Draw the lines at the new position, and read what appears."""
        super().watch_scroll_y(old_value, new_value)
        self._ask()

    def action_open(self) -> None:
        """Open the round under the cursor."""
        if (round_id := self.selected_round) is not None:
            self.post_message(self.Opened(round_id))

    def action_move(self, rounds: int) -> None:
        """Move the cursor to a later round; negative: to an earlier one."""
        self._go((self.selected_round or 0) + rounds)

    def action_page(self, pages: int) -> None:
        """Move the cursor by the lines on the screen."""
        if (round_id := self.selected_round) is not None:
            heights, lines = self._listed, pages * max(self.size.height - 2, 1)
            after = rounds_on(heights, line_of(heights, round_id) + lines, 1)[1]
            first = min(max(self.scroll_offset.y + lines, 0), self.max_scroll_y)
            self._go(after if after != round_id else round_id - pages, first)

    def action_newest(self) -> None:
        """Move the cursor to the newest round, and follow it."""
        self._go(len(self._listed))

    def action_oldest(self) -> None:
        """Move the cursor to the first round."""
        self._go(1)

    def _go(self, round_id: int, first: int | None = None) -> None:
        """Move the cursor, and scroll so that its round is seen.

        Args:
            round_id: The round; the nearest one if there is no such round.
            first: The first line to be seen if the round is seen then; None: that of now.
        """
        heights, count = self._listed, len(self._listed)
        if not count:
            return
        round_id = min(max(round_id, 1), count)
        self._cursor = None if round_id == count else round_id
        line, seen = line_of(heights, round_id), max(self.size.height - 1, 1)
        end = line + int(heights[round_id - 1])
        first = self.scroll_offset.y if first is None else first
        if end > first + seen:
            first = end - seen
        self.scroll_to(y=min(first, line), animate=False)
        self._draw()

    def _resize(self) -> None:
        """Take over the number of lines; scrolled rounds stay where they are."""
        total = int(self._listed.sum())
        before, self._total = self._total, total
        self.virtual_size = Size(0, 1 + total)
        if self.scroll_offset.y > 0 and before:
            self.scroll_to(y=max(self.scroll_offset.y + total - before, 0), animate=False)
        if self.is_on_screen:
            self._draw()

    def _ask(self) -> None:
        if self.wanted() is not None:
            self.post_message(self.Uncovered())

    def _lines_in(self, width: int, height: int) -> Sequence[Line]:
        """Return the lines that are seen now."""
        oldest, end = self._on_screen()
        rounds = tuple(self._round(number) for number in range(oldest, end))
        first = self.scroll_offset.y - (line_of(self._listed, end - 1) if rounds else 0)
        return timeline_lines(
            rounds,
            width,
            height,
            self._waiting,
            first=first,
            is_lettered=self.app.has_class(LETTERED),
            marked=self.selected_round,
        )

    @property
    def _open(self) -> RoundView | None:
        """The open round."""
        newest = self._rounds[-1] if self._rounds else None
        return newest if newest is not None and newest.status == "open" else None

    @property
    def _heights_of_open(self) -> int:
        return 0 if self._open is None else height_of(self._open)

    @property
    def _listed(self) -> Ints:
        """Lines of each round that is listed, from round 1 on; the open one is the last."""
        closed = self._heights[: self._newest]
        is_complete = len(closed) == self._newest and self._open is not None
        return np.append(closed, self._heights_of_open) if is_complete else closed

    def _on_screen(self) -> tuple[int, int]:
        """Return the oldest round on the screen, and the one after the newest."""
        oldest, newest = rounds_on(self._listed, self.scroll_offset.y, max(self.size.height, 1))
        return oldest, newest + 1

    def _find(self, number: int) -> RoundView | None:
        for rounds in (self._rounds, self._read):
            if rounds and 0 <= (at := number - rounds[0].round) < len(rounds):
                return rounds[at]
        return None

    def _known(self, number: int) -> bool:
        return self._find(number) is not None

    def _round(self, number: int) -> RoundView:
        """Return a round; one that was not read has lines without bars."""
        if (found := self._find(number)) is not None:
            return found
        nothing = ExchangeView("", "", None, None, ())
        return RoundView(number, READING, 0.0, (nothing,) * (int(self._listed[number - 1]) - 1))
