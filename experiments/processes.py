"""Child processes of studies and benchmarks; they end with their parent, however it ends."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from fairbed.testbed.host.guard import die_with_parent


def fresh_processes(workers: int) -> ProcessPoolExecutor:
    """Return a pool of new interpreters; submit its jobs from the main thread.

    Each holds both ends of the pipe that its jobs come through: left alone, a `kill -9` of the one
    that hands them out would leave it waiting for ever.

    Args:
        workers: How many at most.
    """
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=die_with_parent,
        initargs=(os.getpid(),),
    )
