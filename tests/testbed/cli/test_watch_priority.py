"""The TUI lowers its scheduling priority while it is open, and restores that of its session."""

import subprocess
import sys

from fairbed.testbed.backends.priority import AUTOGROUP
from fairbed.testbed.cli.watch import NICENESS

CODE = """
import os
from fairbed.testbed.backends.priority import AUTOGROUP
from fairbed.testbed.cli.watch import low_priority
def show():
    print(os.getpriority(os.PRIO_PROCESS, 0))
    print(AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else "none")
with low_priority():
    show()
show()
"""


def test_the_viewer_lowers_its_priority_and_restores_that_of_its_session() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        stdout=subprocess.PIPE,
        start_new_session=True,
        timeout=60.0,
        check=True,
    )
    own, of_session, own_after, of_session_after = done.stdout.decode().split()
    assert int(own) == int(own_after) >= NICENESS
    if AUTOGROUP.exists():
        assert (int(of_session), int(of_session_after)) == (NICENESS, 0)
