"""Windows between readings of the threads of a program."""

import os
import threading
from pathlib import Path

import pytest

from fairbed.testbed.host.contention import SHORT_S
from fairbed.testbed.host.thread_times import HAS_WAITS, ThreadTimes, ThreadWindows, tasks


def test_a_window_has_the_longest_wait_of_a_thread_and_the_threads_that_were_ready_at_a_time() -> (
    None
):
    readings = {
        "busy": ThreadTimes(1.0, 1.0, 10),
        "idle": ThreadTimes(9.0, 9.0, 10),
    }
    windows = ThreadWindows(readings.get)
    windows.update(readings)
    readings["busy"] = ThreadTimes(1.2, 1.1, 11)
    alone = windows.update([*readings, "ended"])
    assert alone.waited_s == pytest.approx(0.1 - SHORT_S)
    assert alone.concurrency == pytest.approx(1.0)
    readings["busy"] = ThreadTimes(1.3, 1.3, 12)
    readings["new"] = ThreadTimes(0.1, 0.05, 1)
    both = windows.update(readings)
    assert both.waited_s == pytest.approx(0.2 - SHORT_S)
    assert both.concurrency == pytest.approx(1.5)
    nothing = windows.update([])
    assert (nothing.waited_s, nothing.concurrency) == (0.0, 1.0)


@pytest.mark.skipif(not HAS_WAITS, reason="this system does not count waits")
def test_every_thread_of_a_process_is_read() -> None:
    done = threading.Event()
    others = [threading.Thread(target=done.wait) for _ in range(3)]
    for other in others:
        other.start()
    try:
        found = tasks(os.getpid())
        assert {Path(task).name for task in found} >= {str(one.native_id) for one in others}
        windows = ThreadWindows()
        windows.update(found)
        assert windows.update(found).waited_s >= 0.0
    finally:
        done.set()
    assert tasks(2**22 + 1) == []
