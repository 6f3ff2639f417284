"""Shaping TCP proxies, one per device, many in one process.

    device <-> listener on loopback [ rate, delay ] <-> broker

`python -m testbed.backends.proxy PARENT` reads a `ProxySpec` from stdin, prints the ports and
serves until stdin ends or its parent dies. The arithmetic is in `testbed.emulation.link`, the
sockets of one connection in `testbed.backends.relay`; here are listeners.

A broker that is down means a connection that is closed at once; it works again when the broker
does. A new connection pays the round trip of its set-up before its first byte.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from testbed.backends.relay import RelayEnd, connect_ends
from testbed.backends.shape import ProxySpec, Shape
from testbed.emulation.link import Line, set_up_s
from testbed.guard import die_with_parent

CONNECT_TIMEOUT_S = 10.0
"""For the broker to accept; then the device's connection is closed."""


class _Device:
    """The access link of one device: two lines, shared by all its connections."""

    def __init__(
        self, shape: Shape, host: str, port: int, tasks: TaskGroup, alive: set[RelayEnd]
    ) -> None:
        self._up = Line(shape.up_bps, shape.delay_s)
        self._down = Line(shape.down_bps, shape.delay_s)
        self._host, self._port, self._tasks, self._alive = host, port, tasks, alive

    def accept(self) -> RelayEnd:
        """Return the protocol of a new connection of the device."""
        device = RelayEnd(self._up, self._alive, on_made=self._reach_broker)
        connect_ends(device, RelayEnd(self._down, self._alive))
        return device

    def _reach_broker(self, device: RelayEnd) -> None:
        self._tasks.start_soon(self._join, device, name="proxy.connect")

    async def _join(self, device: RelayEnd) -> None:
        loop = asyncio.get_running_loop()
        opened_at = loop.time() + set_up_s(self._up.delay_s)
        try:
            with anyio.fail_after(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: device.peer, self._host, self._port)
        except (OSError, TimeoutError):
            device.close()
            return
        if not device.is_open:
            device.peer.close()
            return
        device.start_reading(not_before=opened_at)
        device.peer.start_reading()


@asynccontextmanager
async def proxies(spec: ProxySpec) -> AsyncIterator[dict[str, int]]:
    """Serve one proxy per device on loopback; yield the ports by name.

    Raises:
        OSError: A port cannot be opened.
    """
    loop = asyncio.get_running_loop()
    ports: dict[str, int] = {}
    alive: set[RelayEnd] = set()
    async with anyio.create_task_group() as tasks, AsyncExitStack() as servers:
        for name, shape in spec.devices.items():
            device = _Device(shape, spec.host, spec.port, tasks, alive)
            server = await loop.create_server(device.accept, "127.0.0.1", 0)
            servers.callback(server.close)
            ports[name] = server.sockets[0].getsockname()[1]
        try:
            yield ports
        finally:
            tasks.cancel_scope.cancel()
            for end in list(alive):
                end.abort()
            with anyio.CancelScope(shield=True):
                await checkpoint()  # asyncio closes an aborted socket in its next turn


async def _serve(spec: ProxySpec) -> None:
    parent_left = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, parent_left.set)  # nothing but the end comes
    async with proxies(spec) as ports:
        sys.stdout.buffer.write(msgspec.json.encode(ports) + b"\n")
        sys.stdout.buffer.flush()
        await parent_left.wait()


def main() -> None:
    """Serve a `ProxySpec` from stdin; the first argument is our parent's process id."""
    die_with_parent(int(sys.argv[1]))
    anyio.run(_serve, msgspec.json.decode(sys.stdin.buffer.readline(), type=ProxySpec))


if __name__ == "__main__":
    main()
