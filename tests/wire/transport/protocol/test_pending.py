"""What a link waits for: each settled once, by the right answer or by the end."""

from fairbed.wire.transport.protocol.packets import Puback, Suback, Unsuback
from fairbed.wire.transport.protocol.pending import (
    MAX_PACKET_ID,
    Answer,
    PendingOperation,
    PendingOperations,
)


class Log:
    """Operations that note how they ended."""

    def __init__(self) -> None:
        self.waits = PendingOperations()
        self.ended: list[tuple[str, Answer]] = []

    def wait(self, key: int, what: str, answer: type, due_at: float = 1.0, size: int = 0) -> None:
        def settle(came: Answer) -> None:
            self.ended.append((what, came))

        self.waits.add(key, PendingOperation(what, 1.0, due_at, size, answer, settle))


def test_an_answer_ends_what_it_answers_and_nothing_else() -> None:
    log = Log()
    log.wait(1, "publish", Puback)
    log.wait(2, "subscribe", Suback)
    log.waits.on_answer(Unsuback(1))
    log.waits.on_answer(Puback(2))
    log.waits.on_answer(Puback(9))
    assert log.ended == []
    log.waits.on_answer(Puback(1))
    log.waits.on_answer(Puback(1))
    assert log.ended == [("publish", Puback(1))]


def test_room_ends_those_who_wait_for_the_kernel() -> None:
    log = Log()
    log.wait(1, "publish", Puback)
    log.wait(log.waits.new_key(), "large", type(None))
    log.wait(log.waits.new_key(), "larger", type(None))
    log.waits.on_room()
    assert log.ended == [("large", None), ("larger", None)]


def test_a_lost_link_ends_everything() -> None:
    log = Log()
    log.wait(1, "publish", Puback, size=10)
    log.wait(log.waits.new_key(), "large", type(None))
    log.waits.on_lost()
    log.waits.on_lost()
    assert log.ended == [("publish", None), ("large", None)]
    assert log.waits.n_bytes == 0


def test_bytes_and_times_are_those_of_what_is_left() -> None:
    log = Log()
    log.wait(1, "first", Puback, due_at=5.0, size=10)
    log.wait(2, "second", Puback, due_at=4.0, size=20)
    assert (log.waits.n_bytes, log.waits.wake_at()) == (30, 4.0)
    assert log.waits.overdue(3.9) is None
    late = log.waits.overdue(4.0)
    assert late is not None
    assert late.what == "second"
    log.waits.on_answer(Puback(2))
    assert (log.waits.n_bytes, log.waits.wake_at()) == (10, 5.0)
    log.waits.on_answer(Puback(1))
    assert log.waits.wake_at() is None


def test_a_packet_id_is_given_out_again_only_when_it_is_free() -> None:
    log = Log()
    for number in range(1, MAX_PACKET_ID + 1):
        key = log.waits.new_id()
        assert key == number
        log.wait(key, "publish", Puback)
    assert log.waits.new_id() is None
    log.waits.on_answer(Puback(700))
    assert log.waits.new_id() == 700
