"""Who shapes links goes before others, where we may; where not, it goes on all the same."""

import os
import subprocess
import sys

import pytest

from fairbed.testbed.backends.priority import AUTOGROUP, NICENESS

CODE = """
import os, sys
from fairbed.testbed.backends.priority import AUTOGROUP, raise_priority
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
raise_priority()
print(os.getpriority(os.PRIO_PROCESS, 0))
print(AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else "none")
"""

NOBODY = 65534


def told(*user: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, user)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        timeout=60.0,
        check=True,
    )
    return done.stdout.decode().split()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go first")
def test_it_goes_first_among_all_sessions() -> None:
    assert told() == [str(NICENESS), str(NICENESS) if AUTOGROUP.exists() else "none"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_who_may_not_goes_on_as_before() -> None:
    own, of_session = told(NOBODY)
    assert int(own) >= 0
    assert of_session in ("0", "none")
