"""Traffic between this machine and a device's namespace, timed by the one clock of both.

    async with traffic(network, name) as peer:
        peer.down_goodput(seconds) ...

A peer is a process inside the namespace that executes commands, one JSON line each. Both ends read
`time.monotonic`, which namespaces share, so one-way delays are measured directly.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbed.testbed.backends.network.enter import identity
from fairbed.testbed.host.guard import guarded

CHUNK_BYTES = 1 << 16
TIMEOUT_S = 60.0
HELLO_S = 0.2
"""Interval in which a receiver announces its address."""

QUIET_S = 2.0
"""Silence after which no datagram is in transit."""

STAMP = struct.Struct("!dI")
"""Header of a datagram: instant of sending, and its number."""

MARK_S = 0.01
"""Least time between two marks of a stream."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The arrivals of a stream."""

    marks: list[tuple[float, int]]
    """(time, bytes so far), from the first byte to the last."""

    def goodput_bps(self, since: float, until: float) -> float:
        """Return the rate between two times at which the sender had data to send.

        Data count at their arrival; retransmissions after `until` do not count.
        """
        first = max((mark for mark in self.marks if mark[0] <= since), default=(since, 0))
        last = max(mark for mark in self.marks if mark[0] <= until)
        return 8.0 * (last[1] - first[1]) / (last[0] - first[0])

    def bytes_until(self, at: float) -> int:
        """Return the bytes received until a time."""
        return max((n for when, n in self.marks if when <= at), default=0)

    @property
    def ended_at(self) -> float:
        """Arrival of the last byte."""
        return self.marks[-1][0]


@dataclass(frozen=True, slots=True)
class DatagramArrivals:
    """The arrivals of datagrams."""

    n_sent: int
    delays_s: list[float]
    """One-way delay of each that arrived."""
    numbers: list[int]
    """Numbers of the datagrams, in order of arrival."""

    @property
    def loss_ratio(self) -> float:
        """Share that did not arrive."""
        return 1.0 - len(self.delays_s) / self.n_sent


class Peer:
    """The far end; see `traffic`."""

    def __init__(self, process: "subprocess.Popen[bytes]", hub_address: str) -> None:
        self._process, self._hub = process, hub_address

    def stream_down(self, *, seconds: float = 0.0, n_bytes: int = 0) -> tuple[float, Stream]:
        """Send to the device; return the start and the arrivals there."""
        with socket.create_server((self._hub, 0)) as listener:
            self._send(do="receive", port=listener.getsockname()[1])
            near, _ = _accept(listener)
            with near:
                began = send_stream(near, seconds, n_bytes)
            return began, Stream([(at, n) for at, n in self._reply()])

    def stream_up(self, *, seconds: float = 0.0, n_bytes: int = 0) -> tuple[float, Stream]:
        """Let the device send; return the start and the arrivals here."""
        with socket.create_server((self._hub, 0)) as listener:
            port = listener.getsockname()[1]
            self._send(do="send", port=port, seconds=seconds, n_bytes=n_bytes)
            near, _ = _accept(listener)
            with near:
                marks = receive_stream(near)
            return self._reply(), Stream(marks)

    def datagrams_down(self, count: int, interval_s: float, n_bytes: int = 100) -> DatagramArrivals:
        """Send datagrams to the device."""
        with _datagram_socket(self._hub) as near:
            self._send(do="catch", port=near.getsockname()[1], count=count)
            _, far = near.recvfrom(CHUNK_BYTES)
            send_datagrams(near, far, count, interval_s, n_bytes)
            return _arrivals(count, self._reply())

    def datagrams_up(self, count: int, interval_s: float, n_bytes: int = 100) -> DatagramArrivals:
        """Let the device send datagrams."""
        with _datagram_socket(self._hub) as near:
            port = near.getsockname()[1]
            self._send(do="fly", port=port, count=count, interval_s=interval_s, n_bytes=n_bytes)
            arrivals = receive_datagrams(near, count)
            self._reply()
            return _arrivals(count, arrivals)

    def reaches(self, host: str, port: int, timeout_s: float) -> str:
        """Let the device connect somewhere; return the error, empty if it can."""
        self._send(do="reach", host=host, port=port, timeout_s=timeout_s)
        return str(self._reply())

    def _send(self, **command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def _reply(self) -> Any:  # Any: JSON, whose type depends on the command
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError("the peer must reply, got the end of its output; see stderr")
        return json.loads(line)


@contextmanager
def traffic(namespace: Path, hub_address: str) -> Iterator[Peer]:
    """Run a peer inside a namespace."""
    inside = [
        sys.executable,
        "-m",
        "fairbed.testbed.backends.network.enter",
        str(os.getpid()),
        identity(),
    ]
    peer = [sys.executable, "-m", "benchmarks._traffic", hub_address]
    process = subprocess.Popen(
        guarded([*inside, str(namespace), "--", *peer]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Peer(process, hub_address)
    finally:
        process.kill()
        process.communicate()


def send_stream(sock: socket.socket, seconds: float, n_bytes: int) -> float:
    """Send for a time or a number of bytes, then close the sending side; return the start."""
    chunk = bytes(CHUNK_BYTES)
    sock.settimeout(TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began = time.monotonic()
    if n_bytes:
        sock.sendall(bytes(n_bytes))
    while time.monotonic() - began < seconds:
        sock.send(chunk)
    sock.shutdown(socket.SHUT_WR)
    return began


def receive_stream(sock: socket.socket) -> list[tuple[float, int]]:
    """Read to the end; return marks of time and total bytes."""
    sock.settimeout(TIMEOUT_S)
    buffer = bytearray(CHUNK_BYTES)
    marks: list[tuple[float, int]] = []
    total, at = 0, 0.0
    while n := sock.recv_into(buffer):
        total, at = total + n, time.monotonic()
        if not marks or at - marks[-1][0] >= MARK_S:
            marks.append((at, total))
    return [*marks, (at, total)]


def send_datagrams(
    sock: socket.socket, to: Any, count: int, interval_s: float, n_bytes: int
) -> None:
    """Send stamped datagrams at regular intervals, as far as this machine can."""
    rest = bytes(max(0, n_bytes - STAMP.size))
    due = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, due - time.monotonic()))
        sock.sendto(STAMP.pack(time.monotonic(), number) + rest, to)
        due += interval_s


def await_datagram(sock: socket.socket, other: Any) -> None:
    """Announce this address until a datagram of the other end arrives; datagrams may be lost."""
    sock.settimeout(HELLO_S)
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        sock.sendto(b"here", other)
        with suppress(TimeoutError):
            sock.recv(1, socket.MSG_PEEK)
            return
    raise TimeoutError(f"a datagram must come within {TIMEOUT_S:.0f} s, got none")


def receive_datagrams(sock: socket.socket, count: int) -> list[tuple[float, int]]:
    """Return (delay in seconds, number) of each until `count` arrived or a silence."""
    arrivals: list[tuple[float, int]] = []
    while len(arrivals) < count:
        try:
            data = sock.recv(CHUNK_BYTES)
        except TimeoutError:
            break
        sent_at, number = STAMP.unpack_from(data)
        arrivals.append((time.monotonic() - sent_at, number))
        sock.settimeout(QUIET_S)
    return arrivals


def _accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    listener.settimeout(TIMEOUT_S)
    return listener.accept()


def _datagram_socket(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sock.bind((address, 0))
    sock.settimeout(TIMEOUT_S)
    return sock


def _arrivals(count: int, found: Sequence[Sequence[float]]) -> DatagramArrivals:
    return DatagramArrivals(count, [each[0] for each in found], [int(each[1]) for each in found])


def execute(hub: str, command: dict[str, Any]) -> object:
    """Execute a command; return its reply."""
    name, port = command["do"], command["port"]
    if name == "reach":
        try:
            socket.create_connection((command["host"], port), command["timeout_s"]).close()
        except OSError as exc:
            return repr(exc)
        return ""
    if name in ("receive", "send"):
        with socket.create_connection((hub, port), TIMEOUT_S) as sock:
            if name == "receive":
                return receive_stream(sock)
            return send_stream(sock, command["seconds"], command["n_bytes"])
    with _datagram_socket("") as sock:
        if name == "fly":
            send_datagrams(
                sock, (hub, port), command["count"], command["interval_s"], command["n_bytes"]
            )
            return None
        await_datagram(sock, (hub, port))
        return receive_datagrams(sock, command["count"])


def main() -> None:
    """Execute commands until stdin ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(execute(sys.argv[1], json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
