"""Run the cells of a grid of replays on the hosts of a cluster.

A host replays a cell in a folder of its own, and sends the files of the finished run back, which
replace those of the grid's folder at once: a cell is whole or absent, on one host or on many. A
cell of a lost process or host is done again elsewhere.
"""

import asyncio
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import msgspec
import psutil
from threadpoolctl import ThreadpoolController

from fairbed.coordinator.store import StoreError
from fairbed.coordinator.store.connection import LOCK_FILE
from fairbed.testbed.cluster.hosts import Host
from fairbed.testbed.compare.cell import CellOutcome, one_line, read_outcome, state_of
from fairbed.testbed.compare.needed_files import NeededFile, first_missing
from fairbed.testbed.compare.worker import CellJob, run_job
from fairbed.testbed.errors import ClusterError, HostLostError

if TYPE_CHECKING:
    from fairbed.testbed.cluster.connection import Cluster, RemoteObject

Files: TypeAlias = Mapping[str, bytes]
"""Content of the files of a run, by their path in its folder."""

MAX_TRIES = 3
"""A cell that loses so many processes fails: it may be the cause."""

BUSY_S = 30.0
"""Wait for a free core of a host before a line about it; seconds."""

END_S = 5.0
"""Longest wait for a process to remove its folder; else the next one there does; seconds."""

SCRATCH = "fairbed-cells-"
"""Start of the name of a folder for the cells of one process; its id follows."""


def check_files(cluster: "Cluster", files: Sequence[NeededFile]) -> None:
    """Check that all hosts have the files that a grid reads.

    Raises:
        ClusterError: A host lacks one; one line.
    """
    if not files:
        return
    answers = {host: cluster.submit(host, first_missing, files) for host in cluster.hosts}
    for host, answer in answers.items():
        if (problem := answer.result()) is not None:
            raise ClusterError(f"host {host.name}: {problem}")


class CellRunner:
    """Replays cells in a process on a host; `CellPool` makes one for each core."""

    def __init__(self) -> None:
        self._threads = ThreadpoolController().limit(limits=1)
        _remove_abandoned()
        self.scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-"))

    def begin(self) -> None:
        """Return as soon as the process has started."""

    def run(self, job: CellJob, begun: Files) -> tuple[bytes, Files]:
        """Replay a cell; return its outcome as JSON, and the files of its run.

        `begun` has the files of a run to resume; it is empty for a new one.
        """
        folder = self.scratch / "cell"
        if begun:
            write_files(folder, begun)
        try:
            outcome = run_job(msgspec.structs.replace(job, folder=str(folder)))
            problem = outcome.problem.replace(str(folder), job.folder)
            outcome = msgspec.structs.replace(outcome, problem=problem)
            return msgspec.json.encode(outcome), read_files(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def end(self) -> None:
        """Remove what is left on the host."""
        shutil.rmtree(self.scratch, ignore_errors=True)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a run."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in paths
        if path.name != LOCK_FILE
    }


def write_files(folder: Path, files: Files) -> None:
    """Make the folder of a run, or replace it; it is never there in part."""
    draft = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    for name, content in files.items():
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if folder.exists():
        shutil.rmtree(folder)
    draft.replace(folder)


def _remove_abandoned() -> None:
    """Remove folders of processes that ended without doing it, as killed ones do."""
    for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*-*"):
        pid = path.name.removeprefix(SCRATCH).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


class CellQueue:
    """Cells that wait; one that was lost comes back first."""

    def __init__(self, jobs: Sequence[CellJob]) -> None:
        self._jobs = deque(jobs)
        self._tries = dict[str, int]()
        self._running = 0
        self._changed = anyio.Event()

    async def take(self) -> CellJob | None:
        """Return a cell; None when all are done. Waits while a running one may come back."""
        while not self._jobs and self._running:
            await self._changed.wait()
        if not self._jobs:
            return None
        self._running += 1
        return self._jobs.popleft()

    def done(self) -> None:
        """Count a cell that has an outcome."""
        self._running -= 1
        self._notify()

    def lost(self, job: CellJob, *, is_suspect: bool) -> bool:
        """Put a cell back; return False if it has lost too many processes already.

        `is_suspect` is False for a cell whose host is lost as well.
        """
        tries = self._tries[job.run_id] = self._tries.get(job.run_id, 0) + is_suspect
        if tries >= MAX_TRIES:
            return False
        self._jobs.appendleft(job)
        self.done()
        return True

    def rest(self) -> list[CellJob]:
        """Return the cells that no process has taken."""
        return list(self._jobs)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class CellPool:
    """Runs cells on the hosts of a cluster, one process for each core.

    Args:
        cluster: The cluster.
        jobs: The cells.
        report: Called with each cell and its outcome.
        note: Called with lines for the user.
    """

    def __init__(
        self,
        cluster: "Cluster",
        jobs: Sequence[CellJob],
        report: Callable[[CellJob, CellOutcome], None],
        note: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._queue = CellQueue(jobs)
        self._report, self._note = report, note

    async def run(self, most: int | None = None) -> None:
        """Run all cells, at most `most` at the same time; None: one for each core."""
        rounds = range(max(int(host.cores) for host in self._cluster.hosts))
        slots = [host for n in rounds for host in self._cluster.hosts if n < int(host.cores)]
        async with anyio.create_task_group() as group:
            for number, host in enumerate(slots[:most]):
                group.start_soon(self._serve, host, name=f"compare.{host.name}.{number}")
        for job in self._queue.rest():
            problem = "all hosts of the cluster are lost; run the same command again"
            self._report(job, CellOutcome(problem=problem))

    async def _serve(self, host: Host) -> None:
        """Replay cells in one process on a host; replace it if it is lost, but not its host."""
        runner: RemoteObject | None = None
        try:
            while (job := await self._queue.take()) is not None:
                if (outcome := await anyio.to_thread.run_sync(_known, job)) is not None:
                    self._finish(job, outcome)
                    continue
                try:
                    runner = runner or await self._start(host)
                    self._finish(job, await _replay(runner, job))
                except HostLostError as exc:
                    if runner is not None:
                        runner.kill()
                    runner = None
                    is_alive = await anyio.to_thread.run_sync(self._cluster.is_alive, host)
                    self._again(job, exc, is_suspect=is_alive)
                    if not is_alive:
                        self._note(f"host {host.name} is lost; its cells are done elsewhere")
                        return
            if runner is not None:
                with suppress(HostLostError, asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.wrap_future(runner.call("end")), END_S)
        finally:
            if runner is not None:
                runner.kill()

    async def _start(self, host: Host) -> "RemoteObject":
        runner = self._cluster.start(host, CellRunner, cores=1)
        begun = asyncio.wrap_future(runner.call("begin"))
        try:
            await asyncio.wait_for(asyncio.shield(begun), BUSY_S)
        except asyncio.TimeoutError:
            self._note(f"host {host.name}: no core has been free for {BUSY_S:g} s; cells wait")
            await begun
        return runner

    def _finish(self, job: CellJob, outcome: CellOutcome) -> None:
        self._queue.done()
        self._report(job, outcome)

    def _again(self, job: CellJob, exc: HostLostError, *, is_suspect: bool) -> None:
        if self._queue.lost(job, is_suspect=is_suspect):
            self._note(f"{job.run_id}: is done again, because {exc}")
        else:
            advice = f"it has lost {MAX_TRIES} processes; run the same command again"
            self._finish(job, CellOutcome(problem=f"{exc}; {advice}"))


def _known(job: CellJob) -> CellOutcome | None:
    """Return the outcome of a cell that needs no host; None for the others."""
    folder = Path(job.folder)
    try:
        if state_of(folder) == "done":
            return read_outcome(folder, was_done_before=True)
    except (OSError, StoreError) as exc:
        return CellOutcome(problem=one_line(exc))
    return None


async def _replay(runner: "RemoteObject", job: CellJob) -> CellOutcome:
    """Replay or resume a cell on a host, and put its run in place.

    Raises:
        HostLostError: The process is gone.
    """
    folder = Path(job.folder)
    begun = await anyio.to_thread.run_sync(_begun, folder)
    answer, files = await asyncio.wrap_future(runner.call("run", job, begun))
    try:
        if files:
            await anyio.to_thread.run_sync(write_files, folder, files)
    except OSError as exc:
        return CellOutcome(problem=one_line(exc))
    return msgspec.json.decode(answer, type=CellOutcome)


def _begun(folder: Path) -> dict[str, bytes]:
    """Return the files of a run that can be resumed."""
    return read_files(folder) if state_of(folder) == "partial" else {}
