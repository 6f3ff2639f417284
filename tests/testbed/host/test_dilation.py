"""Dilated time: an event loop with longer seconds, invisible to the code that it runs."""

import time

import anyio
import pytest

from fairbed.testbed.host.dilation import DilatedClock, DilatedLoop, dilated, loop_factory

pytestmark = pytest.mark.alone


def lasted(dilation: float, seconds: float) -> tuple[float, float, float]:
    """Sleep on a dilated loop; return the times of the loop, the device and this machine."""

    async def nap() -> tuple[float, float, float]:
        clock = DilatedClock(dilation)
        before = anyio.current_time(), clock.now(), time.monotonic()
        await anyio.sleep(seconds)
        after = anyio.current_time(), clock.now(), time.monotonic()
        return after[0] - before[0], after[1] - before[1], after[2] - before[2]

    options = {"loop_factory": loop_factory(dilation)}
    return anyio.run(nap, backend_options=options)


def test_a_second_of_the_loop_lasts_k_seconds_of_this_machine() -> None:
    on_loop, on_device, here = lasted(8.0, 0.02)
    assert on_loop >= 0.02
    assert here == pytest.approx(8.0 * on_loop, rel=0.05)
    assert on_device == pytest.approx(on_loop, rel=0.05)


def test_a_timer_wakes_the_loop_once() -> None:
    loop = DilatedLoop(20.0)
    turns = 0

    try:
        select = loop._selector.select  # type: ignore[attr-defined]  # counts turns of the loop

        def counted(timeout: float | None = None) -> object:
            nonlocal turns
            turns += 1
            return select(timeout)

        loop._selector.select = counted  # type: ignore[attr-defined]
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
    finally:
        loop.close()
    assert turns <= 4


def test_deadlines_pass_later_too() -> None:
    async def wait() -> float:
        started = time.monotonic()
        with anyio.move_on_after(0.02):
            await anyio.sleep_forever()
        return time.monotonic() - started

    options = {"loop_factory": loop_factory(5.0)}
    assert anyio.run(wait, backend_options=options) >= 0.1


def test_without_dilation_time_is_unchanged() -> None:
    loop = loop_factory(1.0)()
    assert not isinstance(loop, DilatedLoop)
    loop.close()
    assert dilated(time.monotonic, 1.0) is time.monotonic
    assert dilated(lambda: 12.0, 4.0)() == 3.0


def test_threads_and_sockets_wake_a_dilated_loop_at_once() -> None:
    async def work() -> float:
        started = time.monotonic()
        for _ in range(20):
            await anyio.to_thread.run_sync(lambda: None)
        return time.monotonic() - started

    plain = anyio.run(work)
    slow = anyio.run(work, backend_options={"loop_factory": loop_factory(1000.0)})
    assert slow < plain + 10.0, "a hand-off that waits for a timer would take minutes"
