"""One TCP connection at a time, with the instants of sending and arrival, and one beside it."""

import socket
import struct
import threading
import time
from contextlib import suppress

from benchmarks._fidelity.end_commands import (
    Accept,
    Address,
    Arrivals,
    CloseLoad,
    Connect,
    Delays,
    Done,
    Instant,
    Listen,
    OpenLoad,
    ReceiveBlock,
    ReceiveMessages,
    ReceiveStream,
    SendBlock,
    SendMessages,
    SendStream,
)

OPEN_S = 20.0
"""Time limit to open a connection."""

NOTE_S = 1e-3
"""Arrivals closer together than this are recorded as one."""

READ_BYTES = 1 << 18

_STAMP = struct.Struct("=d")
_NO_LINGER = struct.pack("=ii", 1, 0)
"""`struct linger`: unsent data are discarded when an end closes the connection."""


class Stream:
    """The one connection of an end."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self._socket: socket.socket | None = None
        self._load: socket.socket | None = None

    def listen(self, command: Listen) -> Address:
        """Listen on a free port."""
        self._server = socket.create_server((command.host, 0))
        self._server.settimeout(OPEN_S)
        host, port = self._server.getsockname()
        return Address(host=host, port=port)

    def connect(self, command: Connect) -> Done:
        """Open a connection."""
        self._close()
        self._use(socket.create_connection((command.host, command.port), OPEN_S))
        return Done()

    def accept(self, _: Accept) -> Done:
        """Accept a connection."""
        self._close()
        assert self._server is not None
        self._use(self._server.accept()[0])
        return Done()

    def send_stream(self, command: SendStream) -> Done:
        """Send at the rate of the link."""
        piece = memoryview(bytes(READ_BYTES))
        deadline = time.monotonic() + command.limit_s
        try:
            while (left_s := deadline - time.monotonic()) > 0.0:
                self._open.settimeout(left_s)
                self._open.send(piece)
        except (TimeoutError, ConnectionError):  # the time is over, or the other end has closed
            pass
        self._close()
        return Done()

    def receive_stream(self, command: ReceiveStream) -> Arrivals:
        """Receive, and record the amount over time."""
        buffer, total = memoryview(bytearray(READ_BYTES)), 0
        times: list[float] = []
        totals: list[int] = []
        deadline = time.monotonic() + command.lasting_s
        while (left_s := deadline - (now := time.monotonic())) > 0.0:
            self._open.settimeout(left_s)
            try:
                got = self._open.recv_into(buffer)
            except TimeoutError:
                break
            if not got:
                raise EOFError("the other end closed the connection")
            now, total = time.monotonic(), total + got
            if times and now - times[-1] < NOTE_S:
                totals[-1] = total  # at that instant it was less, by at most 1 ms of data
            else:
                times.append(now)
                totals.append(total)
        self._close()
        return Arrivals(times=times, totals=totals)

    def send_block(self, command: SendBlock) -> Instant:
        """Send one block."""
        block = bytes(command.n_bytes)
        self._open.settimeout(None)
        at = time.monotonic()
        self._open.sendall(block)
        return Instant(at=at)

    def receive_block(self, command: ReceiveBlock) -> Instant:
        """Receive one block."""
        self._open.settimeout(command.limit_s)
        buffer, left = memoryview(bytearray(READ_BYTES)), command.n_bytes
        while left:
            got = self._open.recv_into(buffer[: min(left, READ_BYTES)])
            if not got:
                raise EOFError("the other end closed the connection")
            left -= got
        return Instant(at=time.monotonic())

    def send_messages(self, command: SendMessages) -> Done:
        """Send stamped messages at regular intervals."""
        next_at = time.monotonic()
        for _ in range(command.count):
            time.sleep(max(0.0, next_at - time.monotonic()))
            self._open.sendall(_STAMP.pack(time.monotonic()))
            next_at += command.gap_s
        return Done()

    def receive_messages(self, command: ReceiveMessages) -> Delays:
        """Receive stamped messages."""
        self._open.settimeout(command.limit_s)
        seconds: list[float] = []
        data = b""
        while len(seconds) < command.count:
            got = self._open.recv(READ_BYTES)
            now = time.monotonic()
            if not got:
                raise EOFError("the other end closed the connection")
            data += got
            whole = len(data) // _STAMP.size * _STAMP.size
            seconds += [now - left for (left,) in _STAMP.iter_unpack(data[:whole])]
            data = data[whole:]
        return Delays(seconds=seconds)

    def open_load(self, command: OpenLoad) -> Done:
        """Fill the link over a second connection in a thread, or drain that connection."""
        if command.towards is not None:
            self._load = socket.create_connection(command.towards, OPEN_S)
        else:
            assert self._server is not None
            self._load = self._server.accept()[0]
        self._load.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._load.settimeout(None)
        transfer = _fill if command.sends else _drain
        threading.Thread(target=transfer, args=(self._load,), daemon=True).start()
        return Done()

    def close_load(self, _: CloseLoad) -> Done:
        """End the thread by closing its connection."""
        if self._load is not None:
            with suppress(OSError):  # the other end has closed
                self._load.shutdown(socket.SHUT_RDWR)
            self._load.close()
            self._load = None
        return Done()

    @property
    def _open(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionError("there is no connection")
        return self._socket

    def _use(self, opened: socket.socket) -> None:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._socket = opened

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _fill(load: socket.socket) -> None:
    piece = bytes(READ_BYTES)
    with suppress(OSError):  # the connection is closed
        while True:
            load.send(piece)


def _drain(load: socket.socket) -> None:
    buffer = bytearray(READ_BYTES)
    with suppress(OSError):
        while load.recv_into(buffer):
            pass
