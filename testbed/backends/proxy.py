"""Shaping TCP proxies, one per device, many in one process.

    device <-> listener on loopback [ rate, delay, jitter ] <-> broker

`python -m testbed.backends.proxy PARENT` reads a `ProxySpec` from stdin, prints the ports, and
then changes links on order (`testbed.backends.shape`) until stdin ends or its parent dies. The
arithmetic is in `testbed.emulation.link`, the sockets of one connection in
`testbed.backends.relay`; here are listeners.

A broker that is down means a connection that is closed at once; it works again when the broker
does. A new connection pays the round trip of its set-up before its first byte, and waits for the
end of a radio hole.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from testbed.backends.priority import go_first
from testbed.backends.relay import Delays, RelayEnd, connect_ends
from testbed.backends.shape import Held, LinkState, ProxySpec, Shape
from testbed.emulation.link import Line, set_up_s
from testbed.guard import die_with_parent

CONNECT_TIMEOUT_S = 10.0
"""For the broker to accept; then the device's connection is closed."""

_READ_BYTES = 1 << 16


class _Device:
    """The access link of one device: two lines, shared by all its connections."""

    def __init__(
        self,
        shape: Shape,
        address: tuple[str, int],
        tasks: TaskGroup,
        delays: Delays,
        random: Random,
    ) -> None:
        self._state = LinkState(shape=shape)
        self._address, self._tasks, self._delays = address, tasks, delays
        self._gauss = random.gauss
        self._ends: set[RelayEnd] = set()
        self._covered = asyncio.Event()
        self._covered.set()
        self._lay_lines()

    def accept(self) -> RelayEnd:
        """Return the protocol of a new connection of the device."""
        if not self._state.is_plugged:
            return RelayEnd(self._up, self._ends, self._delays, on_made=RelayEnd.abort)
        device = RelayEnd(self._up, self._ends, self._delays, on_made=self._reach_broker)
        connect_ends(device, RelayEnd(self._down, self._ends, self._delays))
        return device

    def change(self, state: LinkState) -> None:
        """Be another link from now on."""
        now, shape = asyncio.get_running_loop().time(), state.shape
        self._state = state
        if not state.is_plugged:
            self.cut()
            self._lay_lines()
        down_bps, up_bps = (shape.down_bps, shape.up_bps) if state.is_covered else (0.0, 0.0)
        self._up.change(now, up_bps, shape.delay_s, shape.jitter_s)
        self._down.change(now, down_bps, shape.delay_s, shape.jitter_s)
        for end in list(self._ends):
            end.on_change()
        if state.is_covered:
            self._covered.set()
        else:
            self._covered.clear()

    def cut(self) -> None:
        """Break all connections."""
        for end in list(self._ends):
            end.abort()

    def _lay_lines(self) -> None:
        shape = self._state.shape
        self._up = Line(shape.up_bps, shape.delay_s, shape.jitter_s, self._standard_normal)
        self._down = Line(shape.down_bps, shape.delay_s, shape.jitter_s, self._standard_normal)

    def _standard_normal(self) -> float:
        return self._gauss(0.0, 1.0)

    def _reach_broker(self, device: RelayEnd) -> None:
        self._tasks.start_soon(self._join, device, name="proxy.connect")

    async def _join(self, device: RelayEnd) -> None:
        await self._covered.wait()
        if device.has_hung_up():  # it gave up in the hole: the broker never hears of it
            device.abort()
            return
        loop = asyncio.get_running_loop()
        opened_at = loop.time() + set_up_s(self._up.delay_s)
        try:
            with anyio.fail_after(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: device.peer, *self._address)
        except (OSError, TimeoutError):
            device.close()
            return
        if not device.is_open:
            device.peer.close()
            return
        device.start_reading(not_before=opened_at)
        device.peer.start_reading()


class Proxies:
    """The links of several devices; made by `proxies`."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        """Of each device, on loopback."""
        self._devices: dict[str, _Device] = {}
        self._delays = Delays()

    async def open(self, spec: ProxySpec, tasks: TaskGroup, servers: AsyncExitStack) -> None:
        """Listen for each device.

        Raises:
            OSError: A port cannot be opened.
        """
        loop = asyncio.get_running_loop()
        address = (spec.host, spec.port)
        for name, shape in spec.devices.items():
            random = Random(f"{spec.seed} {name}")
            device = _Device(shape, address, tasks, self._delays, random)
            server = await loop.create_server(device.accept, "127.0.0.1", 0)
            servers.callback(server.close)
            self._devices[name] = device
            self.ports[name] = server.sockets[0].getsockname()[1]

    def change(self, changes: dict[str, LinkState]) -> Held:
        """Change links, all of them at once."""
        for name, state in changes.items():
            self._devices[name].change(state)
        return Held(late_s=self._delays.take())

    def cut_all(self) -> None:
        """Break all connections of all devices."""
        for device in self._devices.values():
            device.cut()


@asynccontextmanager
async def proxies(spec: ProxySpec) -> AsyncIterator[Proxies]:
    """Serve one proxy per device on loopback.

    Raises:
        OSError: A port cannot be opened.
    """
    opened = Proxies()
    async with anyio.create_task_group() as tasks, AsyncExitStack() as servers:
        await opened.open(spec, tasks, servers)
        try:
            yield opened
        finally:
            tasks.cancel_scope.cancel()
            opened.cut_all()
            with anyio.CancelScope(shield=True):
                await checkpoint()  # asyncio closes an aborted socket in its next turn


class _Orders:
    """Reads orders from stdin while the loop runs, and answers each one."""

    def __init__(self, opened: Proxies) -> None:
        self.parent_left = asyncio.Event()
        self._opened = opened
        self._decoder = msgspec.json.Decoder(dict[str, LinkState])
        self._pending = b""
        asyncio.get_running_loop().add_reader(0, self._read)

    def _read(self) -> None:
        data = os.read(0, _READ_BYTES)
        if not data:
            self.parent_left.set()
        for line in self._lines(data):
            _say(self._opened.change(self._decoder.decode(line)))

    def _lines(self, data: bytes) -> Iterator[bytes]:
        *lines, self._pending = (self._pending + data).split(b"\n")
        yield from lines


def _say(answer: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


async def _serve(spec: ProxySpec) -> None:
    async with proxies(spec) as opened:
        orders = _Orders(opened)
        _say(opened.ports)
        await orders.parent_left.wait()


def main() -> None:
    """Serve a `ProxySpec` from stdin; the first argument is our parent's process id."""
    die_with_parent(int(sys.argv[1]))
    go_first()
    anyio.run(_serve, msgspec.json.decode(sys.stdin.buffer.readline(), type=ProxySpec))


if __name__ == "__main__":
    main()
