"""The TUI in a real terminal: the run that it starts, and the end of both."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fairbed.coordinator.store import RunReader, StoreError
from tests.testbed.small_run import LIMIT_S, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

FAIRBED = [
    sys.executable,
    "-c",
    "import contextlib, sys; from fairbed.testbed.cli import main, watch; "
    "watch.low_priority = contextlib.nullcontext; sys.exit(main.console())",
]
"""`fairbed` whose control room has the priority of other tests: they would starve it."""

SMALL = """
name = "small"
rounds = 100000
[model]
name = "softmax"
[selection]
per_round = 1
[[fleet]]
count = 2
"""


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            [*FAIRBED, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": os.devnull},
        )
        os.close(slave)
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # the other side is closed
                return
            self.text += data.decode(errors="replace")

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._master, keys.encode())

    def finish(self) -> int:
        """Wait for the end of the command; return its exit code."""
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code

    def close(self) -> None:
        """Kill the command and close the terminal."""
        self.process.kill()
        self.process.wait()
        self._reader.join(LIMIT_S)
        os.close(self._master)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture
def start() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def status_of(folder: Path) -> str:
    try:
        with RunReader(folder) as reader:
            return reader.run().status
    except StoreError:
        return "absent"


@pytest.mark.full
def test_a_run_that_cannot_begin_leaves_no_folder_and_prints_the_reason(
    experiment: Path, tmp_path: Path, start: Callable[..., Terminal]
) -> None:
    out = tmp_path / "out"
    terminal = start(
        "run", str(experiment), "--out", str(out), "--set", 'data={dataset="mnist", folder="nil"}'
    )
    assert terminal.finish() == 2
    assert "starting broker and devices" in terminal.text
    assert terminal.text.splitlines()[-1].startswith("fairbed: ")
    assert "nil" in terminal.text.splitlines()[-1]
    assert not out.exists()


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGHUP, marks=pytest.mark.full),
    ],
)
def test_a_run_ends_gracefully_when_its_terminal_closes(
    how: signal.Signals, experiment: Path, tmp_path: Path, start: Callable[..., Terminal]
) -> None:
    out = tmp_path / "out"
    terminal = start("run", str(experiment), "--out", str(out))
    wait_until(lambda: "Fleet" in terminal.text, "the control room")
    terminal.process.send_signal(how)
    terminal.finish()
    wait_until(lambda: status_of(out) == "stopped", "the end of the run")


@pytest.mark.full
def test_a_detached_run_continues_without_its_terminal(
    experiment: Path, tmp_path: Path, start: Callable[..., Terminal]
) -> None:
    out = tmp_path / "out"
    terminal = start("run", str(experiment), "--out", str(out))
    wait_until(lambda: "Fleet" in terminal.text, "the control room")
    terminal.press("q")
    wait_until(lambda: "This terminal started the run" in terminal.text, "the question")
    terminal.press("l")
    assert terminal.finish() == 0
    assert f"fairbed watch {out}" in terminal.text
    assert status_of(out) in ("created", "running")
    stop = [sys.executable, "-m", "fairbed.testbed.cli.main", "stop", str(out)]
    assert subprocess.run(stop, capture_output=True, check=False, timeout=LIMIT_S).returncode == 0
    assert status_of(out) == "stopped"


@pytest.mark.full
def test_a_run_that_dies_at_its_start_is_reported(
    experiment: Path, tmp_path: Path, start: Callable[..., Terminal]
) -> None:
    out = tmp_path / "out"
    terminal = start("run", str(experiment), "--out", str(out))
    wait_until(lambda: "starting broker and devices" in terminal.text, "the first words")
    wait_until(lambda: bool(psutil.Process(terminal.process.pid).children()), "the run")
    psutil.Process(terminal.process.pid).children()[0].kill()
    assert terminal.finish() == 1
    assert "fairbed: the run ended with exit code -9 before its first row" in terminal.text
    assert not out.exists()


@pytest.mark.parametrize(
    "moment_s",
    [
        pytest.param(0.0, marks=pytest.mark.full),
        0.2,
        pytest.param(1.5, marks=pytest.mark.full),
    ],
)
@pytest.mark.full
def test_a_signal_while_the_control_room_opens_ends_it_and_the_run(
    moment_s: float, experiment: Path, tmp_path: Path, start: Callable[..., Terminal]
) -> None:
    out = tmp_path / "out"
    terminal = start("run", str(experiment), "--out", str(out))
    wait_until(lambda: status_of(out) in ("created", "running"), "the run")
    time.sleep(moment_s)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.finish() == 130
    assert "Traceback" not in terminal.text
    assert status_of(out) == "stopped"


@pytest.mark.full
def test_ctrl_c_while_the_run_is_starting_leaves_no_folder(
    experiment: Path, tmp_path: Path, start: Callable[..., Terminal]
) -> None:
    out = tmp_path / "out"
    terminal = start("run", str(experiment), "--out", str(out))
    wait_until(lambda: "starting broker and devices" in terminal.text, "the first words")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.finish() == 130
    assert "Traceback" not in terminal.text
    wait_until(
        lambda: not out.exists() or status_of(out) == "stopped",
        lambda: f"nothing half done, got {status_of(out)}, {[*out.iterdir()]}",
    )
