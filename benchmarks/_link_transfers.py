"""Transfers between devices of a network and this machine, over real TCP connections.

One process holds the sockets of all devices: a socket belongs to the namespace in which it was
opened. `python -m benchmarks._link_transfers PARENT HOST` is that process; `measure` starts it.

    device   request ------> machine
             <------ n_bytes                   down: first byte sent .. last byte received
             pause
             n_bytes ------> machine           up
             <------ receipt
             pause
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairbed.testbed.backends.network.enter import enter, identity
from fairbed.testbed.host.guard import die_with_parent

READ_BYTES = 1 << 17
OPEN_S = 30.0


class Transfers(msgspec.Struct, frozen=True, kw_only=True):
    """Transfers of one device, in both directions by turns."""

    n_bytes: int
    """Size of each transfer."""
    count: int
    """Transfers in each direction."""
    pause_s: float
    """After each transfer."""


class Times(msgspec.Struct, kw_only=True):
    """Instants of the transfers at one end, or their durations; seconds."""

    down: list[float] = msgspec.field(default_factory=list)
    up: list[float] = msgspec.field(default_factory=list)


class _Device(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    transfers: Transfers


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The devices, which connect to `host` and `port`."""

    host: str
    port: int
    devices: list[_Device]


def _serve(listener: socket.socket, plan: _Plan) -> list[Times]:
    """Send to and receive from all devices until they are done; return the instants here."""
    found = [Times() for _ in plan.devices]
    threads = []
    listener.settimeout(OPEN_S)
    for _ in plan.devices:
        connection, _address = listener.accept()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        index = int.from_bytes(connection.recv(4), "big")
        arguments = connection, plan.devices[index].transfers, found[index]
        threads.append(threading.Thread(target=_serve_device, args=arguments))
    _run(threads)
    return found


def _run(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _serve_device(connection: socket.socket, plan: Transfers, times: Times) -> None:
    block = bytes(plan.n_bytes)
    with connection:
        for _ in range(plan.count):
            receive(connection, 1)
            times.down.append(time.monotonic())
            connection.sendall(block)
            receive(connection, plan.n_bytes)
            times.up.append(time.monotonic())
            connection.sendall(b"r")
        connection.recv(1)  # the end of the connection


def _be_device(connection: socket.socket, plan: Transfers, times: Times) -> None:
    block = bytes(plan.n_bytes)
    with connection:
        for _ in range(plan.count):
            connection.sendall(b"r")
            receive(connection, plan.n_bytes)
            times.down.append(time.monotonic())
            time.sleep(plan.pause_s)
            times.up.append(time.monotonic())
            connection.sendall(block)
            receive(connection, 1)
            time.sleep(plan.pause_s)


def receive(connection: socket.socket, n_bytes: int) -> None:
    """Receive so many bytes, and drop them."""
    buffer, left = memoryview(bytearray(min(n_bytes, READ_BYTES))), n_bytes
    while left:
        got = connection.recv_into(buffer[: min(left, READ_BYTES)])
        if not got:
            raise EOFError("the other end closed the connection")
        left -= got


def measure(host: str, namespaces: Sequence[str], transfers: Sequence[Transfers]) -> list[Times]:
    """Make the transfers of all devices at once; return their durations.

    Args:
        host: Address of this machine, as seen from the devices.
        namespaces: Path of the namespace of each device.
        transfers: Transfers of each device.
    """
    with socket.create_server((host, 0), backlog=len(namespaces)) as listener:
        plan = _Plan(
            host=host,
            port=listener.getsockname()[1],
            devices=[
                _Device(namespace=path, transfers=each)
                for path, each in zip(namespaces, transfers, strict=True)
            ],
        )
        command = [sys.executable, "-m", "benchmarks._link_transfers", str(os.getpid()), identity()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(plan))
            process.stdin.close()
            here = _serve(listener, plan)
            there = msgspec.json.decode(process.stdout.read(), type=list[Times])
    return [
        Times(
            down=[end - begin for begin, end in zip(near.down, far.down, strict=True)],
            up=[end - begin for begin, end in zip(far.up, near.up, strict=True)],
        )
        for near, far in zip(here, there, strict=True)
    ]


def plain_table(lines: Sequence[Sequence[str]], waited: float) -> str:
    """Return a table as text; `waited` is the greatest share of the time of a waiting process."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    return "\n".join([*text, "", f"longest wait of a process: {100 * waited:.1f} % of the time"])


def markdown_table(command: str, lines: Sequence[Sequence[str]]) -> str:
    """Return a table of a document; the first line is its header."""
    header, *body = lines
    table = "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *body])
    return f"`{command}`, {time.strftime('%d %B %Y').lstrip('0')}.\n\n{table}"


def main() -> None:
    """Be all devices: open a connection in each namespace, and make the transfers."""
    parent, host = sys.argv[1:]
    die_with_parent(int(parent))
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=_Plan)
    found = [Times() for _ in plan.devices]
    threads = []
    for index, (device, times) in enumerate(zip(plan.devices, found, strict=True)):
        enter(Path(device.namespace), host)
        connection = socket.create_connection((plan.host, plan.port), OPEN_S)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(index.to_bytes(4, "big"))
        threads.append(
            threading.Thread(target=_be_device, args=(connection, device.transfers, times))
        )
    _run(threads)
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
