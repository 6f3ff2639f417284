"""On a terminal, under a real shell: keys, job control, the size of the window."""

import fcntl
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.testbed.shape.conftest import TIMEOUT_S, environ, problem, shape_argv

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"),
]

PROMPT = "outer> "


class Terminal:
    """bash on a pseudo-terminal."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.resize(24, 80)
        self.bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environ(), "PS1": PROMPT, "TERM": "dumb"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def see(self, text: str) -> str:
        """Wait until the terminal shows a text; return what it showed up to its end."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self._seen:
            left_s = deadline - time.monotonic()
            assert left_s > 0.0, f"{text!r} never came, but {self._seen!r}"
            if select.select([self._master], [], [], left_s)[0]:
                self._seen += os.read(self._master, 4096).decode(errors="replace")
        before, found, self._seen = self._seen.partition(text)
        return before + found

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def close(self) -> None:
        os.close(self._master)  # hangs up
        try:
            self.bash.wait(TIMEOUT_S)
        finally:
            self.bash.kill()
            self.bash.wait()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    found = Terminal()
    try:
        found.see(PROMPT)
        yield found
    finally:
        found.close()


@pytest.fixture(params=["namespace", "process"])
def line(request: pytest.FixtureRequest) -> str:
    """The words to type in front of a command."""
    if request.param == "namespace" and (reason := problem()) is not None:
        pytest.skip(reason)
    return " ".join(shape_argv("--cpu", "0.5", "--backend", request.param, "--", ""))


def test_ctrl_c_ends_the_command_and_a_loop_around_it(terminal: Terminal, line: str) -> None:
    terminal.type(f"while true; do {line} bash -c 'echo be''gun; read word'; done\n")
    terminal.see("begun\r\n")
    terminal.type("\x03")
    terminal.see(PROMPT)
    terminal.type("echo status $?\n")
    terminal.see("status 130\r\n")


def test_ctrl_z_shows_the_prompt_and_fg_continues(terminal: Terminal, line: str) -> None:
    terminal.type(f"{line} sh -c 'echo be''gun; read word; echo got $word; exit 5'\n")
    terminal.see("begun\r\n")
    terminal.type("\x1a")
    terminal.see("Stopped")
    terminal.see(PROMPT)
    terminal.type("jobs\n")
    terminal.see("Stopped")
    terminal.see(PROMPT)
    terminal.type("fg\n")
    terminal.see("read word")  # bash prints the command that it continues
    terminal.type("hello\n")
    terminal.see("got hello\r\n")
    terminal.see(PROMPT)
    terminal.type("echo status $?\n")
    terminal.see("status 5\r\n")


def test_the_command_sees_the_terminal_and_its_new_size(terminal: Terminal, line: str) -> None:
    script = "trap 'stty size' WINCH; stty size; echo be''gun; while read word; do :; done"
    terminal.type(f'{line} bash -c "{script}"\n')
    terminal.see("24 80\r\n")
    terminal.see("begun\r\n")
    terminal.resize(40, 120)
    terminal.type("\n")  # the trap runs when `read` has returned
    terminal.see("40 120\r\n")
    terminal.type("\x04")
    terminal.see(PROMPT)


def test_a_shell_inside_has_jobs_of_its_own(terminal: Terminal) -> None:
    if (reason := problem()) is not None:
        pytest.skip(reason)
    terminal.type(" ".join(shape_argv("--cpu", "0.9", "--", "bash", "--norc", "-i")) + "\n")
    terminal.type("PS1='in''ner> '\n")
    terminal.see("inner> ")
    terminal.type("sh -c 'echo be''gun; exec sleep 1000'\n")
    terminal.see("begun\r\n")
    terminal.type("\x1a")
    terminal.see("Stopped")
    terminal.type("exit 7\n")
    terminal.see("There are stopped jobs")
    terminal.type("exit 7\n")
    terminal.see(PROMPT)
    terminal.type("echo status $?\n")
    terminal.see("status 7\r\n")
