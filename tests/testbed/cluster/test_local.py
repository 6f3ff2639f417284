"""`--cluster local`: each command starts a cluster on this machine, and ends it."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli import NOT_BEGUN
from tests.processes import end
from tests.testbed.cli.test_tmux import Terminal, commands
from tests.testbed.cli.test_watch import FAIRBED as WATCHABLE
from tests.testbed.cluster.test_live_hosts import EXPERIMENT, OF_RAY, closed_rounds
from tests.testbed.cluster.test_two_nodes import (
    FAIRBED,
    compare,
    fairbed,
    files_of,
    grid_file,
)
from tests.testbed.small_run import assert_gone, wait_until

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(240)]

pytest.importorskip("ray")

LOCAL = ("--cluster", "local")

AGENTS_OF_RAY = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def kinds(folder: Path) -> list[str]:
    """Return the kinds of the events of a run."""
    with RunReader(folder) as reader:
        return [event.kind for _, event in reader.events()]


def commands_below(pid: int) -> list[str]:
    """Return the command of each process that descends from a process."""
    found = list[str]()
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.append(" ".join(process.cmdline()))
    return found


def experiment_file(folder: Path, rounds: int = 10_000) -> Path:
    path = folder / "hosts.toml"
    path.write_text(EXPERIMENT.format(rounds=rounds))
    return path


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_a_grid_has_the_bytes_of_a_run_without_it(tmp_path: Path) -> None:
    path, here, there = grid_file(tmp_path, 1), tmp_path / "here", tmp_path / "there"
    assert compare(path, here).returncode == 0
    done = compare(path, there, *LOCAL)
    assert done.returncode == 0, done.stderr
    assert files_of(there) == files_of(here)


def is_agent_of_ray(process: psutil.Process) -> bool:
    """Return whether a process is one of two that report for a minute that their node has died."""
    with suppress(psutil.NoSuchProcess):
        return any(name in " ".join(process.cmdline()) for name in AGENTS_OF_RAY)
    return False


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda one: one.name)
def test_it_ends_with_an_interrupted_run(number: signal.Signals, tmp_path: Path) -> None:
    path, folder = experiment_file(tmp_path), tmp_path / "run"
    run = subprocess.Popen(
        [*FAIRBED, "run", str(path), "--out", str(folder), "--json", *LOCAL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lingering = list[psutil.Process]()
    try:
        wait_until(lambda: closed_rounds(folder) >= 1, "round 1")
        family = psutil.Process(run.pid).children(recursive=True)
        assert any("raylet" in one.name() for one in family), family
        lingering = [one for one in family if is_agent_of_ray(one)]
        if number is signal.SIGINT:
            os.killpg(run.pid, number)  # as Ctrl-C in a terminal
        else:
            run.kill()
            family = [one for one in family if one not in lingering]
        out, err = run.communicate(timeout=60)
        assert_gone(family)
    finally:
        end(run)
        for process in lingering:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    if number is signal.SIGINT:
        assert (run.returncode, json.loads(out)["status"]) == (0, "stopped"), err


def test_it_ends_with_a_run_that_is_terminated_while_it_starts(tmp_path: Path) -> None:
    """Ray would abort the process."""
    path, folder = experiment_file(tmp_path), tmp_path / "run"
    run = subprocess.Popen(
        [*FAIRBED, "run", str(path), "--out", str(folder), "--json", *LOCAL],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: any(OF_RAY in one for one in commands_below(run.pid)), "a supervisor")
        family = psutil.Process(run.pid).children(recursive=True)
        run.terminate()
        _, err = run.communicate(timeout=60)
        assert_gone(family)
    finally:
        end(run)
    assert (run.returncode, err) == (0, f"fairbed: {NOT_BEGUN}\n")
    assert not folder.exists()


SCRIPT = """
import sys, fairbed
done = fairbed.run(sys.argv[1], out=sys.argv[2], cluster="local")
print(done.status, done.summary.rounds_completed)
"""


@pytest.mark.broker
def test_a_program_runs_a_fleet_on_it(tmp_path: Path) -> None:
    path, folder = experiment_file(tmp_path, rounds=3), tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["done 3"], done.stderr
    assert kinds(folder).count("host") == 1


@pytest.mark.broker
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_the_control_room_shows_and_steers_a_run_on_it(terminal: Terminal, tmp_path: Path) -> None:
    path, folder = experiment_file(tmp_path), tmp_path / "run"
    command = shlex.join([*WATCHABLE, "run", str(path), "--out", str(folder), *LOCAL])
    state = f"XDG_STATE_HOME={shlex.quote(str(tmp_path))}"
    terminal.open(f"{state} {command}; echo ended with $?; sleep 900")
    terminal.shows("[1 Overview]", "Fleet · 4 devices", "running")
    terminal.press("c")
    terminal.shows("Command to the run")
    terminal.type("throttle raspberry-pi-4b-1 cpu 0.5")
    terminal.press("Enter")
    wait_until(lambda: ("throttle", "raspberry-pi-4b-1", True) in commands(folder), "the throttle")
    done = fairbed("command", folder, "fault", "raspberry-pi-4b-2", "killed", "1", "--yes")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: "rejoined" in kinds(folder), "the device after its power cut")
    terminal.press("q")
    terminal.shows("This terminal started the run")
    terminal.press("s")
    terminal.shows("ended with 0")
    with RunReader(folder) as reader:
        assert reader.run().status == "stopped"
