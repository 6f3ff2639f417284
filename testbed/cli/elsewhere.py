"""Runs on other machines, which commands name by an address; a room follows and steers them."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, cast

from fairbed.testbed import rooms
from fairbed.testbed.errors import UsageError
from fairbed.testbed.run_folder import Endpoint
from fairbed.wire.transport.address import PASSWORD_VARIABLE


class RunElsewhere(Protocol):
    """A live run on another machine, as its user may see it."""

    @property
    def shown(self) -> str:
        """Its address without the password."""
        ...

    @property
    def operator(self) -> str | None:
        """Name in the topics of commands; None if the user may send none."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """Where commands go."""
        ...

    def followed(
        self, on_progress: Callable[[int, int], None], on_problem: Callable[[str], None]
    ) -> AbstractContextManager[Path]:
        """Return the folder of a copy of its store, up to date while the context lasts.

        Args:
            on_progress: Called with rounds that are here, and the newest one, while it is loaded.
            on_problem: Called with a line when the run cannot be reached.

        Raises:
            RunError: It does not answer in time, or refuses.
            StoreError: The disk of this machine failed.
        """
        ...


class FindRun(Protocol):
    """The part `elsewhere` of a room."""

    def __call__(self, text: str, password: str | None) -> RunElsewhere:
        """Return the run of an address, or of the file of an enrolled person.

        Raises:
            UsageError: It is no address, or the file cannot be used.
        """
        ...


def is_elsewhere(text: str) -> bool:
    """Return whether a run is named by an address or by the file of an enrolled person."""
    return text.startswith(("mqtt://", "mqtts://")) or (
        text.endswith(".toml") and Path(text).is_file()
    )


def run_elsewhere(text: str) -> RunElsewhere:
    """Return the run that `is_elsewhere`.

    Raises:
        UsageError: It cannot be used, or no room follows such runs.
    """
    find = next(rooms.parts("elsewhere"), None)
    if find is None:
        raise UsageError(
            rooms.lacking("a run on another machine", rooms.absent("seams", "elsewhere"))
        )
    return cast(FindRun, find)(text, os.environ.get(PASSWORD_VARIABLE))
