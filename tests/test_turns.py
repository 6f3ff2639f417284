"""Tests that run two at a time: who wants to be alone is, and nobody waits for ever."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.turns import turn

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no flock")

TIMEOUT_S = 60.0

SUITE = """
import time
import pytest

@pytest.mark.parametrize("number", range(6))
def test_beside_others(number, log):
    log(f"shared {number}")

@pytest.mark.alone
@pytest.mark.parametrize("number", range(3))
def test_alone(number, log):
    log(f"alone {number}")
"""

IMPATIENT = """
import pytest

@pytest.mark.timeout(0.5)
def test_it():
    pass
"""

CONFTEST = """
import os
import time
import pytest
from tests.turns import FOLDER, Turns

def pytest_configure(config):
    config.addinivalue_line("markers", "alone: here, too")
    config.pluginmanager.register(Turns())
    if "LOCKS" in os.environ:
        config.workerinput = {FOLDER: os.environ["LOCKS"]}

@pytest.fixture
def log():
    def write(what):
        with open("log", "a") as file:
            file.write(f"begin {what}\\n")
        time.sleep(0.2)
        with open("log", "a") as file:
            file.write(f"end {what}\\n")
    return write
"""


def start_pytest(folder: Path, suite: str, *arguments: str, **env: str) -> "subprocess.Popen[str]":
    """Run a suite of its own, whose tests take turns as ours do."""
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "test_suite.py").write_text(suite, encoding="utf-8")
    places = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def is_awaited(folder: Path) -> bool:
    """Tell whether somebody waits for a turn: the next one then waits behind it."""
    import fcntl

    with (folder / "gate").open("a") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(gate, fcntl.LOCK_UN)
    return False


def await_waiting(folder: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_awaited(folder):
        assert time.monotonic() < deadline, "nobody came"
        time.sleep(0.01)


def test_two_that_do_not_mind_have_their_turn_together(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=TIMEOUT_S)

    def run() -> None:
        with turn(tmp_path, alone=False):
            both.wait()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run), pool.submit(run)]:
            done.result(TIMEOUT_S)


def test_who_wants_to_be_alone_waits_for_who_is_there_and_keeps_all_others_out(
    tmp_path: Path,
) -> None:
    inside, most = 0, {True: 0, False: 0}
    guard = threading.Lock()

    def run(alone: bool) -> None:
        nonlocal inside
        with turn(tmp_path, alone=alone):
            with guard:
                inside += 1
                most[alone] = max(most[alone], inside)
            time.sleep(0.01)
            with guard:
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run, number % 3 == 0) for number in range(60)]:
            done.result(TIMEOUT_S)
    assert most[True] == 1
    assert most[False] > 1


def test_others_do_not_overtake_who_waits_to_be_alone(tmp_path: Path) -> None:
    order: list[str] = []

    def run(name: str, alone: bool) -> None:
        with turn(tmp_path, alone=alone):
            order.append(name)

    with ThreadPoolExecutor(2) as pool:
        with turn(tmp_path, alone=False):
            alone = pool.submit(run, "alone", True)
            await_waiting(tmp_path)
            later = pool.submit(run, "later", False)
        alone.result(TIMEOUT_S)
        later.result(TIMEOUT_S)
    assert order == ["alone", "later"]


@pytest.mark.full
def test_waiting_for_a_turn_is_no_time_out(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    with turn(locks, alone=True):
        running = start_pytest(tmp_path, IMPATIENT, LOCKS=str(locks))
        await_waiting(locks)
        time.sleep(1.0)
    out, _ = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0, out
    assert "1 passed" in out


@pytest.mark.full
def test_workers_of_pytest_take_turns(tmp_path: Path) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    running = start_pytest(tmp_path, SUITE, "-n", "2", "--dist", "worksteal")
    out, _ = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0, out
    assert "9 passed" in out
    lines = (tmp_path / "log").read_text().splitlines()
    alone = [at for at, line in enumerate(lines) if " alone " in line]
    assert alone == list(range(alone[0], alone[-1] + 1)), "in one block"
    inside: set[str] = set()
    most = 0
    for line in lines:
        what, _, name = line.partition(" ")
        inside = inside | {name} if what == "begin" else inside - {name}
        most = max(most, len(inside))
        assert len(inside) < 2 or not any(name.startswith("alone") for name in inside), inside
    assert most == 2
