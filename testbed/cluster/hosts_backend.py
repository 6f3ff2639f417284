"""A fleet over hosts: satisfies `backends.base.Backend`, and moves the devices of a lost host.

Each host has a `HostSupervisor`, whose reports have what the local backends read from memory: which
devices are alive, and for how long they waited. A report is at most `HEARTBEAT_S` old. A host
without one for `LOST_S` is given up: its devices start on hosts with room, and those for which none
has room stay missing. They start as after a power cut: what they kept is lost with the host.

A host that becomes slower in mid-run keeps its devices. A step is charged its cost at the start, so
what takes longer is contention of the device, which makes its exchange invalid, and `HostPace`
reports the host.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
from anyio.abc import TaskGroup
from msgspec import structs

from fairbed.coordinator.records.rows import CONTENDED_RATIO_LIMIT
from fairbed.coordinator.store.event_log import Level
from fairbed.testbed.backends.base import Backend, Conditions, DeviceSpec, Usage
from fairbed.testbed.backends.choice import BackendChoice
from fairbed.testbed.backends.helper import HelperEnded, OnEnd
from fairbed.testbed.cluster.device_hosts import DeviceHost, DeviceHosts, NetworkWatch
from fairbed.testbed.cluster.host_supervisor import LOST_S, FleetPart, HostReport
from fairbed.testbed.emulation.placement import DeviceNeed, Placement, place
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.errors import BackendError, HostLostError
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.contention import WaitTimeline
from fairbed.wire.artifact import decode_artifact
from fairbed.wire.models import source_hash
from fairbed.wire.transport.address import parse_url

CALL_S = 60.0
"""Longest wait for the answer of a host, as for a helper on one machine; seconds."""

RETRY_S = 0.2
"""Pause after a report that failed; seconds."""

WINDOW_S = 10.0
"""Time over which a host is examined; seconds."""

AGENT_BYTES = 32 << 20
"""Memory of an agent that trains a small model: 26 MiB are its own or its share of common pages."""

VECTORS = 6
"""Models in the memory of an agent while it trains and encodes: two versions, gradient, momentum,
update and its encoding; other moments of an optimiser are added. With the shard that is 90 MiB for
a model of 1 MB and 15,000 examples of 784 features, and 88 MiB were measured."""

Note = Callable[[str, str, Level, "str | None"], None]
"""Records an event: its kind, text, level and device."""


def agent_bytes(vector_bytes: int, shard_bytes: int, states: int = 1) -> int:
    """Return the memory of an agent.

    Args:
        vector_bytes: Size of the model.
        shard_bytes: Size of its training data as float32.
        states: Copies of the model that the state of the optimiser takes, at least 1.
    """
    return AGENT_BYTES + (VECTORS + states - 1) * vector_bytes + shard_bytes


def need_of(spec: DeviceSpec, memory_bytes: int = AGENT_BYTES) -> DeviceNeed:
    """Return what a device needs of its host.

    Args:
        spec: The device, in cores of this machine.
        memory_bytes: Memory of its agent.
    """
    device = spec.device
    return DeviceNeed(
        name=spec.name,
        speed=0.0 if device is None else device.speed_ratio,
        threads=1 if device is None else device.engine_threads,
        memory_bytes=memory_bytes,
        # One process must know all transfers of a cell, and of the cells behind the same line.
        group=spec.cells[-1].name if spec.cells else "",
    )


def misfit(placement: Placement, needs: Sequence[DeviceNeed], hosts: DeviceHosts) -> str:
    """Return why a fleet does not fit, with the number of devices that would."""
    first = next(need for need in needs if need.name == placement.left[0])
    rooms = ", ".join(
        f"{room.name} {room.cores:g} cores and {room.memory_bytes / (1 << 30):.1f} GiB"
        for room in hosts.rooms
    )
    return (
        f"fleet: {len(needs)} devices must fit on the hosts, got room for {len(placement.hosts)}: "
        f"{rooms}; the first without room is {first.name}, which needs {first.speed:.2f} cores of "
        f"this machine and {first.memory_bytes / (1 << 20):.0f} MiB; emulate fewer or slower "
        "devices, select fewer per round, or add a host"
    )


@dataclass(frozen=True, slots=True)
class HostsChoice(BackendChoice):
    """The backend of a fleet over hosts."""

    hosts: DeviceHosts = field(kw_only=True)
    placement: Placement = field(kw_only=True)
    needs: Mapping[str, DeviceNeed] = field(kw_only=True)
    n_concurrent: int = field(kw_only=True)
    costs: Mapping[str, WorkCosts] = field(kw_only=True)
    """Costs of steps on each host; empty if no device is slowed."""
    dilation: float = field(kw_only=True)

    def backend(
        self,
        broker_url: str,
        *,
        tenant: str = "main",
        passwords: Mapping[str, str] | None = None,
        on_end: OnEnd | None = None,
    ) -> AbstractAsyncContextManager[Backend]:
        """Return the backend, as `BackendChoice.backend`."""
        return open_fleet(
            self, broker_url, tenant=tenant, passwords=passwords, on_end=on_end or (lambda _: None)
        )


async def choose_hosts(
    hosts: DeviceHosts,
    local: BackendChoice,
    *,
    n_concurrent: int,
    memory_bytes: int,
    probe: Probe | None,
    dilation: float,
) -> HostsChoice:
    """Place a fleet on hosts, and measure the costs of its task on each.

    Args:
        hosts: The hosts.
        local: The process backend with the devices as this machine would emulate them, time
            dilation included.
        n_concurrent: Number of devices that work at the same time.
        memory_bytes: Memory of an agent.
        probe: The task; None if no device is slowed.
        dilation: Seconds of this machine in one second of the fleet.

    Raises:
        BackendError: The fleet does not fit, or a host lacks a file that its devices need.
        PluginError: A module of the user cannot be read here.
    """
    fleet = local.fleet
    needs = {spec.name: need_of(spec, memory_bytes) for spec in fleet}
    placement = place(list(needs.values()), hosts.rooms, n_concurrent=n_concurrent)
    if placement.left:
        raise BackendError(misfit(placement, list(needs.values()), hosts))
    paths = {path for spec in fleet for path in (*spec.local_rules, *spec.models)}
    sources = {path: source_hash(path) for path in sorted(paths)}
    for host in hosts.hosts if sources else ():
        lacking: list[str] = await _called(host, dilation, "differing", sources)
        if lacking:
            raise BackendError(
                f"host {host.name}: must have the same file of {lacking[0]} as this machine, got "
                "none or another one; copy it there"
            )
    base = None if probe is None else _base_of(probe)
    requested = [
        (host, host.supervisor.call("costs", probe, base)) for host in hosts.hosts if probe
    ]
    costs = {host.name: await _answer(host, dilation, call) for host, call in requested}
    return HostsChoice(
        local.name,
        local.rejected,
        fleet,
        local.folder,
        local.seed,
        lacks=local.lacks,
        hosts=hosts,
        placement=placement,
        needs=needs,
        n_concurrent=n_concurrent,
        costs=costs,
        dilation=dilation,
    )


def _base_of(probe: Probe) -> bytes | None:
    """Return the frozen part of the model of a task, which this machine has; None without one."""
    base = decode_artifact(probe.artifact).base
    if base is None:
        return None
    from fairbed.wire.base_files import default_bases

    return bytes(default_bases(os.environ).blob(base))


async def _called(
    host: DeviceHost, dilation: float, method: str, *arguments: Any, within_s: float = CALL_S
) -> Any:
    """Call a method of a host's supervisor.

    Raises:
        HostLostError: The host is lost, or does not answer.
    """
    return await _answer(host, dilation, host.supervisor.call(method, *arguments), within_s)


async def _answer(
    host: DeviceHost, dilation: float, call: "Future[Any]", within_s: float = CALL_S
) -> Any:
    try:
        with anyio.fail_after(within_s / dilation):  # on the clock of the fleet
            return await asyncio.wrap_future(call)
    except TimeoutError as exc:
        raise HostLostError(
            f"host {host.name}: must answer within {within_s:.0f} s, got nothing; look at it"
        ) from exc


class HostPace:
    """Notices that a host keeps its devices waiting, as one that became slower does. Pure.

    Args:
        window_s: Time over which waits are summed; seconds.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._begin: tuple[float, Mapping[str, float]] | None = None
        self._is_slow = False

    def update(self, now: float, contended_s: Mapping[str, float]) -> str:
        """Return a line when the host begins to be slow or no longer is; otherwise nothing.

        Args:
            now: Monotonic seconds.
            contended_s: Time for which each device has waited since its start; seconds.
        """
        if self._begin is None:
            self._begin = now, dict(contended_s)
        began, before = self._begin
        if (took_s := now - began) < self._window_s:
            return ""
        self._begin = now, dict(contended_s)
        waits_s = {name: found - before.get(name, 0.0) for name, found in contended_s.items()}
        slow = {k: s for k, s in waits_s.items() if s > CONTENDED_RATIO_LIMIT * took_s}
        was_slow, self._is_slow = self._is_slow, bool(slow)
        if was_slow == self._is_slow:
            return ""
        if not slow:
            return f"keeps no device waiting any more, measured over {took_s:.0f} s"
        named = ", ".join(f"{name} for {s:.1f} s" for name, s in sorted(slow.items()))
        return (
            f"kept devices waiting within {took_s:.0f} s: {named}; it became slower, or other work "
            "runs there; exchanges that it delayed are invalid"
        )


@asynccontextmanager
async def open_fleet(
    choice: HostsChoice,
    broker_url: str,
    *,
    tenant: str,
    passwords: Mapping[str, str] | None,
    on_end: OnEnd,
) -> AsyncIterator["HostsBackend"]:
    """Open a fleet over hosts; leaving fetches the logs, and ends the devices.

    Raises:
        BackendError: The broker's URL cannot be used.
    """
    cafile = parse_url(broker_url).cafile
    part = FleetPart(
        fleet=(),
        broker_url=broker_url,
        tenant=tenant,
        passwords=passwords,
        ca=None if cafile is None else await anyio.Path(cafile).read_bytes(),
        costs=None,
        seed=choice.seed,
    )
    watch = NetworkWatch(choice.hosts.hosts)
    with watch.watching():
        async with anyio.create_task_group() as group:
            backend = HostsBackend(choice, part, on_end, watch, group)
            try:
                yield backend
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await backend.finish()


class HostsBackend:
    """Runs a fleet on hosts; made by `open_fleet`."""

    def __init__(
        self,
        choice: HostsChoice,
        part: FleetPart,
        on_end: OnEnd,
        watch: NetworkWatch,
        group: TaskGroup,
    ) -> None:
        self._choice, self._part, self._on_end = choice, part, on_end
        self._watch, self._group = watch, group
        self._hosts = {host.name: host for host in choice.hosts.hosts}
        """Those that are not lost."""
        self._specs = {spec.name: spec for spec in choice.fleet}
        self._host_of = dict(choice.placement.hosts)
        """Name of the host of each device that has one."""
        self._conditions: dict[str, Conditions] = {}
        self._is_killed: set[str] = set()
        """Devices that were killed on purpose, and not started again."""
        self._pids: dict[str, int] = {}
        self._contended_s: dict[str, float] = {}
        self._counted: dict[str, Mapping[str, float]] = {}
        self._cpu_s: dict[str, float] = {}
        self._paths: dict[str, tuple[tuple[str, int], ...]] = {}
        """Host and process ids on the path of each device."""
        self._timelines: dict[tuple[str, int], WaitTimeline] = defaultdict(WaitTimeline)
        self._paces = {host.name: HostPace() for host in choice.hosts.hosts}
        self._is_slowed = False
        self._moving = anyio.Lock()
        self._notes: list[tuple[str, str, Level, str | None]] = []
        self._note: Note = lambda *event: self._notes.append(event)

    def record_with(self, note: Note) -> None:
        """Record events with `note`, at first those that happened before."""
        self._note = note
        for event in self._notes:
            note(*event)
        self._notes.clear()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids, on their hosts, of the devices that are alive."""
        return dict(self._pids)

    def path_pids(self, name: str) -> list[int]:
        """Return nothing: no process of this machine relays the bytes of a device."""
        return []

    def log_file(self, name: str) -> Path:
        """Return the file that receives the end of a device's log when the run ends."""
        return self._choice.folder / "logs" / f"{name}.log"

    def contended_s(self, name: str) -> float | None:
        """Return the time for which a device has waited for its host; None if unknown."""
        return self._contended_s.get(name)

    def counted(self, name: str) -> Mapping[str, float]:
        """Return what its host has counted of a device so far, by column of the exchange."""
        return self._counted.get(name, {})

    def cpu_s(self, name: str) -> float | None:
        """Return the processor time of a device since it was started; None if it is not alive."""
        return self._cpu_s.get(name) if name in self._pids else None

    def host_delay_s(self, name: str, start: float, end: float) -> float:
        """Return by how much processes of its host delayed a device's bytes, seconds.

        Args:
            name: The device.
            start: Of a transfer, on the clock of `time.perf_counter`.
            end: On the same clock.
        """
        timelines = [self._timelines[key] for key in self._paths.get(name, ())]
        return sum(timeline.delay_s(start, end) for timeline in timelines)

    def network_delay_s(self, name: str, start: float, end: float) -> float:
        """Return by how much the network to its host delayed a device's bytes, seconds."""
        host = self._host_of.get(name)
        return 0.0 if host is None else self._watch.delay_s(host, start, end)

    async def start(self, costs: WorkCosts | None = None) -> None:
        """Start all devices; return when every process exists.

        Args:
            costs: None charges processor time; else each host has its own costs.

        Raises:
            BackendError: A process cannot be started, or a host is lost.
        """
        self._is_slowed = costs is not None
        placed = {host: self._choice.placement.on(host) for host in self._hosts}
        async with anyio.create_task_group() as group:
            for host, names in placed.items():
                group.start_soon(self._open, self._hosts[host], names)

    async def _open(self, host: DeviceHost, names: Sequence[str]) -> None:
        """Start the first devices of a host, and read its reports from then on."""
        self._note("host", f"{host}; devices: {', '.join(names) or 'none'}", "info", None)
        if names:
            await self._add(host.name, names)
        # At once: a host without requests takes itself for cut off, while others still start.
        self._group.start_soon(self._follow, host, name=f"fleet.host[{host.name}]")

    async def kill(self, name: str) -> None:
        """Kill a device by SIGKILL; one whose host is lost has ended already.

        Raises:
            BackendError: The fleet has no such device.
        """
        self._spec(name)
        self._is_killed.add(name)
        await self._request(name, "kill", name)

    async def restart(self, name: str, spec: DeviceSpec | None = None) -> None:
        """Start a device again, as another one if `spec` is given.

        One whose host is lost starts where it moves, if a host has room for it.

        Raises:
            BackendError: The fleet has no such device, or its process cannot be started.
        """
        self._spec(name)
        if spec is not None:
            self._specs[name] = spec
        self._is_killed.discard(name)
        host = self._host_of.get(name)
        given = None if spec is None or host is None else self._on(host, spec)
        await self._request(name, "restart", name, given)

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change devices to these conditions; those whose host is lost get them where they move.

        Raises:
            BackendError: There is no such device, or its conditions cannot be emulated.
        """
        for name in conditions:
            self._spec(name)
        self._conditions.update(conditions)
        await self._send_conditions(conditions.keys())

    async def sample(self) -> dict[str, Usage]:
        """Return the usage of the devices that are alive."""
        found = dict[str, Usage]()
        for host in list(self._hosts.values()):
            try:
                found.update(await self._call(host, "sample"))
            except HostLostError:
                continue
        return found

    async def finish(self) -> None:
        """End all devices; write the end of their logs to the folder of the run."""
        found = dict[str, Mapping[str, bytes]]()
        async with anyio.create_task_group() as group:
            for host in list(self._hosts.values()):
                group.start_soon(self._finish_on, host, found)
        folder = self._choice.folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        for host_name, logs in found.items():
            for name, content in logs.items():
                is_device = name.removesuffix(".log") in self._specs
                file = folder / (name if is_device else f"{host_name}-{name}")
                with file.open("ab") as out:
                    out.write(content)

    async def _finish_on(self, host: DeviceHost, logs: dict[str, Mapping[str, bytes]]) -> None:
        with suppress(BackendError):  # it is lost, or has ended by itself
            logs[host.name] = await self._call(host, "logs", within_s=LOST_S)
            await self._call(host, "close", within_s=LOST_S)

    async def _add(self, host: str, names: Sequence[str]) -> None:
        """Start devices on a host.

        Raises:
            BackendError: A process cannot be started, or the host is lost.
        """
        part = replace(
            self._part,
            fleet=[self._on(host, self._specs[name]) for name in names],
            passwords=(
                None
                if self._part.passwords is None
                else {name: self._part.passwords[name] for name in names}
            ),
            costs=self._choice.costs[host] if self._is_slowed else None,
        )
        owner = self._hosts.get(host)
        if owner is None:
            raise HostLostError(f"host {host}: is lost")
        paths: Mapping[str, Sequence[int]] = await self._call(owner, "add", part)
        self._paths.update(
            {name: tuple((host, pid) for pid in pids) for name, pids in paths.items()}
        )

    def _on(self, host: str, spec: DeviceSpec) -> DeviceSpec:
        """Return a device in cores of its host."""
        if spec.device is None:
            return spec
        speed_ratio = spec.device.speed_ratio / self._hosts[host].room.core_speed
        return replace(spec, device=structs.replace(spec.device, speed_ratio=speed_ratio))

    async def _send_conditions(self, names: Collection[str]) -> None:
        by_host: dict[str, dict[str, Conditions]] = defaultdict(dict)
        for name in names:
            host = self._host_of.get(name)
            if host not in self._hosts:
                continue
            wanted = self._conditions[name]
            if wanted.speed_ratio is not None:
                speed_ratio = wanted.speed_ratio / self._hosts[host].room.core_speed
                wanted = structs.replace(wanted, speed_ratio=speed_ratio)
            by_host[host][name] = wanted
        async with anyio.create_task_group() as group:
            for host, conditions in by_host.items():
                group.start_soon(self._apply_on, host, conditions)

    async def _apply_on(self, host: str, conditions: Mapping[str, Conditions]) -> None:
        try:
            await self._call(self._hosts[host], "apply", conditions)
        except HostLostError:  # `_follow` finds it, too
            return

    async def _request(self, name: str, method: str, *arguments: Any) -> None:
        """Call a method of the host of a device, unless it is lost."""
        host = self._hosts.get(self._host_of.get(name, ""))
        if host is None:
            return
        try:
            await self._call(host, method, *arguments)
        except HostLostError:  # `_follow` finds it, too
            return

    async def _call(
        self, host: DeviceHost, method: str, *arguments: Any, within_s: float = CALL_S
    ) -> Any:
        return await _called(host, self._choice.dilation, method, *arguments, within_s=within_s)

    def _spec(self, name: str) -> DeviceSpec:
        if name not in self._specs:
            raise BackendError(f"{name}: no such device; the fleet has {', '.join(self._specs)}")
        return self._specs[name]

    async def _follow(self, host: DeviceHost) -> None:
        """Read the reports of a host until it is lost."""
        number, heard_at, problem = 0, anyio.current_time(), ""
        while True:
            left_s = max(LOST_S - self._since(heard_at), 0.0)
            try:
                report: HostReport = await self._call(host, "report", number, within_s=left_s)
            except BackendError as exc:  # lost, slow, or it has ended its devices by itself
                silent_s, problem = self._since(heard_at), problem or str(exc)
                if silent_s >= LOST_S:
                    why = f"gave no sign for {silent_s:.0f} s ({problem})"
                    await self._move(host, why, heard_at)
                    return
                await anyio.sleep(RETRY_S / self._choice.dilation)
                continue
            number, heard_at, problem = report.number, anyio.current_time(), ""
            broken = self._absorb(host.name, report)
            if broken is not None:
                with suppress(BackendError):  # it is lost as well
                    await self._call(host, "close", within_s=LOST_S)
                await self._move(host, broken, heard_at)
                return

    def _absorb(self, host: str, report: HostReport) -> str | None:
        """Take over a report; return why the host cannot run devices any more, or None."""
        now = perf_counter()
        for name in self._names_on(host):
            self._pids.pop(name, None)
        self._pids.update(report.pids)
        self._contended_s.update(report.contended_s)
        if line := self._paces[host].update(now, report.contended_s):
            self._note("host-pace", f"host {host} {line}", "warning", None)
        self._counted.update(report.counted)
        self._cpu_s.update(report.cpu_s)
        for reading in report.readings:
            self._timelines[host, reading.pid].add(now - reading.age_s, reading.waits)
        problem: str | None = None
        for ended in report.ended:
            if ended.is_device:
                self._on_end(ended)
            elif not ended.was_requested:
                problem = f"has lost its {ended.name}, which ended with status {ended.status}"
        return problem

    def _since(self, instant: float) -> float:
        """Return the seconds of this machine since an instant on the clock of the loop."""
        return (anyio.current_time() - instant) * self._choice.dilation

    def _names_on(self, host: str) -> list[str]:
        return [name for name, own in self._host_of.items() if own == host]

    async def _move(self, lost: DeviceHost, why: str, heard_at: float) -> None:
        """Give a host up, and start its devices on others.

        Args:
            lost: The host.
            why: What happened to it.
            heard_at: Instant of its last report on the clock of the loop.
        """
        lost.supervisor.kill()  # if only the way back is interrupted
        del self._hosts[lost.name]
        async with self._moving:
            names = self._names_on(lost.name)
            for name in names:
                self._pids.pop(name, None)
                del self._host_of[name]
            devices = ", ".join(names) or "(none)"
            text = f"host {lost.name} {why}; its devices {devices} move to hosts with room"
            self._note("host-lost", text, "warning", None)
            await self._place_again(names, lost.name, heard_at)

    async def _place_again(self, names: Sequence[str], lost: str, heard_at: float) -> None:
        needs = self._choice.needs
        placement = place(
            [needs[name] for name in names],
            [host.room for host in self._hosts.values()],
            n_concurrent=self._choice.n_concurrent,
            present={host: [needs[n] for n in self._names_on(host)] for host in self._hosts},
        )
        self._host_of.update(placement.hosts)
        for host in list(self._hosts):
            moved = placement.on(host)
            if moved:
                await self._start_moved(host, moved, lost, heard_at)
        self._give_up(
            placement.left,
            lambda name: (
                f"host {lost} is lost, and no other has room for it: it needs "
                f"{needs[name].speed:.2f} cores of this machine and "
                f"{needs[name].memory_bytes / (1 << 20):.0f} MiB"
            ),
        )

    async def _start_moved(
        self, host: str, names: Sequence[str], lost: str, heard_at: float
    ) -> None:
        try:
            await self._add(host, names)
            for name in self._is_killed.intersection(names):
                await self._request(name, "kill", name)
            await self._send_conditions([name for name in names if name in self._conditions])
        except HostLostError:  # `_follow` finds it, too, and moves them on
            return
        except BackendError as exc:
            for name in names:
                del self._host_of[name]
            problem = str(exc)
            self._give_up(names, lambda name: f"host {lost} is lost, and on {host}: {problem}")
            return
        self._note(
            "moved",
            f"{', '.join(names)} started on host {host}, {self._since(heard_at):.1f} s after "
            f"the last sign of host {lost}",
            "warning",
            None,
        )

    def _give_up(self, names: Iterable[str], reason: Callable[[str], str]) -> None:
        """Report devices that no host runs any more."""
        for name in names:
            self._on_end(
                HelperEnded(
                    name=name, status=1, was_requested=False, is_device=True, reason=reason(name)
                )
            )
