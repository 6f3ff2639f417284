"""A cell of a grid while it is worked on: what its folder holds, and what came of it."""

import shutil
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.errors import EmptyStoreError, StoreVersionError
from fairbed.testbed.compare.measures import RunMeasures, measure

State: TypeAlias = Literal["new", "damaged", "partial", "done"]
"""A damaged run cannot be gone on with, a partial one can."""


class Reply(Struct, frozen=True, kw_only=True):
    """What became of a cell."""

    measured: RunMeasures | None = None
    """None when it failed."""
    problem: str = ""
    """One line when it failed."""
    was_done: bool = False
    """By an earlier call: nothing was run."""


class Result(Struct, frozen=True, kw_only=True):
    """The same with its place in the grid."""

    arm: str
    seed: int
    folder: str
    reply: Reply


def state_of(folder: Path) -> State:
    """Return how far the run of a cell is.

    Raises:
        StoreError: Another process is at it, or another version wrote it.
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
        raise StoreError(f"{folder}: another process is at this run; wait for it, or stop it")
    return "done" if info.status == "done" else "partial"


def begin_anew(folder: Path) -> None:
    """Remove what an earlier call left of a cell, and nothing if it left nothing.

    Raises:
        OSError: It cannot be removed.
    """
    if folder.exists():
        shutil.rmtree(folder)


def reply_of(folder: Path, *, was_done: bool) -> Reply:
    """Return what a finished cell comes to.

    Raises:
        StoreError: It cannot be read.
    """
    return Reply(measured=measure(folder), was_done=was_done)


def one_line(exc: BaseException) -> str:
    """Return an error's message, or what else can be said of it, in one line."""
    return (str(exc).splitlines() or [type(exc).__name__])[0]
