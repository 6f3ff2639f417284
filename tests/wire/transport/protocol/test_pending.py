"""Pending operations: each ends once, by its own answer, by the kernel, or with the link."""

from fairbed.wire.transport.protocol.packets import Puback, Suback, Unsuback
from fairbed.wire.transport.protocol.pending import (
    MAX_PACKET_ID,
    Answer,
    PendingOperation,
    PendingOperations,
)


class Recorder:
    """Pending operations, and a record of how they ended."""

    def __init__(self) -> None:
        self.operations = PendingOperations()
        self.ended: list[tuple[str, Answer]] = []

    def add(
        self, key: int, action: str, answer_type: type, due_at: float = 1.0, size: int = 0
    ) -> None:
        def on_end(answer: Answer) -> None:
            self.ended.append((action, answer))

        operation = PendingOperation(action, 1.0, due_at, size, answer_type, on_end)
        self.operations.add(key, operation)


def test_an_answer_ends_only_its_own_operation() -> None:
    recorder = Recorder()
    recorder.add(1, "publish", Puback)
    recorder.add(2, "subscribe", Suback)
    recorder.operations.on_answer(Unsuback(1))
    recorder.operations.on_answer(Puback(2))
    recorder.operations.on_answer(Puback(9))
    assert recorder.ended == []
    recorder.operations.on_answer(Puback(1))
    recorder.operations.on_answer(Puback(1))
    assert recorder.ended == [("publish", Puback(1))]


def test_written_bytes_end_the_operations_that_wait_for_the_kernel() -> None:
    recorder = Recorder()
    recorder.add(1, "publish", Puback)
    recorder.add(recorder.operations.new_key(), "large", type(None))
    recorder.add(recorder.operations.new_key(), "larger", type(None))
    recorder.operations.on_written()
    assert recorder.ended == [("large", None), ("larger", None)]


def test_a_lost_link_ends_every_operation() -> None:
    recorder = Recorder()
    recorder.add(1, "publish", Puback, size=10)
    recorder.add(recorder.operations.new_key(), "large", type(None))
    recorder.operations.on_lost()
    recorder.operations.on_lost()
    assert recorder.ended == [("publish", None), ("large", None)]
    assert recorder.operations.n_bytes == 0


def test_bytes_and_times_count_only_the_operations_left() -> None:
    recorder = Recorder()
    recorder.add(1, "first", Puback, due_at=5.0, size=10)
    recorder.add(2, "second", Puback, due_at=4.0, size=20)
    assert (recorder.operations.n_bytes, recorder.operations.wake_at()) == (30, 4.0)
    assert recorder.operations.overdue(3.9) is None
    late = recorder.operations.overdue(4.0)
    assert late is not None
    assert late.action == "second"
    recorder.operations.on_answer(Puback(2))
    assert (recorder.operations.n_bytes, recorder.operations.wake_at()) == (10, 5.0)
    recorder.operations.on_answer(Puback(1))
    assert recorder.operations.wake_at() is None


def test_a_packet_id_is_used_again_only_when_it_is_free() -> None:
    recorder = Recorder()
    for number in range(1, MAX_PACKET_ID + 1):
        key = recorder.operations.new_id()
        assert key == number
        recorder.add(key, "publish", Puback)
    assert recorder.operations.new_id() is None
    recorder.operations.on_answer(Puback(700))
    assert recorder.operations.new_id() == 700
