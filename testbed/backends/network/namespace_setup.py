"""Sets up network namespaces from inside, in one process that enters all of them in turn.

`python -m fairbed.testbed.backends.network.namespace_setup PARENT HOST` reads `NamespaceSetups`
from stdin and ends when they are applied. On stdout is why a listener on this machine cannot be
reached, or nothing; an error is one line on stderr. HOST is the `identity` of the host's namespace.
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
"""Longest wait for a connection to this machine; most firewalls drop packets silently; seconds."""


class NamespaceSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one namespace."""

    namespace: str
    """Path of the namespace."""
    settings: dict[str, str]
    """Values by file under /proc/sys."""
    lines: list[str]
    """Lines for `ip -batch`."""
    must_reach: tuple[str, int] | None = None
    """Address and port of a listener that the namespace must reach after the setup."""


class NamespaceSetups(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of all namespaces of a run."""

    namespaces: list[NamespaceSetup]


DEVICE_SETTINGS = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv4/conf/all/ignore_routes_with_linkdown": "1",
    "net/ipv4/conf/default/ignore_routes_with_linkdown": "1",
}
"""IPv6 is off because it would send packets on every link. A send over an unplugged link fails at
once with "no route", as in airplane mode."""

HUB_SETTINGS = {
    **DEVICE_SETTINGS,
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "1",
    "net/ipv4/conf/default/rp_filter": "1",
}
"""Reverse path filtering: a device cannot send from the address of another, whose class would count
the packets."""


def set_up_namespace(setup: NamespaceSetup, host: str) -> str:
    """Enter a namespace and set it up; return why the listener cannot be reached, or nothing.

    Raises:
        OSError: The kernel refuses.
        RuntimeError: The namespace is the host's, or `ip` fails.
    """
    enter(Path(setup.namespace), host)
    for name, value in setup.settings.items():
        path = Path("/proc/sys") / name
        if path.exists() or "ipv6" not in name:  # a kernel may come without IPv6
            path.write_text(value, encoding="utf-8")
    _run_ip(setup)
    return "" if setup.must_reach is None else _unreachable(setup.must_reach)


def _run_ip(setup: NamespaceSetup) -> None:
    done = subprocess.run(
        ["ip", "-batch", "-"],
        input="\n".join([*setup.lines, ""]).encode(),
        capture_output=True,
        timeout=IP_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise RuntimeError(f"{setup.namespace}: ip must accept all lines, got: {reason}")


def _unreachable(listener: tuple[str, int]) -> str:
    try:
        socket.create_connection(listener, REACH_TIMEOUT_S).close()
    except OSError as exc:
        return str(exc)
    return ""


def main() -> int:
    """Set up the namespaces on stdin; an error is printed on stderr."""
    die_with_parent(int(sys.argv[1]))
    setups = msgspec.json.decode(sys.stdin.buffer.read(), type=NamespaceSetups)
    try:
        for setup in setups.namespaces:
            sys.stdout.write(set_up_namespace(setup, sys.argv[2]))
    except (OSError, RuntimeError, subprocess.SubprocessError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
