"""The run store: one SQLite file is the single record of a run."""

from coordinator.store.errors import (
    RunInUseError,
    RunNotFoundError,
    StoreError,
    StoreVersionError,
)
from coordinator.store.reader import Counts, RunInfo, RunReader, Tally
from coordinator.store.recovery import Checkpoint
from coordinator.store.runs import Runs, find_runs, list_runs, resolve_run
from coordinator.store.store import Store

__all__ = [
    "Checkpoint",
    "Counts",
    "RunInUseError",
    "RunInfo",
    "RunNotFoundError",
    "RunReader",
    "Runs",
    "Store",
    "StoreError",
    "StoreVersionError",
    "Tally",
    "find_runs",
    "list_runs",
    "resolve_run",
]
