"""The lag of the event loop is measured."""

import time

import anyio
import pytest

from fairbed.coordinator.rounds.loop_lag import LagMeter

pytestmark = pytest.mark.anyio


async def test_a_blocked_loop_is_measured() -> None:
    meter = LagMeter(time.perf_counter)
    async with anyio.create_task_group() as group:
        group.start_soon(meter.run)
        with anyio.fail_after(20):
            while not meter.p99_s():  # noqa: ASYNC110  # samples come from a thread
                await anyio.sleep(0.01)
        meter.start()
        assert meter.p99_s() == 0.0
        time.sleep(0.2)  # noqa: ASYNC251  # blocking the loop is the point
        await anyio.sleep(0.05)
        assert meter.p99_s() > 0.1
        group.cancel_scope.cancel()
