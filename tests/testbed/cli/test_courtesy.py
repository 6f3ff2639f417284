"""A screen goes after others while it is open, and gives its session back what it had."""

import subprocess
import sys

from fairbed.testbed.backends.priority import AUTOGROUP
from fairbed.testbed.cli.watch import NICENESS

CODE = """
import os
from fairbed.testbed.backends.priority import AUTOGROUP
from fairbed.testbed.cli.watch import going_last
def tell():
    print(os.getpriority(os.PRIO_PROCESS, 0))
    print(AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else "none")
with going_last():
    tell()
tell()
"""


def test_it_goes_last_and_its_session_only_meanwhile() -> None:
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
