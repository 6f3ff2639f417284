"""Chooses the backend of a run: the named one, or the best that works on this machine.

    namespace    Linux, root: the kernel shapes links and limits processor and memory
    container    the same with podman: each device has its own file system and process ids
    process      everywhere: agents pace themselves, proxies shape links

A container emulates nothing more than a namespace and starts slower, so `auto` never chooses it.
Each backend is tried on this machine. A named backend that does not work is an error; it is never
replaced silently. The modules of namespaces and containers are imported when one is tried.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import anyio.to_thread
from anyio.abc import Process

from fairbed.testbed.backends.base import Backend, DeviceSpec, cells_of, without
from fairbed.testbed.backends.helper import OnEnd
from fairbed.testbed.backends.process import ProcessBackend
from fairbed.testbed.emulation.conditions import Congestion, LinkFeature, Shape
from fairbed.testbed.errors import BackendError, BackendUnavailable
from fairbed.testbed.host.loopback import loopback_problem

if TYPE_CHECKING:
    from fairbed.testbed.backends.containers.engine import ContainerEngine
    from fairbed.testbed.backends.network.network import Network

BackendName: TypeAlias = Literal["namespace", "container", "process"]
BackendKind: TypeAlias = Literal["auto", "namespace", "container", "process"]

BACKENDS: tuple[BackendName, ...] = ("namespace", "container", "process")

BEST_FIRST: tuple[BackendName, ...] = ("namespace", "process")
"""The backends that `auto` tries, in this order."""


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The chosen backend and its network; made by `open_backend`, before the broker starts."""

    name: BackendName
    rejected: Mapping[BackendName, str]
    """Better backends, each with the reason why it does not work."""
    fleet: Sequence[DeviceSpec]
    folder: Path
    seed: int = 0
    """Seed of the jitter and loss of links."""
    network: "Network | None" = None
    engine: "ContainerEngine | None" = None
    """Runs a container for each device; None without containers."""
    lacks: Mapping[LinkFeature, str] = field(default_factory=dict)
    """Features of links that the backend does not emulate here, each with what to do about it, or
    nothing; the devices in `fleet` are without them (`testbed.run.preflight` warns of it)."""
    fork_server: Process | None = None
    """Starts the agents; None: the backend starts one, or uses containers."""

    @property
    def broker_host(self) -> str | None:
        """Address at which the run's own broker must listen; None is any."""
        return None if self.network is None else self.network.hub_address

    def backend(
        self,
        broker_url: str,
        *,
        tenant: str = "main",
        passwords: Mapping[str, str] | None = None,
        on_end: OnEnd | None = None,
    ) -> AbstractAsyncContextManager[Backend]:
        """Return the backend; enter it inside `open_backend`.

        Args:
            broker_url: URL of the broker.
            tenant: Tenant of the coordinator.
            passwords: Password of each device at a broker that knows them by name; None: all
                devices take the login of `broker_url`.
            on_end: Called on the event loop for every process that ends, as requested or not.

        Raises:
            BackendError: A device name or the broker's URL is invalid.
        """
        if self.network is not None:
            from fairbed.testbed.backends.namespace import NamespaceBackend

            return NamespaceBackend(
                self.network,
                broker_url,
                self.fleet,
                self.folder,
                tenant=tenant,
                passwords=passwords,
                on_end=on_end,
                engine=self.engine,
                fork_server=self.fork_server,
            )
        return ProcessBackend(
            broker_url,
            self.fleet,
            self.folder,
            tenant=tenant,
            passwords=passwords,
            on_end=on_end,
            seed=self.seed,
            fork_server=self.fork_server,
        )


@asynccontextmanager
async def open_backend(
    choice: BackendKind,
    fleet: Sequence[DeviceSpec],
    folder: Path,
    run_id: str,
    *,
    image: str | None = None,
    seed: int = 0,
    congestion: Congestion = "cubic",
    fork_server: Process | None = None,
) -> AsyncIterator[BackendChoice]:
    """Choose a backend for a fleet and open the network that it needs.

    Args:
        choice: `emulation.backend` of the experiment.
        fleet: The devices.
        folder: Folder of the run.
        run_id: Name of the run.
        image: Container image; None is the root file system of this machine.
        seed: Seed of the jitter and loss of links.
        congestion: Congestion control of this machine towards the devices.
        fork_server: One that runs already, for agents outside of containers.

    Raises:
        BackendUnavailable: The named backend does not work.
        BackendError: The network cannot be made.
    """
    name, rejected = await choose(choice, fleet)
    lacks = await _lacking(name, fleet, congestion)
    fleet = [without(spec, lacks) for spec in fleet] if lacks else fleet
    if name == "process":
        yield BackendChoice(
            name, rejected, fleet, folder, seed, lacks=lacks, fork_server=fork_server
        )
        return
    from fairbed.testbed.backends.containers.engine import find_engine
    from fairbed.testbed.backends.network.network import open_network

    try:
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        engine = await find_engine(image) if name == "container" else None
    except BackendUnavailable as exc:
        raise BackendUnavailable(_unavailable(choice, str(exc))) from exc
    async with open_network(
        run_id,
        {spec.name: spec.shape for spec in fleet},
        delayed=[spec.name for spec in fleet if spec.is_driven],
        jittered=[spec.name for spec in fleet if spec.has_jitter],
        seed=seed,
        log=logs / "relay.log",
        cells=cells_of(fleet),
        congestion={spec.name: spec.congestion for spec in fleet},
        host_congestion="cubic" if "bbr" in lacks else congestion,
    ) as network:
        yield BackendChoice(
            name, rejected, fleet, folder, seed, network, engine, lacks, fork_server
        )


async def _lacking(
    name: BackendName, fleet: Sequence[DeviceSpec], congestion: Congestion
) -> Mapping[LinkFeature, str]:
    """Return the features that a backend does not emulate on this machine."""
    if name == "process":
        return dict.fromkeys(get_args(LinkFeature), "")
    needs_probe = congestion == "bbr" or any(
        spec.congestion == "bbr" or (spec.shape or Shape()).codel_target_s is not None
        for spec in fleet
    )
    if not needs_probe:
        return {}
    from fairbed.testbed.backends.network.probe import probe

    return (await probe()).lacks


async def choose(
    choice: BackendKind, fleet: Sequence[DeviceSpec]
) -> tuple[BackendName, dict[BackendName, str]]:
    """Return the backend to use, and the reasons why better ones do not work.

    Raises:
        BackendUnavailable: The named backend does not work.
    """
    rejected: dict[BackendName, str] = {}
    for name in BEST_FIRST if choice == "auto" else (choice,):
        problem = await problem_with(name, fleet)
        if problem is None:
            return name, rejected
        rejected[name] = problem
    raise BackendUnavailable(_unavailable(choice, "; ".join(rejected.values())))


async def problem_with(name: BackendName, fleet: Sequence[DeviceSpec] = ()) -> str | None:
    """Try a backend; return why it does not work and what to do, or None if it works.

    The engine of containers is not tried.
    """
    if name == "process":
        return loopback_problem()
    from fairbed.testbed.backends.cgroups.fleet import check_share, try_groups
    from fairbed.testbed.backends.network.probe import probe

    try:
        if problem := time_share_problem(fleet):
            return problem
        for spec in fleet:
            check_share(spec.name, None if spec.device is None else spec.device.speed_ratio)
        support = await probe()
        if support.problem is not None:
            return support.problem
        await anyio.to_thread.run_sync(try_groups)
    except BackendError as exc:
        return str(exc)
    if support.cell_problem is not None and any(spec.cells for spec in fleet):
        return support.cell_problem
    if support.delay is None and any(_is_delayed(spec) for spec in fleet):
        return support.delay_problem
    return None


def time_share_problem(fleet: Sequence[DeviceSpec]) -> str | None:
    """Return why the kernel cannot share the cells of a fleet; None if it can.

    HTB shares bytes. Equal shares of time are equal shares of bytes only where all links are as
    fast as the cell.
    """
    for spec in fleet:
        cell, shape = (spec.cells[0] if spec.cells else None), spec.shape or Shape()
        if cell is None or cell.share != "proportional-fair":
            continue
        pairs = (shape.down_bps, cell.down_bps), (shape.up_bps, cell.up_bps)
        if spec.is_driven or any(own is not None and own < bps for own, bps in pairs):
            return (
                f"{spec.name}: a namespace or container shares a cell by bytes, got share = "
                f'"proportional-fair" for {cell.name!r} and a link that is slower than the cell; '
                'use emulation.backend = "process", share = "equal", or a replay'
            )
    return None


def _unavailable(choice: BackendKind, why: str) -> str:
    return f'emulation.backend: must work on this machine, got "{choice}": {why}'


def _is_delayed(spec: DeviceSpec) -> bool:
    shape = spec.shape or Shape()
    return spec.is_driven or shape.is_impaired
