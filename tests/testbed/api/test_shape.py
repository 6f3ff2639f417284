"""Any command on an emulated device, from a program."""

import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

import fairbed
from fairbed import UsageError
from tests.processes import own_children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fairbed shape needs Linux")


def test_a_command_returns_its_output_and_report() -> None:
    done = fairbed.shape(
        None, ["sh", "-c", "echo out; echo err >&2; exit 3"], cpu=0.5, backend="process"
    )
    first, *busy = done.stderr.splitlines()  # a busy machine has a line of its own
    assert (done.status, done.stdout, first, len(busy) <= 1) == (3, "out\n", "err", True)
    assert done.report.cpu.configured_cores == 0.5
    assert done.report.command[0] == "sh"


@pytest.mark.parametrize(
    ("profile", "command", "message"),
    [
        ("raspbery-pi-4b", ["true"], "shape: raspbery-pi-4b: no such profile; similar"),
        ("raspberry-pi-4b", ["true"], "shape: backend process: emulates the processor"),
        (None, [], "shape: the command must be a list of texts, got []"),
        (None, "true", "shape: the command must be a list of texts, got 'true'"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    profile: str | None, command: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        fairbed.shape(profile, command, cpu=None if profile else 0.5, backend="process")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_program_that_is_not_there_is_127_as_in_a_shell() -> None:
    done = fairbed.shape(None, ["no-such-program"], cpu=0.5, backend="process")
    assert done.status == 127
    assert "no-such-program" in done.stderr


@pytest.mark.full
def test_an_interrupt_ends_the_command(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def interrupt() -> None:
        while not (pid_file.exists() and pid_file.read_text().endswith("\n")):
            threading.Event().wait(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        fairbed.shape(
            None, ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 60"], cpu=0.5, backend="process"
        )
    watcher.join()
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert not own_children()
