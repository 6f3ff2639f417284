"""Joining of a device to the fleet of a coordinator: hello, welcome, preparation.

The preparation downloads the missing task and shard, checks them, and measures the link.
"""

import errno
import logging
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from fairbed.device_agent.cache import ArrivedChunks, BlobCache
from fairbed.device_agent.errors import DataError, EngineError, NotPrepared, one_line
from fairbed.device_agent.jobs import ClientAbout
from fairbed.device_agent.link_probe import LinkProber
from fairbed.device_agent.notify import Notify
from fairbed.device_agent.round import RoundContext
from fairbed.device_agent.state.lifecycle import TRANSITIONS, Event, Phase
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import BaseArrived, DataScale, HeldOut, Hello, Manifest, Trouble, Welcome
from fairbed.wire.transfer import Download
from fairbed.wire.transport.client import backoff_s

if TYPE_CHECKING:
    from fairbed.device_agent.examples import ExampleSource
    from fairbed.wire.artifact import Artifact

_log = logging.getLogger(__name__)

NO_TEST_EXAMPLES = (
    "no test example, so the model has no accuracy on this device: the file must have 2 examples "
    "or more, got 1; or add arrays x_test and y_test"
)

FULL = errno.ENOSPC, errno.EDQUOT
"""Errors of a full disk, or of a used-up quota."""

ATTEMPTS = 2
"""Downloads of a blob before the preparation fails; a second one follows a wrong hash."""

KEEP_S = 2.0
"""Interval at which the chunks of a download are written to disk: what a killed agent loses."""

KEEP_BYTES = 4 << 20
"""Bytes that are written at once, a copy of which is in memory."""

REFUSED_CAP_S = 300.0
"""Longest delay of the next `Hello` to the same coordinator, which refuses for its whole run; a new
coordinator gets one at once."""


def trouble_of(problem: NotPrepared, boot: int, cache_folder: Path) -> Trouble:
    """Return the report of a failed preparation, by its first cause.

    Args:
        problem: Why it failed; its causes are errors of this device.
        boot: Of this agent process.
        cache_folder: What is written during a preparation, if the error names no other file.
    """
    reason, cause = one_line(problem), problem.__cause__
    while cause is not None and not isinstance(
        cause, (OSError, MemoryError, DataError, EngineError, ImportError)
    ):
        cause = cause.__cause__
    match cause:
        case OSError() if cause.errno in FULL:
            folder = (Path(cause.filename).parent if cause.filename else cache_folder).absolute()
            free = _free_bytes(folder)
            return Trouble(
                boot=boot, kind="disk full", reason=reason, path=str(folder), free_bytes=free
            )
        case MemoryError():
            return Trouble(boot=boot, kind="no memory", reason=reason)
        case DataError():
            return Trouble(boot=boot, kind="bad data", reason=reason)
        case EngineError() | ImportError():
            return Trouble(boot=boot, kind="no engine", reason=reason)
        case _:
            return Trouble(boot=boot, kind="not prepared", reason=reason)


def _disk_problem(exc: OSError, folder: Path, needed_bytes: int) -> str:
    """Return why a blob cannot be kept in the cache, and what to do."""
    where = Path(exc.filename or folder).absolute()
    if exc.errno not in FULL:
        return f"{where}: {exc.strerror or exc}; correct cache_folder, or its rights"
    free = _free_bytes(folder)
    return (
        f"the disk of {folder.absolute()} must have {needed_bytes:,} bytes free, got "
        f"{'fewer' if free is None else f'{free:,}'}; free some, or set cache_folder (--cache) to "
        "a folder on another disk"
    )


def _free_bytes(folder: Path) -> int | None:
    """Return the free bytes of the disk of a folder, which may not exist yet; None if unknown."""
    for there in (folder, *folder.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(there).free
    return None


class Preparation:
    """Prepares the worker for the task and data of a welcome."""

    def __init__(
        self,
        context: RoundContext,
        cache: BlobCache,
        prober: LinkProber,
        own_data: Path | None,
        run_id: Callable[[], str] = lambda: "",
    ) -> None:
        self._context = context
        self._run_id = run_id
        self._cache = cache
        self._prober = prober
        self._own_data = own_data
        self._prepared_for: _Required | None = None
        self._base_s: dict[bytes, float] = {}
        """How long each base was downloaded, by its hash."""

    def trouble(self, problem: NotPrepared, boot: int) -> Trouble:
        """Return the report of a failed preparation."""
        return trouble_of(problem, boot, self._cache.folder)

    def is_done(self, welcome: Welcome) -> bool:
        """Return whether the device is prepared for the task and shard of this welcome."""
        return self._context.worker.is_prepared and self._prepared_for == self._required(welcome)

    async def prepare(self, welcome: Welcome) -> None:
        """Prepare task and data; fast if both are in the cache.

        Raises:
            NotPrepared: Task or data cannot be obtained or used.
        """
        self._prepared_for = None
        with anyio.move_on_after(self._context.timeouts.prepare_s) as scope:
            await self._prepare(welcome)
        if scope.cancelled_caught:
            raise NotPrepared(f"not ready within {self._context.timeouts.prepare_s:g} s")
        self._prepared_for = self._required(welcome)

    async def _prepare(self, welcome: Welcome) -> None:
        await self._ensure(welcome.task, "task")
        if welcome.base is not None:
            await self._ensure_base(welcome.base)
        if self._own_data is None and welcome.shard is not None:
            await self._ensure(welcome.shard, "shard")
        worker, about = self._context.worker, self._about(welcome)
        await worker.prepare(welcome.task, partial(self._source, welcome), about)
        if welcome.held_out is not None and self._context.worker.n_test == 0:
            _log.warning("%s: data: %s", self._context.name, NO_TEST_EXAMPLES)
        await self._prober.measure()

    def _required(self, welcome: Welcome) -> "_Required":
        """Return what a preparation depends on."""
        return welcome.task, welcome.shard, welcome.held_out, self._about(welcome), welcome.base

    def _about(self, welcome: Welcome) -> ClientAbout | None:
        """Return what a client learns of its device; None for a task without one."""
        if welcome.number is None:
            return None
        count = max(welcome.number + 1, welcome.count or 1)
        return ClientAbout(self._context.name, welcome.number, count, self._run_id())

    def _source(self, welcome: Welcome, task: "Artifact") -> "ExampleSource | None":
        """Return the examples of a welcome; in the training thread, as the import takes long."""
        from fairbed.device_agent.examples import CachedShard, OwnData
        from fairbed.wire.labels import Classes

        if self._own_data is not None:
            classes = Classes.of(task)
            return OwnData(
                self._own_data,
                classes,
                welcome.held_out,
                self._context.name,
                task.preparation,
                task.is_autoencoder,
            )
        return None if welcome.shard is None else CachedShard(self._cache, welcome.shard)

    def base_arrived(self, welcome: Welcome, boot: int) -> BaseArrived | None:
        """Return the report of the frozen part of the model; None if there is none."""
        base = welcome.base
        if base is None or base.sha256 is None:
            return None
        took_s = self._base_s.get(base.sha256)
        return BaseArrived(boot=boot, size_bytes=base.size_bytes, download_s=took_s)

    async def _ensure_base(self, manifest: Manifest) -> None:
        """Download the frozen part of the model unless it is here, and note how long that took.

        Raises:
            NotPrepared: It cannot be obtained, or the disk has no room for it.
        """
        if await anyio.to_thread.run_sync(self._cache.has, manifest):
            return
        folder = self._cache.bases.folder
        free = _free_bytes(folder)
        if free is not None and free < manifest.size_bytes:
            raise NotPrepared(
                f"base: the disk of {folder.absolute()} must have {manifest.size_bytes:,} bytes "
                f"free for the frozen part of the model, got {free:,}; free some, or set "
                "base_folder to a folder on another disk"
            ) from OSError(errno.ENOSPC, "no room for the base", str(folder / "base"))
        began_s = self._context.clock.now()
        await self._ensure(manifest, "base")
        assert manifest.sha256 is not None, "a base has a hash"
        self._base_s[manifest.sha256] = self._context.clock.now() - began_s

    async def _ensure(self, manifest: Manifest, kind: str) -> None:
        """Download a blob into the cache unless it is there."""
        if manifest.kind != kind:
            raise NotPrepared(f"{kind}: the manifest must be of a {kind}, got {manifest.kind}")
        if await anyio.to_thread.run_sync(self._cache.has, manifest):
            return
        for attempt in range(ATTEMPTS):
            try:
                await self._pull(manifest)
                return
            except (DecodeError, OSError, MemoryError) as exc:
                problem = one_line(exc)
                if isinstance(exc, OSError):
                    problem = _disk_problem(exc, self._cache.folder, manifest.size_bytes)
                _log.warning("%s: %s: %s", self._context.name, kind, problem)
                if attempt + 1 == ATTEMPTS:
                    raise NotPrepared(f"{kind}: {problem}") from exc

    async def _pull(self, manifest: Manifest) -> None:
        """Download a blob into the cache; begin with what an earlier process has left of it.

        Raises:
            DecodeError: The blob has another hash.
            OSError: The disk is full or the folder cannot be written.
        """
        arrived, pulls = self._cache.arrived(manifest), self._context.pulls
        download = pulls.download(manifest)
        restored = await anyio.to_thread.run_sync(arrived.restore, download)
        if restored:
            _log.info(
                "%s: %s: continues a download, %d of %d chunks are on disk",
                self._context.name,
                manifest.kind,
                restored,
                manifest.chunk_count,
            )
        async with anyio.create_task_group() as group:
            group.start_soon(_keep_arrived, download, arrived)
            await pulls.fetch(manifest, download=download, measures_link=not restored)
            group.cancel_scope.cancel()

        def keep() -> None:
            try:
                download.verify()
                self._cache.put(manifest, download.data)
            finally:
                arrived.remove()

        await anyio.to_thread.run_sync(keep)


async def _keep_arrived(download: Download, arrived: ArrivedChunks) -> None:
    """Write the chunks that arrive to disk, some at a time, until it is cancelled.

    On a full disk nothing more is written: a restarted agent then downloads more.
    """
    kept = bytearray(download.has_arrived)
    at_once = max(1, KEEP_BYTES // download.manifest.chunk_bytes)
    with suppress(OSError):
        while True:
            await anyio.sleep(KEEP_S)
            pairs = enumerate(zip(download.has_arrived, kept, strict=True))
            new = [index for index, (now, before) in pairs if now > before]
            for start in range(0, len(new), at_once):
                part = new[start : start + at_once]
                await anyio.to_thread.run_sync(arrived.append, map(download.frame, part))
                for index in part:
                    kept[index] = 1


_Required: TypeAlias = tuple[
    Manifest, Manifest | None, HeldOut | None, ClientAbout | None, Manifest | None
]


class Joining:
    """Sends `Hello` until a `Welcome` arrives, then prepares task and data.

    Args:
        context: Parts of the agent that a round uses.
        group: Runs the preparation.
        preparation: Prepares the worker.
        hello: Returns the message to send.
        phase: Returns the agent's phase.
        step: Applies an event to the agent's lifecycle.
        on_end: Called when a preparation has ended or failed.
        wall: Wall clock, seconds since 1970.
    """

    def __init__(
        self,
        context: RoundContext,
        group: TaskGroup,
        preparation: Preparation,
        hello: Callable[[], Hello],
        phase: Callable[[], Phase],
        step: Callable[[Event], None],
        on_end: Callable[[], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._context = context
        self._wall = wall
        self._group = group
        self._preparation = preparation
        self._hello = hello
        self._phase = phase
        self._step = step
        self._on_end = on_end
        self._wakeup = Notify()
        self._hello_at = 0.0
        self._random = random.Random()
        self._failures = 0
        """Refusals and failed preparations since a coordinator came online."""
        self._problem = ""
        """The last of them, which was logged."""
        self._running: tuple[Welcome, anyio.CancelScope] | None = None

    async def send_hellos(self) -> None:
        """Send `Hello` at intervals while the agent is joining."""
        clock = self._context.clock
        while True:
            left_s = self._hello_at - clock.now()
            if self._phase() is not Phase.JOINING:
                await self._wakeup.wait()
            elif left_s > 0.0:
                await self._wakeup.wait(left_s)
            else:
                self._hello_at = clock.now() + self._context.timeouts.hello_s
                await self._context.publisher.send(self._fresh_hello())

    def hello_now(self) -> None:
        """Send the next `Hello` at once: a coordinator is online."""
        self._failures, self._problem = 0, ""
        self._hello_in(0.0)

    def hello_later(self, problem: str) -> None:
        """Delay the next `Hello`, longer each time; log the problem if it is another one.

        Args:
            problem: The coordinator refused, or the preparation failed: one line.
        """
        if problem != self._problem:
            _log.warning("%s: %s", self._context.name, problem)
        self._problem = problem
        base_s = self._context.timeouts.refused_s
        cap_s = max(base_s, REFUSED_CAP_S)
        self._hello_in(backoff_s(self._failures, self._random.random(), base_s, cap_s))
        self._failures += 1

    def repeat_hello(self) -> None:
        """Send `Hello` during work: one side had lost its link."""
        self._context.publisher.publish(self._fresh_hello())

    def _fresh_hello(self) -> Hello:
        return msgspec.structs.replace(self._hello(), clock_s=max(0.0, self._wall()))

    def on_welcome(self, welcome: Welcome) -> None:
        """Start the preparation, unless it is done or running; a working device ignores it."""
        phase, is_done = self._phase(), self._preparation.is_done(welcome)
        if phase.is_working or Event.WELCOMED not in TRANSITIONS[phase]:
            return
        if phase is Phase.IDLE and is_done:
            self._send_scale(welcome)
            return
        if self._running is not None and self._running[0] == welcome:
            return
        self.stop()
        self._step(Event.WELCOMED)
        if is_done:
            self._send_scale(welcome)
            self._step(Event.PREPARED)
            return
        scope = anyio.CancelScope()
        self._running = (welcome, scope)
        self._group.start_soon(
            self._prepare, welcome, scope, name=f"agent[{self._context.name}].prepare"
        )

    def stop(self) -> None:
        """Cancel the running preparation: another coordinator is online."""
        if self._running is not None:
            self._running[1].cancel()
            self._running = None

    async def _prepare(self, welcome: Welcome, scope: anyio.CancelScope) -> None:
        problem = None
        with scope:
            try:
                await self._preparation.prepare(welcome)
            except NotPrepared as exc:
                problem = f"preparation failed: {exc}"
                self._context.publisher.publish(self._preparation.trouble(exc, self._hello().boot))
        if self._running != (welcome, scope):
            return
        self._running = None
        if problem is not None:
            self.hello_later(problem)
        else:
            self._send_scale(welcome)
            arrived = self._preparation.base_arrived(welcome, self._hello().boot)
            if arrived is not None:
                self._context.publisher.publish(arrived)
        self._step(Event.PREPARED if problem is None else Event.UNPREPARED)
        self._on_end()

    def _send_scale(self, welcome: Welcome) -> None:
        """Send the scale of own data, if the coordinator wants it."""
        scale = self._context.worker.scale
        if welcome.wants_scale and scale is not None:
            self._context.publisher.publish(
                DataScale(
                    boot=self._hello().boot,
                    low=scale.low,
                    high=scale.high,
                    mean=scale.mean,
                    spread=scale.spread,
                )
            )

    def _hello_in(self, delay_s: float) -> None:
        self._hello_at = self._context.clock.now() + delay_s
        self._wakeup.notify()
