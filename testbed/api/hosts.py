"""Other machines that work for a command, which the commands and the functions share.

A room adds them (`testbed.rooms`); without an address nothing of it is imported.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from fairbed.testbed import rooms
from fairbed.testbed.api.register import registered_parts
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import Experiment

if TYPE_CHECKING:
    from fairbed.testbed.compare.hosts import CellHosts
    from fairbed.testbed.replay.cohort.base import CohortHelpers
    from fairbed.testbed.run.fleet_hosts import FleetHosts

OPTION = "--cluster"
"""Option of the commands with the address; the argument of the functions is `cluster`."""

Note: TypeAlias = Callable[[str], object]
"""Called with each warning."""


class Hosts(Protocol):
    """The part `hosts` of a room; each address is HOST:PORT of a cluster's head, or `local`."""

    def emulating(self, address: str, note: Note) -> "AbstractContextManager[FleetHosts]":
        """Join hosts that emulate devices while the context lasts.

        Raises:
            BackendError: They cannot be joined, or one cannot run devices.
            ModuleNotFoundError: A package is not installed.
        """
        ...

    def training(self, address: str, note: Note) -> "AbstractContextManager[CohortHelpers]":
        """Join hosts that train a part of each cohort of a replay while the context lasts.

        Raises:
            BackendError: They cannot be joined.
            ModuleNotFoundError: A package is not installed.
        """
        ...

    def replaying(self, address: str, note: Note) -> "AbstractContextManager[CellHosts]":
        """Join hosts that replay the cells of a grid while the context lasts.

        Raises:
            BackendError: They cannot be joined.
            ModuleNotFoundError: A package is not installed.
        """
        ...


def _hosts() -> Hosts:
    found = next(rooms.parts("hosts"), None)
    if found is None:
        raise UsageError(rooms.lacking(OPTION, rooms.absent("seams", "hosts")))
    return cast(Hosts, found())


def _check_parts(experiments: Iterable[Experiment]) -> None:
    """Check that other hosts can import all parts of the experiments.

    Raises:
        UsageError: An experiment needs a part that exists in this process only.
    """
    for experiment in experiments:
        if parts := registered_parts(experiment):
            raise UsageError(
                f"{OPTION}: {parts[0]} must be importable on other hosts, got a name that this "
                "program registered; put the part into a module and write module:Name"
            )


@contextmanager
def emulating(address: str | None, note: Note) -> "Iterator[FleetHosts | None]":
    """Join hosts that emulate devices while the context lasts; None without an address.

    Raises:
        UsageError: No room has hosts.
        Exception: As `Hosts.emulating`.
    """
    if address is None:
        yield None
        return
    with _hosts().emulating(address, note) as hosts:
        yield hosts


@contextmanager
def training(
    address: str | None, experiments: Iterable[Experiment], note: Note
) -> "Iterator[CohortHelpers | None]":
    """Join hosts that train in a replay while the context lasts; None without an address.

    Raises:
        UsageError: No room has hosts, or an experiment needs a part of this process.
        Exception: As `Hosts.training`.
    """
    if address is None:
        yield None
        return
    _check_parts(experiments)
    with _hosts().training(address, note) as helpers:
        yield helpers


@contextmanager
def replaying(
    address: str | None, experiments: Iterable[Experiment], note: Note
) -> "Iterator[CellHosts | None]":
    """Join hosts that replay cells while the context lasts; None without an address.

    Raises:
        UsageError: No room has hosts, or an experiment needs a part of this process.
        Exception: As `Hosts.replaying`.
    """
    if address is None:
        yield None
        return
    _check_parts(experiments)
    with _hosts().replaying(address, note) as hosts:
        yield hosts
