"""The steps by which a network comes into being; `network` takes them in order."""

import secrets
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack

import msgspec

from testbed.backends.errors import BackendError
from testbed.backends.network import links
from testbed.backends.network.addresses import Addresses, choose_addresses
from testbed.backends.network.change import Link
from testbed.backends.network.delay import CLEAR
from testbed.backends.network.devices import DEVICE_SETTINGS, HUB_SETTINGS, Interior, Interiors
from testbed.backends.network.host import ranges_in_use
from testbed.backends.network.names import TAG_BYTES, Names, hub_side, make_names
from testbed.backends.network.orders import RelayedLink
from testbed.backends.network.owner import claimed, claims, one_at_a_time
from testbed.backends.network.programs import run_module
from testbed.backends.network.sweep import NAMESPACES, remove, sweep_alone


async def claim(stack: AsyncExitStack, run_id: str, n_devices: int) -> tuple[Names, Addresses]:
    """Sweep, then choose names and addresses.

    Args:
        stack: Gives back, when it closes, the names and all that bears them.
        run_id: Of the run.
        n_devices: How many it has.

    Raises:
        BackendError: No addresses are free, or a leftover cannot be removed.
    """
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


def relayed_links(names: Names, made: Mapping[str, Link]) -> dict[str, RelayedLink]:
    """Return what relays have to know of the links that are theirs."""
    return {
        name: RelayedLink(
            namespace=str(NAMESPACES / names.device(name)),
            hub_link=hub_side(link.index),
            air=CLEAR,
        )
        for name, link in made.items()
        if link.delayed_by == "relay"
    }


async def furnish(names: Names, addresses: Addresses, made: Mapping[str, Link], host: str) -> None:
    """Set up every namespace from within; see that the hub reaches the host.

    Raises:
        BackendError: The kernel refuses, or a firewall stands between.
    """
    with socket.create_server((str(addresses.host), 0)) as listener:
        hub = Interior(
            namespace=str(NAMESPACES / names.hub),
            settings=HUB_SETTINGS,
            lines=links.hub_up_lines(addresses),
            reach=listener.getsockname(),
        )
        devices = [
            Interior(
                namespace=str(NAMESPACES / names.device(name)),
                settings=DEVICE_SETTINGS,
                lines=links.device_side_lines(
                    addresses, link.index, is_relayed=link.delayed_by == "relay"
                ),
            )
            for name, link in made.items()
        ]
        told = msgspec.json.encode(Interiors(interiors=[hub, *devices]))
        await run_module("testbed.backends.network.devices", host, told=told)
