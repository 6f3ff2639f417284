"""Hosts that emulate a fleet in place of this machine, as a run sees them; a room adds them."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from fairbed.coordinator.store.event_log import Level
from fairbed.testbed.backends.base import Backend
from fairbed.testbed.backends.choice import BackendChoice
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.fleet import PlannedDevice
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.contention import RemotePaths

Note: TypeAlias = Callable[[str, str, Level, "str | None"], None]
"""Records an event: its kind, text, level and device."""


class RemoteFleet(RemotePaths, Protocol):
    """A fleet that runs on hosts: its delays there, and its events."""

    def record_with(self, note: Note) -> None:
        """Record events with `note`, at first those that happened before."""
        ...


class FleetHosts(Protocol):
    """The hosts that emulate a fleet."""

    @property
    def address(self) -> str:
        """Address at which they reach this machine."""
        ...

    def check(self, experiment: Experiment, *, is_plain: bool) -> None:
        """Check that they can emulate the fleet of an experiment.

        Args:
            experiment: The experiment.
            is_plain: The broker of the run may serve other machines, in plain text.

        Raises:
            UsageError: They cannot.
        """
        ...

    def fitting_dilation(
        self, experiment: Experiment, devices: Sequence[PlannedDevice]
    ) -> tuple[int, str | None]:
        """Return the dilation with which a fleet fits, and why it does not as configured.

        Raises:
            ExperimentError: It fits with none.
        """
        ...

    async def choose(
        self,
        local: BackendChoice,
        *,
        n_concurrent: int,
        vector_bytes: int,
        shard_bytes: int,
        probe: Probe | None,
        dilation: float,
    ) -> BackendChoice:
        """Place a fleet on the hosts, and measure the costs of its task on each.

        Args:
            local: The process backend with the devices as this machine would emulate them.
            n_concurrent: Number of devices that work at the same time.
            vector_bytes: Size of the model.
            shard_bytes: Size of the training data of a device as float32.
            probe: The task; None if no device is slowed.
            dilation: Seconds of this machine in one second of the fleet.

        Raises:
            BackendError: The fleet does not fit, or a host lacks a file that its devices need.
            PluginError: A module of the user cannot be read here.
        """
        ...

    def fleet_of(self, backend: Backend) -> RemoteFleet:
        """Return the fleet of a backend that `choose` has chosen."""
        ...
