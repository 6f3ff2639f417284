"""What a link waits for: answers of the broker, and room in the kernel. Pure; `now` is seconds."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from fairbed.wire.transport.protocol.packets import Puback, Suback, Unsuback

Answer: TypeAlias = Puback | Suback | Unsuback | None
Settle: TypeAlias = Callable[[Answer], None]

MAX_PACKET_ID = (1 << 16) - 1


class PendingOperation(NamedTuple):
    """One operation that is not over."""

    what: str
    patience_s: float
    due_at: float
    n_bytes: int
    """Of its payload."""
    answer: type
    """What ends it."""
    settle: Settle
    """Called once, with the answer; with None for room in the kernel, and when all is lost."""


class PendingOperations:
    """The operations under way, by packet id; those that wait for room have keys above."""

    def __init__(self) -> None:
        self.n_bytes = 0
        """Of all their payloads."""
        self._waits: dict[int, PendingOperation] = {}
        self._last_id = 0
        self._last_key = MAX_PACKET_ID

    def new_id(self) -> int | None:
        """Return a packet id that is not in use; None when all are."""
        for _ in range(MAX_PACKET_ID):
            self._last_id = self._last_id % MAX_PACKET_ID + 1
            if self._last_id not in self._waits:
                return self._last_id
        return None

    def new_key(self) -> int:
        """Return a key for one that waits for room in the kernel."""
        self._last_key += 1
        return self._last_key

    def add(self, key: int, wait: PendingOperation) -> None:
        """Begin to wait."""
        self._waits[key] = wait
        self.n_bytes += wait.n_bytes

    def on_answer(self, answer: Puback | Suback | Unsuback) -> None:
        """Take an answer of the broker; one to a question that nobody asked is passed over."""
        wait = self._waits.get(answer.packet_id)
        if wait is not None and isinstance(answer, wait.answer):
            self._settle(answer.packet_id, answer)

    def on_room(self) -> None:
        """The kernel has taken everything."""
        for key in [key for key in self._waits if key > MAX_PACKET_ID]:
            self._settle(key, None)

    def on_lost(self) -> None:
        """The link is lost, and with it all that was under way."""
        for key in list(self._waits):
            self._settle(key, None)

    def overdue(self, now: float) -> PendingOperation | None:
        """Return an operation that has taken too long, or None."""
        return next((wait for wait in self._waits.values() if wait.due_at <= now), None)

    def wake_at(self) -> float | None:
        """Return when the first one is overdue; None when there is none."""
        return min((wait.due_at for wait in self._waits.values()), default=None)

    def _settle(self, key: int, answer: Answer) -> None:
        wait = self._waits.pop(key)
        self.n_bytes -= wait.n_bytes
        wait.settle(answer)
