"""The fork server: a process that starts agents on request and reports how they end.

`python -m fairbed.testbed.backends.fork_server PARENT fork|spawn` reads requests from stdin
and writes replies to stdout.

With `fork` it imports the modules of an agent once and forks each agent, which takes some 10 ms
instead of 300 ms for a new interpreter and shares the memory of the modules. Before the first agent
that may import a torch model it imports torch, for the same reason. The process has one
thread and no event loop, so a fork copies no inconsistent state; onnxruntime starts threads only
when an agent opens a session. With `spawn` each agent is a new interpreter, for systems whose
frameworks do not support fork (macOS).

The agents end with this process, and this process with its parent (`testbed.host.guard`).
"""

import gc
import importlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from fairbed.testbed.backends.fork_protocol import (
    Exited,
    NotStarted,
    Reply,
    Request,
    Signal,
    Start,
    Started,
)
from fairbed.testbed.backends.launcher import Launch, run_and_exit, warm
from fairbed.testbed.host.guard import die_with_parent

_READ_BYTES = 1 << 16


class ForkServer:
    """Starts agents on request, and reports how they end.

    Args:
        start: Starts one agent; returns its process id.
    """

    def __init__(self, start: Callable[[Launch], int]) -> None:
        self._start = start
        self._pids: dict[str, int] = {}
        self._decoder = msgspec.json.Decoder(Request)
        self._pending = b""
        self._wake_up, wake_write = os.pipe()
        for end in (self._wake_up, wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # wakes `select`

    def serve(self) -> None:
        """Serve until stdin ends."""
        while True:
            ready, _, _ = select.select([0, self._wake_up], [], [])
            if self._wake_up in ready:
                os.read(self._wake_up, _READ_BYTES)
                self._reap()
            if 0 in ready:
                data = os.read(0, _READ_BYTES)
                if not data:
                    return
                for request in self._requests(data):
                    self._handle(request)

    def _requests(self, data: bytes) -> Iterator[Request]:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            yield self._decoder.decode(line)

    def _handle(self, request: Request) -> None:
        match request:
            case Start(launch=launch):
                _reply(self._begin(launch))
            case Signal(name=name, number=number):
                if name in self._pids:  # the id is valid: only this process reaps
                    os.kill(self._pids[name], number)

    def _begin(self, launch: Launch) -> Started | NotStarted:
        name = launch.agent.name
        if name in self._pids:
            return NotStarted(name=name, reason="the device is still running; kill it first")
        try:
            pid = self._pids[name] = self._start(launch)
        except OSError as error:
            return NotStarted(name=name, reason=error.strerror or str(error))
        return Started(name=name, pid=pid)

    def _reap(self) -> None:
        for name, pid in list(self._pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found == pid:
                del self._pids[name]
                _reply(Exited(name=name, pid=pid, status=os.waitstatus_to_exitcode(status)))


def _reply(reply: Reply) -> None:
    line = msgspec.json.encode(reply) + b"\n"
    while line:
        line = line[os.write(1, line) :]


def fork(launch: Launch) -> int:
    """Start an agent as a fork of this process; return its process id.

    Raises:
        OSError: The kernel refused.
    """
    parent = os.getpid()
    if launch.agent.allow_models and "torch" not in sys.modules:
        with suppress(ImportError):  # each agent reports it
            importlib.import_module("torch")
            _freeze()
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(parent)
        run_and_exit(launch)
    finally:
        os._exit(1)


def _freeze() -> None:
    """Exempt all objects from collections, which would copy the shared pages in an agent."""
    gc.collect()
    gc.freeze()


def spawn(launch: Launch) -> int:
    """Start an agent in a new interpreter; return its process id.

    Raises:
        OSError: The kernel refused.
    """
    read, write = os.pipe()
    try:
        os.write(write, msgspec.json.encode(launch) + b"\n")  # some 500 bytes fit into a pipe
        argv = [sys.executable, "-m", "fairbed.testbed.backends.launcher", str(os.getpid())]
        return os.posix_spawn(
            argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, read, 0)]
        )
    finally:
        os.close(read)
        os.close(write)


def main() -> None:
    """Serve; the arguments are the parent's process id and the start method."""
    die_with_parent(int(sys.argv[1]))
    fork_server = ForkServer(fork if sys.argv[2] == "fork" else spawn)
    if sys.argv[2] == "fork":
        gc.disable()  # imports leave no garbage, and a collection looks at all that they make
        warm()
        gc.freeze()
        gc.enable()
    fork_server.serve()


if __name__ == "__main__":
    main()
