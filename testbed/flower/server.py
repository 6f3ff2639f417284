"""The process of a ServerApp, and the coordinator's end of its connection.

The protocol is that of `testbed/flower/child/server_process.py`. A task reads the frames and notes
what the app wants; the driver (`testbed/flower/driver.py`) waits for it and answers. What the app
may have open is bounded, and no wait outlasts the process or its limit.
"""

import os
import socket
import subprocess
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from msgspec import Meta, Struct

from fairbed.device_agent.clients.child.frames import (
    Buffer,
    Closed,
    FrameError,
    Header,
    Parts,
    receive_frame,
    send_frame,
)
from fairbed.device_agent.clients.child.processes import kill_tree
from fairbed.device_agent.clients.child.watching import END_S
from fairbed.device_agent.clients.process import WATCHING
from fairbed.testbed.errors import RunError
from fairbed.wire.messages import MAX_RECORDS_BYTES, MAX_VECTOR_BYTES
from fairbed.wire.printable import Printable, one_line, output_line

PROGRAM = Path(__file__).with_name("child") / "server_process.py"

MAX_FRAME = MAX_VECTOR_BYTES + (1 << 20)
MAX_GROUPS = 64
"""Groups of messages that wait for their round."""
MAX_PENDING_BYTES = 4 * MAX_VECTOR_BYTES
"""Payloads of all of them."""
MAX_MESSAGES = 100_000

LAST_LINES, MAX_LINE = 12, 400
"""Of the output of the app: lines that follow a failure, and characters of each."""
MAX_LOG_BYTES = 16 << 20
"""Output of an app that its log keeps; the rest is dropped."""

STOP_S = 2.0
"""Time between the request to end and the end of the process."""

T = TypeVar("T")

Id = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=1 << 12)]
Number = Annotated[int, Meta(ge=0, le=1 << 31)]


class AppError(RunError):
    """The app has failed, or broke a rule; the message is one line."""


class AppMessage(Struct, frozen=True, kw_only=True):
    """One message of the app to a node."""

    id: Id
    node: int
    ttl_s: float
    payload: Number
    config: Number


class Push(Struct, kw_only=True):
    """The frame `push`."""

    round: Number = 0
    type: Annotated[str, Meta(max_length=256)]
    group: Annotated[str, Meta(max_length=256)] = ""
    is_whole: bool = True
    timeout_s: float = 0.0
    messages: Annotated[list[AppMessage], Meta(max_length=MAX_MESSAGES)]
    configs: Annotated[
        list[Annotated[int, Meta(ge=0, le=MAX_RECORDS_BYTES)]], Meta(max_length=MAX_MESSAGES)
    ] = []
    kept: list[Number] = []
    """Payloads that a later push may name without sending them."""

    @property
    def kind(self) -> str:
        """train, evaluate or query: what stands before the first dot of the type."""
        return self.type.partition(".")[0]


@dataclass
class Group:
    """Messages of one type and group that are not sent yet."""

    push: Push
    configs: list[bytes]
    payloads: dict[int, bytes]

    @property
    def kind(self) -> str:
        """train, evaluate or query."""
        return self.push.kind

    def config(self, message: AppMessage) -> bytes:
        """Return the small records of a message."""
        return self.configs[message.config]

    def payload(self, message: AppMessage) -> bytes:
        """Return the arrays of a message."""
        return self.payloads[message.payload]


class Strategy(Struct, frozen=True, kw_only=True):
    """The frame `strategy`: what the app's strategy is, and what it begins with."""

    name: Text = ""
    num_rounds: Number = 0
    first_round: Number = 1
    weighted_by: Text = ""
    arrays_key: Text = "arrays"
    lost: Text = ""


class Aggregated(Struct, kw_only=True):
    """The frame `aggregated`: the result of one round of the strategy."""

    round: Number = 0
    metrics: dict[str, float] = {}
    arrays: bytes = b""


class AppMetrics(Struct, frozen=True, kw_only=True):
    """The frame `metrics`: what the app has measured."""

    round: Number = 0
    where: Text = ""
    metrics: dict[str, float] = {}


class Waits(Struct, frozen=True, kw_only=True):
    """The frame `waits`: the app polls the nodes."""

    round: Number = 0
    waited_s: float = 0.0
    offered: Number = 0
    needed: Number = 0


@dataclass
class Pending:
    """What the app wants and has reported; the driver takes it."""

    groups: deque[Group] = field(default_factory=deque)
    cohort_round: int | None = None
    """The strategy configures the training of this round of its own, and waits for the cohort."""
    aggregated: Aggregated | None = None
    strategy: Strategy | None = None
    initial: bytes = b""
    """Records with the arrays at the start; empty if there are none."""
    ended: set[str] = field(default_factory=set)
    """Messages whose replies the app does not wait for any more."""
    waits: Waits | None = None
    metrics: list[AppMetrics] = field(default_factory=list)
    resumed_from: int | None = None
    """The first round of a resumed app, if it has taken the arrays."""
    lost: str = ""
    version: str = ""
    """Of flwr; empty before the app is loaded."""
    is_done: bool = False
    last: bytes = b""
    """Records with the last arrays."""

    def first(self) -> bool | None:
        """Return True once it is known whether the app has a strategy."""
        has_begun = self.strategy or self.waits or self.groups or self.is_done
        return True if has_begun else None


class _Output:
    """Copies the output of the app to a log of bounded size; keeps the last lines."""

    def __init__(self, source: int, path: Path) -> None:
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._source, self.path = source, path
        self._thread = threading.Thread(target=self._copy, name="output of the app", daemon=True)
        self._thread.start()

    def lines(self) -> list[Printable]:
        """Return the last lines, after all that the ended process has written."""
        self._thread.join(0.2)  # another process may have its output, too
        return [output_line(line, MAX_LINE) for line in self._lines if line.strip()]

    def note(self, lines: Sequence[str]) -> None:
        """Add lines to the log, after what the app has written."""
        with suppress(OSError), self.path.open("a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in lines))

    def _copy(self) -> None:
        left, partial = MAX_LOG_BYTES, b""
        with open(self._source, "rb", buffering=0) as source, self.path.open("ab") as log:
            while data := source.read(1 << 16):
                with suppress(OSError):
                    log.write(data[:left])
                    log.flush()
                left = max(0, left - len(data))
                *whole, partial = (partial[-MAX_LINE:] + data).split(b"\n")
                self._lines.extend(line.decode(errors="replace") for line in whole[-LAST_LINES:])
        if partial:
            self._lines.append(partial.decode(errors="replace"))


class ServerApp:
    """The process of one ServerApp.

    Args:
        process: It.
        link: The connection.
        output: Its output.
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", link: socket.socket, output: _Output
    ) -> None:
        self._process, self._link, self._output = process, link, output
        self._sending = threading.Lock()
        self._changed = anyio.Event()
        self._payloads: dict[int, bytes] = {}
        self.failure: AppError | None = None
        """Why the app has ended before it was done."""
        self.pending = Pending()

    # To the app.

    def send_now(
        self, header: Mapping[str, Any], parts: Mapping[str, Buffer] | None = None
    ) -> None:
        """Send a frame; called in a worker thread. The process may be gone: `wait` raises."""
        with self._sending, suppress(OSError):
            send_frame(self._link, header, parts or {})

    async def send(
        self, header: Mapping[str, Any], parts: Mapping[str, Buffer] | None = None
    ) -> None:
        """Send a frame, off the event loop."""
        await anyio.to_thread.run_sync(self.send_now, header, parts, abandon_on_cancel=True)

    # From the app.

    async def wait(self, answer: Callable[[], T | None], limit_s: float, what: str) -> T:
        """Wait until `answer` returns something.

        Args:
            answer: Looks at `pending`.
            limit_s: Longest wait; `inf` is none.
            what: What the app must do, for the error.

        Raises:
            AppError: The app has failed, or the limit has passed.
        """
        with anyio.move_on_after(limit_s):
            while True:
                found = answer()
                if found is not None:
                    return found
                if self.failure is not None:
                    raise self.failure
                await self._changed.wait()
        raise AppError(
            f"app: must {what} within {limit_s:g} s (flower.timeout_s), got nothing"
            f"{self._last_lines()}; raise it, or read the log of the app"
        )

    async def changed(self, limit_s: float) -> None:
        """Wait until the app has reported something, or for `limit_s`."""
        with anyio.move_on_after(limit_s):
            await self._changed.wait()

    async def receive(self) -> None:
        """Note what the app reports until its process has ended."""
        try:
            while not self.pending.is_done:
                header, parts = await anyio.to_thread.run_sync(
                    receive_frame, self._link, MAX_FRAME, abandon_on_cancel=True
                )
                self._note(header, parts)
                self._notify()
                del header, parts
        except (Closed, OSError):
            self._fail(await self._how_it_ended())
        except FrameError as exc:
            self._fail(AppError(f"app: its process sent no frame, got {exc}"))
        except msgspec.ValidationError as exc:
            self._fail(AppError(f"app: its process sent a frame that is not valid: {exc}"))
        except AppError as exc:
            self._fail(exc)

    def _fail(self, failure: AppError) -> None:
        self.failure = self.failure or failure
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _how_it_ended(self) -> AppError:
        status = await _exit_status(self._process, STOP_S)
        how = "closed its connection" if status is None else f"ended with exit status {status}"
        if status is not None and status < 0:
            how = f"was killed by signal {-status}"
        return AppError(f"app: its process {how}{self._last_lines()}")

    def _last_lines(self) -> str:
        lines = self._output.lines()
        return f"; it printed last: {' | '.join(lines[-3:])}" if lines else ""

    def _note(self, header: Header, parts: Parts) -> None:
        pending, kind = self.pending, header.pop("is", "")
        match kind:
            case "loaded":
                pending.version = one_line(str(header.get("flwr", "")), 40)
            case "strategy":
                pending.strategy = msgspec.convert(header, Strategy)
                pending.initial = bytes(parts.get("arrays", b""))
            case "cohort":
                pending.cohort_round = int(header["round"])
            case "payload":
                self._payloads[int(header["index"])] = bytes(parts["raw"])
            case "push":
                self._note_push(msgspec.convert(header, Push), parts)
            case "ended":
                pending.ended.update(map(str, header.get("ids", [])[:MAX_MESSAGES]))
            case "aggregated":
                pending.aggregated = msgspec.convert(_with_floats(header), Aggregated)
                pending.aggregated.arrays = bytes(parts.get("arrays", b""))
            case "metrics":
                pending.metrics.append(msgspec.convert(_with_floats(header), AppMetrics))
                del pending.metrics[:-MAX_GROUPS]
            case "waits":
                pending.waits = msgspec.convert(header, Waits)
            case "resumed":
                pending.resumed_from = int(header.get("first_round", 1))
                pending.lost = one_line(str(header.get("lost", "")), MAX_LINE)
            case "done":
                pending.is_done, pending.last = True, bytes(parts.get("arrays", b""))
            case "failed":
                lines = [one_line(str(line), MAX_LINE) for line in header.get("trace", [])]
                self._output.note(lines[-LAST_LINES:])
                raise AppError(
                    f"app: {one_line(str(header.get('error', '')), MAX_LINE)}; its log is "
                    f"{self._output.path}"
                )
            case other:
                raise AppError(f"app: its process sent an unknown frame {other!r:.60}")

    def _note_push(self, push: Push, parts: Parts) -> None:
        pending, joined, configs, at = self.pending, parts.get("configs", memoryview(b"")), [], 0
        for size in push.configs:
            configs.append(bytes(joined[at : at + size]))
            at += size
        used = {message.payload for message in push.messages}
        if any(index not in self._payloads for index in used) or any(
            message.config >= len(configs) for message in push.messages
        ):
            raise AppError("app: its process pushed a message whose content it has not sent")
        payloads = {number: self._payloads[number] for number in used}
        kept = used.union(push.kept)
        self._payloads = {k: x for k, x in self._payloads.items() if k in kept}
        pending.groups.append(Group(push, configs, payloads))
        waiting = {id(x): len(x) for group in pending.groups for x in group.payloads.values()}
        if len(pending.groups) > MAX_GROUPS or sum(waiting.values()) > MAX_PENDING_BYTES:
            raise AppError(
                f"app: at most {MAX_GROUPS} groups of messages with {MAX_PENDING_BYTES >> 20} MiB "
                f"may wait for their round, got more; wait for replies before pushing others"
            )


def _with_floats(header: Header) -> Header:
    """Return a frame whose metrics are numbers; all others are left out."""
    found = header.get("metrics")
    metrics = found if isinstance(found, dict) else {}
    numbers = {
        one_line(str(name), 64): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    }
    return {**header, "metrics": numbers}


@asynccontextmanager
async def server_app(python: str, folder: Path, log: Path) -> AsyncIterator[ServerApp]:
    """Run the process of a ServerApp while the context lasts; it loads nothing before `start`.

    Args:
        python: Interpreter with flwr.
        folder: Working directory, where files that the app writes go; made if it is not there.
        log: File for its output.

    Raises:
        AppError: The interpreter cannot be started.
    """
    ours, theirs = socket.socketpair()
    source, sink = os.pipe()
    for each in (folder, log.parent):
        each.mkdir(parents=True, exist_ok=True)
    output = _Output(source, log)
    try:
        process = _start(python, folder, theirs, sink)
    except OSError as exc:
        ours.close()
        raise AppError(f"flower.python: {python} must be an interpreter, got {exc}") from exc
    finally:
        theirs.close()
        os.close(sink)
    app = ServerApp(process, ours, output)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(app.receive, name="app.receive")
            yield app
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process, app, ours)


def _start(
    python: str, folder: Path, link: socket.socket, output: int
) -> "subprocess.Popen[bytes]":
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    environment |= {"PYTHONUNBUFFERED": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    return subprocess.Popen(
        [python, str(WATCHING), "", str(PROGRAM), str(link.fileno())],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        cwd=folder,
        env=environment,
        pass_fds=[link.fileno()],
        start_new_session=True,
    )


async def _exit_status(process: "subprocess.Popen[bytes]", limit_s: float) -> int | None:
    """Return the exit status of a process that ends within a limit; negative is a signal."""
    try:
        return await anyio.to_thread.run_sync(process.wait, limit_s)
    except subprocess.TimeoutExpired:
        return None


async def _end(process: "subprocess.Popen[bytes]", app: ServerApp, link: socket.socket) -> None:
    """End the process and all that it has started."""
    if not app.pending.is_done:
        with anyio.move_on_after(STOP_S):
            await app.send({"do": "stop"})
    await _exit_status(process, STOP_S)
    assert process.stdin is not None
    process.stdin.close()  # its watcher sees it, and ends what is left
    if await _exit_status(process, END_S + STOP_S) is None:
        kill_tree(process.pid)
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()
    process.wait()
