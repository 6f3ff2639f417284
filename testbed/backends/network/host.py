"""The host's namespace: what it uses, and the one link that it gets."""

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Network

import msgspec

from testbed.backends.network.programs import run_program


class _Address(msgspec.Struct, frozen=True):
    local: str
    prefixlen: int


class _Interface(msgspec.Struct, frozen=True):
    addr_info: list[_Address] = []


class _Route(msgspec.Struct, frozen=True):
    dst: str = "default"


async def ranges_in_use() -> list[IPv4Network]:
    """Return what this machine uses itself, or has a route to: not the default route.

    Raises:
        BackendError: `ip` cannot tell.
    """
    show = ["ip", "-4", "-json"]
    interfaces = await run_program([*show, "addr", "show"])
    routes = await run_program([*show, "route", "show", "table", "all"])
    return parse_ranges(interfaces, routes)


def parse_ranges(interfaces: bytes, routes: bytes) -> list[IPv4Network]:
    """Read what `ip -4 -json addr` and `ip -4 -json route show table all` print."""
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
        with suppress(ValueError):  # a kind of route that has no range
            yield IPv4Network(text, strict=False)
