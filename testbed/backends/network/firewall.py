"""How to accept packets from our links in the firewall of this machine.

A rule that accepts a packet holds for its own chain only. So with nftables each base chain of the
input hook needs a rule, whatever its table is called; a rule of `iptables` is in one of them.
"""

import msgspec

from fairbed.testbed.backends.network.programs import run_program
from fairbed.testbed.errors import BackendError

_IPTABLES = "sudo iptables -I INPUT -i fb+ -j ACCEPT"

_MANAGED = ("ip", "filter", "INPUT")
"""The chain that `iptables` changes where it uses nftables itself."""


class _Chain(msgspec.Struct, frozen=True):
    family: str
    table: str
    name: str
    hook: str = ""
    type: str = ""


class _Entry(msgspec.Struct, frozen=True):
    chain: _Chain | None = None


class _Listing(msgspec.Struct, frozen=True):
    nftables: list[_Entry]


async def firewall_advice() -> str:
    """Return the commands that accept packets from links named fb* on this machine."""
    try:
        return advice_for(await run_program(["nft", "-json", "list", "chains"]))
    except (BackendError, msgspec.DecodeError):  # no nftables here
        return _IPTABLES


def advice_for(chains: bytes) -> str:
    """Return the commands for the chains that `nft -json list chains` has printed."""
    listing = msgspec.json.decode(chains, type=_Listing)
    commands = []
    for chain in (entry.chain for entry in listing.nftables if entry.chain is not None):
        if chain.hook != "input" or chain.type != "filter" or chain.family not in ("inet", "ip"):
            continue
        key = chain.family, chain.table, chain.name
        commands.append(
            _IPTABLES
            if key == _MANAGED
            else f"sudo nft insert rule {' '.join(key)} iifname '\"fb*\"' accept"
        )
    return " && ".join(commands) or _IPTABLES
