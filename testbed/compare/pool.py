"""Run the cells of a grid in processes that end with the grid, however it ends.

Replays go to one worker per core, or to the hosts of a cluster. Live fleets run one after another,
each by `fairbed run` in its own process: two on one machine would wait for each other. A process
closes its run and ends when its standard input ends.
docs/decisions/0011-a-cohort-trains-in-cache.md explains why this is not loky.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import Process, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream

from fairbed.coordinator.store import StoreError
from fairbed.testbed.compare.cell import (
    CellOutcome,
    CellResult,
    one_line,
    read_outcome,
    remove_leftovers,
    state_of,
)
from fairbed.testbed.compare.folder import ARMS
from fairbed.testbed.compare.grid import Grid, GridCell
from fairbed.testbed.compare.hosts import CellHosts
from fairbed.testbed.compare.worker import CLOSE_S, CellJob, run_job
from fairbed.testbed.host.threads import ONE_THREAD
from fairbed.testbed.replay.cohort.ordered import free_cores

GRACE_S = CLOSE_S + 5.0
"""Time from the end of a worker's standard input to its kill; seconds."""
MAX_OUTCOME_BYTES = 1 << 28
STOP_S = 60.0
"""Longest wait for a live run to end its devices after the end of its standard input; seconds."""
LOGS = "logs"

ReportResult: TypeAlias = Callable[[CellResult], None]


async def run_cells(
    grid: Grid,
    out: Path,
    jobs: int | None,
    report: ReportResult,
    *,
    handles_signals: bool = True,
    hosts: CellHosts | None = None,
    note: Callable[[str], None] = lambda line: None,
    only: Sequence[GridCell] | None = None,
) -> bool:
    """Run every unfinished cell, and read the finished ones.

    SIGINT, SIGTERM and SIGHUP end the grid gracefully: runs are closed and processes ended. So does
    a cancellation.

    Args:
        grid: The grid.
        out: Its folder.
        jobs: Number of workers, None for one per core; live fleets always have one.
        report: Called with each result as soon as it is known.
        handles_signals: False in a thread where no signal arrives.
        hosts: Hosts for the replays; None is this machine.
        note: Called with lines about hosts.
        only: Some cells of the grid, none of which needs another one; None is all of them.

    Returns:
        Whether all cells have a result; False after a signal.
    """
    cell_of = {_job(cell, out).folder: cell for cell in grid.cells()}
    is_whole = False

    def report_job(job: CellJob, outcome: CellOutcome) -> None:
        report(_result(cell_of[job.folder], out, outcome))

    async with anyio.create_task_group() as group:
        if handles_signals:
            await group.start(_watch_signals, group.cancel_scope, name="compare.signals")
        for cells in grid.stages() if only is None else [only]:
            rest = iter(cells)
            async with anyio.create_task_group() as workers:
                if grid.fleet == "run":
                    workers.start_soon(_run, rest, out, report, name="compare.fleet")
                elif hosts is not None:
                    given = [_job(cell, out) for cell in cells]
                    workers.start_soon(
                        hosts.run, given, jobs, report_job, note, name="compare.hosts"
                    )
                else:
                    for number in range(min(jobs or free_cores(), len(cells))):
                        workers.start_soon(_replay, rest, out, report, name=f"compare.{number}")
        is_whole = True
        group.cancel_scope.cancel()
    return is_whole


async def _watch_signals(
    scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


def run_cells_here(
    grid: Grid, out: Path, report: ReportResult, only: Sequence[GridCell] | None = None
) -> None:
    """Replay every unfinished cell in this process, one after another.

    Args:
        grid: The grid, of replays.
        out: Its folder.
        report: Called with each result as soon as it is known.
        only: As for `run_cells`.
    """
    for cell in itertools.chain(*grid.stages()) if only is None else only:
        report(_result(cell, out, run_job(_job(cell, out), threads=None)))


def _job(cell: GridCell, out: Path) -> CellJob:
    return CellJob(
        run_id=f"{cell.arm.name}-{cell.seed}",
        folder=str(cell.folder(out)),
        experiment=cell.experiment_in(out).without_rooms,
    )


async def _run(cells: Iterator[GridCell], out: Path, report: ReportResult) -> None:
    for cell in cells:
        report(_result(cell, out, await _run_live(cell, out)))


async def _replay(cells: Iterator[GridCell], out: Path, report: ReportResult) -> None:
    """Send cells to one worker; replace it if it dies."""
    cell = next(cells, None)
    while cell is not None:
        async with Worker() as worker:
            while cell is not None and worker.is_alive:
                report(_result(cell, out, await worker.replay(cell, out)))
                cell = next(cells, None)


def _result(cell: GridCell, out: Path, outcome: CellOutcome) -> CellResult:
    folder = cell.folder(out).relative_to(out)
    return CellResult(arm=cell.arm.name, seed=cell.seed, folder=str(folder), outcome=outcome)


class Worker:
    """A process that replays cells; leaving the context ends it."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._decoder = msgspec.json.Decoder(CellOutcome)
        self.is_alive = True

    async def __aenter__(self) -> "Worker":
        self._process = await anyio.open_process(
            [sys.executable, "-m", "fairbed.testbed.compare.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,  # Ctrl-C reaches only the grid, which then ends its workers
        )
        assert self._process.stdout is not None
        self._lines = BufferedByteReceiveStream(self._process.stdout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        await _end(self._process, GRACE_S)

    async def replay(self, cell: GridCell, out: Path) -> CellOutcome:
        """Replay and measure a cell in the worker; its death is a failed outcome."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(msgspec.json.encode(_job(cell, out)) + b"\n")
            line = await self._lines.receive_until(b"\n", MAX_OUTCOME_BYTES)
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.is_alive = False
            status = await self._process.wait()
            return CellOutcome(
                problem=f"the worker process ended with {_how(status)}; run the same command again"
            )
        return self._decoder.decode(line)


async def _run_live(cell: GridCell, out: Path) -> CellOutcome:
    """Run or resume a cell, unless it is done, and measure it; a failure is an outcome, too."""
    folder = cell.folder(out)
    try:
        state = await anyio.to_thread.run_sync(state_of, folder)
        if state in ("new", "damaged"):
            await anyio.to_thread.run_sync(remove_leftovers, folder)
        if state != "done":
            log = out / LOGS / cell.arm.name / f"{cell.seed}.log"
            status = await _fairbed_run(_arguments(cell, out, is_begun=state == "partial"), log)
            if status != 0:
                return CellOutcome(problem=_last_line(log, status))
            if await anyio.to_thread.run_sync(state_of, folder) != "done":
                return CellOutcome(
                    problem="stopped before its last round; run the same command again"
                )
        return await anyio.to_thread.run_sync(
            lambda: read_outcome(folder, was_done_before=state == "done")
        )
    except (OSError, StoreError) as exc:
        return CellOutcome(problem=one_line(exc))


def _arguments(cell: GridCell, out: Path, *, is_begun: bool) -> list[str]:
    folder = str(cell.folder(out))
    if is_begun:
        return [folder]
    experiment = str(out / ARMS / f"{cell.arm.name}.toml")
    return [experiment, "--seed", str(cell.seed), "--out", folder]


async def _fairbed_run(arguments: list[str], log: Path) -> int:
    """Run `fairbed run` to its end; return the exit status. A cancellation ends it gracefully."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "run", *arguments]
    with log.open("ab") as lines:
        process = await anyio.open_process(
            [*command, "--headless", "--json", "--attached"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=lines,
            start_new_session=True,
        )
    try:
        return await process.wait()
    finally:
        await _end(process, STOP_S, terminate=True)


def _last_line(log: Path, status: int) -> str:
    """Return the last line of a failed run, without its prefix, and its exit status."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = lines[-1].removeprefix("fairbed: ") if lines else "no output"
    return f"{last} ({_how(status)}; see {log})"


async def _end(process: Process, patience_s: float, *, terminate: bool = False) -> None:
    """End a process by closing its standard input; if it does not end, by signals."""
    assert process.stdin is not None
    with anyio.CancelScope(shield=True):
        await process.stdin.aclose()
        with anyio.move_on_after(patience_s):
            await process.wait()
        if terminate and process.returncode is None:
            process.terminate()
            with anyio.move_on_after(patience_s):
                await process.wait()
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.aclose()


def _how(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"
