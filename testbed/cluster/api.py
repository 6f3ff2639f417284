"""The hosts of a Ray cluster as the commands use them: `testbed.api.hosts.Hosts`."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairbed.testbed.api.hosts import Hosts, Note
from fairbed.testbed.backends.base import Backend
from fairbed.testbed.backends.choice import BackendChoice
from fairbed.testbed.cluster.cell_pool import CellPool, check_files
from fairbed.testbed.cluster.cohort_pool import ClusterPool, dense_pool, device_pool
from fairbed.testbed.cluster.device_hosts import DeviceHosts, open_hosts
from fairbed.testbed.cluster.hosts_backend import (
    HostsBackend,
    agent_bytes,
    choose_hosts,
    misfit,
    need_of,
)
from fairbed.testbed.compare.cell import CellOutcome
from fairbed.testbed.compare.hosts import CellHosts
from fairbed.testbed.compare.needed_files import NeededFile
from fairbed.testbed.compare.worker import CellJob
from fairbed.testbed.emulation.placement import fitting_dilation, place
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import EMBEDDED, Experiment, ExperimentError
from fairbed.testbed.experiment.fleet import PlannedDevice
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.memory import state_copies
from fairbed.testbed.replay.cohort.base import CohortHelpers
from fairbed.testbed.replay.cohort.shards import DividedData, Shards
from fairbed.testbed.run.fleet_hosts import FleetHosts
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.transport.address import is_loopback, parse_url

if TYPE_CHECKING:
    from fairbed.testbed.cluster.connection import Cluster


class ClusterHosts(Hosts):
    """The hosts of a cluster; each address is HOST:PORT of its head, or `local`."""

    @contextmanager
    def emulating(self, address: str, note: Note) -> Iterator[FleetHosts]:
        """Join hosts that emulate devices while the context lasts.

        Raises:
            ClusterError: The cluster cannot be joined, or a host cannot run devices.
            BackendError: The speed of this machine cannot be measured.
        """
        with open_hosts(address) as hosts:
            for line in hosts.warnings:
                note(line)
            yield EmulatingHosts(hosts)

    @contextmanager
    def training(self, address: str, note: Note) -> Iterator[CohortHelpers]:
        """Join hosts that train a part of each cohort while the context lasts.

        Raises:
            ClusterError: The cluster cannot be joined.
        """
        with _joined(address, note) as cluster:
            yield TrainingHosts(cluster)

    @contextmanager
    def replaying(self, address: str, note: Note) -> Iterator[CellHosts]:
        """Join hosts that replay the cells of a grid while the context lasts.

        Raises:
            ClusterError: The cluster cannot be joined.
        """
        with _joined(address, note) as cluster:
            yield ReplayingHosts(cluster)


@contextmanager
def _joined(address: str, note: Note) -> "Iterator[Cluster]":
    from fairbed.testbed.cluster.connection import connect  # loads ray

    with connect(address) as cluster:
        for line in cluster.warnings:
            note(line)
        yield cluster


class EmulatingHosts(FleetHosts):
    """Hosts that emulate a fleet.

    Args:
        hosts: The hosts, with a supervisor of devices on each.
    """

    def __init__(self, hosts: DeviceHosts) -> None:
        self._hosts = hosts

    @property
    def address(self) -> str:
        """Address at which they reach this machine."""
        return self._hosts.address

    def check(self, experiment: Experiment, *, is_plain: bool) -> None:
        """Check that they can emulate the fleet of an experiment.

        Raises:
            UsageError: They cannot.
        """
        backend, url = experiment.emulation.backend, experiment.broker.url
        if backend not in ("auto", "process"):
            raise UsageError(
                f'emulation.backend: must be "process" or "auto" with --cluster, got "{backend}"; '
                "namespaces and containers are for one machine"
            )
        if url == EMBEDDED and not (is_loopback(self.address) or is_plain):
            raise UsageError(
                f"--cluster: the embedded broker would serve other hosts at {self.address}, where "
                "passwords and models travel in plain text; make a lab with TLS (fairbed lab init, "
                'then broker.url = "lab"), or add --plain'
            )
        if not url.isidentifier() and not is_loopback(self.address):
            broker = parse_url(url).host
            if is_loopback(broker):
                raise UsageError(
                    "broker.url: must be an address that the hosts reach with --cluster, got "
                    f"{broker}"
                )

    def fitting_dilation(
        self, experiment: Experiment, devices: Sequence[PlannedDevice]
    ) -> tuple[int, str | None]:
        """Return the dilation with which a fleet fits, and why it does not as configured.

        Raises:
            ExperimentError: It fits with none.
        """
        needs = [need_of(planned.spec) for planned in devices if not planned.is_physical]
        n_concurrent = experiment.coordinator().max_computing
        configured, offered = experiment.emulation.dilation, self._hosts.rooms

        def misfit_at(dilation: float) -> str | None:
            placed = place(needs, offered, n_concurrent=n_concurrent, dilation=dilation)
            return misfit(placed, needs, self._hosts) if placed.left else None

        fitting = fitting_dilation(needs, offered, n_concurrent)
        if fitting is None:
            raise ExperimentError(str(misfit_at(math.inf)))
        return fitting, None if configured == "auto" else misfit_at(configured)

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
        """Place a fleet on the hosts; see `FleetHosts.choose`."""
        states = state_copies(None if probe is None else probe.hyperparameters)
        return await choose_hosts(
            self._hosts,
            local,
            n_concurrent=n_concurrent,
            memory_bytes=agent_bytes(vector_bytes, shard_bytes, states),
            probe=probe,
            dilation=dilation,
        )

    def fleet_of(self, backend: Backend) -> HostsBackend:
        """Return the fleet of a backend that `choose` has chosen."""
        assert isinstance(backend, HostsBackend)
        return backend


class TrainingHosts(CohortHelpers):
    """Hosts that train a part of each cohort of a replay.

    Args:
        cluster: The cluster.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster

    def dense(self, spec: TaskSpec, shards: Shards) -> ClusterPool:
        """Return the processes that train dense models on the data of a fleet."""
        return dense_pool(self._cluster, spec, shards)

    def device(self, artifact: Artifact, data: DividedData) -> ClusterPool:
        """Return the processes that train any model on the data of a fleet."""
        return device_pool(self._cluster, artifact, data)


class ReplayingHosts(CellHosts):
    """Hosts that replay the cells of a grid.

    Args:
        cluster: The cluster.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster

    def check_files(self, files: Sequence[NeededFile]) -> None:
        """Check that all hosts have the files that a grid reads.

        Raises:
            ClusterError: A host lacks one; one line.
        """
        check_files(self._cluster, files)

    async def run(
        self,
        jobs: Sequence[CellJob],
        n_parallel: int | None,
        report: Callable[[CellJob, CellOutcome], None],
        note: Callable[[str], None],
    ) -> None:
        """Replay cells, one process for each core; see `CellHosts.run`."""
        await CellPool(self._cluster, jobs, report, note).run(n_parallel)
