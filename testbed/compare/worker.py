"""The process that replays cells, one after another, for as long as its standard input is open.

Jobs come as lines of JSON on standard input, replies go as lines of JSON to standard output. When
the input ends the worker stops at once, with its run closed in order: it never outlives a grid
that was killed.
"""

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
from fairbed.device_agent.engines.base import EngineError
from fairbed.profiles.errors import ProfileError
from fairbed.testbed.compare.cell import Reply, begin_anew, one_line, reply_of, state_of
from fairbed.testbed.errors import BackendError
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.replay.run import replay_experiment

EXPECTED = (
    BackendError,
    DatasetError,
    EngineError,
    ExperimentError,
    OSError,
    ProfileError,
    StoreError,
    TaskError,
)
"""Errors whose message is one line that says what to do."""

CLOSE_S = 5.0
"""A run that is stopped closes its store within this, or is left as a crash would leave it."""


class CellJob(Struct, frozen=True, kw_only=True):
    """One cell."""

    run_id: str
    folder: str
    experiment: Experiment


def carry_out(job: CellJob) -> Reply:
    """Replay a cell, unless that was done before, and measure it; failures are replies, too."""
    try:
        folder = Path(job.folder)
        state = state_of(folder)
        if state in ("new", "damaged"):
            begin_anew(folder)
        if state != "done":
            # The pool has as many workers as cores.
            replay_experiment(job.experiment, folder, job.run_id, lambda played: None, threads=1)
        return reply_of(folder, was_done=state == "done")
    except EXPECTED as exc:
        return Reply(problem=one_line(exc))
    except Exception as exc:
        return Reply(problem=f"a fault in fairbed itself: {type(exc).__name__}: {one_line(exc)}")


def main() -> None:
    """Carry out jobs until standard input ends."""
    jobs: queue.SimpleQueue[CellJob] = queue.SimpleQueue()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a plug-in prints is no reply
    threading.Thread(target=_listen, args=(sys.stdin.buffer, jobs), daemon=True).start()
    try:
        while True:
            replies.write(msgspec.json.encode(carry_out(jobs.get())) + b"\n")
            replies.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)  # nobody listens any more, and what could be closed is


def _listen(lines: BinaryIO, jobs: "queue.SimpleQueue[CellJob]") -> None:
    """Hand jobs over; at the end of the input interrupt whatever the process is at."""
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
