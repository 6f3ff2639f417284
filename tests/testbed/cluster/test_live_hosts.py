"""Live runs on two real Ray nodes of this machine, with a real broker and real devices."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from fairbed.coordinator.store import RunReader, StoreError
from tests.processes import end
from tests.testbed.cluster.nodes import Nodes, ray_nodes
from tests.testbed.small_run import assert_gone, wait_until

pytestmark = [
    pytest.mark.full,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

pytest.importorskip("ray")

DEVICES = {f"raspberry-pi-4b-{number}" for number in range(1, 5)}

EXPERIMENT = """
name = "hosts"
rounds = {rounds}
[model]
name = "softmax"
[selection]
policy = "uniform"
per_round = 2
[round]
deadline_s = 30.0
[broker]
kind = "mosquitto"
[emulation]
host_core_speed = {host_core_speed}
[[fleet]]
profile = "raspberry-pi-4b"
count = 4
"""

FAIRBED = (sys.executable, "-m", "fairbed.testbed.cli.main", "run", "--json")

BACK_S = 30.0
"""Devices of a lost host must be back within so long."""


@contextmanager
def running(
    nodes: Nodes, folder: Path, rounds: int, host_core_speed: float = 6.0
) -> Iterator["subprocess.Popen[str]"]:
    experiment = folder / "hosts.toml"
    experiment.write_text(EXPERIMENT.format(rounds=rounds, host_core_speed=host_core_speed))
    process = subprocess.Popen(
        [*FAIRBED, str(experiment), "--out", str(folder / "run"), "--cluster", nodes.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **nodes.environ},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end(process)


def closed_rounds(folder: Path) -> int:
    try:
        with RunReader(folder) as reader:
            return len(reader.rounds())
    except StoreError:
        return 0


def events(folder: Path, *kinds: str) -> list[tuple[float, str]]:
    """Return the time on the clock of the run, and the text, of events of some kinds."""
    with RunReader(folder) as reader:
        return [(one.at_s, one.text) for _, one in reader.events() if one.kind in kinds]


def agents() -> list[psutil.Process]:
    """Return the processes that supervisors of hosts have started for this test."""
    found = list[psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "fairbed.testbed.backends" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_a_fleet_runs_on_two_hosts_and_leaves_nothing(tmp_path: Path) -> None:
    with ray_nodes() as nodes:
        nodes.add()
        nodes.add()
        with running(nodes, tmp_path, rounds=6) as run:
            wait_until(lambda: closed_rounds(tmp_path / "run") >= 1, "round 1")
            started = agents()
            assert len(started) >= len(DEVICES)
            out, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
        assert_gone(started)
    summary = json.loads(out)
    assert (summary["status"], summary["rounds_completed"]) == ("done", 6)
    assert summary["selected"].keys() == DEVICES
    hosts = [text for _, text in events(tmp_path / "run", "host")]
    assert len(hosts) == 2
    assert all("reference step" in text and "round trip" in text for text in hosts)
    placed = [set(text.rpartition("devices: ")[2].split(", ")) for text in hosts]
    assert [len(one) for one in placed] == [2, 2]
    assert set.union(*placed) == DEVICES
    assert {f"{name}.log" for name in DEVICES} <= {
        path.name for path in (tmp_path / "run" / "logs").iterdir()
    }


def test_devices_of_a_killed_node_are_back_within_30_s(tmp_path: Path) -> None:
    with ray_nodes() as nodes:
        nodes.add()
        second = nodes.add()
        with running(nodes, tmp_path, rounds=10_000) as run:
            folder = tmp_path / "run"
            wait_until(lambda: closed_rounds(folder) >= 3, "round 3")
            (lost,) = (
                set(text.rpartition("devices: ")[2].split(", "))
                for _, text in events(folder, "host")
                if "#2" in text
            )
            second.kill()

            def joined_again() -> set[str]:
                with RunReader(folder) as reader:
                    found = [one for _, one in reader.events()]
                moved = [one.at_s for one in found if one.kind == "host-lost"]
                return {
                    one.device or ""
                    for one in found
                    if moved and one.kind == "rejoined" and one.at_s > moved[0]
                }

            wait_until(lambda: joined_again() >= lost, "the devices of the lost host")
            run.terminate()
            _, err = run.communicate(timeout=60)
        assert run.returncode == 0, err
    (left_s, _), *_ = events(folder, "left")
    with RunReader(folder) as reader:
        back = [e for _, e in reader.events() if e.kind == "rejoined" and e.at_s > left_s]
    assert {one.device for one in back} == lost
    assert max(one.at_s for one in back) - left_s < BACK_S
    (_, why), *_ = events(folder, "host-lost")
    assert "gave no sign for" in why
    assert all(name in why for name in lost)
    assert len(events(folder, "moved")) == 1


def test_a_dead_address_is_one_line(tmp_path: Path) -> None:
    experiment = tmp_path / "hosts.toml"
    experiment.write_text(EXPERIMENT.format(rounds=1, host_core_speed=6.0))
    done = subprocess.run(
        [*FAIRBED, str(experiment), "--out", str(tmp_path / "run"), "--cluster", "127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fairbed: --cluster 127.0.0.1:9: a Ray cluster must answer")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
