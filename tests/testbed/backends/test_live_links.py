"""Links that change while they carry data, between real sockets."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

from fairbed.testbed.backends.proxy.links import shaped_links
from fairbed.testbed.backends.proxy.protocol import LinkState, Shape
from fairbed.testbed.backends.proxy.server import proxies
from fairbed.testbed.errors import BackendError
from tests.bounded import run
from tests.testbed.backends.proxy.test_server import (
    PAYLOAD,
    connect,
    echo,
    listen,
    read_all,
    spec,
    there_and_back,
)

SOME_S = 0.3
"""Long enough for data to arrive if it can, seconds."""


async def is_silent(stream: SocketStream) -> bool:
    """Return whether nothing arrives for a while."""
    with anyio.move_on_after(SOME_S):
        await stream.receive()
        return False
    return True


def with_echo(test: Callable[[int], Awaitable[None]]) -> None:
    async def served() -> None:
        async with listen(echo) as port:
            await test(port)

    run(served)


FAST = Shape(down_bps=50e6, up_bps=50e6, delay_s=0.001)


def test_a_coverage_outage_delays_bytes_and_keeps_the_connection() -> None:
    async def test(port: int) -> None:
        async with (
            proxies(spec(port, device=FAST)) as opened,
            await connect(opened.ports["device"]) as stream,
        ):
            await stream.send(b"before")
            assert await read_all(stream, 6) == b"before"
            opened.change({"device": LinkState(shape=FAST, is_covered=False)})
            await stream.send(b"within")
            assert await is_silent(stream)
            opened.change({"device": LinkState(shape=FAST)})
            assert await read_all(stream, 6) == b"within"

    with_echo(test)


def test_every_byte_arrives_in_order_through_outages_and_changes() -> None:
    shapes = [Shape(down_bps=2e6, up_bps=20e6), Shape(delay_s=0.03), Shape(up_bps=3e6), FAST]

    async def test(port: int) -> None:
        async with proxies(spec(port, device=FAST)) as opened:

            async def unsettle() -> None:
                for turn in range(1_000):
                    state = LinkState(shape=shapes[turn % 4], is_covered=turn % 3 != 0)
                    opened.change({"device": state})
                    await anyio.sleep(0.005)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(unsettle)
                assert await there_and_back(opened.ports["device"], PAYLOAD) == PAYLOAD
                tasks.cancel_scope.cancel()

    with_echo(test)


def test_a_connection_made_in_an_outage_works_after_it() -> None:
    async def test(port: int) -> None:
        async with proxies(spec(port, device=FAST)) as opened:
            opened.change({"device": LinkState(shape=FAST, is_covered=False)})
            async with await connect(opened.ports["device"]) as stream:
                await stream.send(b"hello")
                assert await is_silent(stream)
                opened.change({"device": LinkState(shape=FAST)})
                assert await read_all(stream, 5) == b"hello"

    with_echo(test)


def test_the_broker_gets_no_connection_of_a_device_that_gave_up_in_an_outage() -> None:
    heard: list[bytes] = []

    async def broker(stream: SocketStream) -> None:
        heard.append(await stream.receive())
        await stream.send(b"!")

    async def test() -> None:
        async with listen(broker) as port, proxies(spec(port, device=FAST)) as opened:
            opened.change({"device": LinkState(shape=FAST, is_covered=False)})
            for attempt in (b"first", b"second"):
                async with await connect(opened.ports["device"]) as given_up:
                    await given_up.send(attempt)
            async with await connect(opened.ports["device"]) as stream:
                await stream.send(b"third")
                opened.change({"device": LinkState(shape=FAST)})
                assert await read_all(stream, 1) == b"!"

    run(test)
    assert heard == [b"third"]


def test_airplane_mode_closes_connections_and_refuses_new_ones() -> None:
    async def test(port: int) -> None:
        async with proxies(spec(port, device=FAST)) as opened:
            async with await connect(opened.ports["device"]) as stream:
                await stream.send(b"before")
                assert await read_all(stream, 6) == b"before"
                opened.change({"device": LinkState(shape=FAST, is_plugged=False)})
                assert await read_all(stream) == b""
            async with await connect(opened.ports["device"]) as refused:
                assert await read_all(refused) == b""
            opened.change({"device": LinkState(shape=FAST)})
            assert await there_and_back(opened.ports["device"], PAYLOAD) == PAYLOAD

    with_echo(test)


def test_a_running_upload_gets_the_new_rate() -> None:
    size, slow_bps = 200_000, 1e5

    async def test(port: int) -> None:
        slow = Shape(up_bps=slow_bps)
        async with (
            proxies(spec(port, device=slow)) as opened,
            await connect(opened.ports["device"]) as stream,
        ):
            started = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.send, bytes(size))
                got = len(await stream.receive())
                opened.change({"device": LinkState(shape=Shape(up_bps=1e8))})
                await read_all(stream, size - got)
            assert anyio.current_time() - started < 8 * size / slow_bps / 4

    with_echo(test)


def test_links_of_many_devices_change_in_their_processes_in_one_step(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        shapes = {f"device-{i}": FAST for i in range(51)}
        async with shaped_links(
            "127.0.0.1", port, shapes, tmp_path / "proxy.log", lambda _: None
        ) as links:
            await links.change(
                {
                    name: LinkState(shape=FAST, is_plugged=False)
                    for name in ("device-0", "device-50")
                }
            )
            for name, works in (("device-0", False), ("device-1", True), ("device-50", False)):
                async with await connect(links.ports[name]) as stream:
                    if works:
                        await stream.send(b"hello")
                        assert await read_all(stream, 5) == b"hello"
                    else:
                        assert await read_all(stream) == b""
            assert links.late_s >= 0.0

    with_echo(test)


def test_a_cancelled_request_does_not_affect_the_next(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        async with shaped_links(
            "127.0.0.1", port, {"device": FAST}, tmp_path / "proxy.log", lambda _: None
        ) as links:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await links.change({"device": LinkState(shape=FAST, is_plugged=False)})
            await links.change({"device": LinkState(shape=FAST, is_covered=False)})
            await links.change({"device": LinkState(shape=FAST)})
            assert await there_and_back(links.ports["device"], PAYLOAD) == PAYLOAD

    with_echo(test)


def test_a_dead_process_accepts_no_changes(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        died = anyio.Event()
        async with shaped_links(
            "127.0.0.1", port, {"device": FAST}, tmp_path / "proxy.log", lambda _: died.set()
        ) as links:
            process = links._processes[0]._process
            assert process is not None
            process.kill()
            await died.wait()
            with pytest.raises(BackendError, match=r"^proxy-0: must accept changes .*log$"):
                await links.change({"device": LinkState(shape=FAST)})

    with_echo(test)
