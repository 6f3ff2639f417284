"""Whether this machine reaches itself, which brokers and proxies need."""

import socket

TIMEOUT_S = 1.0


def loopback_problem() -> str | None:
    """Return why 127.0.0.1 does not work, and what to do; None if it works."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), TIMEOUT_S).close()
    except OSError:
        return "the loopback of this machine must be up, got down; ip link set lo up"
    return None
