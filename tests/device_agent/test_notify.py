"""The notification: none is lost, none counts twice."""

import anyio
import pytest

from fairbed.device_agent.notify import Notify

pytestmark = pytest.mark.anyio

LONG_S = 60.0


async def test_notifications_before_the_wait_are_kept_and_count_as_one() -> None:
    wakeup = Notify()
    wakeup.notify()
    wakeup.notify()
    assert await wakeup.wait(LONG_S)
    assert not await wakeup.wait(0.0)


async def test_a_notification_wakes_the_waiter() -> None:
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


async def test_a_cancelled_wait_leaves_the_next_notification_to_the_next_wait() -> None:
    wakeup = Notify()
    with anyio.move_on_after(0.0):
        await wakeup.wait()
    wakeup.notify()
    assert await wakeup.wait(LONG_S)
