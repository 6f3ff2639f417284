"""The wakeup: nothing is lost, nothing is counted twice."""

import anyio
import pytest

from fairbed.device_agent.notify import Notify

pytestmark = pytest.mark.anyio

LONG_S = 60.0


async def test_a_ring_before_the_wait_is_kept_and_many_are_one() -> None:
    wakeup = Notify()
    wakeup.notify()
    wakeup.notify()
    assert await wakeup.wait(LONG_S)
    assert not await wakeup.wait(0.0)


async def test_a_ring_wakes_who_waits() -> None:
    wakeup = Notify()
    heard: list[bool] = []

    async def wait() -> None:
        heard.append(await wakeup.wait(LONG_S))
        heard.append(await wakeup.wait())

    with anyio.fail_after(LONG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            for _ in range(2):
                await anyio.wait_all_tasks_blocked()
                wakeup.notify()
    assert heard == [True, True]


async def test_a_wait_that_was_cancelled_leaves_the_next_ring_to_the_next_wait() -> None:
    wakeup = Notify()
    with anyio.move_on_after(0.0):
        await wakeup.wait()
    wakeup.notify()
    assert await wakeup.wait(LONG_S)
