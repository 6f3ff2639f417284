"""Processes that shape links raise their priority, and continue without the right to do so."""

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

UNPRIVILEGED_USER = 65534


def priorities(*user: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, user)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        timeout=60.0,
        check=True,
    )
    return done.stdout.decode().split()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise priorities")
def test_the_process_has_priority_over_all_sessions() -> None:
    assert priorities() == [str(NICENESS), str(NICENESS) if AUTOGROUP.exists() else "none"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_without_the_right_continues_unchanged() -> None:
    own, of_session = priorities(UNPRIVILEGED_USER)
    assert int(own) >= 0
    assert of_session in ("0", "none")
