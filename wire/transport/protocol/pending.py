"""Operations of a connection that wait for the broker or for the kernel. Pure; `now` is seconds."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from fairbed.wire.transport.protocol.packets import Puback, Suback, Unsuback

Answer: TypeAlias = Puback | Suback | Unsuback | None
OnEnd: TypeAlias = Callable[[Answer], None]

MAX_PACKET_ID = (1 << 16) - 1


class PendingOperation(NamedTuple):
    """One operation that has not ended."""

    action: str
    timeout_s: float
    due_at: float
    n_bytes: int
    """Size of its payload."""
    answer_type: type
    """Type of the packet that ends it; the type of None if it waits for the kernel."""
    on_end: OnEnd
    """Called once: with the answer, or with None when the kernel has written all bytes or when the
    link is lost."""


class PendingOperations:
    """The operations in progress.

    The key of an operation is its packet id; operations that wait for the kernel have keys above
    `MAX_PACKET_ID`.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        """Sum of their payloads."""
        self._operations: dict[int, PendingOperation] = {}
        self._last_id = 0
        self._last_key = MAX_PACKET_ID

    def new_id(self) -> int | None:
        """Return a packet id that is not in use; None when all are."""
        for _ in range(MAX_PACKET_ID):
            self._last_id = self._last_id % MAX_PACKET_ID + 1
            if self._last_id not in self._operations:
                return self._last_id
        return None

    def new_key(self) -> int:
        """Return a key for an operation that waits for the kernel."""
        self._last_key += 1
        return self._last_key

    def add(self, key: int, operation: PendingOperation) -> None:
        """Add an operation."""
        self._operations[key] = operation
        self.n_bytes += operation.n_bytes

    def on_answer(self, answer: Puback | Suback | Unsuback) -> None:
        """End the operation that a packet of the broker answers; ignore any other packet."""
        operation = self._operations.get(answer.packet_id)
        if operation is not None and isinstance(answer, operation.answer_type):
            self._end(answer.packet_id, answer)

    def on_written(self) -> None:
        """End the operations that wait for the kernel: it has taken all bytes."""
        for key in [key for key in self._operations if key > MAX_PACKET_ID]:
            self._end(key, None)

    def on_lost(self) -> None:
        """End all operations: the link is lost."""
        for key in list(self._operations):
            self._end(key, None)

    def overdue(self, now: float) -> PendingOperation | None:
        """Return an operation that has taken too long, or None."""
        return next((each for each in self._operations.values() if each.due_at <= now), None)

    def wake_at(self) -> float | None:
        """Return when the first operation becomes overdue; None without operations."""
        return min((each.due_at for each in self._operations.values()), default=None)

    def _end(self, key: int, answer: Answer) -> None:
        operation = self._operations.pop(key)
        self.n_bytes -= operation.n_bytes
        operation.on_end(answer)
