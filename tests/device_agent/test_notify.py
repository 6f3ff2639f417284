"""The bell: nothing is lost, nothing is counted twice."""

import anyio
import pytest

from fairbed.device_agent.notify import Notify

pytestmark = pytest.mark.anyio

LONG_S = 60.0


async def test_a_ring_before_the_wait_is_kept_and_many_are_one() -> None:
    bell = Notify()
    bell.ring()
    bell.ring()
    assert await bell.wait(LONG_S)
    assert not await bell.wait(0.0)


async def test_a_ring_wakes_who_waits() -> None:
    bell = Notify()
    heard: list[bool] = []

    async def wait() -> None:
        heard.append(await bell.wait(LONG_S))
        heard.append(await bell.wait())

    with anyio.fail_after(LONG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            for _ in range(2):
                await anyio.wait_all_tasks_blocked()
                bell.ring()
    assert heard == [True, True]


async def test_a_wait_that_was_cancelled_leaves_the_next_ring_to_the_next_wait() -> None:
    bell = Notify()
    with anyio.move_on_after(0.0):
        await bell.wait()
    bell.ring()
    assert await bell.wait(LONG_S)
