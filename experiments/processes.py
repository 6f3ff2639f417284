"""Child processes of studies and benchmarks; they end with their parent in every case."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from fairbed.testbed.host.guard import die_with_parent


def fresh_processes(workers: int) -> ProcessPoolExecutor:
    """Return a pool of new interpreters; submit its jobs from the main thread.

    Each worker holds both ends of its job pipe: without `die_with_parent`, it would wait forever
    after a `kill -9` of the parent.

    Args:
        workers: Greatest number of workers.
    """
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=die_with_parent,
        initargs=(os.getpid(),),
    )
