"""Real TUN links with a relay between them: delay, order, loss, changes, and its end."""

import os
import random
import signal
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import anyio
import pytest
from anyio.to_thread import run_sync

from benchmarks._traffic import DatagramArrivals, traffic
from fairbed.testbed.backends.network import relay
from fairbed.testbed.backends.network.network import Network, open_network
from fairbed.testbed.backends.network.plan.delay import DelayLine, Impairment
from fairbed.testbed.backends.network.probe import Support
from fairbed.testbed.emulation.conditions import Shape
from fairbed.testbed.errors import BackendError
from tests.testbed.backends.network.conditions import linked

pytestmark = [pytest.mark.usefixtures("untouched_host"), pytest.mark.alone]

TIMEOUT_S = 60.0
FAR = Shape(delay_s=0.03)


@pytest.fixture(autouse=True)
def relayed(support: Support) -> None:
    """Skip where relays do not work; where there is netem, only links with jitter have one."""
    if support.jitter != "relay":
        pytest.skip(support.delay_problem or "this machine has no TUN device")


def _run(shape: Shape | None, test: Callable[[Network], Awaitable[None]]) -> None:
    async def run() -> None:
        with anyio.fail_after(TIMEOUT_S):
            async with open_network(
                "test", {"pi": shape, "wired": None}, jittered=["pi"], seed=7
            ) as network:
                await test(network)

    anyio.run(run)


def _datagrams(
    network: Network, count: int, interval_s: float = 1e-3
) -> tuple[DatagramArrivals, DatagramArrivals]:
    with traffic(network.namespace("pi"), network.hub_address) as peer:
        return peer.datagrams_down(count, interval_s), peer.datagrams_up(count, interval_s)


def test_no_packet_comes_before_its_delay_and_none_is_lost() -> None:
    async def test(network: Network) -> None:
        for flight in await run_sync(_datagrams, network, 100):
            assert min(flight.delays_s) >= FAR.delay_s
            assert flight.loss_ratio == 0.0

    _run(FAR, test)


def test_a_packet_that_comes_while_others_are_read_has_its_whole_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = DelayLine(Impairment(delay_s=FAR.delay_s), random.random, random.random)
    sender, entry = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    instants = [5.0, 6.0, 7.0]

    def read(descriptor: int, size: int) -> bytes:
        packet = entry.recv(size)
        instants.pop(0)  # the relay did not run meanwhile
        return packet

    monkeypatch.setattr(relay, "os", SimpleNamespace(read=read))
    monkeypatch.setattr(relay, "time", SimpleNamespace(monotonic=lambda: instants[0]))
    with sender, entry:
        entry.setblocking(False)
        for number in (1, 2):
            sender.send(bytes([number]))
        direction = relay.Direction(entry.fileno(), line)
        assert direction.receive()
    assert [due for due, _ in direction.in_flight] == [6.0 + FAR.delay_s, 7.0 + FAR.delay_s]


def test_jitter_keeps_the_order_of_packets() -> None:
    async def test(network: Network) -> None:
        for flight in await run_sync(_datagrams, network, 300):
            assert flight.numbers == sorted(flight.numbers)
            assert len(set(flight.delays_s)) > 1

    _run(Shape(delay_s=0.01, jitter_s=0.005), test)


@pytest.mark.full  # as test_accuracy.py
def test_packets_are_lost_on_purpose_and_counted_each_way() -> None:
    async def test(network: Network) -> None:
        down, up = await run_sync(_datagrams, network, 400, 2e-4)
        lost = round(400 * down.loss_ratio) + round(400 * up.loss_ratio)
        assert 0 < lost < 800
        counters = await network.counters()
        assert (
            counters["pi"].dropped_packets >= lost
        )  # the first packet to the host may be lost too
        assert counters["wired"].dropped_packets == 0

    _run(Shape(delay_s=0.001, loss_ratio=0.3), test)


def test_delay_changes_while_the_link_is_used() -> None:
    async def test(network: Network) -> None:
        with traffic(network.namespace("pi"), network.hub_address) as peer:
            await network.apply({"pi": linked(Shape(delay_s=0.5))})
            assert min((await run_sync(peer.datagrams_up, 3, 1e-3)).delays_s) >= 0.5
            await network.apply({"pi": linked()})
            assert min((await run_sync(peer.datagrams_up, 50, 1e-3)).delays_s) < 0.5

    _run(None, test)


def test_packets_of_a_wired_device_do_not_pass_the_relay() -> None:
    async def test(network: Network) -> None:
        assert len(network.pids) == 1
        os.kill(network.pids[0], signal.SIGKILL)

        def transfer() -> None:
            with traffic(network.namespace("wired"), network.hub_address) as peer:
                peer.stream_down(n_bytes=10_000)

        await run_sync(transfer)

    _run(FAR, test)


def test_a_dead_relay_is_reported_at_the_next_request() -> None:
    async def test(network: Network) -> None:
        os.kill(network.pids[0], signal.SIGKILL)
        with pytest.raises(BackendError, match="relay-0: must stay alive and reply"):
            await network.counters()

    _run(FAR, test)


def test_a_delayed_device_must_be_in_the_fleet() -> None:
    async def test() -> None:
        with pytest.raises(BackendError, match=r"^pj: no such device; the fleet has pi$"):
            async with open_network("test", {"pi": None}, delayed=["pj"]):
                raise AssertionError("must not open")

    anyio.run(test)
