"""The network of a run: a hub in a namespace of its own, and a shaped link for each device.

The modules of `plan` compute names, addresses and command lines; this module executes them. The
host's namespace gets one link, one address and one route.
"""

import os
import secrets
import socket
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from types import MappingProxyType

import anyio
import msgspec

from fairbed.testbed.backends.helper import OnEnd
from fairbed.testbed.backends.network.batch import BatchPipe, open_batch_pipe
from fairbed.testbed.backends.network.cell_waits import CellWaits
from fairbed.testbed.backends.network.counters import LinkCounters, read_counters
from fairbed.testbed.backends.network.enter import identity
from fairbed.testbed.backends.network.firewall import firewall_advice
from fairbed.testbed.backends.network.namespace_setup import (
    DEVICE_SETTINGS,
    HUB_SETTINGS,
    NamespaceSetup,
    NamespaceSetups,
)
from fairbed.testbed.backends.network.owner import claimed, claims, machine_lock
from fairbed.testbed.backends.network.plan import htb, links
from fairbed.testbed.backends.network.plan.change import (
    INITIAL_STATE,
    UNLIMITED,
    Changes,
    DelayedBy,
    LinkCell,
    NetworkLink,
    State,
    add_change,
    check_shape,
    impairment_of,
    next_state,
    within_cell,
)
from fairbed.testbed.backends.network.plan.delay import NO_IMPAIRMENT
from fairbed.testbed.backends.network.plan.names import (
    MAX_DEVICES,
    TAG_BYTES,
    Addresses,
    NetworkNames,
    choose_addresses,
    hub_side,
    make_names,
)
from fairbed.testbed.backends.network.plan.relay_protocol import RelayedLink
from fairbed.testbed.backends.network.probe import probe
from fairbed.testbed.backends.network.programs import run_module, run_program
from fairbed.testbed.backends.network.relays import Relays, open_relays
from fairbed.testbed.backends.network.sweep import NAMESPACES, remove, sweep_alone
from fairbed.testbed.emulation.cell import Cell, DeviceCells
from fairbed.testbed.emulation.conditions import Conditions, Congestion, LinkFeature, Shape
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.slow_steps import named_if_slow


class _Address(msgspec.Struct, frozen=True):
    local: str
    prefixlen: int


class _Interface(msgspec.Struct, frozen=True):
    addr_info: list[_Address] = []


class _Route(msgspec.Struct, frozen=True):
    dst: str = "default"


async def ranges_in_use() -> list[IPv4Network]:
    """Return the address ranges that this machine uses or has a route to, except by default.

    Raises:
        BackendError: `ip` fails.
    """
    show = ["ip", "-4", "-json"]
    interfaces = await run_program([*show, "addr", "show"])
    routes = await run_program([*show, "route", "show", "table", "all"])
    return parse_ranges(interfaces, routes)


def parse_ranges(interfaces: bytes, routes: bytes) -> list[IPv4Network]:
    """Parse the output of `ip -4 -json addr` and `ip -4 -json route show table all`."""
    found = [
        f"{address.local}/{address.prefixlen}"
        for interface in msgspec.json.decode(interfaces or b"[]", type=list[_Interface])
        for address in interface.addr_info
    ]
    found += [
        route.dst
        for route in msgspec.json.decode(routes or b"[]", type=list[_Route])
        if route.dst not in ("default", "0.0.0.0/0")
    ]
    return list(_networks(found))


def _networks(texts: Iterable[str]) -> Iterable[IPv4Network]:
    for text in texts:
        with suppress(ValueError):  # a type of route without a range
            yield IPv4Network(text, strict=False)


async def claim(
    stack: AsyncExitStack, run_id: str, n_devices: int
) -> tuple[NetworkNames, Addresses]:
    """Remove leftovers of dead runs, then claim names and addresses.

    Args:
        stack: Removes the claim and everything with these names when it closes.
        run_id: Name of the run.
        n_devices: Number of devices.

    Raises:
        BackendError: No addresses are free, or a leftover cannot be removed.
    """
    async with machine_lock():
        with named_if_slow("the removal of networks that killed runs left"):
            await sweep_alone()
        tag = secrets.token_bytes(TAG_BYTES)
        taken = [*await ranges_in_use(), *claims().values()]
        addresses = choose_addresses(n_devices, taken, int.from_bytes(tag, "big"))
        if addresses is None:
            raise BackendError(
                f"network: must find {n_devices} free private addresses (RFC 1918), got none; "
                "see which are used: ip -4 route show table all"
            )
        names = make_names(run_id, tag)
        stack.enter_context(claimed(names, addresses.block))
        stack.push_async_callback(remove, names)
    return names, addresses


def relayed_links(names: NetworkNames, made: Mapping[str, NetworkLink]) -> dict[str, RelayedLink]:
    """Return the links that relays delay, in the form of the relay protocol."""
    return {
        name: RelayedLink(
            namespace=str(NAMESPACES / names.device(name)),
            hub_link=hub_side(link.index),
            impairment=NO_IMPAIRMENT,
        )
        for name, link in made.items()
        if link.delayed_by == "relay"
    }


async def set_up_namespaces(
    names: NetworkNames, addresses: Addresses, made: Mapping[str, NetworkLink], host: str
) -> None:
    """Set up every namespace from inside, and check that the hub reaches the host.

    Raises:
        BackendError: The kernel refuses, or a firewall drops packets.
    """
    with socket.create_server((str(addresses.host), 0)) as listener:
        hub = NamespaceSetup(
            namespace=str(NAMESPACES / names.hub),
            settings=HUB_SETTINGS,
            lines=links.hub_up_lines(addresses),
            must_reach=listener.getsockname(),
        )
        devices = [
            NamespaceSetup(
                namespace=str(NAMESPACES / names.device(name)),
                settings=DEVICE_SETTINGS,
                lines=links.device_side_lines(
                    addresses,
                    link.index,
                    is_relayed=link.delayed_by == "relay",
                    congestion=link.congestion,
                ),
            )
            for name, link in made.items()
        ]
        namespaces = msgspec.json.encode(NamespaceSetups(namespaces=[hub, *devices]))
        unreachable = await run_module(
            "fairbed.testbed.backends.network.namespace_setup", host, stdin=namespaces
        )
    if unreachable:
        raise BackendError(
            f"network: devices must reach this machine at {addresses.host}, got "
            f"{unreachable.decode()}; if a firewall drops packets from links named fb*, accept "
            f"them: {await firewall_advice()}"
        )


NO_LOG = Path(os.devnull)
NO_CONGESTION: Mapping[str, Congestion] = MappingProxyType({})


class Network:
    """The network of one run; see `open_network`."""

    def __init__(
        self,
        names: NetworkNames,
        addresses: Addresses,
        links: dict[str, NetworkLink],
        pipes: tuple[BatchPipe, BatchPipe],
        relays: Relays,
        cell_waits: CellWaits,
    ) -> None:
        self._names, self._addresses = names, addresses
        self._cell_waits = cell_waits
        self._links = links
        self._now = dict.fromkeys(links, INITIAL_STATE)
        self._ip, self._tc = pipes
        self._relays = relays
        self._lock = anyio.Lock(fast_acquire=True)

    @property
    def hub_address(self) -> str:
        """Address at which devices reach this machine; the broker must listen there."""
        return str(self._addresses.host)

    @property
    def pids(self) -> list[int]:
        """Process ids of relays, which all packets pass: their lateness slows links."""
        return self._relays.pids

    def path(self, name: str) -> list[int]:
        """Return the process id of a device's relay, if it has one: its lateness slows the link."""
        return self._relays.path(name)

    async def watch(self, on_end: OnEnd) -> None:
        """Report each relay that ends, until cancelled: its devices have no link any more."""
        await self._relays.watch(on_end)

    def namespace(self, name: str) -> Path:
        """Return the path of a device's namespace, for `setns`, `nsenter` or a container engine.

        Raises:
            BackendError: There is no such device.
        """
        self._known(name)
        return NAMESPACES / self._names.device(name)

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change links to these conditions in one step; return when they are in effect.

        A `frozen` device keeps its link. When a link is unplugged or plugged in, the kernel of the
        device notices it a moment later, as with a real cable.

        Args:
            conditions: Conditions of each device whose link or outage changes; no shape is a link
                without limits. Only shape and outage are used.

        Raises:
            BackendError: There is no such device, a link cannot have these conditions, or the
                kernel refused.
        """
        async with self._lock:
            changes, states = Changes(), dict[str, State]()
            for name, wanted in conditions.items():
                self._known(name)
                link, before = self._links[name], self._now[name]
                if wanted.shape is not None:
                    _check(name, link, wanted.shape)
                shape = within_cell(wanted.shape or UNLIMITED, link.cell)
                wanted = msgspec.structs.replace(wanted, shape=shape)
                after = states[name] = next_state(before, wanted)
                add_change(changes, name, link, before, after)
            self._now.update(states)
            await self._tc.run(changes.tc)
            await self._ip.run(changes.ip)
            await self._relays.change(changes.impairment)

    def counted(self, name: str) -> Mapping[str, float]:
        """Return what was counted of a device so far, by column of the exchange."""
        return self._cell_waits.counted(name)

    async def counters(self) -> dict[str, LinkCounters]:
        """Return the traffic counters of all links.

        Raises:
            BackendError: `tc` fails.
        """
        counted = await read_counters(
            self._names.hub, {name: link.lanes for name, link in self._links.items()}
        )
        for name, lost in (await self._relays.lost()).items():
            each = counted[name]
            counted[name] = replace(each, dropped_packets=each.dropped_packets + lost)
        return counted

    def _known(self, name: str) -> None:
        if name not in self._links:
            raise BackendError(f"{name}: no such device; the network has {', '.join(self._links)}")


@asynccontextmanager
async def open_network(
    run_id: str,
    shapes: Mapping[str, Shape | None],
    *,
    delayed: Collection[str] = (),
    jittered: Collection[str] = (),
    seed: int = 0,
    log: Path = NO_LOG,
    cells: DeviceCells = MappingProxyType({}),
    congestion: Mapping[str, Congestion] = NO_CONGESTION,
    host_congestion: Congestion = "cubic",
) -> AsyncIterator[Network]:
    """Make a namespace and a shaped link to this machine for each device.

    The host's namespace gets one link with one address and one route. Leaving removes everything;
    if this process is killed, the next `open_network` does. Leftovers of dead runs are removed
    first.

    Args:
        run_id: Name of the run.
        shapes: The first link of each device; no shape is a link without limits.
        delayed: Devices that will have delay, jitter or loss later.
        jittered: Those of them that will have jitter.
        seed: Seed of loss and jitter.
        log: Receives the output of helper processes.
        cells: Of each device in a cell, the cell with those in front of it, and its priority.
        congestion: Congestion control of devices, for their uploads; cubic for the others.
        host_congestion: Congestion control of this machine towards the devices.

    Raises:
        BackendError: This machine cannot make the network; see `testbed.backends.network.probe`.
    """
    if len(shapes) > MAX_DEVICES:
        raise BackendError(
            f"fleet: must have at most {MAX_DEVICES} devices per network, got {len(shapes)}"
        )
    in_front = _cells_in_front(cells)
    plain = await _links(shapes, delayed, jittered, congestion, host_congestion)
    made = _with_cells(plain, cells, in_front)
    host = identity()
    async with AsyncExitStack() as stack:
        names, addresses = await claim(stack, run_id, len(shapes))
        await run_program(["ip", "netns", "add", names.hub])
        hub = NAMESPACES / names.hub
        ip = await stack.enter_async_context(open_batch_pipe("ip", hub, host))
        tc = await stack.enter_async_context(open_batch_pipe("tc", hub, host))
        await ip.run(links.make_lines(names, list(shapes), os.getpid()))
        relayed = relayed_links(names, made)
        relays = await stack.enter_async_context(open_relays(host, hub, seed, relayed, log))
        await ip.run(
            [
                links.wire_line(names, link.index, name)
                for name, link in made.items()
                if name not in relayed
            ]
        )
        host_lines = links.host_lines(names, addresses, host_congestion, has_ipv6=_has_ipv6())
        await run_program(["ip", "-batch", "-"], "\n".join([*host_lines, ""]).encode())
        if in_front:
            await ip.run(links.cell_lines())
        await set_up_namespaces(names, addresses, made, host)
        shaping = [
            line
            for link in made.values()
            for line in htb.device_lines(addresses, link.index, link.lanes)
        ]
        shared = htb.cell_class_lines(in_front) if in_front else []
        await tc.run([*htb.hub_lines(), *shared, *shaping])
        waits = CellWaits(cells)
        network = Network(names, addresses, made, (ip, tc), relays, waits)
        await network.apply(
            {name: Conditions(speed_ratio=None, shape=shape) for name, shape in shapes.items()}
        )
        await ip.run(
            [
                line
                for name, link in made.items()
                for line in links.hub_side_lines(addresses, link.index, is_relayed=name in relayed)
            ]
        )
        if cells:
            indices = {name: link.index for name, link in made.items()}
            stack.enter_context(waits.reading(tc.pid, indices))
        yield network


def _has_ipv6() -> bool:
    """Return whether the kernel has IPv6: not with `ipv6.disable=1`, or without its module."""
    return Path("/proc/sys/net/ipv6").exists()


def _cells_in_front(cells: DeviceCells) -> list[Cell]:
    """Return all cells, each after those in front of it."""
    paths = [cell for path, _ in cells.values() for cell in reversed(path)]
    return list({cell.name: cell for cell in paths}.values())


def _with_cells(
    made: Mapping[str, NetworkLink], cells: DeviceCells, in_front: Sequence[Cell]
) -> dict[str, NetworkLink]:
    """Return the links with their cells."""
    numbers = {cell.name: number for number, cell in enumerate(in_front)}
    found = dict(made)
    for name, (path, priority) in cells.items():
        cell = LinkCell(
            numbers[path[0].name],
            min(one.down_bps for one in path),
            min(one.up_bps for one in path),
            priority,
        )
        found[name] = replace(found[name], cell=cell)
    return found


async def _links(
    shapes: Mapping[str, Shape | None],
    delayed: Collection[str],
    jittered: Collection[str],
    congestion: Mapping[str, Congestion],
    host_congestion: Congestion,
) -> dict[str, NetworkLink]:
    """Return how each link is made.

    Raises:
        BackendError: A link cannot be emulated on this machine.
    """
    known = {name: shape or UNLIMITED for name, shape in shapes.items()}
    unknown = sorted({*delayed, *jittered} - set(shapes))
    if unknown:
        raise BackendError(f"{unknown[0]}: no such device; the fleet has {', '.join(shapes)}")
    need = {
        name
        for name, each in known.items()
        if impairment_of(each) != NO_IMPAIRMENT or name in delayed or name in jittered
    }
    varying = {name for name, each in known.items() if each.jitter_s > 0.0 or name in jittered}
    codel = {name for name, each in known.items() if each.codel_target_s is not None}
    features: dict[LinkFeature, bool] = {
        "fq_codel": bool(codel),
        "bbr": "bbr" in (host_congestion, *congestion.values()),
    }
    by: dict[str, DelayedBy] = {}
    if need or any(features.values()):
        support = await probe()
        if need and support.delay is None:
            raise BackendError(
                f"{min(need)}: needs delay or loss; {support.problem or support.delay_problem}"
            )
        by = {name: support.jitter if name in varying else support.delay for name in need}
        for feature, is_needed in features.items():
            if is_needed and (support.problem or feature in support.lacks):
                raise BackendError(support.problem or support.lacks[feature])
    made = {
        name: NetworkLink(
            index,
            by.get(name),
            congestion=congestion.get(name, "cubic"),
            has_codel=name in codel,
        )
        for index, name in enumerate(shapes)
    }
    for name, link in made.items():
        _check(name, link, known[name])
    return made


def _check(name: str, link: NetworkLink, shape: Shape) -> None:
    try:
        check_shape(link, shape)
    except ValueError as exc:
        raise BackendError(f"{name}: {exc}") from exc
