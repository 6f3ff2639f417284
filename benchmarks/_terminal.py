"""A program on a pseudo-terminal whose output is counted, and searched frame by frame."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CLOSE_S = 120.0
"""Time limit for a program to close; on a busy machine one of low priority needs most of it."""

CHUNK_BYTES = 1 << 16

FRAMES_QUERY, FRAMES_REPLY = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
"""Query whether the terminal shows an update as a whole (mode 2026), and the reply "yes"; then
the program marks the end of each frame."""
FRAME_END = b"\x1b[?2026l"

_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-9:;<=>?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_].*?\x1b\\|[ -/]*[0-~])",
    re.DOTALL,
)
"""Control sequences of ECMA-48: CSI, OSC, other strings, and short ones."""


class Terminal:
    """A pseudo-terminal that counts bytes and frames of its output.

    Args:
        columns: Width.
        lines: Height.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.n_bytes = 0
        self.n_frames = 0
        self.began_s = 0.0
        """`time.monotonic()` of the first output."""
        self._wanted: re.Pattern[str] | None = None
        self._found_s = 0.0
        self._found = threading.Event()
        self._reader = threading.Thread(target=self._read, name="bench.terminal", daemon=True)
        self._reader.start()

    def press(self, key: str) -> None:
        """Send a key."""
        os.write(self._ours, key.encode())

    def expect(self, pattern: str) -> None:
        """Search each frame from now on for the pattern, until `wait`."""
        self._found.clear()
        self._wanted = re.compile(pattern)

    @property
    def has_found(self) -> bool:
        """A frame had the pattern."""
        return self._found.is_set()

    def wait(self, timeout_s: float) -> float:
        """Wait for the end of the first frame with the pattern; return its `time.monotonic()`.

        Raises:
            RuntimeError: No frame had it.
        """
        if not self._found.wait(timeout_s):
            wanted = self._wanted.pattern if self._wanted else ""
            raise RuntimeError(f"the screen must show {wanted!r} within {timeout_s:g} s")
        return self._found_s

    def write_as_program(self, data: bytes) -> None:
        """Write output to the terminal."""
        os.write(self.theirs, data)

    def close(self) -> None:
        """Close the terminal."""
        os.close(self.theirs)
        self._reader.join(CLOSE_S)
        os.close(self._ours)

    def _read(self) -> None:
        rest = b""
        with suppress(OSError):  # Linux raises it when the other end is closed
            while data := os.read(self._ours, CHUNK_BYTES):
                arrived_s = time.monotonic()
                self.began_s = self.began_s or arrived_s
                self.n_bytes += len(data)
                *frames, rest = (rest + data).split(FRAME_END)
                self.n_frames += len(frames)
                for frame in frames:
                    self._search(frame, arrived_s)
                if FRAMES_QUERY in rest:
                    rest = rest.replace(FRAMES_QUERY, b"")
                    os.write(self._ours, FRAMES_REPLY)

    def _search(self, frame: bytes, arrived_s: float) -> None:
        if self._wanted is None or self._found.is_set():
            return
        if self._wanted.search(_ESCAPES.sub(b"", frame).decode(errors="replace")):
            self._found_s = arrived_s
            self._found.set()


def _take_terminal() -> None:
    """Make standard input the terminal of this session: it ends with the benchmark, as by ssh."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def on_terminal(
    command: list[str], columns: int, lines: int, module: str = "fairbed.testbed.cli.main"
) -> Iterator[tuple[int, Terminal]]:
    """Run a module with arguments on a terminal; yield its process number and the terminal.

    Raises:
        RuntimeError: It did not end with exit code 0.
    """
    terminal = Terminal(columns, lines)
    folder = tempfile.TemporaryDirectory()  # neither reads nor changes what the user chose
    own = {"XDG_CONFIG_HOME": folder.name, "XDG_STATE_HOME": folder.name}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *command],
            stdin=terminal.theirs,
            stdout=terminal.theirs,
            stderr=terminal.theirs,
            env={**os.environ, **own, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        try:
            yield process.pid, terminal
            if process.wait(CLOSE_S) != 0:
                raise RuntimeError(f"the control room ended with exit code {process.returncode}")
        finally:
            process.kill()
            process.wait()
    finally:
        terminal.close()
        folder.cleanup()
