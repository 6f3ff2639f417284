"""The events and rounds of a run as one list in pages, forwards and backwards from any position."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge

from fairbed.coordinator.report.quantities import seconds
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.store.tables import EventRow, RoundRow
from fairbed.coordinator.tui.filters import Field, Filter

PAGE = 300
"""Entries of one read."""

SCANNED = 20_000
"""Rows that one read looks through for entries that a filter accepts."""

CHUNK = 500
"""Rows of one query."""

IN_ROUNDS = frozenset({"dispatched", "replacement", "void"})
"""Kinds of events that the line of their round replaces, unless a filter names them."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the list: what is up to it has been passed."""

    event: int = 0
    """Number of the last event."""
    round: int = 0
    """Last closed round."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event, or the end of a round."""

    at_s: float
    level: str
    """info, warning or error."""
    kind: str
    """Kind of the event, or `round`."""
    round: int | None
    device: str | None
    text: str
    position: Position = Position()
    """Behind the entry."""


FIELDS: tuple[Field[Entry], ...] = (
    Field("level", lambda entry: entry.level, is_searched=True),
    Field("kind", lambda entry: entry.kind, is_searched=True),
    Field("device", lambda entry: entry.device, is_searched=True),
    Field("text", lambda entry: entry.text, is_searched=True),
    Field("round", lambda entry: entry.round, is_number=True),
)
"""What a filter can ask."""


@dataclass(frozen=True, slots=True)
class Page:
    """Consecutive entries that a filter accepts, oldest first."""

    entries: Sequence[Entry]
    start: Position
    """Before the first one."""
    end: Position
    """Behind the last one."""
    is_first: bool
    """No older entry is accepted."""


def older(reader: RunReader, end: Position, filter_: Filter[Entry]) -> Page:
    """Return the page of entries up to a position."""
    rows = merge(_rounds_back(reader, end), _events_back(reader, end), key=lambda x: -x.at_s)
    entries: list[Entry] = []
    start = end
    for scanned, row in enumerate(rows, start=1):
        if is_listed(row, filter_):
            entries.append(replace(row, position=start))
        start = _before(start, row)
        if len(entries) == PAGE or scanned == SCANNED:
            return Page(entries[::-1], start, end, is_first=False)
    return Page(entries[::-1], start, end, is_first=True)


def newer(reader: RunReader, start: Position, last: Position, filter_: Filter[Entry]) -> Page:
    """Return the page of entries behind a position, up to another one."""
    rows = merge(
        _events_on(reader, start, last), _rounds_on(reader, start, last), key=lambda x: x.at_s
    )
    entries: list[Entry] = []
    end = start
    for scanned, row in enumerate(rows, start=1):
        end = _behind(end, row)
        if is_listed(row, filter_):
            entries.append(replace(row, position=end))
        if len(entries) == PAGE or scanned == SCANNED:
            return Page(entries, start, end, is_first=False)
    return Page(entries, start, last, is_first=False)


def is_listed(entry: Entry, filter_: Filter[Entry]) -> bool:
    """Return whether a filter accepts an entry; the line of a round replaces some events."""
    is_hidden = entry.kind in IN_ROUNDS and entry.kind not in filter_.text
    return not is_hidden and filter_(entry)


def entry_of_round(row: RoundRow) -> Entry:
    """Return the line of a closed round."""
    is_void = row.status == "void"
    text = f"{row.round}: {row.aggregated} of {row.selected} aggregated"
    if is_void:
        text = f"{row.round}: void, no device" if not row.selected else f"{text}, void"
    return Entry(
        at_s=row.closed_at_s,
        level="warning" if is_void else "info",
        kind="round",
        round=row.round,
        device=None,
        text=f"{text}, {seconds(row.duration_s)} s",
        position=Position(round=row.round),
    )


def _entry_of_event(number: int, row: EventRow) -> Entry:
    return Entry(
        at_s=row.at_s,
        level=row.level,
        kind=row.kind,
        round=row.round,
        device=row.device,
        text=row.text,
        position=Position(event=number),
    )


def _behind(position: Position, row: Entry) -> Position:
    """Return the position behind a row, whose own position has only its number."""
    own = row.position
    return Position(own.event or position.event, own.round or position.round)


def _before(position: Position, row: Entry) -> Position:
    own = row.position
    return Position(
        own.event - 1 if own.event else position.event,
        own.round - 1 if own.round else position.round,
    )


def _events_back(reader: RunReader, end: Position) -> Iterator[Entry]:
    last = end.event
    while rows := reader.events_between(0, last, CHUNK, from_end=True):
        yield from (_entry_of_event(number, row) for number, row in reversed(rows))
        last = rows[0][0] - 1


def _events_on(reader: RunReader, start: Position, last: Position) -> Iterator[Entry]:
    since = start.event
    while rows := reader.events_between(since, last.event, CHUNK, from_end=False):
        yield from (_entry_of_event(number, row) for number, row in rows)
        since = rows[-1][0]


def _rounds_back(reader: RunReader, end: Position) -> Iterator[Entry]:
    for until in range(end.round, 0, -CHUNK):
        yield from map(entry_of_round, reversed(reader.rounds(max(until - CHUNK, 0), until)))


def _rounds_on(reader: RunReader, start: Position, last: Position) -> Iterator[Entry]:
    for since in range(start.round, last.round, CHUNK):
        yield from map(entry_of_round, reader.rounds(since, min(since + CHUNK, last.round)))


class EventWindow:
    """The entries around the lines on the screen; older and newer ones stay in the store."""

    MOST = 4 * PAGE
    """Entries in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.filter: Filter[Entry] = Filter()
        self._start = self._end = Position()
        self._is_first = False
        self._is_read = False

    @property
    def is_empty(self) -> bool:
        """Nothing was read since the last reset."""
        return not self._is_read

    def reset(self, filter_: Filter[Entry] | None = None) -> None:
        """Forget all entries, to begin with the newest ones again."""
        self.filter = self.filter if filter_ is None else filter_
        self.entries, self._is_read, self._is_first = [], False, False

    def lacks(
        self, last: Position, *, is_top: bool, is_bottom: bool
    ) -> Callable[[RunReader], Page] | None:
        """Return the read of the page that is needed next; None if all are there.

        Args:
            last: End of the list.
            is_top: The first entry is on the screen.
            is_bottom: The last entry is on the screen.
        """
        filter_, start, end = self.filter, self._start, self._end
        is_behind = (last.event, last.round) != (end.event, end.round)
        if is_behind and (last.event < end.event or last.round < end.round):
            self.reset()  # rows became void, or the run is shown as it was earlier
        if not self._is_read or (is_bottom and last.event - end.event > self.MOST):
            self.reset()
            return lambda reader: older(reader, last, filter_)
        if is_top and not self._is_first:
            return lambda reader: older(reader, start, filter_)
        if is_bottom and is_behind:
            return lambda reader: newer(reader, end, last, filter_)
        return None

    def add(self, page: Page) -> tuple[int, int]:
        """Add a page that was read; return how many entries are new, and lost, at the top.

        A negative first number are new entries at the bottom.
        """
        added = list(page.entries)
        if not self._is_read:
            self._is_read = True
            self.entries, self._start, self._end = added, page.start, page.end
            self._is_first = page.is_first
            return -len(added), 0
        if page.end == self._start:
            self._start, self._is_first = page.start, page.is_first
            self.entries[:0] = added
            if len(self.entries) > self.MOST:
                del self.entries[self.MOST :]
                self._end = self.entries[-1].position
            return len(added), 0
        if page.start != self._end:
            return 0, 0  # the window has moved meanwhile
        self._end = page.end
        self.entries += added
        lost = max(len(self.entries) - self.MOST, 0)
        if lost:
            self._start, self._is_first = self.entries[lost - 1].position, False
            del self.entries[:lost]
        return -len(added), lost
