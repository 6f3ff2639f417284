"""An application that drives the rounds of a run: a part of a room, chosen before the start."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.rounds.loop import RunServices, TrainingLoop
from fairbed.coordinator.store.store import Checkpoint
from fairbed.testbed import rooms
from fairbed.testbed.experiment.file import Experiment
from fairbed.wire.artifact import Artifact

if TYPE_CHECKING:
    from fairbed.coordinator.rounds.raw_updates import RawMerger


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationTask:
    """What an application gives to the coordinator of a run."""

    artifact: Artifact
    """Its client, which the devices run."""
    vector: Vector
    """The model before the first round, shape (n_values,)."""
    raw: bytes
    """What follows it."""
    raw_merger: "RawMerger"
    loop: Callable[[RunServices, int], TrainingLoop]
    """Drives the rounds."""
    rounds: int | None = None
    """How many there will be; None: it states none."""


class Application(Protocol):
    """An application that is not started yet."""

    @property
    def experiment(self) -> Experiment:
        """The experiment as the application changes it: its task and its rounds are its own."""
        ...

    @property
    def rounds(self) -> int | None:
        """Rounds that it plans, as far as that is known before its start; None: unknown."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """What the user must know before the run, in lines."""
        ...

    @property
    def kind(self) -> Literal["flower"]:
        """Kind of its clients (`wire.artifact.ClientSource`)."""
        ...

    def running(
        self, folder: Path, run: str, checkpoint: Checkpoint | None
    ) -> AbstractAsyncContextManager[ApplicationTask]:
        """Run its process while the context lasts.

        Args:
            folder: Folder of the run.
            run: Its id.
            checkpoint: Where the run continues; None: it begins.

        Raises:
            RunError: It cannot be started, or has failed.
        """
        ...


class MakeApplication(Protocol):
    """The part `application` of a room."""

    def __call__(
        self, experiment: Experiment, origin: Path, given: Mapping[str, str]
    ) -> Application | None:
        """Return the application of an experiment; None: it has none.

        Args:
            experiment: The experiment.
            origin: Folder of its file.
            given: What set each key that is not a default, by path.

        Raises:
            UsageError: It cannot be used.
        """
        ...


def application_of(
    experiment: Experiment, origin: Path, given: Mapping[str, str]
) -> Application | None:
    """Return the application that a table of the experiment names; None: it names none.

    Raises:
        UsageError: It cannot be used.
    """
    for name in rooms.with_tables(experiment.room_tables):
        path = rooms.room(name).parts.get("application")
        if path is not None:
            made = cast(MakeApplication, rooms.load(path))(experiment, origin, given)
            if made is not None:
                return made
    return None
