"""One cell on an emulated fleet: `fairbed run` in a process of its own, resumed where it stands."""

import subprocess
import sys
from pathlib import Path

import anyio
from anyio.abc import Process

from fairbed.coordinator.store import StoreError
from fairbed.testbed.compare.cell import Reply, begin_anew, one_line, reply_of, state_of
from fairbed.testbed.compare.folder import ARMS
from fairbed.testbed.compare.grid import GridCell

STOP_S = 60.0
"""A run that was told to stop closes its round, says goodbye and ends its devices within this."""
LOGS = "logs"


async def run_live(cell: GridCell, out: Path) -> Reply:
    """Run a cell or go on with it, unless it is done, and measure it; failures are replies, too."""
    folder = cell.folder(out)
    try:
        state = await anyio.to_thread.run_sync(state_of, folder)
        if state in ("new", "damaged"):
            await anyio.to_thread.run_sync(begin_anew, folder)
        if state != "done":
            log = out / LOGS / cell.arm.name / f"{cell.seed}.log"
            status = await _fairbed_run(_arguments(cell, out, is_begun=state == "partial"), log)
            if status != 0:
                return Reply(problem=_last_words(log, status))
            if await anyio.to_thread.run_sync(state_of, folder) != "done":
                return Reply(problem="was stopped before its last round; the same command goes on")
        return await anyio.to_thread.run_sync(lambda: reply_of(folder, was_done=state == "done"))
    except (OSError, StoreError) as exc:
        return Reply(problem=one_line(exc))


def _arguments(cell: GridCell, out: Path, *, is_begun: bool) -> list[str]:
    folder = str(cell.folder(out))
    if is_begun:
        return [folder]
    experiment = str(out / ARMS / f"{cell.arm.name}.toml")
    return [experiment, "--seed", str(cell.seed), "--out", folder]


async def _fairbed_run(arguments: list[str], log: Path) -> int:
    """Run `fairbed run` to its end; return the exit status. Cancelling ends it in order."""
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
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _end(process: Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()  # an attached run then ends in order
    with anyio.move_on_after(STOP_S):
        await process.wait()
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(STOP_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
    await process.wait()
    await process.aclose()


def _last_words(log: Path, status: int) -> str:
    """Return what a run that failed said last, without its prefix."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    words = lines[-1].removeprefix("fairbed: ") if lines else "it said nothing"
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"{words} ({how}; {log} has the rest)"
