"""A start that waits names what it waits for."""

import fcntl
import threading
from pathlib import Path

from fairbed.testbed.host.calibration import LOCK, alone, holder_of
from fairbed.testbed.host.slow_steps import named_if_slow


def test_a_slow_step_is_named_once_and_a_quick_one_is_not() -> None:
    lines, is_named = list[str](), threading.Event()

    def report(line: str) -> None:
        lines.append(line)
        is_named.set()

    with named_if_slow("a broker", 20.0, after_s=0.0, report=report):
        assert is_named.wait(10.0)
    with named_if_slow("nothing", after_s=60.0, report=report):
        pass
    assert lines == ["start: waits for a broker, for 0 s so far, at most 20 s"]


def test_a_start_waits_for_a_calibration_of_another_process_only_so_long(tmp_path: Path) -> None:
    assert holder_of(tmp_path) == "the calibration of this machine"
    with (tmp_path / LOCK).open("w") as other:
        other.write("4711\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        assert holder_of(tmp_path) == "the calibration of this machine by process 4711"
        with alone(tmp_path, limit_s=0.0):
            pass
    with alone(tmp_path), (tmp_path / LOCK).open() as again:
        assert again.read().strip().isdigit()
