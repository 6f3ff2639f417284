"""The process that replays cells, one after another, while its standard input is open.

Jobs are lines of JSON on standard input, outcomes lines of JSON on standard output. At the end of
the input the worker closes its run and ends, so it never outlives a grid that was killed.
"""

import logging
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from fairbed.coordinator.store import StoreError
from fairbed.coordinator.task.errors import TaskError
from fairbed.device_agent.errors import EngineError
from fairbed.profiles.errors import ProfileError
from fairbed.testbed.compare.cell import (
    CellOutcome,
    one_line,
    read_outcome,
    remove_leftovers,
    state_of,
)
from fairbed.testbed.errors import BackendError
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.experiment.shards import COLUMNS_LOG
from fairbed.testbed.replay.run import replay_experiment
from fairbed.wire.plugins import PluginError

CELL_ERRORS = (
    BackendError,
    DatasetError,
    EngineError,
    ExperimentError,
    OSError,
    PluginError,
    ProfileError,
    StoreError,
    TaskError,
)
"""Errors with a message of one line."""

CLOSE_S = 5.0
"""Longest wait for a stopped run to close its store, seconds; then it ends as in a crash."""


class CellJob(Struct, frozen=True, kw_only=True):
    """One cell."""

    run_id: str
    folder: str
    experiment: Experiment


def run_job(job: CellJob, threads: int | None = 1) -> CellOutcome:
    """Replay a cell, unless it is done, and measure it; a failure is an outcome, too.

    `threads` is that of `replay_experiment`: one, because the pool has a worker per core.
    """
    try:
        folder = Path(job.folder)
        state = state_of(folder)
        if state in ("new", "damaged"):
            remove_leftovers(folder)
        if state != "done":
            experiment, run_id = job.experiment, job.run_id
            replay_experiment(experiment, folder, run_id, lambda replayed: None, threads=threads)
        return read_outcome(folder, was_done_before=state == "done")
    except CELL_ERRORS as exc:
        return CellOutcome(problem=one_line(exc))
    except Exception as exc:
        return CellOutcome(problem=f"internal error: {type(exc).__name__}: {one_line(exc)}")


def main() -> None:
    """Run jobs until standard input ends."""
    logging.getLogger(COLUMNS_LOG).disabled = True
    jobs: queue.SimpleQueue[CellJob] = queue.SimpleQueue()
    outcomes = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a plug-in prints must not mix with the outcomes
    threading.Thread(target=_listen, args=(sys.stdin.buffer, jobs), daemon=True).start()
    try:
        while True:
            outcomes.write(msgspec.json.encode(run_job(jobs.get())) + b"\n")
            outcomes.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)  # the grid has ended, and the run is closed


def _listen(lines: BinaryIO, jobs: "queue.SimpleQueue[CellJob]") -> None:
    """Queue jobs; at the end of the input interrupt the main thread."""
    decoder = msgspec.json.Decoder(CellJob)
    for line in lines:
        jobs.put(decoder.decode(line))
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGINT)
    time.sleep(CLOSE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
