"""The client of a device as its agent sees it: a server, a fork, frames with a deadline.

All of it blocks, in the training thread. A wait ends with a frame, with the end of the process, or
`grace_s` after the work should stop; then the process and all that it has started are killed. What
a client prints goes to a ring of lines, of which the last ones follow a failure.
"""

import json
import logging
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fairbed.device_agent.clients.child as child_package
from fairbed.device_agent.clients.child.frames import (
    MAX_HEADER_BYTES,
    Buffer,
    FrameError,
    Header,
    Parts,
    encode_frame,
    enlarge_buffer,
    parts_of,
    size_of,
)
from fairbed.device_agent.config import MAX_PROCESSES
from fairbed.wire.printable import one_line, output_line

_log = logging.getLogger(__name__)

POLL_S = 0.1
"""Interval at which a wait asks whether its work should stop."""

START_S = 120.0
"""Longest import of the code of a client, beside any deadline."""

KILL_S = 5.0
"""Longest wait for a killed client to end."""

MAX_LINES, MAX_LINE = 40, 300
"""Lines of output that are kept, and characters of one."""

SHOWN_LINES = 12
"""Last lines of output that follow a failure in the log."""

READ_BYTES = 1 << 16

SERVE = Path(child_package.__file__).with_name("serve.py")
WATCHING = SERVE.with_name("watching.py")


class ClientFailed(Exception):
    """The client failed, and its process has ended; the message is one line.

    Args:
        text: The line.
        lines: The end of its traceback or of its output, printable.
    """

    def __init__(self, text: str, lines: Sequence[str] = ()) -> None:
        super().__init__(str(one_line(text, 500)))
        self.lines = tuple(str(one_line(line, MAX_LINE)) for line in lines)


class ClientStopped(Exception):
    """The work was stopped: its deadline has passed, or its round is over."""


class Lines:
    """The last lines of the output of a process, in bounded memory."""

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=MAX_LINES)
        self._begun = b""

    def add(self, data: bytes) -> None:
        """Add some output."""
        *lines, self._begun = (self._begun + data[-READ_BYTES:]).split(b"\n")
        for line in lines[-MAX_LINES:]:
            self._kept.append(line[: 4 * MAX_LINE].decode(errors="replace"))
        self._begun = self._begun[: 4 * MAX_LINE]

    def last(self, count: int = SHOWN_LINES) -> list[str]:
        """Return the last lines, printable."""
        lines = [*self._kept, *([self._begun.decode(errors="replace")] if self._begun else [])]
        return [str(output_line(line, MAX_LINE)) for line in lines if line][-count:]


@dataclass(frozen=True, slots=True)
class ClientCode:
    """The code of a client, and the interpreter that runs it."""

    kind: str
    folder: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    threads: int = 1
    """Threads of a step, for libraries that create them; 0 leaves the choice to them."""
    processes: int = MAX_PROCESSES
    """Most processes of one client."""


class ClientServer:
    """A server of clients as a child of this process; it ends with this process.

    Args:
        code: What it loads.

    Raises:
        ClientFailed: The interpreter cannot be started.
    """

    def __init__(self, code: ClientCode) -> None:
        self.lines = Lines()
        """What it has printed until its code was loaded."""
        self._folder = tempfile.mkdtemp(prefix="fairbed-client-")
        self.address = os.path.join(self._folder, "socket")
        loading = {
            "kind": code.kind,
            "folder": code.folder,
            "path": code.path,
            "options": dict(code.options),
            "threads": code.threads,
            "processes": code.processes,
        }
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(self.address)
            listening.listen(1024)
            self._process = subprocess.Popen(
                [
                    *(code.python, str(WATCHING), self._folder, str(SERVE)),
                    *(str(listening.fileno()), json.dumps(loading)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[listening.fileno()],
                env=_environment(code.threads),
                start_new_session=True,
            )
        except OSError as exc:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ClientFailed(
                f"client: its interpreter {code.python} must run, got {exc.strerror or exc}; "
                "correct its path"
            ) from exc
        finally:
            listening.close()
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._process.poll() is None

    def await_end(self) -> bool:
        """Wait a moment whether it ends; return whether it has."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self.read_output()
        return not self.is_alive

    @property
    def end(self) -> str:
        """How it ended, for an error message; empty while it is alive."""
        code = self._process.poll()
        if code is None:
            return ""
        return f"exit {code}" if code >= 0 else f"signal {_signal_name(-code)}"

    def read_output(self) -> None:
        """Read what it has printed."""
        _read(self._output, self.lines)

    def close(self) -> None:
        """End the server and all its clients."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _environment(threads: int) -> dict[str, str]:
    """Return the environment of a server: numeric libraries read their threads when loaded."""
    found = dict(os.environ)
    if threads:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            found[name] = str(threads)
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class _Incoming:
    """Reads one frame in parts, as they arrive."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data, self._got = bytearray(4), 0
        self._header: Header | None = None
        self._size = -1

    def take(self, link: socket.socket) -> tuple[Header, Parts] | None:
        """Read what is there; return the frame when it is complete.

        Raises:
            FrameError: The bytes are no frame, or too many.
            EOFError: The other side has closed the socket.
            OSError: The other side is gone; `BlockingIOError` if nothing is there.
        """
        while True:
            if self._got < len(self._data):
                wanted = memoryview(self._data)[self._got :]
                count = link.recv_into(wanted, min(len(wanted), 1 << 20))
                if not count:
                    raise EOFError
                self._got += count
                continue
            if self._size < 0:
                (self._size,) = struct.unpack("<I", self._data)
                if self._size > MAX_HEADER_BYTES:
                    raise FrameError(f"header: must have at most {MAX_HEADER_BYTES} bytes")
                self._data, self._got = bytearray(self._size), 0
            elif self._header is None:
                try:
                    self._header = json.loads(bytes(self._data).decode())
                except (ValueError, RecursionError) as exc:
                    raise FrameError(f"header: must be JSON, got {exc}") from exc
                if not isinstance(self._header, dict):
                    raise FrameError("header: must be an object")
                self._sizes = self._header.pop("parts", [])
                self._data, self._got = bytearray(size_of(self._sizes, self._most)), 0
            else:
                return self._header, parts_of(self._sizes, memoryview(self._data))


class ClientProcess:
    """The process of one client, a fork of a server.

    Args:
        address: Socket of the server.
        groups: `cgroup.procs` files of the control groups that it joins.
        network: File of the network namespace that it enters; None is that of the server.
        threads: Threads of a step; 0 leaves the choice to the libraries.
        most: Most bytes of a payload from it.
        work: Folder in which it works, for files that it writes: in the folder of its code they
            would change the hash. None is the folder of its code.

    Raises:
        ClientFailed: The server cannot be reached.
    """

    def __init__(
        self,
        address: str,
        *,
        groups: Sequence[str] = (),
        network: str | None = None,
        threads: int = 1,
        most: int = 1 << 31,
        work: Path | None = None,
    ) -> None:
        self.lines = Lines()
        self._most = most
        self.pid = 0
        self.import_cpu_s = 0.0
        """Processor time of the imports, which the server has done once for all devices."""
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._output, output = os.pipe()
        self._end, end = os.pipe()
        self._is_open = True
        try:
            self._link.settimeout(KILL_S)
            self._link.connect(address)
            socket.send_fds(self._link, [b"f"], [output, end])
            about = {
                "do": "fork",
                "groups": list(groups),
                "network": network,
                "threads": threads,
                "work": None if work is None else str(work),
            }
            self._link.sendall(encode_frame(about, {})[0])
            self._link.setblocking(False)
            enlarge_buffer(self._link)
        except OSError as exc:
            self.close()
            raise ClientFailed(f"client: its server must answer, got {exc}") from exc
        finally:
            os.close(output)
            os.close(end)
        for descriptor in (self._output, self._end):
            os.set_blocking(descriptor, False)

    def await_fork(
        self, should_stop: Callable[[], bool], server: ClientServer | None = None
    ) -> None:
        """Wait until the process exists; the server may be importing still.

        Args:
            should_stop: The work is no longer needed.
            server: The server, if it belongs to this process.

        Raises:
            ClientFailed: The code cannot be loaded.
            ClientStopped: It should stop.
        """
        until = time.monotonic() + START_S

        def is_over() -> bool:
            if server is not None:
                server.read_output()
            return should_stop() or time.monotonic() > until

        try:
            header, _ = self._wait([], is_over, 0.0)
        except ClientFailed as exc:
            if server is None or exc.lines or not server.await_end():
                raise
            raise ClientFailed(
                f"client: the import of its code must end, but its process ended: {server.end}",
                server.lines.last(),
            ) from None
        except ClientStopped:
            if time.monotonic() > until:
                raise ClientFailed(
                    f"client: the import of its code must end within {START_S:g} s"
                ) from None
            raise
        if header.get("is") != "forked":
            raise ClientFailed("client: its server must answer forked")
        self.pid = int(header.get("pid", 0))
        self.import_cpu_s = float(header.get("import_cpu_s", 0.0))

    def request(
        self,
        header: Mapping[str, Any],
        parts: Mapping[str, Buffer],
        should_stop: Callable[[], bool],
        grace_s: float,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> tuple[Header, Parts]:
        """Send a frame and wait for its answer.

        Args:
            header: Header of the frame.
            parts: Its payload.
            should_stop: The deadline has passed, or the work is no longer needed.
            grace_s: Time between that and the end of the process, seconds.
            on_progress: Gets the share of the work that is done.

        Raises:
            ClientFailed: The client failed; its process has ended.
            ClientStopped: The process was killed, as it did not stop.
        """
        return self._wait(encode_frame(header, parts), should_stop, grace_s, on_progress)

    def close(self) -> None:
        """Kill the process and all that it has started; return when they have ended."""
        if not self._is_open:
            return
        self._is_open = False
        self._link.close()  # the server sees it
        if self.pid and self._await_end(KILL_S) is None:
            _log.warning("client: its server did not end it within %g s", KILL_S)
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        for descriptor in (self._output, self._end):
            os.close(descriptor)

    def _await_end(self, limit_s: float) -> str | None:
        """Return how the process has ended: `exit 3`, `signal 9`, or empty if nothing knows."""
        until = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            while (left_s := until - time.monotonic()) > 0.0:
                self._read_output()
                if selector.select(min(left_s, POLL_S)):
                    with suppress(BlockingIOError):
                        return os.read(self._end, 100).decode()
        return None

    def _wait(
        self,
        outgoing: Sequence[Buffer],
        should_stop: Callable[[], bool],
        grace_s: float,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> tuple[Header, Parts]:
        try:
            return self._exchange(
                deque(map(_bytes_of, outgoing)), should_stop, grace_s, on_progress
            )
        except (ClientStopped, ClientFailed):
            self.close()
            raise
        except FrameError as exc:
            self.close()
            raise ClientFailed(f"client: {exc}", self.lines.last()) from exc
        except (OSError, EOFError):
            text = self._ended()
            self.close()
            raise ClientFailed(text, self.lines.last()) from None

    def _exchange(
        self,
        sending: deque[memoryview],
        should_stop: Callable[[], bool],
        grace_s: float,
        on_progress: Callable[[float], None],
    ) -> tuple[Header, Parts]:
        incoming = _Incoming(self._most)
        killed_at: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._end, selectors.EVENT_READ)
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(self._link, both if sending else selectors.EVENT_READ)
            while True:
                if killed_at is None and should_stop():
                    killed_at = time.monotonic() + grace_s
                    sending.append(memoryview(encode_frame({"do": "stop"}, {})[0]))
                    selector.modify(self._link, both)
                if killed_at is not None and time.monotonic() >= killed_at:
                    raise ClientStopped
                ready = {key.fileobj: mask for key, mask in selector.select(POLL_S)}
                if self._output in ready and not self._read_output():
                    selector.unregister(self._output)
                if ready.get(self._link, 0) & selectors.EVENT_WRITE:
                    self._send(sending)
                    if not sending:
                        selector.modify(self._link, selectors.EVENT_READ)
                if ready.get(self._link, 0) & selectors.EVENT_READ:
                    with suppress(BlockingIOError):
                        found = incoming.take(self._link)
                        assert found is not None
                        incoming = _Incoming(self._most)
                        if found[0].get("is") == "progress":
                            on_progress(float(found[0].get("share", 0.0)))
                        else:
                            return self._answer(*found)
                elif self._end in ready:  # after what it may have sent
                    raise EOFError

    def _answer(self, header: Header, parts: Parts) -> tuple[Header, Parts]:
        if header.get("is") != "failed":
            return header, parts
        self._read_output()
        trace = header.get("trace") or []
        lines = [str(line) for line in trace] if isinstance(trace, list) else []
        error = str(header.get("error", "client: failed"))
        raise ClientFailed(error, [*self.lines.last(), *lines[-SHOWN_LINES:]])

    def _send(self, sending: deque[memoryview]) -> None:
        while sending:
            try:
                count = self._link.send(sending[0][: 1 << 20])
            except BlockingIOError:
                return
            sending[0] = sending[0][count:]
            if not sending[0]:
                sending.popleft()

    def _read_output(self) -> bool:
        return _read(self._output, self.lines)

    def _ended(self) -> str:
        how = self._await_end(KILL_S) if self.pid else ""
        self._read_output()
        kind, _, number = (how or "").partition(" ")
        if kind == "signal":
            name = _signal_name(int(number))
            hint = ", perhaps for lack of memory" if name == "SIGKILL" else ""
            return f"client: its process must go on, but was ended by {name}{hint}"
        if kind == "exit":
            return f"client: its process must go on, but exited with status {number}"
        return "client: its process must go on, but has ended"


def _read(descriptor: int, lines: Lines) -> bool:
    """Read some of what a process has printed; return whether there may be more."""
    with suppress(BlockingIOError):
        for _ in range(16):
            data = os.read(descriptor, READ_BYTES)
            if not data:
                return False
            lines.add(data)
    return True


def _bytes_of(part: Buffer) -> memoryview:
    return memoryview(part).cast("B")
