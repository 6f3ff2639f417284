"""The process tree of a command."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

STOPS = """
import subprocess, time
from pathlib import Path
from fairbed.testbed.shape.process_tree import ProcessTree

tree = ProcessTree(())
busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(4)]
try:
    for _ in range(30):
        tree.stop()
        tree.await_stop(10.0)
        for process in busy:
            print(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0])
        tree.resume()
        time.sleep(0.005)
finally:
    tree.kill()
"""


def test_no_process_runs_after_the_wait_for_a_stop() -> None:
    """A stop signal alone leaves a process running for an instant, which may read a key."""
    done = subprocess.run(
        [sys.executable, "-c", STOPS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["T"] * 120
