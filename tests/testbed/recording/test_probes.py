"""Probes of real links: loopback as it is, and shaped by a proxy."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from fairbed.testbed.backends.proxy.links import shaped_links
from fairbed.testbed.backends.proxy.protocol import Shape
from fairbed.testbed.recording.analysis.from_machine import ProbeResult
from fairbed.testbed.recording.analysis.rates import link_rate, one_way_delay
from fairbed.testbed.recording.mqtt_peer import mqtt_peer
from fairbed.testbed.recording.probes import ProbeFailed, open_probe, probe_peer
from fairbed.testbed.recording.tcp_peer import MAX_BYTES, serve, split_address, tcp_peer
from fairbed.testbed.run.broker import start_broker
from fairbed.wire.transport.address import PASSWORD_VARIABLE
from fairbed.wire.transport.base import LinkUp
from fairbed.wire.transport.client import MqttTransport

LIMIT_S = 60.0

LINK = Shape(down_bps=16e6, up_bps=4e6, delay_s=0.02)


@asynccontextmanager
async def _shaped(host: str, port: int) -> AsyncIterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "proxy.log"
        async with shaped_links(host, port, {"pi": LINK}, log, lambda ended: None) as links:
            yield links.ports["pi"]


def _expect_the_link(result: ProbeResult) -> None:
    assert link_rate(result.down, 60.0, "downloads").value == pytest.approx(LINK.down_bps, rel=0.05)
    assert link_rate(result.up, 60.0, "uploads").value == pytest.approx(LINK.up_bps, rel=0.05)
    delay = one_way_delay(result.round_trips_s, "round trips")
    assert LINK.delay_s <= delay.value <= LINK.delay_s + 0.02


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.slow
def test_a_probe_over_tcp_finds_rates_and_delay_of_a_link() -> None:
    async def run() -> None:
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                port = await tasks.start(partial(serve, "127.0.0.1", 0))
                async with (
                    _shaped("127.0.0.1", port) as near,
                    tcp_peer("127.0.0.1", near) as peer,
                ):
                    _expect_the_link(await probe_peer(peer))
                tasks.cancel_scope.cancel()

    anyio.run(run)


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mosquitto", "nats"])  # each has the machine for itself
def test_a_probe_of_a_broker_finds_rates_and_delay_of_a_link(kind: str) -> None:
    async def run() -> None:
        with anyio.fail_after(LIMIT_S), tempfile.TemporaryDirectory() as folder:
            async with start_broker(kind, folder=Path(folder)) as broker:  # type: ignore[arg-type]
                async with _shaped("127.0.0.1", broker.port) as near:
                    url = broker.url.replace(f":{broker.port}", f":{near}")
                    async with mqtt_peer(url) as peer:
                        _expect_the_link(await probe_peer(peer))
                assert await _retained(broker.url) == 0

    anyio.run(run)


async def _retained(url: str) -> int:
    """Return the number of retained probe messages at a broker."""
    seen = 0
    async with MqttTransport(url, "look") as transport:
        events = transport.events()
        async for event in events:
            if isinstance(event, LinkUp):
                break
        await transport.subscribe("fairbed-record/#")
        await transport.publish("fairbed-record/last", b"", qos=1)
        with anyio.move_on_after(5.0):
            async for event in events:
                if getattr(event, "topic", "") == "fairbed-record/last":
                    break
                seen += 1
    return seen


def test_loopback_is_fast_enough_for_anything() -> None:
    async def run() -> ProbeResult:
        async with anyio.create_task_group() as tasks:
            port = await tasks.start(partial(serve, "127.0.0.1", 0))
            with anyio.fail_after(LIMIT_S):
                async with tcp_peer("127.0.0.1", port) as peer:
                    result = await probe_peer(peer)
            tasks.cancel_scope.cancel()
        return result

    result = anyio.run(run)
    assert link_rate(result.down, 60.0, "downloads").value > 50e6
    assert min(result.round_trips_s) < 0.05


def test_a_server_disconnects_clients_with_invalid_requests() -> None:
    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            port = await tasks.start(partial(serve, "127.0.0.1", 0))
            for request in (
                b"GET / HT",
                b"D" + (MAX_BYTES + 1).to_bytes(8, "big"),
                b"U" + bytes(8),
            ):
                with anyio.fail_after(LIMIT_S):
                    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                        await stream.send(request.ljust(9, b"x"))
                        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                            await stream.receive()
            tasks.cancel_scope.cancel()

    anyio.run(run)


def test_an_unreachable_peer_is_a_one_line_error() -> None:
    with pytest.raises(ProbeFailed, match=r"--probe 127.0.0.1:1: must be reachable, got: "):
        open_probe("127.0.0.1:1")()


@pytest.mark.parametrize("where", ["", "host", "host:", ":1", "host:0", "host:65536", "host:http"])
def test_an_address_must_be_one(where: str) -> None:
    with pytest.raises(ValueError, match="address must be"):
        split_address(where)


def test_a_port_alone_listens_everywhere() -> None:
    assert split_address("5202", "0.0.0.0") == ("0.0.0.0", 5202)
    assert split_address("[::1]:5202") == ("::1", 5202)


def test_the_password_of_a_probe_is_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[str] = []

    def mqtt_peer(url: str) -> None:
        taken.append(url)
        raise OSError("taken")

    monkeypatch.setattr("fairbed.testbed.recording.mqtt_peer.mqtt_peer", mqtt_peer)
    monkeypatch.setenv(PASSWORD_VARIABLE, "a b")
    for url in ("mqtts://u@host", "mqtts://u:own@host"):
        with pytest.raises(ProbeFailed, match=r"^--probe host: must be reachable, got: taken$"):
            open_probe(url)()
    assert taken == ["mqtts://u:a%20b@host", "mqtts://u:own@host"]
    with pytest.raises(ValueError, match="needs a user for the password"):
        open_probe("mqtts://host")
