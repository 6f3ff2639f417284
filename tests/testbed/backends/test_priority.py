"""Processes that shape links raise their priority; those that read a run lower it."""

import os
import subprocess
import sys

import pytest

from fairbed.testbed.backends.priority import AUTOGROUP, LOW_NICENESS, NICENESS

CODE = """
import os, sys
from fairbed.testbed.backends.priority import AUTOGROUP, raise_priority
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
raise_priority()
print(os.getpriority(os.PRIO_PROCESS, 0))
print(AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else "none")
"""

LOW = """
import os
from fairbed.testbed.backends.priority import AUTOGROUP, low_priority
def show():
    print(os.getpriority(os.PRIO_PROCESS, 0))
    print(AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else "none")
with low_priority():
    show()
show()
"""

FIRST = """
import os, sys
from fairbed.testbed.backends.priority import run_first
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
run_first()
print({os.SCHED_RR: "first", os.SCHED_OTHER: "usual"}[os.sched_getscheduler(0) & 7], flush=True)
child = os.fork()
if child == 0:
    print(os.sched_getscheduler(0), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""

UNPRIVILEGED_USER = 65534


def priorities(*user: int, code: str = CODE) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, user)],
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


def test_a_viewer_lowers_its_priority_and_restores_that_of_its_session() -> None:
    own, of_session, own_after, of_session_after = priorities(code=LOW)
    assert int(own) == int(own_after) >= LOW_NICENESS
    if AUTOGROUP.exists():
        assert (int(of_session), int(of_session_after)) == (LOW_NICENESS, 0)


MAY = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)); print(True)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have a real-time priority")
def test_a_relay_runs_first_and_its_children_do_not() -> None:
    try:
        priorities(code=MAY)
    except subprocess.CalledProcessError:
        pytest.skip("this kernel gives root no real-time priority")
    assert priorities(code=FIRST) == ["first", str(os.SCHED_OTHER)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_relay_without_the_right_runs_as_usual() -> None:
    assert priorities(UNPRIVILEGED_USER, code=FIRST) == ["usual", str(os.SCHED_OTHER)]
