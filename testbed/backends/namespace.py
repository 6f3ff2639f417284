"""The namespace and container backends: each device has a network and control groups of its own.

    host's namespace        coordinator, fork server, broker at the hub's address or a forwarder
                            there to another broker
    hub's namespace         all links, shaped here
    a device's namespace    its agent; its groups limit processor and memory

For root on Linux. In a container an agent also has its own file system and process ids. The kernel
shapes links and limits the processor; the agent paces itself too, so that the duration of its work
does not depend on other load (docs/decisions/0009).
"""

import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import msgspec
from anyio.abc import Process

from fairbed.testbed.backends.agent_pool import AgentLauncher, AgentPool, Site
from fairbed.testbed.backends.apply_conditions import check_speed, write_gauges
from fairbed.testbed.backends.base import DeviceSpec, Usage
from fairbed.testbed.backends.cgroups.files import CgroupError
from fairbed.testbed.backends.cgroups.fleet import check_share, limit, open_groups, watch_limits
from fairbed.testbed.backends.cgroups.group import Group, GroupUsage
from fairbed.testbed.backends.containers.containers import open_containers
from fairbed.testbed.backends.containers.engine import ContainerEngine
from fairbed.testbed.backends.helper import HelperEnded, OnEnd
from fairbed.testbed.backends.network.counters import LinkCounters
from fairbed.testbed.backends.network.enter import identity
from fairbed.testbed.backends.network.network import Network
from fairbed.testbed.backends.proxy.links import ShapedLinks, shaped_links
from fairbed.testbed.emulation.conditions import Conditions, Shape
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.testbed.run_folder import CA_FILE
from fairbed.wire.transport.address import parse_url, redirected, with_cafile

FORWARDER = "forwarder"


@dataclass(frozen=True, slots=True)
class _Readings:
    """Counters of a device's control groups and link."""

    group: GroupUsage
    link: LinkCounters


class NamespaceBackend:
    """Runs a fleet in namespaces and control groups, and in containers if there is an engine.

    Args:
        network: Has a namespace for each device; must stay open while the backend is open.
        broker_url: URL of the broker from this machine. Devices reach one at another address than
            that of the hub through a forwarder at the hub's.
        fleet: The devices.
        folder: Receives `logs/NAME.log` and `cache/NAME/`.
        tenant: Tenant of the coordinator.
        passwords: Password of each device at a broker that knows them by name; None: all devices
            take the login of `broker_url`.
        on_end: Called on the event loop for every process that ends, as requested or not.
        engine: Runs a container for each device; None starts agents from a fork server.
        fork_server: One that runs already; None starts one.

    Raises:
        BackendError: A device name is invalid or occurs twice, or the broker's URL cannot be used.
    """

    def __init__(
        self,
        network: Network,
        broker_url: str,
        fleet: Sequence[DeviceSpec],
        folder: Path,
        *,
        tenant: str = "main",
        passwords: Mapping[str, str] | None = None,
        on_end: OnEnd | None = None,
        engine: ContainerEngine | None = None,
        fork_server: Process | None = None,
    ) -> None:
        self._on_end, self._engine, self._fork_server = on_end, engine, fork_server
        self._pool = AgentPool(
            fleet, folder, tenant=tenant, passwords=passwords, on_end=self._ended
        )
        self._network, self._url = network, broker_url
        try:
            self._broker = parse_url(broker_url)
            if self._needs_forwarder:
                redirected(broker_url, network.hub_address, 1)
        except ValueError as exc:
            raise BackendError(str(exc).replace("broker address", "broker.url", 1)) from exc
        self._forwarder: ShapedLinks | None = None
        self._host = identity()
        self._stack = AsyncExitStack()
        self._groups: dict[str, Group] = {}
        self._speeds: dict[str, float | None] = {
            spec.name: None if spec.device is None else spec.device.speed_ratio for spec in fleet
        }
        self._before: dict[str, _Readings] = {}
        """Readings of each device at its last start."""
        self._memory_kills: dict[str, int] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the devices that are alive."""
        return self._pool.pids

    def contended_s(self, name: str) -> float | None:
        """Return the time for which a device has waited for this machine; None if unknown."""
        return self._pool.contended_s(name)

    def counted(self, name: str) -> Mapping[str, float]:
        """Return what was counted of a device so far, by column of the exchange."""
        return self._network.counted(name)

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of a device since it was started; None if it is not alive."""
        return self._pool.cpu_s(name)

    def path_pids(self, name: str) -> list[int]:
        """Return the process ids of helpers that relay a device's bytes."""
        forwarder = [] if self._forwarder is None else self._forwarder.path(FORWARDER)
        return self._network.path(name) + forwarder

    @property
    def _needs_forwarder(self) -> bool:
        """Whether the broker is not the run's own, at the hub's address."""
        return self._broker.host != self._network.hub_address

    def log_file(self, name: str) -> Path:
        """Return the file that receives the output of a device."""
        return self._pool.log_file(name)

    async def __aenter__(self) -> "NamespaceBackend":
        """Make the control groups and open the agent launcher; no device runs yet.

        Raises:
            BackendError: A group cannot be made, or a process cannot be started.
        """
        pool = self._pool
        names = {name: self._network.namespace(name).name for name in pool.fleet}
        launcher: AbstractAsyncContextManager[AgentLauncher] | None = None
        if self._engine is not None:
            launcher = open_containers(self._engine, names, pool.folder, pool.on_end)
        try:  # in this order: on exit agents end by SIGTERM, then their groups kill what is left
            if self._needs_forwarder:
                await self._stack.enter_async_context(self._forwarded())
            self._groups = await self._stack.enter_async_context(open_groups(pool.fleet, names))
            agents = pool.open(self._site, launcher=launcher, fork_server=self._fork_server)
            await self._stack.enter_async_context(agents)
            await self._stack.enter_async_context(self._watched())
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End the agents by SIGTERM, then kill all remaining processes."""
        await self._stack.aclose()

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Report while the context lasts if the limits of a device or a relay are gone."""

        async def watch() -> None:
            try:
                await watch_limits(self._groups)
            except CgroupError as exc:
                self._limit_gone(exc)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, name="backend.limits")
            tasks.start_soon(self._network.watch, self._ended, name="backend.relays")
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _forwarded(self) -> AsyncIterator[None]:
        """Forward connections at the hub's address to the broker while the context lasts."""
        pool, hub, broker = self._pool, self._network.hub_address, self._broker
        pool.logs.mkdir(parents=True, exist_ok=True)
        if self._engine is not None and broker.cafile is not None:
            # a container has the folder of the run, and its image may lack this file
            shutil.copyfile(broker.cafile, pool.folder / CA_FILE)
            self._url = with_cafile(self._url, str(pool.folder / CA_FILE))
        async with shaped_links(
            broker.host,
            broker.port,
            {FORWARDER: Shape()},
            pool.logs / "forwarder.log",
            pool.on_end,
            listen_host=hub,
            other_nodes=broker.other_nodes,
        ) as self._forwarder:
            self._url = redirected(self._url, hub, self._forwarder.ports[FORWARDER])
            yield

    async def start(self, costs: WorkCosts | None = None) -> None:
        """Start all devices at once; return when every process exists.

        Args:
            costs: Costs that emulated devices charge for steps; None charges processor time.

        Raises:
            BackendError: A process cannot be started, or the fork server has ended.
        """
        self._before = await self._readings()
        await self._pool.start(costs)

    async def kill(self, name: str) -> None:
        """Kill a device by SIGKILL, as a power cut does; return when it has ended.

        Raises:
            BackendError: The fleet has no such device, or the fork server has ended.
        """
        await self._pool.kill(name)

    async def restart(self, name: str, spec: DeviceSpec | None = None) -> None:
        """Start a device again, as another one if `spec` is given; kill it first if it is alive.

        Raises:
            BackendError: The fleet has no such device, or its process cannot be started.
        """
        await self._pool.kill(name)
        if spec is not None and spec.device is not None:
            self._speeds[name] = spec.device.speed_ratio
        limit(self._groups[name], name, spec or self._pool.spec(name), self._speeds[name])
        self._before[name] = (await self._readings())[name]
        await self._pool.restart(name, spec)

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change the given devices to these conditions in one step; leave the others unchanged.

        Raises:
            BackendError: There is no such device, or its conditions cannot be emulated.
        """
        pool = self._pool
        for name, wanted in conditions.items():
            check_speed(pool.spec(name), wanted)
            check_share(name, wanted.speed_ratio)
        frozen = {name for name, wanted in conditions.items() if wanted.outage == "frozen"}
        await pool.freezer.thaw(conditions.keys() - frozen)
        await self._network.apply(conditions)
        for name, wanted in conditions.items():
            self._change_speed(name, wanted)
        await pool.freezer.freeze(frozen)

    async def sample(self) -> dict[str, Usage]:
        """Return the usage of the devices that are alive since they were last started.

        Raises:
            BackendError: A counter cannot be read.
        """
        now = await self._readings()
        return {name: self._usage(name, now[name]) for name in self.pids}

    def _usage(self, name: str, now: _Readings) -> Usage:
        before = self._before[name]
        group, link = now.group, now.link
        paced_s, waited_s = self.contended_s(name), group.contended_s
        if paced_s is None and waited_s is not None:
            paced_s = waited_s - (before.group.contended_s or 0.0)
        return Usage(
            wall_s=self._pool.uptime_s(name),
            cpu_s=group.cpu_s - before.group.cpu_s,
            throttled_s=group.throttled_s - before.group.throttled_s,
            contended_s=paced_s,
            down_bytes=link.down_bytes - before.link.down_bytes,
            up_bytes=link.up_bytes - before.link.up_bytes,
            dropped_packets=link.dropped_packets - before.link.dropped_packets,
        )

    async def _readings(self) -> dict[str, _Readings]:
        links = await self._network.counters()
        return {name: _Readings(group.usage(), links[name]) for name, group in self._groups.items()}

    def _change_speed(self, name: str, wanted: Conditions) -> None:
        pool = self._pool
        # before the quota: see `cgroups.quota`
        write_gauges(pool.gauges[name], pool.fleet[name], wanted)
        if wanted.speed_ratio != self._speeds[name]:
            self._groups[name].limit_cpu(wanted.speed_ratio)
            self._speeds[name] = wanted.speed_ratio

    def _site(self, name: str) -> Site:
        sandbox = self._groups[name].sandbox()
        network = str(self._network.namespace(name))
        return Site(self._url, msgspec.structs.replace(sandbox, network=network, host=self._host))

    def _ended(self, ended: HelperEnded) -> None:
        if ended.is_device and ended.name in self._groups:
            if not ended.was_requested:
                self._report_limit(ended.name)  # an agent cannot go on without it
            if self._is_full(ended.name):
                ended = replace(ended, reason="its memory was full")
        if self._on_end is not None:
            self._on_end(ended)

    def _report_limit(self, name: str) -> None:
        """Report that the limit of a device is gone, if it is."""
        try:
            self._groups[name].check_limit()
        except CgroupError as exc:
            self._limit_gone(exc)

    def _limit_gone(self, why: CgroupError) -> None:
        self._ended(HelperEnded("control groups", 1, False, False, str(why)))

    def _is_full(self, name: str) -> bool:
        """Return whether a process of a device was killed for memory since the last call."""
        try:
            kills = self._groups[name].usage().memory_kills
        except BackendError:  # its group was removed already
            return False
        is_new = kills > self._memory_kills.get(name, 0)
        self._memory_kills[name] = kills
        return is_new
