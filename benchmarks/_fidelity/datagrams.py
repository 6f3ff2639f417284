"""Datagrams: no retransmission and no congestion control, so they show the link itself."""

import socket
import time

from benchmarks._fidelity.end_commands import (
    Address,
    Arrivals,
    Done,
    OpenDatagrams,
    ReceiveDatagrams,
    SendDatagrams,
)

AT_ONCE_S = 1e-3
"""Datagrams that are due within this time are sent together."""

BUFFER_BYTES = 1 << 22

MAX_BYTES = 1 << 16

_SILENCE_CHECK_S = 0.05


class Datagrams:
    """The one datagram socket of an end."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def open(self, command: OpenDatagrams) -> Address:
        """Open the socket."""
        if self._socket is not None:
            self._socket.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(command.towards)  # sends nothing, but selects the local address
            host = probe.getsockname()[0]
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._socket.bind((host, 0))
        return Address(host=host, port=self._socket.getsockname()[1])

    def send(self, command: SendDatagrams) -> Done:
        """Send datagrams in bursts at regular intervals."""
        assert self._socket is not None
        self._socket.settimeout(None)
        datagram, sent, begun = bytes(command.n_bytes), 0, time.monotonic()
        while sent < command.count:
            due = min(command.count, 1 + int((time.monotonic() - begun) * command.per_second))
            for _ in range(due - sent):
                self._socket.sendto(datagram, (command.host, command.port))
            sent = due
            time.sleep(AT_ONCE_S)
        return Done()

    def receive(self, command: ReceiveDatagrams) -> Arrivals:
        """Receive datagrams until a silence; silence before the first one does not count."""
        assert self._socket is not None
        times: list[float] = []
        deadline = time.monotonic() + command.limit_s
        self._socket.settimeout(_SILENCE_CHECK_S)
        while (now := time.monotonic()) < deadline:
            try:
                self._socket.recv(MAX_BYTES)
                times.append(time.monotonic())
            except TimeoutError:
                if times and now - times[-1] > command.silence_s:
                    break
        return Arrivals(times=times, totals=list(range(1, len(times) + 1)))
