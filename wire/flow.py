"""The window of a transfer: which chunks are in flight, which come next, and which are overdue.

Pure: `now` is monotonic seconds, and `wake_at` says when `tick` has something to do.
"""

from collections import deque
from dataclasses import dataclass

from wire.messages import Manifest

RETRY_FLOOR_S = 2.0
RETRY_CEILING_S = 60.0
RETRY_FACTOR = 4.0
"""A chunk is overdue after this many smoothed chunk times, but never before the floor."""

SMOOTHING = 0.25
"""Weight of the newest chunk time in the smoothed one."""

ASSUMED_BPS = 1e6
"""Rate of a slow link, bit/s: stands in for the chunk time until the first chunk has arrived."""

DOUBT = 16.0
"""A link is believed to carry at least the measured rate divided by this."""


@dataclass(slots=True)
class Ask:
    """One chunk in flight."""

    at: float
    order: int
    """Counts all asks of a transfer."""
    is_first: bool
    first_at: float
    """When it was asked for first, on this link. Of a repeated chunk nobody knows which ask it
    answers (Karn's rule): the time since the first is the most that it can have taken."""


class Flow:
    """Which chunks are in flight, which come next, and which are overdue.

    Args:
        manifest: The blob.
        floor: Narrowest window.
        rate_bps: What the link was measured to carry, bit/s, or None. It counts as `ASSUMED_BPS`
            unless it is slower, or so fast that even a `DOUBT`-th of it is more.

    A broker delivers in order over one connection, so as long as something arrives, a chunk is
    overdue only when a later one has overtaken it. After a time-out the window halves (down to
    `floor`) and the patience doubles; a new chunk restores the patience, a whole window of them
    widens the window by one.
    """

    def __init__(self, manifest: Manifest, floor: int = 1, rate_bps: float | None = None) -> None:
        self.has = bytearray(manifest.chunk_count)
        self.missing = manifest.chunk_count
        self.limit = 0
        self.window = 0
        self.floor = floor
        self.flying: dict[int, Ask] = {}
        self.repeats = 0
        self.untouched = 0
        """Nothing from this chunk on has been asked for."""
        self._again: deque[tuple[int, float | None]] = deque()
        """Chunks to ask for once more, and when they were asked for first."""
        self._orders = 0
        self._newest_order = 0
        self._arrived_at = 0.0
        self._streak = 0
        self._patience = 1.0
        measured_bps = rate_bps or ASSUMED_BPS
        assumed_bps = max(min(ASSUMED_BPS, measured_bps), measured_bps / DOUBT)
        self._chunk_s = 8.0 * min(manifest.chunk_bytes, manifest.size_bytes) / assumed_bps
        self._is_measured = False

    def open(self, limit: int) -> None:
        """Allow `limit` chunks in flight."""
        self.limit = limit
        self.floor = min(self.floor, limit)
        self.window = limit

    def fill(self, now: float) -> list[int]:
        """Return what to ask for next, now in flight."""
        asks: list[int] = []
        while len(self.flying) < self.window:
            index, is_first, first_at = self._next()
            if index is None:
                break
            self._orders += 1
            self.repeats += not is_first
            self.flying[index] = Ask(
                now, self._orders, is_first, now if first_at is None else first_at
            )
            asks.append(index)
        return asks

    def settle(self, index: int, now: float) -> bool:
        """Note that a chunk has arrived; return whether it is new."""
        if self.has[index]:
            return False
        self.has[index] = 1
        self.missing -= 1
        self._arrived_at = now
        self._patience = 1.0
        ask = self.flying.pop(index, None)
        if ask is not None:
            self._newest_order = max(self._newest_order, ask.order)
            self._measure(now - ask.first_at, is_certain=ask.is_first)
        self._streak += 1
        if self._streak >= self.window:
            self._streak = 0
            self.window = min(self.limit, self.window + 1)
        return True

    def tick(self, now: float) -> list[int]:
        """Return the overdue chunks to ask for again, as many as the halved window takes."""
        overdue = [index for index, ask in self.flying.items() if self._due_at(ask) <= now]
        if not overdue:
            return []
        self.window = max(self.floor, self.window // 2)
        self._streak = 0
        self._patience *= 2.0
        self._release(overdue)
        return self.fill(now)

    def restart(self, now: float) -> list[int]:
        """Return what to ask for after the link was lost with everything in flight."""
        self._release(list(self.flying), is_new_link=True)
        self.window = self.limit
        self._patience = 1.0
        return self.fill(now)

    @property
    def wake_at(self) -> float | None:
        """When the first chunk in flight is overdue; None when nothing is in flight."""
        if not self.missing:
            return None
        return min(map(self._due_at, self.flying.values()), default=None)

    def _due_at(self, ask: Ask) -> float:
        is_overtaken = ask.order < self._newest_order
        since = ask.at if is_overtaken else max(ask.at, self._arrived_at)
        patience = max(RETRY_FLOOR_S, RETRY_FACTOR * self._chunk_s) * self._patience
        return since + min(patience, RETRY_CEILING_S)

    def _next(self) -> tuple[int | None, bool, float | None]:
        while self._again:
            index, first_at = self._again.popleft()
            if not self.has[index]:
                return index, False, first_at
        while self.untouched < len(self.has):
            index = self.untouched
            self.untouched += 1
            if not self.has[index]:
                return index, True, None
        return None, True, None

    def _release(self, indices: list[int], *, is_new_link: bool = False) -> None:
        for index in sorted(indices, reverse=True):
            ask = self.flying.pop(index)
            self._again.appendleft((index, None if is_new_link else ask.first_at))

    def _measure(self, chunk_s: float, *, is_certain: bool) -> None:
        if not is_certain and chunk_s <= self._chunk_s:
            return
        weight = SMOOTHING if self._is_measured else 1.0
        self._chunk_s += weight * (chunk_s - self._chunk_s)
        self._is_measured = True
