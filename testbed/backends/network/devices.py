"""Set up devices from within their namespaces: one process that goes through all of them.

`python -m fairbed.testbed.backends.network.devices PARENT HOST` reads `Interiors` from stdin and
ends when
they are as wanted; what went wrong is one line on stderr. HOST is the `identity` of the host's
namespace.
"""

import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from fairbed.testbed.backends.network.enter import enter
from fairbed.testbed.host.guard import die_with_parent

IP_TIMEOUT_S = 60.0

REACH_TIMEOUT_S = 5.0
"""Across two links in memory, on a busy machine; a firewall mostly drops silently."""


class Interior(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a namespace gets from within."""

    namespace: str
    """Path."""
    settings: dict[str, str]
    """Files under /proc/sys, and their values."""
    lines: list[str]
    """For `ip -batch`."""
    reach: tuple[str, int] | None = None
    """A listener that must be within reach then: address and port."""


class Interiors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all of them get."""

    interiors: list[Interior]


DEVICE_SETTINGS = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv4/conf/all/ignore_routes_with_linkdown": "1",
    "net/ipv4/conf/default/ignore_routes_with_linkdown": "1",
}
"""IPv6 would announce itself on every link. Who wants to send over one that is unplugged is told at
once that there is no way, as in airplane mode."""

HUB_SETTINGS = {
    **DEVICE_SETTINGS,
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "1",
    "net/ipv4/conf/default/rp_filter": "1",
}
"""A device cannot send in another one's name: its own lane would not count it."""


def apply_interior(interior: Interior, host: str) -> None:
    """Enter a namespace and change it.

    Raises:
        OSError: The kernel refuses.
        RuntimeError: It is the host's, `ip` complains, or the listener is out of reach.
    """
    enter(Path(interior.namespace), host)
    for name, value in interior.settings.items():
        path = Path("/proc/sys") / name
        if path.exists() or "ipv6" not in name:  # a kernel may come without IPv6
            path.write_text(value)
    _run_ip(interior)
    if interior.reach is not None:
        _reach(interior.reach)


def _run_ip(interior: Interior) -> None:
    done = subprocess.run(
        ["ip", "-batch", "-"],
        input="\n".join([*interior.lines, ""]).encode(),
        capture_output=True,
        timeout=IP_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise RuntimeError(f"{interior.namespace}: ip must take all lines, got: {reason}")


def _reach(listener: tuple[str, int]) -> None:
    try:
        socket.create_connection(listener, REACH_TIMEOUT_S).close()
    except OSError as exc:
        raise RuntimeError(
            f"{listener[0]}: this machine must answer its devices, got {exc!r}; if a firewall "
            "drops what comes from links named fb*, let it in: sudo iptables -I INPUT -i fb+ "
            "-j ACCEPT"
        ) from exc


def main() -> int:
    """Set up the interiors on stdin; an error is printed on stderr."""
    die_with_parent(int(sys.argv[1]))
    setup = msgspec.json.decode(sys.stdin.buffer.read(), type=Interiors)
    try:
        for interior in setup.interiors:
            apply_interior(interior, sys.argv[2])
    except (OSError, RuntimeError, subprocess.SubprocessError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
