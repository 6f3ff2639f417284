"""The client of an emulated device is as slow as the device, with all that it starts."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairbed.device_agent.clients.child.processes import descendants, stop_tree
from fairbed.device_agent.clients.process import ClientCode, ClientProcess, ClientServer
from fairbed.testbed.backends.client_place import EmulatedClients
from fairbed.wire.records import Record, encode_records
from tests.device_agent.clients.client import CODE, RAW, VECTOR
from tests.device_agent.clients.test_process import ABOUT, never
from tests.testbed.backends.cgroups.conftest import MakeGroup, make_group, places

__all__ = ["make_group", "places"]

pytestmark = pytest.mark.alone

WORK_S = 0.15
"""Processor time of a training, seconds."""

SPEED = 0.06
"""Of the device; a machine that is busy gives a process more than this."""


@pytest.fixture(scope="module")
def server() -> Iterator[ClientServer]:
    made = ClientServer(ClientCode("class", str(CODE), "behaving:Busy"))
    yield made
    made.close()


def train(
    server: ClientServer, place: EmulatedClients, *, in_child: bool, work_s: float = WORK_S
) -> tuple[float, float]:
    """Return the wall time and the processor time of a training, seconds."""
    process = ClientProcess(server.address, groups=place.groups, network=place.network)
    try:
        process.await_fork(never, server)
        process.request(ABOUT, {"state": b""}, never, 0.0)
        items = {"seconds": work_s, "in_child": in_child}
        config = encode_records({"config": Record("config", items)})
        header = {"do": "fit", "round": 1, "seed": 1, "deadline_s": 60.0}
        parts = {"vector": VECTOR.tobytes(), "raw": RAW, "config": config}
        begun = time.monotonic()
        with place.running(process.pid):
            answer, _ = process.request(header, parts, never, 0.0)
        return time.monotonic() - begun, answer["cpu_s"]
    finally:
        process.close()


@pytest.mark.parametrize("in_child", [False, True])
def test_without_control_groups_it_is_stopped_and_continued(
    server: ClientServer, *, in_child: bool
) -> None:
    place = EmulatedClients(server.address, None, lambda: SPEED)
    wall_s, cpu_s = train(server, place, in_child=in_child)
    assert cpu_s >= WORK_S
    assert cpu_s / wall_s < SPEED * 1.1  # less is contention


@pytest.mark.parametrize("in_child", [False, True])
def test_in_control_groups_the_kernel_limits_it(
    server: ClientServer, make_group: MakeGroup, *, in_child: bool
) -> None:
    group = make_group("client")
    group.limit_cpu(SPEED)
    place = EmulatedClients(server.address, group.sandbox(), lambda: SPEED)
    wall_s, cpu_s = train(server, place, in_child=in_child)
    assert cpu_s / wall_s < SPEED * 1.1
    assert group.usage().cpu_s >= WORK_S


@pytest.mark.parametrize("has_groups", [False, True])
def test_work_shorter_than_an_interval_is_slowed_too(
    server: ClientServer, make_group: MakeGroup, *, has_groups: bool
) -> None:
    sandbox = None
    if has_groups:
        group = make_group("client")
        group.limit_cpu(SPEED)
        sandbox = group.sandbox()
    place = EmulatedClients(server.address, sandbox, lambda: SPEED)
    wall_s, cpu_s = train(server, place, in_child=False, work_s=0.003)
    assert cpu_s / wall_s < SPEED * 1.2


def test_a_client_that_cannot_enter_its_groups_does_not_run(
    server: ClientServer, tmp_path: Path
) -> None:
    process = ClientProcess(server.address, groups=[str(tmp_path / "gone" / "cgroup.procs")])
    with pytest.raises(Exception, match="must enter the groups of its device"):
        process.await_fork(never, server)
    assert len(list(descendants(server.pid))) == 2, "the server, and what watches it"


def test_imports_of_the_server_take_their_time_on_each_device() -> None:
    place = EmulatedClients("address", None, lambda: 0.5)
    begun = time.monotonic()
    place.imported(0.1)
    assert time.monotonic() - begun >= 0.2


def test_a_stopped_client_can_be_killed(server: ClientServer) -> None:
    process = ClientProcess(server.address)
    process.await_fork(never, server)
    stop_tree(process.pid)
    begun = time.monotonic()
    process.close()
    assert time.monotonic() - begun < 4.0
    with suppress(FileNotFoundError):
        assert "Z" in Path(f"/proc/{process.pid}/stat").read_text()
