"""A recording that is ended by a signal leaves no process and no file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.processes import still_running
from tests.tiers import in_depth

LIMIT_S = 60.0

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@contextmanager
def _recording(*arguments: str | Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `fairbed record` in a session of its own; kill what is left of it."""
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "record", *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _wait_for(is_true: Callable[[], object], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, in_depth(signal.SIGHUP)])
@pytest.mark.parametrize("file", [".fairbed-record-*", "kernel-0"])
def test_a_signal_ends_the_processes_and_removes_the_files(
    file: str, number: signal.Signals, tmp_path: Path
) -> None:
    with _recording("box", "--for", "1s", "--load", "60s", "--out", tmp_path) as process:
        _wait_for(lambda: list(tmp_path.glob(file)), process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == -number
        assert errors.decode().splitlines()[-1] == f"fairbed: ended by {number.name}"
        assert list(tmp_path.iterdir()) == []
        assert still_running(children, LIMIT_S) == []


def test_a_server_of_probes_ends_by_a_signal() -> None:
    with _recording("--serve", "127.0.0.1:47613") as process:
        assert process.stderr is not None
        assert b"answering probes" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == -signal.SIGTERM
        assert errors == b"fairbed: ended by SIGTERM\n"


def test_an_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _IGNORES]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, b"alive\n"), "as with nohup"


_IGNORES = """
import os, signal
from fairbed.testbed.host.termination import unwound_by_signals
from tests.tiers import in_depth
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with unwound_by_signals():
    os.kill(os.getpid(), signal.SIGHUP)
    print("alive")
"""
