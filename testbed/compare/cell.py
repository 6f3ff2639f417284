"""The state of a cell's folder, and the outcome of a cell."""

import shutil
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.errors import EmptyStoreError, StoreVersionError
from fairbed.testbed.compare.measures import RunMeasures, measure

State: TypeAlias = Literal["new", "damaged", "partial", "done"]
"""A partial run can be resumed, a damaged one cannot."""


class CellOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a cell."""

    measured: RunMeasures | None = None
    """Its measures; None if it failed."""
    problem: str = ""
    """One line if it failed."""
    was_done_before: bool = False
    """Whether an earlier call completed it, so that nothing was run."""


class CellResult(Struct, frozen=True, kw_only=True):
    """The outcome of a cell, and its place in the grid."""

    arm: str
    seed: int
    folder: str
    outcome: CellOutcome


def state_of(folder: Path) -> State:
    """Return the state of a cell's run.

    Raises:
        StoreError: Another process uses the run, or another version of Fairbed wrote it.
    """
    if not (folder / DATABASE).exists():
        return "new"
    try:
        with RunReader(folder) as reader:
            info = reader.run()
    except EmptyStoreError:
        return "damaged"
    except StoreVersionError:
        raise
    except StoreError:
        return "damaged"
    if info.is_alive:
        raise StoreError(f"{folder}: another process uses this run; wait for it, or stop it")
    return "done" if info.status == "done" else "partial"


def remove_leftovers(folder: Path) -> None:
    """Remove the folder of a cell, if an earlier call left one.

    Raises:
        OSError: The folder cannot be removed.
    """
    if folder.exists():
        shutil.rmtree(folder)


def read_outcome(folder: Path, *, was_done_before: bool) -> CellOutcome:
    """Return the outcome of a finished cell.

    Raises:
        StoreError: Its store cannot be read.
    """
    return CellOutcome(measured=measure(folder), was_done_before=was_done_before)


def one_line(exc: BaseException) -> str:
    """Return the first line of an error's message; its type if the message is empty."""
    return (str(exc).splitlines() or [type(exc).__name__])[0]
