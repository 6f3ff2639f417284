"""The deadline of a round or a loss query: outages, waiting, stopping."""

import anyio
import pytest

from fairbed.device_agent.round import Deadline
from tests.device_agent.clock import ManualClock

pytestmark = pytest.mark.anyio

LIMIT_S, OUTAGE_S, QUEUE_S = 60.0, 600.0, 3600.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def deadline(clock: ManualClock) -> Deadline:
    return Deadline(clock, clock.now() + LIMIT_S, OUTAGE_S)


def left_s(deadline: Deadline, clock: ManualClock) -> float:
    """Return the time left, found by moving the clock."""
    started_s, step = clock.now_s, 4096.0
    while step >= 0.25:
        clock.now_s += step
        if deadline.is_over():
            clock.now_s -= step
        step /= 2
    left, clock.now_s = clock.now_s - started_s + 2 * step, started_s
    return left


async def test_is_over_at_the_deadline(clock: ManualClock, deadline: Deadline) -> None:
    assert left_s(deadline, clock) == LIMIT_S
    assert not deadline.is_stopped


@pytest.mark.parametrize("outage_s", [0.0, 10.0, OUTAGE_S])
async def test_an_outage_extends_the_deadline(
    clock: ManualClock, deadline: Deadline, outage_s: float
) -> None:
    deadline.pause()
    clock.now_s += outage_s / 2
    deadline.pause()  # broker and coordinator may go offline one after the other
    clock.now_s += outage_s / 2
    deadline.resume()
    deadline.resume()
    assert left_s(deadline, clock) == LIMIT_S


async def test_the_extension_by_an_outage_is_limited(
    clock: ManualClock, deadline: Deadline
) -> None:
    deadline.pause()
    assert left_s(deadline, clock) == LIMIT_S + OUTAGE_S
    clock.now_s += OUTAGE_S + 20.0
    deadline.resume()
    assert left_s(deadline, clock) == LIMIT_S - 20.0


async def test_waiting_for_the_coordinator_is_limited_and_does_not_count(
    clock: ManualClock, deadline: Deadline
) -> None:
    clock.now_s += 15.0
    with deadline.waiting(QUEUE_S):
        assert left_s(deadline, clock) == QUEUE_S
        clock.now_s += 1000.0
    assert left_s(deadline, clock) == LIMIT_S - 15.0


async def test_the_work_ends_at_the_deadline(clock: ManualClock) -> None:
    deadline = Deadline(clock, clock.now() + 0.01, OUTAGE_S)
    with anyio.fail_after(10.0), deadline.scope:
        await anyio.sleep_forever()
    assert deadline.scope.cancelled_caught
    assert not deadline.is_stopped


async def test_the_work_ends_when_it_is_stopped(deadline: Deadline) -> None:
    with anyio.fail_after(10.0), deadline.scope:
        deadline.stop()
        await anyio.sleep_forever()
    assert deadline.is_stopped
    assert deadline.is_over()


async def test_an_outage_postpones_the_end_of_the_work(deadline: Deadline) -> None:
    deadline.pause()
    left = deadline.scope.deadline - anyio.current_time()
    assert left == pytest.approx(LIMIT_S + OUTAGE_S, abs=1.0)
