"""Real namespaces, links and qdiscs: reachability, changes, and complete removal."""

import errno
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable

import anyio
import psutil
import pytest
from anyio import run_process
from anyio.to_thread import run_sync

from benchmarks._traffic import Peer, Stream, traffic
from fairbed.testbed.backends.network.network import Network, open_network
from fairbed.testbed.backends.network.plan.names import owner_of
from fairbed.testbed.backends.network.probe import Support
from fairbed.testbed.emulation.cell import Cell
from fairbed.testbed.emulation.conditions import Congestion, Outage, Shape
from fairbed.testbed.errors import BackendError
from tests.bounded import LIMIT_S, run
from tests.testbed.backends.network.conditions import linked
from tests.testbed.backends.network.conftest import host_view, missing_since

pytestmark = [pytest.mark.usefixtures("untouched_host"), pytest.mark.alone]

DEVICES: dict[str, Shape | None] = {
    "pi-00": Shape(down_bps=8e6, up_bps=2e6),
    "hub": Shape(up_bps=4e6),
    "lab": None,
}


def _with_network(test: Callable[[Network], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with open_network("test", DEVICES) as network:
            await test(network)

    run(opened)


def test_a_device_and_the_host_transfer_in_both_directions() -> None:
    def transfer(network: Network, name: str) -> None:
        with traffic(network.namespace(name), network.hub_address) as peer:
            _, down = peer.stream_down(n_bytes=100_000)
            _, up = peer.stream_up(n_bytes=50_000)
        assert (down.marks[-1][1], up.marks[-1][1]) == (100_000, 50_000)

    async def test(network: Network) -> None:
        for name in DEVICES:
            await run_sync(transfer, network, name)

    _with_network(test)


def test_devices_share_a_cell_by_priority_and_go_on_when_alone() -> None:
    """The second waits until the first has all its bytes, and then has the whole rate.

    By shares of bytes and ratios of times: a busy machine delays both.
    """
    cell = Cell(name="ap", down_bps=8e6, up_bps=8e6, share="priority")
    n_bytes, streams = 400_000, dict[str, tuple[float, Stream]]()
    both_ready = threading.Barrier(2)

    def transfer(network: Network, name: str) -> None:
        with traffic(network.namespace(name), network.hub_address) as peer:
            peer.stream_down(n_bytes=1)  # returns when its process has started
            both_ready.wait(LIMIT_S / 2)
            streams[name] = peer.stream_down(n_bytes=n_bytes)

    async def test() -> None:
        cells = {name: ((cell,), number) for number, name in enumerate(("first", "second"))}
        async with open_network("test", dict.fromkeys(cells), cells=cells) as network:
            before = await network.counters()
            async with anyio.create_task_group() as tasks:
                for name in cells:
                    tasks.start_soon(run_sync, transfer, network, name)
            after = await network.counters()
        for name in cells:
            carried = after[name].down_bytes - before[name].down_bytes
            assert carried == pytest.approx(1.05 * n_bytes, rel=0.1)

    run(test)
    (began, first), (_, second) = streams["first"], streams["second"]
    first_at, half_at = first.marks[0][0], next(at for at, n in first.marks if n >= n_bytes / 2)
    assert second.bytes_until(half_at) - second.bytes_until(first_at) < n_bytes / 4
    assert second.ended_at - began < 4.0 * (first.ended_at - began)


def test_the_bytes_of_each_device_are_counted_on_its_own() -> None:
    def transfer(network: Network) -> None:
        with traffic(network.namespace("hub"), network.hub_address) as peer:
            peer.stream_down(n_bytes=100_000)
            peer.stream_up(n_bytes=50_000)

    async def test(network: Network) -> None:
        before = await network.counters()
        await run_sync(transfer, network)
        after = await network.counters()
        assert after["hub"].down_bytes - before["hub"].down_bytes == pytest.approx(108_000, rel=0.1)
        assert after["hub"].up_bytes - before["hub"].up_bytes == pytest.approx(56_000, rel=0.1)
        for idle in ("pi-00", "lab"):
            assert after[idle] == before[idle]

    _with_network(test)


def _inside(network: Network, name: str, *argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["nsenter", f"--net={network.namespace(name)}", *argv],
        capture_output=True,
        text=True,
        timeout=30.0,
        check=True,
    )


def _others() -> list[str]:
    """Return an address of this machine outside of the network, if it has one, and two elsewhere.

    The list is short because the kernel limits the rate of "unreachable" messages.
    """
    own = sorted(
        each.address
        for link, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET and link != "lo" and not link.startswith("fb")
    )
    return [*own[:1], "192.0.2.1", "8.8.8.8"]


@pytest.mark.parametrize(
    "has_default_route",
    [
        pytest.param(False, id="no default route"),
        pytest.param(True, id="default route", marks=pytest.mark.full),
    ],
)
def test_a_device_reaches_only_the_hub_address(has_default_route: bool) -> None:
    def reach(network: Network) -> None:
        if has_default_route:
            _inside(network, "pi-00", "ip", "route", "add", "default", "dev", "eth0")
        with (
            socket.create_server(("0.0.0.0", 0)) as listener,
            traffic(network.namespace("pi-00"), network.hub_address) as peer,
        ):
            port = listener.getsockname()[1]
            assert peer.reaches(network.hub_address, port, 10.0) == ""
            for other in _others():
                assert "unreachable" in peer.reaches(other, port, 10.0)

    async def test(network: Network) -> None:
        await run_sync(reach, network)

    _with_network(test)


def test_packets_with_the_address_of_another_device_are_dropped() -> None:
    send = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.bind((sys.argv[1], 0)); s.sendto(sys.argv[3].encode(), (sys.argv[2], int(sys.argv[4])))"
    )

    def spoof(network: Network) -> None:
        own, other = (
            json.loads(_inside(network, name, "ip", "-j", "-4", "addr", "show", "eth0").stdout)[0][
                "addr_info"
            ][0]["local"]
            for name in ("pi-00", "lab")
        )
        _inside(network, "pi-00", "ip", "addr", "add", f"{other}/32", "dev", "eth0")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
            near.bind((network.hub_address, 0))
            near.settimeout(10.0)
            for source, word in ((other, "not me"), (own, "me")):
                python = (sys.executable, "-c", send, source, network.hub_address, word)
                _inside(network, "pi-00", *python, str(near.getsockname()[1]))
            assert near.recv(100) == b"me"

    async def test(network: Network) -> None:
        await run_sync(spoof, network)

    _with_network(test)


@pytest.mark.parametrize(
    ("device", "host"), [("cubic", "cubic"), ("bbr", "cubic"), ("cubic", "bbr")]
)
def test_each_end_uses_its_own_congestion_control_whatever_the_machine_uses(
    support: Support, device: Congestion, host: Congestion
) -> None:
    if "bbr" in (device, host) and "bbr" in support.lacks:
        pytest.skip(support.lacks["bbr"])
    look = (
        "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10);"
        "print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b'\\0').decode())"
    )

    def check(network: Network) -> None:
        with socket.create_server((network.hub_address, 0)) as listener:
            port = str(listener.getsockname()[1])
            inside = ["nsenter", f"--net={network.namespace('pi-00')}"]
            argv = [*inside, sys.executable, "-c", look, network.hub_address, port]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=30.0, check=True)
            near, _ = listener.accept()
            with near:
                own = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert done.stdout.strip() == device
        assert own.rstrip(b"\0").decode() == host

    async def test() -> None:
        opened = open_network(
            "test", {"pi-00": None}, congestion={"pi-00": device}, host_congestion=host
        )
        async with opened as network:
            await run_sync(check, network)

    run(test)


def test_a_queue_of_a_kind_that_the_kernel_lacks_is_refused(support: Support) -> None:
    if "fq_codel" not in support.lacks:
        pytest.skip("the kernel has fq_codel")

    async def test() -> None:
        with pytest.raises(BackendError, match=r'^queue = "fq_codel" needs this qdisc'):
            async with open_network("test", {"pi": Shape(down_bps=1e6, codel_target_s=0.005)}):
                raise AssertionError("must not open")

    run(test)


def test_fq_codel_is_the_queue_where_the_kernel_has_it(support: Support) -> None:
    if "fq_codel" in support.lacks:
        pytest.skip(support.lacks["fq_codel"])

    async def test() -> None:
        shape = Shape(down_bps=1e6, down_queue_bytes=30_280, codel_target_s=0.005)
        async with open_network("test", {"pi": shape}) as network:
            hub = network.namespace("pi").name.rpartition(".")[0]
            shown = await run_process(["tc", "-netns", hub, "qdisc", "show", "dev", "d0"])
        assert b"fq_codel" in shown.stdout
        assert b"limit 20p" in shown.stdout

    run(test)


def test_the_host_is_untouched_while_a_network_is_up() -> None:
    async def test() -> None:
        before = host_view()
        async with open_network("test", DEVICES):
            assert missing_since(before) == []

    run(test)


def test_the_kernel_has_the_configured_rates_after_a_change() -> None:
    def rates(network: Network) -> set[str]:
        names = owner_of(network.namespace("pi-00").name)
        assert names is not None
        done = subprocess.run(
            ["tc", "-netns", names.hub, "class", "show", "dev", "d0"],
            capture_output=True,
            text=True,
            timeout=30.0,
            check=True,
        )
        return {done.stdout.split("rate ")[1].split()[0]}

    async def test(network: Network) -> None:
        assert rates(network) == {"8364Kbit"}
        await network.apply(
            {"pi-00": linked(Shape(down_bps=1e6)), "lab": linked(Shape(), "coverage")}
        )
        assert rates(network) == {"1045Kbit"}
        await network.apply({"pi-00": linked()})
        assert rates(network) == {"100Gbit"}

    _with_network(test)


@pytest.mark.parametrize("kind", ["wire", "relay"])
@pytest.mark.parametrize("outage", ["coverage", "unplugged"])
def test_packets_pass_only_before_and_after_an_outage(outage: Outage, kind: str) -> None:
    def reaches(network: Network, peer: Peer, timeout_s: float) -> bool:
        with socket.create_server((network.hub_address, 0)) as listener:
            port = listener.getsockname()[1]
            return not peer.reaches(network.hub_address, port, timeout_s)

    async def test() -> None:
        delayed = ["lab"] if kind == "relay" else []
        async with open_network("test", {"lab": None}, delayed=delayed) as network:
            with traffic(network.namespace("lab"), network.hub_address) as peer:
                assert await run_sync(reaches, network, peer, 10.0)
                await network.apply({"lab": linked(None, outage)})
                assert not await run_sync(reaches, network, peer, 0.3)
                await network.apply({"lab": linked(Shape(down_bps=5e6))})
                with anyio.fail_after(10.0):  # the device notices the carrier later
                    while not await run_sync(reaches, network, peer, 10.0):
                        continue

    run(test)


@pytest.mark.parametrize("kind", ["wire", "relay"])
def test_both_ends_notice_an_unplugged_link_but_no_coverage_outage(kind: str) -> None:
    def call(address: str, timeout_s: float) -> str:
        try:
            socket.create_connection((address, 9), timeout_s).close()
        except OSError as exc:
            return type(exc).__name__ if exc.errno is None else errno.errorcode[exc.errno]
        return ""

    async def test() -> None:
        delayed = ["lab"] if kind == "relay" else []
        async with open_network("test", {"lab": None}, delayed=delayed) as network:
            shown = _inside(network, "lab", "ip", "-j", "-4", "addr", "show", "eth0").stdout
            address = json.loads(shown)[0]["addr_info"][0]["local"]
            assert await run_sync(call, address, 10.0) == "ECONNREFUSED"
            await network.apply({"lab": linked(None, "coverage")})
            assert await run_sync(call, address, 0.3) == "TimeoutError"
            await network.apply({"lab": linked(None, "unplugged")})
            assert await run_sync(call, address, 10.0) in ("ENETUNREACH", "EHOSTUNREACH")
            with traffic(network.namespace("lab"), network.hub_address) as peer:
                error = ""  # the kernel needs up to a second to notice
                while "unreachable" not in error:
                    error = await run_sync(peer.reaches, network.hub_address, 9, 0.3)

    run(test)


def test_an_impossible_change_is_refused_in_one_line_and_changes_nothing() -> None:
    async def test(network: Network) -> None:
        with pytest.raises(BackendError, match=r"^pi-99: no such device; the network has pi-00, "):
            await network.apply({"pi-99": linked()})
        with pytest.raises(BackendError, match=r"^lab: down_bps must be >= 0 bit/s"):
            await network.apply({"pi-00": linked(), "lab": linked(Shape(down_bps=-1.0))})
        with pytest.raises(BackendError, match=r"^lab: delay and loss must be 0"):
            await network.apply({"lab": linked(Shape(delay_s=0.1))})
        with pytest.raises(BackendError, match="no such device"):
            network.namespace("pi-99")

    _with_network(test)


def test_an_impossible_link_is_refused_before_anything_is_made() -> None:
    async def test() -> None:
        with pytest.raises(BackendError, match=r"^pi: up_bps must be"):
            async with open_network("test", {"pi": Shape(up_bps=-1.0)}):
                raise AssertionError("must not open")

    run(test)
