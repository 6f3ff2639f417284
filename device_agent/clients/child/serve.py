"""The server of clients: imports the code of the user once, then forks a client for each device.

    PYTHON watching.py FOLDER serve.py SOCKET LOADING

SOCKET is the number of a listening Unix socket in FOLDER, and LOADING a JSON object: `kind`,
`folder`, `path`, `options`, `threads`. `watching.py` ends the server with its starter, and with it
all clients and what an import has started.

An agent connects, sends one byte with two descriptors, the pipes for the output of the client and
for its end, and a frame `fork` (`groups`, `network`). Then the connection is that of the client
(`frames.py`). Its first frame is `forked` (`pid`, `import_s`, `import_cpu_s`) or `failed`. When the
process has ended, the second pipe gets `exit NUMBER` or `signal NUMBER`.

When an agent closes its connection, the client is killed with all processes that it has started.
A client is the subreaper of its descendants, so that none leaves its tree; the server is that of
what a client leaves behind. This file runs in any interpreter from Python 3.10, by its path, with
the standard library and numpy. It may not import the package `fairbed` of that interpreter.
"""

import ctypes
import gc
import importlib
import json
import os
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if "fairbed" not in sys.modules:  # run by its path: the modules beside it, without their packages
    package = types.ModuleType("fairbed")
    package.__path__ = [str(Path(__file__).resolve().parents[3])]
    sys.modules["fairbed"] = package

from fairbed.device_agent.clients.child.frames import (
    Closed,
    FrameError,
    Header,
    Parts,
    enlarge_buffer,
    receive_frame,
    send_frame,
)
from fairbed.device_agent.clients.child.kinds import ClientError
from fairbed.device_agent.clients.child.processes import (
    children,
    descendants,
    is_stopped,
    kill_tree,
    resume_tree,
    stop_tree,
    tree_cpu_s,
)
from fairbed.device_agent.clients.child.watching import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    request_kernel,
)

if TYPE_CHECKING:
    from fairbed.device_agent.clients.child.kinds import Answer, Client

KINDS = {"class": "own", "flower": "flower"}
"""Modules of this folder, by kind (`wire.artifact.ClientSource.kind`)."""

MAX_PAYLOAD = 1 << 33
"""Bytes of a frame from the agent, which is trusted; its own bound is lower."""

GREETING_S = 10.0
"""Longest wait for the first frame of a connection, which the agent sends at once."""

WATCH_S = 0.25
"""Interval at which the number of processes, and whether agents are stopped, is checked."""

REPORT_S = 0.5
"""Least interval of reports of progress."""

MAX_TRACE_LINES, MAX_ERROR = 12, 400

CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Loading:
    """What the server loads."""

    kind: str
    folder: str
    path: str
    processes: int
    """Most processes of one client, without its threads: more are a fork bomb."""
    options: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    """Threads of one client's step, for libraries that create them; 0 leaves the choice to them."""


def one_line(exc: BaseException) -> str:
    """Return an error as one line, with its type unless it is ours."""
    text = " ".join(str(exc).split())
    if not isinstance(exc, ClientError):
        text = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 3] + "..."


def trace_of(exc: BaseException, folder: str) -> list[str]:
    """Return the last lines of a traceback, from the first line of the user's code."""
    frames = traceback.extract_tb(exc.__traceback__)
    at = next((i for i, x in enumerate(frames) if x.filename.startswith(folder)), None)
    frames = traceback.StackSummary.from_list(frames[at:] if at is not None else [])
    lines = [*frames.format(), *traceback.format_exception_only(type(exc), exc)]
    return [line for text in lines for line in text.splitlines()][-MAX_TRACE_LINES:]


def load(loading: Loading) -> tuple[Any, Any]:
    """Return the module of the kind, and what it has loaded.

    Raises:
        ClientError: The code cannot be loaded.
    """
    if not os.path.isdir(loading.folder):
        raise ClientError(f"client: its folder must exist, got {loading.folder}")
    os.chdir(loading.folder)
    sys.path[:] = [loading.folder, *(x for x in sys.path if x)]
    module = loading.path.partition(":")[0]
    if loading.kind not in KINDS:
        raise ClientError(f"client: its kind must be one of {', '.join(KINDS)}")
    try:
        name = f"fairbed.device_agent.clients.child.{KINDS[loading.kind]}"
        kind = importlib.import_module(name)
        return kind, kind.load(loading.folder, loading.path, loading.options)
    except ClientError:
        raise
    except ModuleNotFoundError as exc:
        raise ClientError(_missing(exc, module, loading.folder)) from exc
    except BaseException as exc:  # the code of the user may raise anything, such as SystemExit
        raise ClientError(f"client: the import of {module} must end, got {one_line(exc)}") from exc


def _missing(exc: ModuleNotFoundError, module: str, folder: str) -> str:
    name = exc.name or "?"
    if f"{module}.".startswith(f"{name}."):
        return f"client: {name} must be a module in {folder}, got none; correct its name"
    where = f"{sys.executable} (Python {sys.version.split()[0]})"
    return (
        f"client: needs the package {name}, which {where} has not; install it there, or name "
        "another interpreter"
    )


# The client, in its fork.


class _Fork:
    """One client in its process: answers the frames of its agent until the connection ends."""

    def __init__(self, link: socket.socket, kind: Any, loaded: Any, folder: str) -> None:
        self._link, self._kind, self._loaded, self._folder = link, kind, loaded, folder
        self._inbox: queue.SimpleQueue[tuple[Header, Parts]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._client: Client | None = None
        self._last_share_s = 0.0

    def run(self) -> None:
        threading.Thread(target=self._read, name="frames", daemon=True).start()
        while True:
            header, parts = self._inbox.get()
            self._answer(header, parts)
            del header, parts  # the arrays of a round must not wait for the next one

    def _read(self) -> None:
        try:
            while True:
                header, parts = receive_frame(self._link, MAX_PAYLOAD)
                if header.get("do") == "stop":
                    self._stop.set()
                else:
                    self._stop.clear()
                    self._inbox.put((header, parts))
                del header, parts
        except (Closed, FrameError, OSError):
            os._exit(0)  # the agent has ended, or has no more work

    def _answer(self, header: Header, parts: Parts) -> None:
        try:
            answer, out = self._work(header, parts)
        except BaseException as exc:  # an error of the user's code fails the exchange
            do = {"open": "the constructor"}.get(str(header.get("do")), str(header.get("do")))
            error = one_line(exc)
            if not isinstance(exc, ClientError):
                error = f"client: {do} raised {error}"
            if isinstance(exc, SystemExit):
                error = f"client: must not exit, got sys.exit({exc.code!r:.60})"
            is_ours = isinstance(exc, ClientError)
            trace = [] if is_ours else trace_of(exc, self._folder)
            if is_ours and not error.startswith("client"):
                error = f"client: {error}"
            answer = {"is": "failed", "error": error, "trace": trace}
            out = {}
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        send_frame(self._link, answer, out)

    def _work(self, header: Header, parts: Parts) -> "Answer":
        do = header.get("do")
        if do == "open":
            self._client = self._kind.open_client(
                self._loaded, header, bytes(parts["state"]), self._report, self._stop.is_set
            )
            n = getattr(self._client, "n_examples", None)
            return {"is": "opened", "has_evaluate": self._client.has_evaluate, "n": n}, {}
        if do == "initial":
            answer, out = self._kind.initial(self._loaded, header)
            return {"is": "initial", **answer}, out
        if do not in ("fit", "evaluate") or self._client is None:
            raise ClientError(f"client: must be opened before {do!r:.20}")
        before_s = tree_cpu_s(os.getpid())
        work = self._client.fit if do == "fit" else self._client.evaluate
        answer, out = work(header, parts)
        cpu_s = max(0.0, tree_cpu_s(os.getpid()) - before_s)
        return {"is": "done", **answer, "cpu_s": cpu_s}, out

    def _report(self, share: float) -> None:
        now = time.monotonic()
        if now - self._last_share_s >= REPORT_S:
            self._last_share_s = now
            share = min(1.0, max(0.0, float(share)))
            send_frame(self._link, {"is": "progress", "share": share}, {})


def _enter(request: Header) -> None:
    """Enter the network and the control groups of the device, before any code of the user."""
    network = request.get("network")
    if network:
        with open(network, "rb") as file:
            if _libc.setns(file.fileno(), CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, f"setns: {os.strerror(number)}", network)
    for path in request.get("groups", []):
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)


def _peer(link: socket.socket) -> int:
    """Return the process id of the other side."""
    size = struct.calcsize("3i")
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", found)[0])


def _limit_threads(threads: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and threads:
        with suppress(Exception):
            torch.set_num_threads(threads)


# The server.


@dataclass
class _Child:
    pid: int
    link: socket.socket
    end: int
    """Pipe that gets how the process ended."""
    agent: int
    """Process id of its agent; a stopped agent has a stopped client."""
    is_frozen: bool = False


class Server:
    """Forks clients and watches them, in one thread."""

    def __init__(self, listening: socket.socket, loading: Loading) -> None:
        self._listening, self._loading = listening, loading
        self._children: dict[int, _Child] = {}
        """By the descriptor of the link."""
        self._kind: Any = None
        self._loaded: Any = None
        self._failure: dict[str, Any] | None = None
        self._import_s = self._import_cpu_s = 0.0

    def load(self) -> None:
        """Import the code of the user; a failure is the answer to every agent."""
        begun_s, used_s = time.monotonic(), time.process_time()
        try:
            self._kind, self._loaded = load(self._loading)
        except ClientError as exc:
            cause = exc if exc.__cause__ is None else exc.__cause__
            trace = [] if isinstance(cause, ClientError) else trace_of(cause, self._loading.folder)
            self._failure = {"is": "failed", "error": one_line(exc), "trace": trace}
        if "torch" in sys.modules:  # its optimisers import this at their first step: 90 MB each
            with suppress(Exception):
                importlib.import_module("torch._dynamo")
        self._import_s = time.monotonic() - begun_s
        self._import_cpu_s = time.process_time() - used_s
        gc.collect()
        gc.freeze()  # a collection in a fork must not copy the pages of all modules

    def run(self) -> None:
        """Serve until the watcher ends this process."""
        wake, wakes = os.pipe()
        for end in (wake, wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        watch = select.poll()
        watch.register(self._listening, select.POLLIN)
        watch.register(wake, select.POLLIN)
        self._poll, self._pipes = watch, (wake, wakes)
        while True:
            found = dict(watch.poll(WATCH_S * 1000))
            if wake in found:
                with suppress(OSError):
                    os.read(wake, 4096)
            for descriptor in found.keys() & self._children.keys():
                kill_tree(self._children[descriptor].pid)  # its agent has gone
                watch.unregister(descriptor)
            self._reap()
            self._stop_bombs()
            self._freeze()
            if self._listening.fileno() in found:
                self._accept()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                break
            for descriptor, child in list(self._children.items()):
                if child.pid == pid:
                    self._forget(descriptor, child, os.waitstatus_to_exitcode(status))
        self._kill_orphans({child.pid for child in self._children.values()})

    def _forget(self, descriptor: int, child: _Child, code: int) -> None:
        del self._children[descriptor]
        with suppress(KeyError):
            self._poll.unregister(descriptor)
        # What it left behind is a child of this process now, and is killed before the end is sent.
        self._kill_orphans({each.pid for each in self._children.values()})
        text = f"signal {-code}" if code < 0 else f"exit {code}"
        with suppress(OSError):
            os.write(child.end, text.encode())
        os.close(child.end)
        child.link.close()

    def _kill_orphans(self, known: set[int]) -> None:
        for pid in children(os.getpid()):
            if pid not in known:
                kill_tree(pid)

    def _stop_bombs(self) -> None:
        most = self._loading.processes
        for child in self._children.values():
            if sum(1 for _ in islice(descendants(child.pid), most + 1)) > most:
                kill_tree(child.pid)

    def _freeze(self) -> None:
        """Stop the clients of stopped agents, as of a device that sleeps; continue the others."""
        for child in self._children.values():
            if is_stopped(child.agent) != child.is_frozen:
                child.is_frozen = not child.is_frozen
                (stop_tree if child.is_frozen else resume_tree)(child.pid)

    def _accept(self) -> None:
        link, _ = self._listening.accept()
        descriptors: list[int] = []
        try:
            link.settimeout(GREETING_S)
            byte, descriptors, _, _ = socket.recv_fds(link, 1, 2)
            request, _ = receive_frame(link, 0)
            if byte != b"f" or len(descriptors) != 2:
                raise FrameError("must begin with two descriptors")
            link.settimeout(None)
            self._fork(link, request, *descriptors)
        except (OSError, Closed, FrameError):
            link.close()
            for descriptor in descriptors:
                with suppress(OSError):
                    os.close(descriptor)

    def _fork(self, link: socket.socket, request: Header, output: int, end: int) -> None:
        if self._failure is not None:
            send_frame(link, self._failure, {})
            link.close()
            os.close(output)
            os.close(end)
            return
        parent = os.getpid()
        pid = os.fork()
        if pid:
            os.close(output)
            self._children[link.fileno()] = _Child(pid, link, end, _peer(link))
            self._poll.register(link, select.POLLRDHUP)
            return
        status = 1
        try:
            self._be_client(parent, link, request, output, end)
            status = 0
        except BaseException as exc:
            with suppress(OSError):
                send_frame(link, {"is": "failed", "error": one_line(exc), "trace": []}, {})
        finally:
            os._exit(status)

    def _be_client(
        self, parent: int, link: socket.socket, request: Header, output: int, end: int
    ) -> None:
        request_kernel(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        request_kernel(PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() != parent:
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        for descriptor in (nothing, output, end, *self._pipes):
            os.close(descriptor)
        self._listening.close()
        for child in self._children.values():
            child.link.close()
            os.close(child.end)
        try:
            _enter(request)
        except OSError as exc:
            raise ClientError(
                f"client: must enter the groups of its device, got {one_line(exc)}"
            ) from exc
        work = request.get("work")
        if work:
            os.chdir(work)
        _limit_threads(int(request.get("threads", self._loading.threads)))
        forked = {
            "is": "forked",
            "pid": os.getpid(),
            "import_s": self._import_s,
            "import_cpu_s": self._import_cpu_s,
        }
        send_frame(link, forked, {})
        enlarge_buffer(link)
        _Fork(link, self._kind, self._loaded, self._loading.folder).run()


def main(arguments: list[str]) -> int:
    """Serve `SOCKET LOADING`."""
    listening = socket.socket(fileno=int(arguments[0]))
    listening.setblocking(True)
    loading = Loading(**json.loads(arguments[1]))
    request_kernel(PR_SET_CHILD_SUBREAPER, 1)
    server = Server(listening, loading)
    server.load()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for target in (1, 2):
        os.dup2(nothing, target)
    os.close(nothing)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
