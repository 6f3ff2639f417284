"""The addresses of this machine: its loopback, its default route, its free ports."""

import socket
from contextlib import ExitStack

from fairbed.testbed.errors import BrokerError

TIMEOUT_S = 1.0


def loopback_problem() -> str | None:
    """Return why 127.0.0.1 does not work, and what to do; None if it works."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), TIMEOUT_S).close()
    except OSError:
        return "the loopback of this machine must be up, got down; ip link set lo up"
    return None


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of an address of this machine that is free now.

    Raises:
        BrokerError: This machine does not have the address.
    """
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return different ports of an address of this machine that are free now.

    Raises:
        BrokerError: This machine does not have the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as probes:
        ports = list[int]()
        for _ in range(count):
            probe = probes.enter_context(socket.socket(family))
            try:
                probe.bind((host, 0))
            except OSError as exc:
                raise BrokerError(
                    f"broker: must listen on an address of this machine, got {host}: {exc.strerror}"
                ) from exc
            ports.append(probe.getsockname()[1])
        return ports


def default_address() -> str:
    """Return this machine's address on its default route; loopback if it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address; no packet is sent
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
