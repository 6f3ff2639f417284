"""Datagrams: what is lost stays lost, and what a link can carry is not a matter of TCP."""

import socket
import time

from benchmarks._fidelity.orders import Arrivals, Count, Done, OpenDatagrams, Place, Shoot

AT_ONCE_S = 1e-3
"""Datagrams that are due within this time leave together."""

BUFFER_BYTES = 1 << 22

MAX_BYTES = 1 << 16

_SILENCE_CHECK_S = 0.05


class Shower:
    """The one datagram socket of an end."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def open(self, order: OpenDatagrams) -> Place:
        """Open the socket."""
        if self._socket is not None:
            self._socket.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(order.towards)  # sends nothing: tells which address is ours
            host = probe.getsockname()[0]
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._socket.bind((host, 0))
        return Place(host=host, port=self._socket.getsockname()[1])

    def shoot(self, order: Shoot) -> Done:
        """Send datagrams, some at once at even moments."""
        assert self._socket is not None
        self._socket.settimeout(None)
        datagram, sent, begun = bytes(order.n_bytes), 0, time.monotonic()
        while sent < order.count:
            due = min(order.count, 1 + int((time.monotonic() - begun) * order.per_second))
            for _ in range(due - sent):
                self._socket.sendto(datagram, (order.host, order.port))
            sent = due
            time.sleep(AT_ONCE_S)
        return Done()

    def count(self, order: Count) -> Arrivals:
        """Receive datagrams; silence before the first is no end."""
        assert self._socket is not None
        times: list[float] = []
        deadline = time.monotonic() + order.limit_s
        self._socket.settimeout(_SILENCE_CHECK_S)
        while (now := time.monotonic()) < deadline:
            try:
                self._socket.recv(MAX_BYTES)
                times.append(time.monotonic())
            except TimeoutError:
                if times and now - times[-1] > order.silence_s:
                    break
        return Arrivals(times=times, totals=list(range(1, len(times) + 1)))
