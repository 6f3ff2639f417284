"""What `fairbed run` imports and starts before it plans."""

import gc
import importlib
import subprocess
import sys

from fairbed.testbed.cli import uncollected

IDLE = """
import sys, time
from fairbed.testbed.cli.main import main
main(["run", "no-such-file.toml"])
assert "numpy" in sys.modules
print(time.process_time() - time.thread_time())
"""

BY_PROGRAM = """
import sys

from fairbed.testbed.cli import uncollected
import fairbed
fairbed.run
print(*sorted(name for name in sys.modules if name.startswith("fairbed.coordinator.report")))
"""


def test_a_program_that_starts_a_run_does_not_import_what_reads_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BY_PROGRAM], capture_output=True, text=True, check=True, timeout=60.0
    )
    assert done.stdout.split() == [
        "fairbed.coordinator.report",
        "fairbed.coordinator.report.errors",
    ]


def test_idle_threads_of_numpy_take_no_core() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IDLE], capture_output=True, text=True, check=True, timeout=60.0
    )
    assert float(done.stdout) < 0.005


def test_only_a_new_process_freezes_what_it_imports() -> None:
    importlib.import_module("numpy")
    before = gc.get_freeze_count()
    with uncollected():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before
