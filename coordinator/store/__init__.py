"""The run store: one SQLite file is the single record of a run."""

from fairbed.coordinator.store.errors import (
    RunInUseError,
    RunNotFoundError,
    StoreError,
    StoreVersionError,
)
from fairbed.coordinator.store.reader import Counts, RunInfo, RunReader, SelectionCounts
from fairbed.coordinator.store.runs import Runs, UnreadableRun, find_runs, list_runs, resolve_run
from fairbed.coordinator.store.store import Calibration, Checkpoint, NewRun, Provenance, Store

__all__ = [
    "Calibration",
    "Checkpoint",
    "Counts",
    "NewRun",
    "Provenance",
    "RunInUseError",
    "RunInfo",
    "RunNotFoundError",
    "RunReader",
    "Runs",
    "SelectionCounts",
    "Store",
    "StoreError",
    "StoreVersionError",
    "UnreadableRun",
    "find_runs",
    "list_runs",
    "resolve_run",
]
