"""Until when each device may be at work, and whose time is up first. Pure."""

import heapq
from dataclasses import dataclass, field

from coordinator.exchange import Exchange, Stage


@dataclass(slots=True)
class Deadlines:
    """The deadlines of the exchanges of a table; the next one is known without looking at all.

    A deadline counts t - queued - outage: a device that waits for a grant, or for our link to come
    back, waits for us. One that has moved is noted again, and what was noted before is skipped when
    its time comes.
    """

    deadline_s: float
    """From the dispatch; after it a device is late."""
    patience_s: float | None
    """From the dispatch, how long a late device may go on; None is not at all."""
    _noted: list[tuple[float, int]] = field(default_factory=list)
    """A heap of instants, and the numbers of the exchanges that they were noted for."""
    _exchanges: dict[int, Exchange] = field(default_factory=dict)
    """By their numbers."""

    def limit_s(self, x: Exchange) -> float:
        """Return how long an exchange may take, as it stands."""
        if x.is_late and self.patience_s is not None:
            return self.patience_s
        return self.deadline_s

    def of(self, x: Exchange) -> float | None:
        """Return when the time of an exchange is up; None while nothing is expected of it."""
        if x.stage is not Stage.ASKED and x.stage is not Stage.GRANTED:
            return None
        waited = x.queued_s(x.granted) if x.granted is not None else 0.0
        return x.dispatched + self.limit_s(x) + waited + x.outage_s

    def note(self, x: Exchange) -> None:
        """Take note of an exchange that has come in, or whose deadline has moved."""
        at = self.of(x)
        if at is not None:
            self._exchanges[x.number] = x
            heapq.heappush(self._noted, (at, x.number))

    def has_passed(self, x: Exchange, now: float) -> bool:
        """Tell whether the time of an exchange is up."""
        at = self.of(x)
        return at is not None and now >= at

    def next(self) -> float | None:
        """Return when the next deadline passes; None if none can."""
        while self._noted:
            at, number = self._noted[0]
            if self.of(self._exchanges[number]) == at:
                return at
            heapq.heappop(self._noted)
        return None

    def take_passed(self, now: float) -> list[Exchange]:
        """Return whose time is up, in the order of dispatch; whoever goes on is to be noted."""
        numbers = set[int]()
        while (at := self.next()) is not None and at <= now:
            numbers.add(heapq.heappop(self._noted)[1])
        return [self._exchanges[number] for number in sorted(numbers)]
