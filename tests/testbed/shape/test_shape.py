"""A command on an emulated device behaves as in a plain shell, with either backend."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from fairbed.testbed.cli.main import main
from tests.processes import still_running
from tests.testbed.shape.conftest import TIMEOUT_S, Shape, Start, problem

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

SPEED = ("--cpu", "0.5")

GREETING = 'echo "$$"; '


@pytest.fixture(params=["namespace", "process"])
def backend(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Options of a device of which only the processor is emulated."""
    if request.param == "namespace" and (reason := problem()) is not None:
        pytest.skip(reason)
    return (*SPEED, "--backend", request.param)


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def without_warning(stderr: str) -> str:
    """Return stderr without the warning that this machine was busy."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("fairbed: shape: not valid"))


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_exit_status_is_that_of_the_command(shape: Shape, backend: tuple[str, ...]) -> None:
    assert shape(*backend, "--", "sh", "-c", "exit 125").returncode == 125


def test_shape_ends_by_the_signal_that_killed_the_command(
    shape: Shape, backend: tuple[str, ...]
) -> None:
    assert shape(*backend, "--", "sh", "-c", "kill -USR1 $$").returncode == -signal.SIGUSR1


def test_a_missing_command_and_a_file_that_is_no_program_have_different_statuses(
    shape: Shape, backend: tuple[str, ...], tmp_path: Path
) -> None:
    done = shape(*backend, "--", "no-such-command")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith("fairbed: shape: no-such-command: command not found")
    (tmp_path / "text").write_text("no program")
    assert shape(*backend, "--", "./text").returncode == 126


def test_input_output_errors_folder_and_arguments_pass_through(
    shape: Shape, backend: tuple[str, ...], tmp_path: Path
) -> None:
    script = 'cat; pwd; echo "$1" >&2; echo "$FAIRBED_HUB $OMP_NUM_THREADS"'
    done = shape(*backend, "--", "sh", "-c", script, "-", "two  words -- $HOME", stdin="in\n")
    assert done.returncode == 0
    # Without a link the hub is this machine itself; numerical libraries get a number of threads.
    assert done.stdout == f"in\n{tmp_path}\n127.0.0.1 1\n"
    assert without_warning(done.stderr) == "two  words -- $HOME\n"


def test_modules_in_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    for name in ("testbed", "random", "msgspec", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('wrong module')")
    # the interpreter of the test itself would import from its folder first
    code = "import sys; sys.path.pop(0); "
    code += "from fairbed.testbed.cli.main import console; sys.exit(console())"
    done = subprocess.run(
        [sys.executable, "-c", code, "shape", *SPEED, "--backend", "process", "--", "echo", "well"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.stdout, without_warning(done.stderr)) == ("well\n", "")


FULL_SIGNALS = [
    pytest.param(number, marks=pytest.mark.full)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
]


@pytest.mark.parametrize("number", [signal.SIGINT, *FULL_SIGNALS])
def test_signals_to_shape_reach_the_command(
    start: Start, backend: tuple[str, ...], number: signal.Signals
) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
    process = start(*backend, "--", "sh", "-c", script)
    assert read_line(process) == "ready"
    process.send_signal(number)
    assert read_line(process) == f"got {name}"
    assert process.wait(TIMEOUT_S) == 9


def test_shape_waits_for_a_command_that_ignores_a_signal(
    start: Start, backend: tuple[str, ...]
) -> None:
    script = "trap '' TERM; echo ready; read line; echo $line; exit 4"
    process = start(*backend, "--", "sh", "-c", script)
    assert read_line(process) == "ready"
    process.send_signal(signal.SIGTERM)
    assert process.stdin is not None
    process.stdin.write("still here\n")
    process.stdin.flush()
    assert read_line(process) == "still here"
    assert process.wait(TIMEOUT_S) == 4


def test_processes_that_the_command_leaves_running_are_killed(
    start: Start, backend: tuple[str, ...]
) -> None:
    process = start(*backend, "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!; exit 0")
    left = int(read_line(process))
    assert process.wait(TIMEOUT_S) == 0
    assert not is_running(left)


def test_the_command_and_its_processes_end_when_shape_is_killed(
    start: Start, backend: tuple[str, ...]
) -> None:
    process = start(*backend, "--", "sh", "-c", "sleep 1000 & echo $! $$; wait")
    pids = [int(word) for word in read_line(process).split()]
    family = [psutil.Process(pid) for pid in pids]
    process.kill()
    assert still_running(family, TIMEOUT_S) == []


def test_the_report_has_configured_and_received_resources(
    shape: Shape, backend: tuple[str, ...], tmp_path: Path
) -> None:
    done = shape(*backend, "-v", "--json", "how.json", "--", "sh", "-c", "exit 2")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "ended with status 2" in done.stderr
    report = json.loads((tmp_path / "how.json").read_text())
    assert report["status"] == 2
    assert report["cpu"]["asked_cores"] == pytest.approx(0.5)
    assert report["cpu"]["used_s"] > 0.0
    assert report["link"] is None


BUSY = """
import time
begun, cpu = time.monotonic(), time.process_time()
while time.process_time() - cpu < 0.5:
    sum(range(1000))
print(0.5 / (time.monotonic() - begun))
"""


@pytest.mark.alone
@pytest.mark.full
def test_a_busy_command_gets_its_share_and_no_more(
    shape: Shape, backend: tuple[str, ...], tmp_path: Path
) -> None:
    words = ("--cpu", "0.2", "--json", "how.json", *backend[2:])
    done = shape(*words, "--", sys.executable, "-c", BUSY)
    report = json.loads((tmp_path / "how.json").read_text())
    share = float(done.stdout)
    assert share < 0.2 * 1.1  # never faster than configured
    if report["is_valid"]:
        assert share > 0.2 * 0.85
    else:
        assert "not valid: the command or its packets waited" in done.stderr


THREADS = """
import hashlib, sys, threading, time
n, lasting_s = int(sys.argv[1]), float(sys.argv[2])
block, begun, used_s = bytes(1 << 20), time.monotonic(), []
def work():
    while time.monotonic() < begun + lasting_s:
        hashlib.sha256(block)  # without the lock of the interpreter
    used_s.append(time.thread_time())
threads = [threading.Thread(target=work) for _ in range(n)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(used_s) / (time.monotonic() - begun))
"""

HOG = "while True: pass"


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")
def test_a_threaded_command_that_this_machine_held_back_is_not_valid(
    shape: Shape, backend: tuple[str, ...], tmp_path: Path
) -> None:
    busy = max(2, os.cpu_count() or 1)
    cores = 0.75 * busy
    others = [subprocess.Popen([sys.executable, "-S", "-c", HOG]) for _ in range(2 * busy)]
    try:
        words = ("--cpu", f"{cores:g}", "--json", "how.json", *backend[2:])
        done = shape(*words, "--", sys.executable, "-S", "-c", THREADS, str(busy), "2")
    finally:
        for other in others:
            other.kill()
            other.wait()
    report = json.loads((tmp_path / "how.json").read_text())
    lost_ratio = 1.0 - float(done.stdout) / cores
    assert lost_ratio > 0.1  # the others take two thirds
    assert not report["is_valid"]
    assert report["contended_ratio"] > 0.5 * lost_ratio
    assert report["cpu"]["throttled_s"] <= report["wall_s"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("nosuch-device", "--", "true"), "nosuch-device: no such profile"),
        (("--cpu", "x", "--", "true"), "--cpu: must be cores of this machine"),
        (("--cpu", "0.001", "--", "true"), "--cpu: must be at least 0.01 of a core"),
        (("--down", "10", "--", "true"), "--down: must be a rate such as 10mbit"),
        (("--delay", "20", "--", "true"), "--delay: must be a duration such as 20ms"),
        (("--loss", "2", "--", "true"), "--loss: must be a share from 0 to 1"),
        (("--memory", "much", "--", "true"), "--memory: must be an amount of memory"),
        (("--cpu", "0.5", "--user", "no-one-here", "--", "true"), "--user: must be a user"),
        (("--trace", "missing.csv", "--", "true"), "missing.csv: must be a readable file"),
        (("raspberry-pi-4b", "true"), "must have a command after --"),
        (("raspberry-pi-4b", "--"), "must have a command after --"),
        (("raspberry-pi-4b", "--backend", "process", "--", "true"), "got a link and a memory"),
    ],
)
def test_an_invalid_option_is_one_line_and_the_command_is_not_run(
    words: tuple[str, ...],
    complaint: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only a process without other threads can hold signals back; no command is started here.
    monkeypatch.setattr("fairbed.testbed.shape.signals.held", nullcontext)
    assert main(["shape", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("fairbed: shape: ")
    assert complaint in line
