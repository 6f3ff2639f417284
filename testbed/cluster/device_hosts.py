"""The hosts of a cluster that run emulated devices: what they offer, and the network to them.

    with open_hosts("10.0.0.1:6379") as hosts:      # a process for the devices on each host
        plan_run(..., hosts=hosts)                  # places the fleet

The speed of a device above the backend is in cores of this machine; `HostRoom.core_speed` turns it
into cores of a host. Both come from the same reference step.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import anyio
from anyio.from_thread import start_blocking_portal

from fairbed.testbed.cluster.host_supervisor import HostFacts, HostSupervisor
from fairbed.testbed.emulation.placement import HostRoom
from fairbed.testbed.errors import ClusterError
from fairbed.testbed.host.contention import WaitTimeline
from fairbed.testbed.host.speed import host_speed
from fairbed.testbed.recording.tcp_peer import TcpPeer, tcp_peer

LOOPBACK = "127.0.0.1"

START_S = 120.0
"""Longest wait for a host to start its process and to measure its speed; seconds."""

CLOSE_S = 10.0
"""Longest wait for a host to end its devices; seconds."""

ROUND_TRIPS = 20
"""Round trips of one measurement of a network; the result is their median."""

FIRST_BYTES = 1 << 16
TRANSFER_S = 0.3
"""The first transfer shows the size of the second, which takes about so long; seconds."""

ECHO_S = 0.025
"""Pause between two echoes during a run; seconds."""

RECONNECT_S = 0.5
"""Pause between two attempts to reach a host whose echo has ended; seconds."""


class RemoteSupervisor(Protocol):
    """Calls methods of a `HostSupervisor`; satisfied by `connection.RemoteObject`."""

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        """Call a method; the future raises what it raises, or `HostLostError`."""
        ...

    def kill(self) -> None:
        """End its process now."""
        ...


@dataclass(frozen=True, slots=True)
class Network:
    """A measured network between this machine and a host."""

    round_trip_s: float
    down_bps: float
    """From this machine to the host, bits per second."""
    up_bps: float

    def __str__(self) -> str:
        """Return the numbers with units."""
        return (
            f"{1e3 * self.round_trip_s:.2f} ms round trip, {1e-6 * self.down_bps:.0f} Mbit/s to "
            f"it, {1e-6 * self.up_bps:.0f} Mbit/s back"
        )


@dataclass(frozen=True, slots=True)
class DeviceHost:
    """A host that runs devices."""

    room: HostRoom
    address: str
    supervisor: RemoteSupervisor
    port: int
    """At which it answers probes of the network."""
    network: Network
    step_s: float
    """Processor time of the reference step on it, seconds."""

    @property
    def name(self) -> str:
        """Unique name."""
        return self.room.name

    def __str__(self) -> str:
        """Return what was measured, in one line."""
        return (
            f"host {self.name}: {self.room.cores:g} cores, each {self.room.core_speed:.3g} of one "
            f"of this machine (reference step {1e3 * self.step_s:.2f} ms), "
            f"{self.room.memory_bytes / (1 << 30):.1f} GiB; network: {self.network}"
        )


@dataclass(frozen=True, slots=True)
class DeviceHosts:
    """The hosts of a fleet."""

    address: str
    """Address at which they reach this machine."""
    hosts: Sequence[DeviceHost]
    warnings: Sequence[str] = ()

    @property
    def rooms(self) -> list[HostRoom]:
        """What they offer."""
        return [host.room for host in self.hosts]


@contextmanager
def open_hosts(address: str) -> Iterator[DeviceHosts]:
    """Start a supervisor of devices on each host of a cluster, and measure hosts and network.

    Args:
        address: HOST:PORT of the head of a Ray cluster of which this machine is a node, or `local`.

    Raises:
        ClusterError: The cluster cannot be joined, or a host cannot run devices; one line.
        BackendError: The speed of this machine cannot be measured.
    """
    from fairbed.testbed.cluster.connection import connect  # loads ray

    with connect(address) as cluster:
        usable = [host for host in cluster.hosts if host.cores >= 1.0]
        if not usable:
            raise ClusterError(f"--cluster {address}: a host must offer a core, got none with one")
        here = next((host.address for host in cluster.hosts if host.is_here), LOOPBACK)
        if all(host.address == here for host in usable):  # nodes of this machine
            here = LOOPBACK
        # All cores are reserved: other work of the cluster would delay the devices.
        remotes = {
            host: cluster.start(
                host, HostSupervisor, host.address, cores=float(int(host.cores)), concurrency=6
            )
            for host in usable
        }
        try:
            step_s = host_speed(os.environ).step_s
            ports = {host: remote.call("listen") for host, remote in remotes.items()}
            facts = {host: remote.call("facts") for host, remote in remotes.items()}
            give_up = time.monotonic() + START_S
            hosts = list[DeviceHost]()
            for host, remote in remotes.items():
                found: HostFacts = _wait(host.name, facts[host], give_up)
                port: int = _wait(host.name, ports[host], give_up)
                room = HostRoom(
                    host.name,
                    cores=min(host.cores, found.cores),
                    memory_bytes=host.memory_bytes,
                    core_speed=step_s / found.step_s,
                )
                network = measure_network(host.name, host.address, port)
                hosts.append(DeviceHost(room, host.address, remote, port, network, found.step_s))
            yield DeviceHosts(here, hosts, cluster.warnings)
        finally:
            closing = [remote.call("close") for remote in remotes.values()]
            give_up = time.monotonic() + CLOSE_S
            for future in closing:
                with suppress(Exception):  # the host is lost, and its devices with it
                    future.result(max(0.0, give_up - time.monotonic()))
            for remote in remotes.values():
                remote.kill()


def _wait(host: str, future: "Future[Any]", give_up: float) -> Any:
    try:
        return future.result(max(0.0, give_up - time.monotonic()))
    except FutureTimeoutError as exc:  # another class before Python 3.11
        raise ClusterError(
            f"host {host}: must start a process with all of its cores within {START_S:g} s, got "
            "none; other work of the cluster may hold them: ray status"
        ) from exc


def measure_network(host: str, address: str, port: int) -> Network:
    """Measure the network to a host in about a second.

    Args:
        host: Name of the host.
        address: Its address.
        port: At which it answers probes.

    Raises:
        ClusterError: It does not answer.
    """
    try:
        with start_blocking_portal() as portal:
            return portal.call(_measure, address, port)
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError) as exc:
        raise ClusterError(
            f"host {host}: must answer at {address}:{port}, got: {exc}; open the ports between "
            "the hosts of the cluster"
        ) from exc


async def _measure(address: str, port: int) -> Network:
    async with tcp_peer(address, port) as peer:
        round_trip_s = median([await peer.round_trip() for _ in range(ROUND_TRIPS)])

        async def rate_bps(is_down: bool) -> float:
            n_bytes, bytes_per_s = FIRST_BYTES, 0.0
            for _ in range(2):
                # The peer is the host: what it receives is on its way down to devices.
                took_s = await (peer.up(n_bytes) if is_down else peer.down(n_bytes))
                bytes_per_s = n_bytes / max(took_s - round_trip_s, took_s / 10.0)
                n_bytes = int(min(max(TRANSFER_S * bytes_per_s, FIRST_BYTES), peer.max_bytes))
            return 8.0 * bytes_per_s

        return Network(round_trip_s, await rate_bps(is_down=True), await rate_bps(is_down=False))


@dataclass(slots=True)
class _Echo:
    """Round trips to one host over time."""

    timeline: WaitTimeline = field(default_factory=WaitTimeline)
    pending_at: float | None = None
    """When the echo that has not returned was sent."""


class NetworkWatch:
    """Measures the delay of the network to each host during a run, in a thread.

    A small echo is always on its way or about to be sent. An echo that takes w seconds counts as a
    wait of w on the path of the bytes (`testbed.host.contention`): what queued ahead of it, or a
    connection that was interrupted, delayed them, too.
    """

    def __init__(self, hosts: Sequence[DeviceHost]) -> None:
        self._hosts = hosts
        self._echoes = {host.name: _Echo() for host in hosts}
        self._lock = threading.Lock()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure while the context lasts."""
        with start_blocking_portal() as portal:
            futures = [portal.start_task_soon(self._watch, host) for host in self._hosts]
            try:
                yield
            finally:
                for future in futures:
                    future.cancel()

    def delay_s(self, host: str, start: float, end: float) -> float:
        """Return by how much the network delayed a transfer between two instants, seconds.

        Args:
            host: Name of the host.
            start: On the clock of `time.perf_counter`.
            end: On the same clock.
        """
        echo = self._echoes[host]
        with self._lock:
            if echo.pending_at is not None:
                echo.timeline.add_wait(echo.pending_at, time.perf_counter())
            return echo.timeline.delay_s(start, end)

    async def _watch(self, host: DeviceHost) -> None:
        while True:
            with suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError):
                async with tcp_peer(host.address, host.port) as peer:
                    await self._echo(host.name, peer)
            await anyio.sleep(RECONNECT_S)

    async def _echo(self, host: str, peer: TcpPeer) -> None:
        echo = self._echoes[host]
        while True:
            if echo.pending_at is None:  # else an interrupted one goes on
                echo.pending_at = time.perf_counter()
            await peer.round_trip()
            with self._lock:
                echo.timeline.add_wait(echo.pending_at, time.perf_counter())
                echo.pending_at = None
            await anyio.sleep(ECHO_S)
