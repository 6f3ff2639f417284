"""The lag of the event loop is measured."""

import time

import anyio
import pytest

from fairbed.coordinator.rounds.loop_lag import KEPT, LagMeter

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


def test_the_lag_counts_at_the_instants_of_messages() -> None:
    now = [0.0]
    meter = LagMeter(lambda: now[0])
    for at, lag_s in ((1.0, 0.003), (1.01, 0.002), (2.0, 0.005), (3.0, 0.5)):
        now[0] = at
        meter._record(at - lag_s)
    assert meter.at_s([1.005]) == pytest.approx(0.003)
    assert meter.at_s([1.0, 2.0, 2.5]) == pytest.approx(0.008)
    assert meter.at_s([2.0, 2.001]) == pytest.approx(0.005)  # handled together
    assert meter.at_s([]) == 0.0
    assert meter.p99_s() == pytest.approx(0.5)


def test_the_newest_samples_are_kept() -> None:
    now = [0.0]
    meter = LagMeter(lambda: now[0])
    for number in range(5 * KEPT // 2):
        now[0] = number * 0.01
        meter._record(now[0] - number * 1e-6)
    newest = 5 * KEPT // 2 - 1
    assert meter.at_s([newest * 0.01]) == pytest.approx(newest * 1e-6)
    assert meter.at_s([(newest - KEPT) * 0.01]) == pytest.approx((newest - KEPT) * 1e-6, abs=3e-6)
    assert meter.at_s([0.0]) == 0.0
    now[0] = (newest - 99) * 0.01
    meter.start()
    assert meter.p99_s() == pytest.approx((newest - 1) * 1e-6)  # the 99th of 100
