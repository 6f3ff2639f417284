"""Works through the cells of a grid; what it starts ends with it, whatever ends it.

Replays go to one worker a core, live fleets run one after another: two on one machine would wait
for each other.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import Process, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream

from fairbed.testbed.compare.cell import Reply, Result
from fairbed.testbed.compare.grid import Grid, GridCell
from fairbed.testbed.compare.live import run_live
from fairbed.testbed.compare.worker import CLOSE_S, Job
from fairbed.testbed.host.threads import ONE_THREAD

GRACE_S = CLOSE_S + 5.0
"""A worker that was told to stop is killed after this."""
MAX_REPLY_BYTES = 1 << 28

Told: TypeAlias = Callable[[Result], None]


async def work_through(grid: Grid, out: Path, jobs: int, told: Told) -> bool:
    """Run every cell that is not done, and read those that are.

    SIGINT, SIGTERM and SIGHUP end the work in order: runs are closed, processes are gone.

    Args:
        grid: What to run.
        out: Its folder.
        jobs: Workers; live fleets always have one.
        told: Is called with every result, as it comes.

    Returns:
        Whether all cells were worked through; False after a signal.
    """
    cells = grid.cells()
    rest = iter(cells)
    is_whole = False
    async with anyio.create_task_group() as group:
        await group.start(_heed_signals, group.cancel_scope, name="compare.signals")
        async with anyio.create_task_group() as workers:
            if grid.fleet == "run":
                workers.start_soon(_run, rest, out, told, name="compare.fleet")
            else:
                for number in range(min(jobs, len(cells))):
                    workers.start_soon(_replay, rest, out, told, name=f"compare.{number}")
        is_whole = True
        group.cancel_scope.cancel()
    return is_whole


async def _heed_signals(
    scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


async def _run(cells: Iterator[GridCell], out: Path, told: Told) -> None:
    for cell in cells:
        told(_result(cell, out, await run_live(cell, out)))


async def _replay(cells: Iterator[GridCell], out: Path, told: Told) -> None:
    """Keep one worker busy; another takes its place when it dies."""
    cell = next(cells, None)
    while cell is not None:
        async with Worker() as worker:
            while cell is not None and worker.is_alive:
                told(_result(cell, out, await worker.replay(cell, out)))
                cell = next(cells, None)


def _result(cell: GridCell, out: Path, reply: Reply) -> Result:
    folder = cell.folder(out).relative_to(out)
    return Result(arm=cell.arm.name, seed=cell.seed, folder=str(folder), reply=reply)


class Worker:
    """A process that replays cells; leaving the context ends it, also when nobody waits."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._decoder = msgspec.json.Decoder(Reply)
        self.is_alive = True

    async def __aenter__(self) -> "Worker":
        self._process = await anyio.open_process(
            [sys.executable, "-m", "fairbed.testbed.compare.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,  # a Ctrl-C is for the grid, which then ends its workers
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
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with anyio.CancelScope(shield=True):
            await process.stdin.aclose()  # the word to stop
            with anyio.move_on_after(GRACE_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.aclose()

    async def replay(self, cell: GridCell, out: Path) -> Reply:
        """Have a cell replayed and measured; the death of the process is a reply, too."""
        assert self._process is not None
        assert self._process.stdin is not None
        job = Job(
            run_id=f"{cell.arm.name}-{cell.seed}",
            folder=str(cell.folder(out)),
            experiment=cell.experiment,
        )
        try:
            await self._process.stdin.send(msgspec.json.encode(job) + b"\n")
            line = await self._lines.receive_until(b"\n", MAX_REPLY_BYTES)
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.is_alive = False
            status = await self._process.wait()
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            return Reply(problem=f"its process ended with {how}; the same command tries it again")
        return self._decoder.decode(line)
