"""What follows a run for a person, as messages do: parts of rooms, chosen before the run starts."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from fairbed.testbed import rooms
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import Experiment
from fairbed.wire.console import print_line

if TYPE_CHECKING:
    from fairbed.coordinator.state.alerts import AlertChange


class Watching(Protocol):
    """Follows one run."""

    def alert(self, change: "AlertChange") -> None:
        """Take an alert that begins or ends, or a long wait for devices; return at once."""
        ...

    def end(self) -> None:
        """Take the end of the run, which its store has; wait for what follows from it."""
        ...


class Watcher(Protocol):
    """What can follow a run; it does not change the run."""

    @property
    def stall_alert_s(self) -> float:
        """Wait for devices after which it takes an alert, seconds of the run's clock."""
        ...

    def watch(self, folder: Path, on_problem: Callable[[str], None]) -> Watching:
        """Begin to follow a run.

        Args:
            folder: Folder of the run.
            on_problem: Receives what failed; called by any thread.
        """
        ...


class MakeWatcher(Protocol):
    """The part `watcher` of a room."""

    def __call__(self, experiment: Experiment, environ: Mapping[str, str]) -> Watcher | None:
        """Return what follows a run; None: nothing.

        Raises:
            UsageError: The settings cannot be used on this machine.
        """
        ...


def watchers_of(
    experiment: Experiment, environ: Mapping[str, str] = os.environ
) -> tuple[Watcher, ...]:
    """Return what follows a run: by a table of the experiment, or a variable of the environment.

    Raises:
        UsageError: The settings of one cannot be used on this machine, or its room is absent.
    """
    variables = rooms.variables(environ)
    for name in variables:
        if name not in rooms.present() and "watcher" in rooms.SHIPPED[name].seams:
            raise UsageError(rooms.lacking(variables[name], name))
    used = {name for name in variables if name in rooms.present()}
    used.update(rooms.with_tables(experiment.room_tables))
    made = [
        cast(MakeWatcher, rooms.load(rooms.room(name).parts["watcher"]))(experiment, environ)
        for name in sorted(used)
        if "watcher" in rooms.room(name).parts
    ]
    return tuple(watcher for watcher in made if watcher is not None)


@contextmanager
def watching(watchers: Sequence[Watcher], folder: Path) -> Iterator[None]:
    """Follow a run without alerts until the context ends; warn on stderr about what failed."""

    def warn(problem: str) -> None:
        print_line(f"warning: not notified: {problem}")

    begun = [watcher.watch(folder, warn) for watcher in watchers]
    try:
        yield
    finally:
        for one in begun:
            one.end()
