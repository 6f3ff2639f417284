"""The network of a run: a hub in a namespace of its own, and a shaped link for every device.

Every name, address and line is made by the pure modules beside this one; here they are run.
"""

import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from testbed.backends.base import Outage
from testbed.backends.errors import BackendError
from testbed.backends.network import htb, links
from testbed.backends.network.addresses import MAX_DEVICES, Addresses, choose_addresses
from testbed.backends.network.batch import BatchPipe, open_batch_pipe
from testbed.backends.network.change import (
    Changes,
    Link,
    LinkState,
    add_change,
    check_shape,
    needs_relay,
)
from testbed.backends.network.counters import LinkCounters, read_counters
from testbed.backends.network.devices import HUB_SETTINGS, NO_IPV6, Interior, Interiors
from testbed.backends.network.enter import identity
from testbed.backends.network.host import ranges_in_use
from testbed.backends.network.names import TAG_BYTES, Names, make_names
from testbed.backends.network.owner import claimed, claims, one_at_a_time
from testbed.backends.network.programs import run_module, run_program
from testbed.backends.network.sweep import NAMESPACES, remove, sweep_alone
from testbed.backends.shape import Shape


class Network:
    """The network of one run; see `open_network`."""

    def __init__(
        self,
        names: Names,
        addresses: Addresses,
        links: dict[str, Link],
        states: dict[str, LinkState],
        pipes: tuple[BatchPipe, BatchPipe],
    ) -> None:
        self._names, self._addresses = names, addresses
        self._links, self._states = links, states
        self._ip, self._tc = pipes
        self._lock = anyio.Lock()

    @property
    def hub_address(self) -> str:
        """This machine as devices see it: listen here."""
        return str(self._addresses.host)

    def namespace(self, name: str) -> Path:
        """Return where a device's namespace is, for `setns`, `nsenter` or a container engine.

        Raises:
            BackendError: There is no such device.
        """
        self._known(name)
        return NAMESPACES / self._names.device(name)

    async def apply(self, changes: Mapping[str, tuple[Shape | None, Outage | None]]) -> None:
        """Change links to these conditions, all in one go; return when they are in effect.

        A device that is `frozen` keeps its link: standing still is its own business.

        Args:
            changes: Link and outage of each device that changes; no link is one without limits.

        Raises:
            BackendError: There is no such device, a link cannot be like that, or the kernel
                refused.
        """
        wanted = {name: _state(name, *change) for name, change in changes.items()}
        for name in wanted:
            self._known(name)
        async with self._lock:
            todo = Changes()
            for name, after in wanted.items():
                add_change(todo, self._links[name], self._states[name], after)
            self._states.update(wanted)
            await self._tc.run(todo.tc)
            await self._ip.run(todo.ip)

    async def counters(self) -> dict[str, LinkCounters]:
        """Return what every device's link has carried.

        Raises:
            BackendError: `tc` cannot tell.
        """
        return await read_counters(
            self._names.hub, {name: link.index for name, link in self._links.items()}
        )

    def _known(self, name: str) -> None:
        if name not in self._links:
            raise BackendError(f"{name}: no such device; the network has {', '.join(self._links)}")


@asynccontextmanager
async def open_network(run_id: str, shapes: Mapping[str, Shape | None]) -> AsyncIterator[Network]:
    """Give every device a namespace and a shaped link to this machine.

    On the host's namespace one link appears, with one address and one route; leaving, or the
    next `open_network` after a death without a farewell, removes it and all else. Leftovers of
    dead runs go first.

    Args:
        run_id: Any name of the run.
        shapes: The link that each device begins with; no link is one without limits.

    Raises:
        BackendError: This machine cannot; see `testbed.backends.network.probe`.
    """
    devices = list(shapes)
    if len(devices) > MAX_DEVICES:
        raise BackendError(
            f"fleet: a network holds at most {MAX_DEVICES} devices, got {len(devices)}"
        )
    states = {name: _state(name, shape, None) for name, shape in shapes.items()}
    made = {name: Link(index=index, is_relayed=False) for index, name in enumerate(devices)}
    host = identity()
    async with AsyncExitStack() as stack:
        names, addresses = await _claim(stack, run_id, len(devices))
        await run_program(["ip", "netns", "add", names.hub])
        hub = NAMESPACES / names.hub
        ip = await stack.enter_async_context(open_batch_pipe("ip", hub, host))
        tc = await stack.enter_async_context(open_batch_pipe("tc", hub, host))
        await ip.run(links.make_lines(names, devices, os.getpid()))
        await ip.run([links.wire_line(names, made[name].index, name) for name in devices])
        await _furnish(names, addresses, made, host)
        await tc.run([*htb.hub_lines(), *_shaping(addresses, made, states)])
        await ip.run(links.hub_up_lines(addresses))
        await ip.run(
            [line for each in made.values() for line in links.hub_side_lines(addresses, each.index)]
        )
        await run_program(
            ["ip", "-batch", "-"], "\n".join([*links.host_lines(names, addresses), ""]).encode()
        )
        yield Network(names, addresses, made, states, (ip, tc))


async def _claim(stack: AsyncExitStack, run_id: str, n_devices: int) -> tuple[Names, Addresses]:
    """Choose names and addresses, to be given back with all that bears them."""
    async with one_at_a_time():
        await sweep_alone()
        tag = secrets.token_bytes(TAG_BYTES)
        taken = [*await ranges_in_use(), *claims().values()]
        addresses = choose_addresses(n_devices, taken, int.from_bytes(tag, "big"))
        if addresses is None:
            raise BackendError(
                f"network: {n_devices} private addresses (RFC 1918) must be free, got none; "
                "see what uses them: ip -4 route show table all"
            )
        names = make_names(run_id, tag)
        stack.enter_context(claimed(names, addresses.block))
        stack.push_async_callback(remove, names)
    return names, addresses


async def _furnish(names: Names, addresses: Addresses, made: Mapping[str, Link], host: str) -> None:
    """Set up every namespace from within."""
    inside = [
        Interior(namespace=str(NAMESPACES / names.hub), settings=HUB_SETTINGS, lines=[]),
        *(
            Interior(
                namespace=str(NAMESPACES / names.device(name)),
                settings=NO_IPV6,
                lines=links.device_side_lines(addresses, link.index),
            )
            for name, link in made.items()
        ),
    ]
    told = msgspec.json.encode(Interiors(interiors=inside))
    await run_module("testbed.backends.network.devices", host, told=told)


def _shaping(
    addresses: Addresses, made: Mapping[str, Link], states: Mapping[str, LinkState]
) -> list[str]:
    lines: list[str] = []
    for name, link in made.items():
        shape = states[name].shape
        down, _ = link.lanes
        lines += htb.device_lines(addresses, link.index, (down, shape.down_bps), shape.up_bps)
    return lines


def _state(name: str, shape: Shape | None, outage: Outage | None) -> LinkState:
    shape = shape or Shape()
    try:
        check_shape(shape)
    except ValueError as exc:
        raise BackendError(f"{name}: {exc}") from exc
    if needs_relay(shape):
        raise BackendError(
            f"{name}: a namespace's link must be without delay, jitter and loss, got {shape}; "
            "use the process backend"
        )
    return LinkState(shape, outage)
