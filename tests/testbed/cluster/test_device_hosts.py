"""What a host offers and runs: its supervisor in this process, and the network to it."""

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairbed.testbed.api.planning import plan_run
from fairbed.testbed.backends.base import Conditions, DeviceSpec
from fairbed.testbed.cluster import host_supervisor
from fairbed.testbed.cluster.api import EmulatingHosts
from fairbed.testbed.cluster.device_hosts import (
    DeviceHost,
    DeviceHosts,
    Network,
    NetworkWatch,
    measure_network,
)
from fairbed.testbed.cluster.host_supervisor import FENCE_S, FleetPart, HostSupervisor
from fairbed.testbed.emulation.conditions import Shape
from fairbed.testbed.emulation.placement import HostRoom
from fairbed.testbed.errors import BackendError, ClusterError, UsageError
from tests.processes import is_gone
from tests.testbed.cluster.test_hosts_backend import FakeHost, hosts_of
from tests.testbed.small_run import wait_until

DAY_S = 86_400.0

PART = FleetPart(
    fleet=[DeviceSpec("pi-1"), DeviceSpec("pi-2")],
    broker_url="mqtt://127.0.0.1:1",  # no broker: agents try for ever
    tenant="main",
    passwords=None,
    ca=None,
    costs=None,
    seed=0,
)


@pytest.fixture
def supervisor() -> Iterator[HostSupervisor]:
    found = HostSupervisor("127.0.0.1")
    yield found
    found.close()


@pytest.mark.full
def test_a_host_starts_reports_and_ends_devices(supervisor: HostSupervisor) -> None:
    assert supervisor.add(PART) == {"pi-1": [], "pi-2": []}
    report = supervisor.report(0)
    assert report.pids.keys() == report.cpu_s.keys() == {"pi-1", "pi-2"}
    supervisor.apply({"pi-1": Conditions(None, None, is_willing=False)})
    psutil.Process(report.pids["pi-1"]).kill()
    ended = wait_until(lambda: supervisor.report(report.number).ended, "the end of pi-1")
    assert [(one.name, one.was_requested) for one in ended] == [("pi-1", False)]
    last = supervisor.report(report.number)
    assert last.ended == ended, "an end is reported until it was seen"
    assert supervisor.report(last.number).ended == ()
    supervisor.restart("pi-1", None)
    assert supervisor.report(last.number).pids["pi-1"] != report.pids["pi-1"]
    assert supervisor.sample().keys() == {"pi-1", "pi-2"}
    wait_until(lambda: b"pi-2" in supervisor.logs().get("pi-2.log", b""), "a log")
    agents = [psutil.Process(pid) for pid in supervisor.report(last.number).pids.values()]
    supervisor.close()
    assert all(map(is_gone, agents))


@pytest.mark.full
def test_a_host_that_is_cut_off_ends_its_devices(
    supervisor: HostSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.add(PART)
    agents = [psutil.Process(pid) for pid in supervisor.report(0).pids.values()]
    monkeypatch.setattr(host_supervisor, "FENCE_S", 0.2)
    assert all(map(is_gone, agents))
    with pytest.raises(BackendError, match="has ended its devices, because no request arrived"):
        supervisor.report(0)


def test_the_folder_of_a_killed_supervisor_is_removed_and_that_of_a_live_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "fairbed-host-left"
    (left / "part-0").mkdir(parents=True)
    first, second = HostSupervisor("127.0.0.1"), HostSupervisor("127.0.0.1")
    assert not left.exists()
    assert len(list(tmp_path.iterdir())) == 2
    first.close()
    second.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_supervisor_removed_before_it_was_locked_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, list[Path]()

    def lose_the_first(prefix: str) -> str:
        made.append(Path(make(prefix=prefix)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", lose_the_first)
    supervisor = HostSupervisor("127.0.0.1")
    assert [path.exists() for path in made] == [False, True]
    supervisor.close()
    assert not made[1].exists()


@pytest.mark.full
@pytest.mark.parametrize("offset_s", [-DAY_S, DAY_S])
def test_a_host_whose_clock_differs_by_a_day_is_neither_silent_nor_cut_off(
    offset_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = HostSupervisor("127.0.0.1", now=lambda: time.perf_counter() + offset_s)
    try:
        began = time.perf_counter()
        fleet = [DeviceSpec("pi-1", shape=Shape(up_bps=1e6)), DeviceSpec("pi-2")]
        paths = supervisor.add(replace(PART, fleet=fleet))
        report = supervisor.report(0)
        while time.perf_counter() < began + FENCE_S / 4.0:
            report = supervisor.report(report.number)
            assert report.pids.keys() == {"pi-1", "pi-2"}
            assert {reading.pid for reading in report.readings} == set(paths["pi-1"])
            most_s = time.perf_counter() - began
            assert all(0.0 <= reading.age_s <= most_s for reading in report.readings)
        agents = [psutil.Process(pid) for pid in report.pids.values()]
        monkeypatch.setattr(host_supervisor, "FENCE_S", 0.2)
        assert all(map(is_gone, agents))
    finally:
        supervisor.close()


@pytest.mark.full
def test_devices_of_a_host_check_the_certificate_of_the_broker(supervisor: HostSupervisor) -> None:
    part = replace(PART, broker_url="mqtts://127.0.0.1:1", ca=b"not a certificate")
    supervisor.add(part)
    log = wait_until(lambda: supervisor.logs().get("pi-1.log"), "a log")
    wait_until(lambda: b"cafile" in supervisor.logs()["pi-1.log"], f"the problem in {log!r}")


def test_a_host_lacks_a_module_or_has_another_one(supervisor: HostSupervisor) -> None:
    sources = {"nowhere:Rule": b"", "json.decoder:JSONDecoder": b"another"}
    assert supervisor.differing(sources) == list(sources)


def test_the_network_to_a_host_is_measured(supervisor: HostSupervisor) -> None:
    network = measure_network("a", "127.0.0.1", supervisor.listen())
    assert 0.0 < network.round_trip_s < 0.1
    assert min(network.down_bps, network.up_bps) > 1e7


def test_a_host_that_answers_no_probe_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(ClusterError, match=f"host a: must answer at 127.0.0.1:{port}, got"):
        measure_network("a", "127.0.0.1", port)


class SlowPeer:
    """Answers probes of the network at once, or not before a test lets it."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.answered = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.is_open.set()
        self._listener.close()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client:
            while client.recv(64):
                self.is_open.wait()
                client.sendall(b".")
                self.answered += 1


def test_a_network_that_stalls_delays_the_transfers_of_that_time() -> None:
    peer = SlowPeer()
    network = Network(3e-4, 1e9, 1e9)
    host = DeviceHost(
        HostRoom("a", 2, 1 << 34), "127.0.0.1", FakeHost("a"), peer.port, network, 1.0
    )
    watch = NetworkWatch([host])
    with watch.watching():
        wait_until(lambda: peer.answered > 3, "echoes")
        before = time.perf_counter()
        peer.is_open.clear()
        wait_until(lambda: watch.delay_s("a", before, time.perf_counter()) > 0.15, "a delay")
        stalled = time.perf_counter()
        assert watch.delay_s("a", before, stalled) <= stalled - before
        answered = peer.answered
        peer.is_open.set()
        wait_until(lambda: peer.answered > answered + 2, "echoes after the stall")
        assert watch.delay_s("a", before, time.perf_counter()) > 0.15
        assert watch.delay_s("a", before - 10.0, before - 9.0) == 0.0
    peer.close()


EXPERIMENT = {
    "name": "hosts",
    "emulation": {"host_core_speed": 1.0},
    "fleet": [{"profile": "raspberry-pi-4b", "count": 4}],
    "selection": {"per_round": 4, "beta": 0.1},
}


def planned(folder: Path, devices: DeviceHosts, **settings: Any) -> Any:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    is_plain = changes.pop("is_plain", False)
    hosts = EmulatingHosts(devices)
    return plan_run(
        EXPERIMENT, settings=changes, out=folder / "run", hosts=hosts, is_plain=is_plain
    )


def test_a_fleet_too_large_for_one_host_fits_on_two(tmp_path: Path) -> None:
    one, two = hosts_of(FakeHost("a")), hosts_of(FakeHost("a"), FakeHost("b"))
    with pytest.raises(UsageError) as refused:
        planned(tmp_path, one)
    line = str(refused.value)
    assert "4 devices must fit on the hosts, got room for 3: a 2 cores" in line
    assert 'or set emulation.dilation to 2 or "auto", got 1' in line
    assert planned(tmp_path, two).dilation == 1.0
    assert planned(tmp_path, one, emulation__dilation="auto").dilation == 2.0


def test_a_plan_for_hosts_that_are_not_known_yet_places_no_fleet(tmp_path: Path) -> None:
    group = {"profile": "raspberry-pi-4b", "count": 500}
    large = {**EXPERIMENT, "fleet": [group], "selection": {"per_round": 500, "beta": 0.1}}
    with pytest.raises(UsageError, match="must fit into this machine"):
        plan_run(large, out=tmp_path / "run")
    assert plan_run(large, out=tmp_path / "run", places_fleet=False).dilation == 1.0


def test_the_broker_of_a_run_serves_other_hosts_in_plain_text_only_if_allowed(
    tmp_path: Path,
) -> None:
    beyond = DeviceHosts("10.0.0.1", hosts_of(FakeHost("a"), FakeHost("b")).hosts)
    with pytest.raises(UsageError, match=r"broker would serve other hosts at 10\.0\.0\.1"):
        planned(tmp_path, beyond)
    assert planned(tmp_path, beyond, is_plain=True).listen_host == "10.0.0.1"
    with pytest.raises(UsageError, match="must be an address that the hosts reach with --cluster"):
        planned(tmp_path, beyond, broker__url="mqtt://127.0.0.1")


def test_hosts_emulate_with_processes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='must be "process" or "auto" with --cluster, got "name'):
        planned(tmp_path, hosts_of(FakeHost("a")), emulation__backend="namespace")


def test_a_fleet_without_memory_on_any_host_is_refused_at_any_dilation(tmp_path: Path) -> None:
    room = HostRoom("a", 2, 70 << 20)
    hosts = DeviceHosts(
        "127.0.0.1", [DeviceHost(room, "127.0.0.1", FakeHost("a"), 1, Network(1e-3, 1, 1), 1.0)]
    )
    with pytest.raises(UsageError, match=r"got room for 2: a 2 cores and 0\.1 GiB"):
        planned(tmp_path, hosts, emulation__dilation="auto")
