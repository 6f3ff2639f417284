"""What `fairbed run` imports and starts before it plans."""

import subprocess
import sys

IDLE = """
import sys, time
from fairbed.testbed.cli.main import main
main(["run", "no-such-file.toml"])
assert "numpy" in sys.modules
print(time.process_time() - time.thread_time())
"""


def test_idle_threads_of_numpy_take_no_core() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IDLE], capture_output=True, text=True, check=True, timeout=60.0
    )
    assert float(done.stdout) < 0.005
