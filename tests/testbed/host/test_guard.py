"""Children end with their parent, also after SIGKILL; with real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fairbed.testbed.host.guard import guarded
from tests.processes import is_gone

REPOSITORY = Path(__file__).parents[3]

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
"""Prints that it is up, then waits; an end of its stdin does not end it."""

PARENT = """
import json, os, subprocess, sys
from fairbed.testbed.host.guard import guarded
argv, stay = json.loads(sys.argv[1])
child = subprocess.Popen(guarded(argv, stay=stay), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""

OUR_CHILD = """
import os, sys, time
from fairbed.testbed.host.guard import die_with_parent
die_with_parent(int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid())
print('up', flush=True)
time.sleep(600)
"""

UNGUARDED_PARENT = """
import subprocess, sys
argv = [sys.executable, '-c', sys.argv[1]]
child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def started() -> Iterator[list[psutil.Process]]:
    """Processes to kill at the end of a test that fails."""
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        if process.is_running():
            process.kill()


def start_parent(code: str, argument: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    """Start a parent that prints the id of its one child and waits; return both."""
    parent = subprocess.Popen(
        [sys.executable, "-c", code, argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert parent.stdout is not None
    return parent, psutil.Process(int(parent.stdout.readline()))


def kill(parent: subprocess.Popen[str]) -> None:
    with parent:
        parent.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("stay", [False, True])
def test_a_guarded_program_dies_with_a_killed_parent(
    stay: bool, started: list[psutil.Process]
) -> None:
    parent, child = start_parent(PARENT, json.dumps([SLEEPER, stay]))
    family = [child, *child.children(recursive=True)]
    started += family
    kill(parent)
    assert all(is_gone(process) for process in family)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel signal is Linux's")
def test_on_linux_the_guard_becomes_the_program(started: list[psutil.Process]) -> None:
    parent, child = start_parent(PARENT, json.dumps([SLEEPER, False]))
    started.append(child)
    assert child.cmdline() == SLEEPER
    assert child.children() == []
    kill(parent)
    assert is_gone(child)


def test_our_own_child_dies_with_a_killed_parent(started: list[psutil.Process]) -> None:
    parent, child = start_parent(UNGUARDED_PARENT, OUR_CHILD)
    started.append(child)
    kill(parent)
    assert is_gone(child)


def test_a_child_of_an_ended_parent_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUR_CHILD, "1"], cwd=REPOSITORY, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize("stay", [False, True])
def test_the_exit_status_of_the_program_comes_through(stay: bool) -> None:
    argv = guarded([sys.executable, "-c", "raise SystemExit(7)"], stay=stay)
    assert subprocess.run(argv, timeout=60).returncode == 7


def test_sigterm_to_a_staying_guard_reaches_the_program() -> None:
    with subprocess.Popen(
        guarded(SLEEPER, stay=True), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        guard.terminate()
        assert guard.wait(20) == 128 + signal.SIGTERM


def test_the_program_gets_default_signal_handlers() -> None:
    shell = ["sh", "-c", "kill -PIPE $$; echo still here"]
    done = subprocess.run(guarded(shell), capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGPIPE


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "guard: need [--stay] [PARENT] -- CMD..., got []"),
        (["--"], 2, "guard: need [--stay] [PARENT] -- CMD..., got ['--']"),
        (
            ["x", "--", "true"],
            2,
            "guard: need [--stay] [PARENT] -- CMD..., got ['x', '--', 'true']",
        ),
        (
            ["--", "no-such-program"],
            127,
            "guard: cannot run no-such-program: No such file or directory",
        ),
    ],
)
def test_a_bad_command_line_gets_one_line(arguments: list[str], status: int, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairbed.testbed.host.guard", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_it_starts_without_site_packages() -> None:
    argv = guarded(["true"])
    done = subprocess.run(
        [argv[0], "-X", "importtime", *argv[1:]], capture_output=True, text=True, timeout=60
    )
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert loaded.isdisjoint({"site", "subprocess", "typing", "testbed", "numpy", "asyncio"})
    assert os.path.isabs(argv[3])
