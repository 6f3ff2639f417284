"""The emulated device of a command: network and control groups, or a pacer without root.

Names and locks are those of a run (`network.owner`): runs and `fairbed shape` remove each other's
leftovers.
"""

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address

import anyio
import msgspec
from anyio.to_thread import run_sync

from fairbed.testbed.backends.cgroups.files import CgroupError
from fairbed.testbed.backends.cgroups.fleet import is_leftover, limit_speed
from fairbed.testbed.backends.cgroups.group import Group, GroupUsage
from fairbed.testbed.backends.cgroups.places import find_places
from fairbed.testbed.backends.cgroups.removal import sweep as sweep_groups
from fairbed.testbed.backends.network.counters import LinkCounters
from fairbed.testbed.backends.network.enter import identity
from fairbed.testbed.backends.network.network import Network, open_network
from fairbed.testbed.backends.network.owner import claimed, machine_lock, remove_claim
from fairbed.testbed.backends.network.plan.names import TAG_BYTES, NetworkNames, make_names
from fairbed.testbed.backends.network.sweep import sweep_alone
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.emulation.condition_log import ConditionLog, ConditionMeans
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.host.contention import WaitCounter
from fairbed.testbed.shape.pacer import Pacer
from fairbed.testbed.shape.plan import ShapePlan
from fairbed.testbed.shape.process_tree import ProcessTree

RUN, NAME = "shape", "device"
"""Parts of the names of namespaces and groups: `fairbed.shape.TAG.device`."""

WATCH_S = 0.1
"""Time between two readings of the counters of a group, seconds: one reading takes 0.2 ms."""

LEAST_S = 1e-3
"""The shortest run time that a report divides by."""

NO_GROUPS = Sandbox(procs=(), quota_folder="", quota_version=2)

LOOPBACK = IPv4Address("127.0.0.1")


@dataclass(frozen=True, slots=True)
class ReceivedShare:
    """The resources that a command received."""

    wall_s: float
    group: GroupUsage | None
    """None is unknown."""
    link: LinkCounters | None
    """None is this machine's own network, which has no counters."""
    path_contended_s: float
    """Time for which the packet relay waited because this machine was busy."""


@dataclass(slots=True)
class ShapedDevice:
    """One device; satisfies `testbed.backends.schedule_driver.Driven`."""

    group: Group | None
    """None if nothing is limited and control groups are not available."""
    network: Network | None
    """None is this machine's own."""
    pacer: Pacer | None
    """Slows the command where there is no group; None is not used."""
    present: Conditions
    """The current conditions."""
    _begun: float = 0.0
    _log: ConditionLog | None = None
    _path: WaitCounter = field(default_factory=WaitCounter)

    @property
    def hub_address(self) -> str:
        """Address at which the device reaches this machine."""
        return str(LOOPBACK) if self.network is None else self.network.hub_address

    @property
    def sandbox(self) -> Sandbox:
        """The groups and network that the command enters."""
        sandbox = NO_GROUPS if self.group is None else self.group.sandbox()
        if self.network is None:
            return sandbox
        network = str(self.network.namespace(NAME))
        return msgspec.structs.replace(sandbox, network=network, host=identity())

    def begin(self, pid: int) -> None:
        """Start to measure; `pid` is the process of the command."""
        if self.pacer is not None:
            self.pacer.begin(pid)
        self._path_contended_s()
        self._begun = time.monotonic()
        self._log = ConditionLog(self._begun, self.present)

    def _path_contended_s(self) -> float:
        if self.network is not None:
            self._path.update(self.network.pids)
        return self._path.seconds

    def configured(self) -> ConditionMeans:
        """Return the mean of the configured conditions since the command began.

        Raises:
            RuntimeError: The command has not begun.
        """
        end = max(time.monotonic(), self._begun + LEAST_S)
        means = None if self._log is None else self._log.take(end)
        if means is None:
            raise RuntimeError("the command must begin before a report is made")
        return means

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change the device to these conditions.

        Raises:
            BackendError: The kernel refused.
        """
        wanted = conditions[NAME]
        if self.group is not None and wanted.speed_ratio != self.present.speed_ratio:
            limit_speed(self.group, "--cpu", wanted.speed_ratio)
        if self.network is not None:
            await self.network.apply({NAME: wanted})
        self.present = wanted
        if self._log is not None:
            self._log.record(time.monotonic(), wanted)

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of the command; None is unknown."""
        usage = self.usage()
        return None if usage is None else usage.cpu_s

    def usage(self) -> GroupUsage | None:
        """Return the usage of the processes of the command; None is unknown.

        Raises:
            BackendError: A counter cannot be read.
        """
        if self.group is not None:
            return self.group.usage()
        return None if self.pacer is None else self.pacer.usage()

    async def watch(self) -> None:
        """Read the counters often, for the contended time, until cancelled.

        Raises:
            BackendError: A counter cannot be read: the group or its limit has been removed.
        """
        while True:
            await anyio.sleep(WATCH_S)
            self.usage()

    async def received(self) -> ReceivedShare:
        """Return the resources that the command received since it began.

        Raises:
            BackendError: A counter cannot be read, or the packet relay has ended.
        """
        link = None if self.network is None else (await self.network.counters())[NAME]
        return ReceivedShare(
            wall_s=max(time.monotonic() - self._begun, LEAST_S),
            group=self.usage(),
            link=link,
            path_contended_s=self._path_contended_s(),
        )


@asynccontextmanager
async def open_device(plan: ShapePlan) -> AsyncIterator[ShapedDevice]:
    """Make the planned device; leaving kills all processes inside and removes the device.

    Raises:
        BackendError: This machine cannot emulate the device.
    """
    first = plan.follower.conditions(0.0)
    async with AsyncExitStack() as stack:
        network = None
        if plan.has_link:
            delayed = [NAME] if plan.is_delayed else []
            jittered = [NAME] if plan.has_jitter else []
            opened = open_network(
                RUN, {NAME: first.shape}, delayed=delayed, jittered=jittered, seed=plan.seed
            )
            network = await stack.enter_async_context(opened)
            name = network.namespace(NAME).name
        else:
            name = (await _claim(stack)).device(NAME)
        group = await stack.enter_async_context(_open_group(name, is_needed=plan.is_limited))
        if group is not None:
            limit_speed(group, "--cpu", first.speed_ratio)
            if plan.memory_bytes is not None:
                group.limit_memory(plan.memory_bytes)
        device = ShapedDevice(group, network, None, first)
        if first.outage is not None:
            await device.apply({NAME: first})
        yield device


@asynccontextmanager
async def open_paced(plan: ShapePlan, helpers: Sequence[int]) -> AsyncIterator[ShapedDevice]:
    """Make a device that a pacer slows, without control groups; leaving kills all its processes.

    Args:
        plan: The device, of which only the processor is emulated.
        helpers: Child processes of this process that do not belong to the command.

    Raises:
        BackendError: The kernel lacks a feature.
    """
    device = ShapedDevice(None, None, None, plan.follower.conditions(0.0))
    device.pacer = Pacer(ProcessTree(helpers), lambda: device.present.speed_ratio)
    try:
        yield device
    finally:
        await device.pacer.end()


async def _claim(stack: AsyncExitStack) -> NetworkNames:
    """Claim names for a device without a network; first remove leftovers of killed runs."""
    async with machine_lock():
        await sweep_alone()
        names = make_names(RUN, secrets.token_bytes(TAG_BYTES))
        stack.callback(remove_claim, names)
        stack.enter_context(claimed(names))
    return names


@asynccontextmanager
async def _open_group(name: str, *, is_needed: bool) -> AsyncIterator[Group | None]:
    try:
        places = await run_sync(find_places)
        await run_sync(sweep_groups, places, is_leftover)
        group = Group(places, name)
        await run_sync(group.make)
    except CgroupError:
        if is_needed:
            raise
        yield None
        return
    try:
        yield group
    finally:
        with anyio.CancelScope(shield=True):  # bounded: END_S of `removal`
            await run_sync(group.remove)
