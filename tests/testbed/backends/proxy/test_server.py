"""Shaping proxies between real sockets."""

import gc
import json
import os
import socket
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import numpy as np
import pytest
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import SocketAttribute, SocketStream
from msgspec import structs

from fairbed.testbed.backends.proxy.links import DEVICES_PER_PROCESS, devices_by_process
from fairbed.testbed.backends.proxy.protocol import Cell, Membership, ProxySpec, Shape
from fairbed.testbed.backends.proxy.server import proxies
from tests.bounded import LIMIT_S, run

Handler = Callable[[SocketStream], Awaitable[None]]

"""No test waits longer for anything."""

LEFT = (EndOfStream, BrokenResourceError, ClosedResourceError)

PAYLOAD = np.random.default_rng(7).bytes(300_000)


@asynccontextmanager
async def listen(handler: Handler, port: int = 0) -> AsyncIterator[int]:
    """Serve `handler` on loopback; yield the port. Leaving breaks all connections."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)

    async def handle(stream: SocketStream) -> None:
        async with stream:
            with suppress(*LEFT):
                await handler(stream)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield int(listener.extra(SocketAttribute.local_port))
        tasks.cancel_scope.cancel()


async def echo(stream: SocketStream) -> None:
    async for data in stream:
        await stream.send(data)


async def connect(port: int) -> SocketStream:
    return await anyio.connect_tcp("127.0.0.1", port)


def spec(port: int, **devices: Shape) -> ProxySpec:
    return ProxySpec(nodes=[("127.0.0.1", port)], devices=devices)


async def read_all(stream: SocketStream, size: int | None = None) -> bytes:
    """Return `size` bytes, or all until the end of the stream."""
    received = bytearray()
    with suppress(*LEFT):
        while size is None or len(received) < size:
            received += await stream.receive()
    return bytes(received)


async def there_and_back(port: int, payload: bytes) -> bytes:
    async with await connect(port) as stream, anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, payload)
        return await read_all(stream, len(payload))
    raise AssertionError("unreachable: nothing above swallows errors")


async def receiving_rate(stream: SocketStream, size: int) -> float:
    """Return the rate at which `size` bytes arrive after the first ones, bit/s."""
    got = first = len(await stream.receive())
    started = anyio.current_time()
    while got < size:
        got += len(await stream.receive())
    return 8 * (got - first) / (anyio.current_time() - started)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(down_bps=20e6, up_bps=10e6, delay_s=0.01),
        Shape(delay_s=0.02),
        Shape(up_bps=5e6),
        Shape(down_bps=940e6, up_bps=940e6, delay_s=0.0002),
        Shape(),
    ],
)
def test_every_byte_arrives_in_order(shape: Shape) -> None:
    async def test() -> None:
        async with listen(echo) as port, proxies(spec(port, device=shape)) as opened:
            assert await there_and_back(opened.ports["device"], PAYLOAD) == PAYLOAD

    run(test)


def test_a_closed_connection_keeps_no_buffer() -> None:
    """Its two ends refer to each other: they stay until a collection, which is rare in a proxy."""

    async def test() -> None:
        async with listen(echo) as port, proxies(spec(port, device=Shape())) as opened:
            await there_and_back(opened.ports["device"], PAYLOAD)
            gc.collect()
            tracemalloc.start()
            for _ in range(20):
                await there_and_back(opened.ports["device"], PAYLOAD)

    gc.disable()
    try:
        run(test)
        left_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left_bytes < 1_000_000


def test_the_next_node_of_a_cluster_serves_when_one_is_down() -> None:
    async def test() -> None:
        async with listen(echo) as first:
            pass
        async with listen(echo) as second:
            nodes = [("127.0.0.1", first), ("127.0.0.1", second)]
            for order in (nodes, nodes[::-1]):
                plan = ProxySpec(nodes=order, devices={"device": Shape()})
                async with proxies(plan) as opened:
                    assert await there_and_back(opened.ports["device"], b"x") == b"x"

    run(test)


@pytest.mark.alone
@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_link_of_twice_the_rate_carries_twice_as_much(direction: str) -> None:
    size = 250_000
    rates: dict[str, float] = {}

    async def broker(stream: SocketStream) -> None:
        name = (await stream.receive()).decode()
        await stream.send(b"!")
        if direction == "down":
            await stream.send(bytes(size))
        else:
            rates[name] = await receiving_rate(stream, size)
            await stream.send(b"!")
        await read_all(stream)

    async def device(name: str, port: int) -> None:
        async with await connect(port) as stream:
            await stream.send(name.encode())
            await stream.receive(1)
            if direction == "down":
                rates[name] = await receiving_rate(stream, size)
            else:
                await stream.send(bytes(size))
                await stream.receive()

    async def test() -> None:
        async with listen(broker) as port:
            shapes = {
                name: Shape(down_bps=rate_bps, delay_s=0.001)
                if direction == "down"
                else Shape(up_bps=rate_bps, delay_s=0.001)
                for name, rate_bps in (("slow", 2e6), ("fast", 4e6))
            }
            async with proxies(spec(port, **shapes)) as opened, anyio.create_task_group() as tasks:
                for name in shapes:
                    tasks.start_soon(device, name, opened.ports[name])
                # Leaving the group waits for both devices.

    run(test)
    assert rates["fast"] / rates["slow"] == pytest.approx(2.0, rel=0.15)


@pytest.mark.full
@pytest.mark.alone
def test_devices_of_a_cell_share_its_rate() -> None:
    """Each of three has a third while all transfer, at most the rate of its own link."""
    rates: dict[str, float] = {}

    async def broker(stream: SocketStream) -> None:
        await stream.send(bytes(200_000))
        await read_all(stream)

    async def device(name: str, port: int, size: int) -> None:
        async with await connect(port) as stream:
            rates[name] = await receiving_rate(stream, size)

    async def test() -> None:
        async with listen(broker) as port:
            shapes = {"slow": Shape(down_bps=1e6), "one": Shape(down_bps=50e6), "other": Shape()}
            sizes = {"slow": 75_000, "one": 150_000, "other": 150_000}
            cell = Cell(name="ap", down_bps=5e6, up_bps=5e6)
            members = {name: Membership(cell="ap") for name in shapes}
            shared = structs.replace(spec(port, **shapes), cells={"ap": cell}, members=members)
            async with proxies(shared) as opened, anyio.create_task_group() as tasks:
                for name, size in sizes.items():
                    tasks.start_soon(device, name, opened.ports[name], size)

    run(test)
    assert rates == {
        "slow": pytest.approx(1e6, rel=0.1),
        "one": pytest.approx(2e6, rel=0.1),
        "other": pytest.approx(2e6, rel=0.1),
    }


def test_a_round_trip_takes_twice_the_delay_and_a_connection_one_more() -> None:
    delay_s = 0.05

    async def exchange(stream: SocketStream) -> None:
        await stream.send(b"?")
        await stream.receive()

    async def test() -> tuple[float, float]:
        device = Shape(delay_s=delay_s)
        async with listen(echo) as port, proxies(spec(port, device=device)) as opened:
            started = anyio.current_time()
            async with await connect(opened.ports["device"]) as stream:
                await exchange(stream)
                met = anyio.current_time()
                await exchange(stream)
                return met - started, anyio.current_time() - met

    first_s, later_s = run(test)
    assert later_s >= 2 * delay_s
    assert first_s >= 4 * delay_s


def test_fifty_devices_share_one_process() -> None:
    shapes = {f"device-{i}": Shape(down_bps=20e6, up_bps=20e6, delay_s=0.01) for i in range(50)}
    payloads = {name: np.random.default_rng(i).bytes(20_000) for i, name in enumerate(shapes)}
    received: dict[str, bytes] = {}

    async def device(name: str, port: int) -> None:
        received[name] = await there_and_back(port, payloads[name])

    async def test() -> None:
        async with listen(echo) as port, proxies(spec(port, **shapes)) as opened:
            assert len(set(opened.ports.values())) == 50
            async with anyio.create_task_group() as tasks:
                for name in shapes:
                    tasks.start_soon(device, name, opened.ports[name])

    run(test)
    assert received == payloads


def test_one_process_has_all_devices_behind_one_line() -> None:
    line = Cell(name="line", down_bps=1e6, up_bps=1e6)
    cells = [Cell(name=f"ap-{k}", down_bps=1e6, up_bps=1e6, behind="line") for k in range(2)]
    names = [f"d{k}" for k in range(3 * DEVICES_PER_PROCESS)]
    in_cells = {name: ((cells[k % 2], line), 0) for k, name in enumerate(names[::2])}
    found = devices_by_process(names, in_cells)
    assert sorted(name for group in found for name in group) == sorted(names)
    assert sum(bool(in_cells.keys() & set(group)) for group in found) == 1
    assert max(len(group) for group in found if not in_cells.keys() & set(group)) == 50


def test_a_closed_connection_is_closed_at_the_broker_too() -> None:
    received = b""

    async def test() -> None:
        done = anyio.Event()

        async def broker(stream: SocketStream) -> None:
            nonlocal received
            received = await read_all(stream)
            done.set()

        shape = Shape(up_bps=2e6, delay_s=0.01)
        async with listen(broker) as port, proxies(spec(port, device=shape)) as opened:
            async with await connect(opened.ports["device"]) as stream:
                await stream.send(PAYLOAD[:50_000])
            await done.wait()

    run(test)
    assert received == PAYLOAD[:50_000]


def test_the_connection_of_a_killed_device_ends_at_the_broker_too() -> None:
    async def test() -> None:
        left = anyio.Event()

        async def broker(stream: SocketStream) -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(flood, stream)
                await read_all(stream)
                left.set()
                tasks.cancel_scope.cancel()

        async def flood(stream: SocketStream) -> None:
            with suppress(*LEFT):
                while True:
                    await stream.send(bytes(10_000))

        device = Shape(down_bps=1e6)
        async with listen(broker) as port, proxies(spec(port, device=device)) as opened:
            stream = await connect(opened.ports["device"])
            await stream.receive()
            stream.extra(SocketAttribute.raw_socket).setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # closing resets the connection, as the end of a killed process does
            await stream.aclose()
            await left.wait()

    run(test)


def test_a_broker_that_dies_and_restarts_is_noticed_by_the_device() -> None:
    async def test() -> None:
        async with listen(echo) as port:
            pass
        shape = Shape(down_bps=5e6, up_bps=5e6, delay_s=0.005)
        async with proxies(spec(port, device=shape)) as opened:
            async with await connect(opened.ports["device"]) as stream:
                assert await read_all(stream) == b""  # the broker is down

            async with listen(echo, port):
                stream = await connect(opened.ports["device"])
                await stream.send(b"hello")
                assert await read_all(stream, 5) == b"hello"
            async with stream:
                assert await read_all(stream) == b""  # the broker has died

            async with listen(echo, port):
                assert await there_and_back(opened.ports["device"], PAYLOAD) == PAYLOAD

    run(test)


def test_a_receiver_that_does_not_read_stops_the_sender() -> None:
    size = 64 << 20

    async def test() -> int:
        go, done = anyio.Event(), anyio.Event()
        received = sent = 0

        async def broker(stream: SocketStream) -> None:
            nonlocal received
            received = len(await stream.receive())  # the first call makes anyio read on demand
            await go.wait()
            while received < size:
                received += len(await stream.receive(1 << 20))
            done.set()

        async def device(stream: SocketStream) -> None:
            nonlocal sent
            while sent < size:
                await stream.send(bytes(1 << 20))
                sent += 1 << 20

        shape = Shape(delay_s=0.001)
        async with listen(broker) as port, proxies(spec(port, device=shape)) as opened:
            async with (
                await connect(opened.ports["device"]) as stream,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(device, stream)
                before = -1
                while sent != before:  # until it stops
                    before = sent
                    await anyio.sleep(0.2)
                go.set()
                await done.wait()
            return before

    assert run(test) < size  # the data in flight is bounded


def test_the_process_prints_its_ports_and_ends_with_its_stdin() -> None:
    devices = {f"device-{i}": {"down_bps": 1e6, "up_bps": None, "delay_s": 0.0} for i in range(3)}
    line = json.dumps({"nodes": [["127.0.0.1", 1]], "devices": devices})
    with subprocess.Popen(
        [sys.executable, "-m", "fairbed.testbed.backends.proxy.server", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        ports = json.loads(process.stdout.readline())
        assert ports.keys() == devices.keys()
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
