"""Fleets of physical and emulated devices: planned, waited for, run, recorded and replayed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from fairbed.coordinator.policy.config import JOIN_TIMEOUT_S
from fairbed.coordinator.rounds.loop import waiting_line
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.store import RunReader
from fairbed.testbed.backends.choice import problem_with
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import Experiment, ExperimentError, parse_experiment
from fairbed.testbed.experiment.fleet import PlannedDevice, plan_fleet
from fairbed.testbed.run.broker import start_broker
from fairbed.testbed.run.preflight import choose_dilation, demand_of
from tests.testbed.small_run import LIMIT_S, running
from tests.wire.transport.test_tls import certificate, tls_broker

__all__ = ["certificate"]  # a fixture

MIXED = {
    "name": "mixed",
    "selection": {"per_round": 3, "beta": 0.1},
    "fleet": [
        {"profile": "raspberry-pi-4b", "count": 2},
        {"physical": ["pi-kitchen", "pi-hall"]},
        {"profile": "raspberry-pi-zero-2w"},
    ],
}
NAMES = [
    "raspberry-pi-4b-1",
    "raspberry-pi-4b-2",
    "pi-kitchen",
    "pi-hall",
    "raspberry-pi-zero-2w-1",
]


def mixed(**changes: object) -> Experiment:
    return parse_experiment({**MIXED, **changes}, "mixed.toml")


def planned(experiment: Experiment) -> list[PlannedDevice]:
    return plan_fleet(experiment, os.environ)


def test_each_device_has_a_shard_and_a_row_in_the_order_of_the_file() -> None:
    experiment = mixed()
    assert [device.spec.name for device in planned(experiment)] == NAMES
    assert [d.spec.name for d in planned(experiment) if d.is_physical] == ["pi-kitchen", "pi-hall"]
    assert (experiment.devices, experiment.shards) == (5, 5)


def test_round_1_waits_for_emulated_and_named_physical_devices_as_long_as_for_physical_ones() -> (
    None
):
    config = mixed().coordinator()
    assert (config.min_devices, config.join_timeout_s) == (5, JOIN_TIMEOUT_S)
    assert mixed(round={"min_devices": 2}).coordinator().min_devices == 2


def test_more_devices_may_join_an_emulated_fleet_and_get_shards() -> None:
    fleet = [{"profile": "raspberry-pi-4b", "count": 2}]
    experiment = mixed(fleet=fleet, round={"min_devices": 4})
    assert (experiment.devices, experiment.shards) == (2, 4)
    assert experiment.coordinator().join_timeout_s == JOIN_TIMEOUT_S


def test_a_physical_device_changes_no_draw_of_an_emulated_one() -> None:
    links = [{"population": "phones-2025", "count": 3}]
    alone = planned(mixed(fleet=links))
    before = planned(mixed(fleet=[*links, {"physical": ["pi-1"]}]))
    assert [d.tracks for d in before[:3]] == [d.tracks for d in alone]


def test_physical_devices_take_nothing_of_this_machine() -> None:
    experiment = mixed()
    devices = planned(experiment)
    emulated = [device for device in devices if not device.is_physical]
    assert demand_of(experiment, devices) == demand_of(experiment, emulated)
    assert choose_dilation(experiment, devices, cores=8.0) == 1.0


def test_a_fleet_with_physical_devices_is_never_slowed() -> None:
    experiment = mixed(emulation={"dilation": 2.0})
    with pytest.raises(
        ExperimentError, match=r"must be 1 with physical devices such as pi-kitchen"
    ):
        choose_dilation(experiment, planned(experiment), cores=8.0)


@pytest.mark.parametrize(
    ("fleet", "problem"),
    [
        (
            [{"physical": ["pi-1"], "count": 2}],
            "count must not be set for physical devices, got 2; remove it, or put",
        ),
        ([{"physical": ["pi-1"], "population": "phones-2025"}], "population must not be set"),
        (
            [{"physical": ["pi-1"], "malicious": {"kind": "free-rider", "count": 1}}],
            "malicious must not be set for physical devices",
        ),
        (
            [{"physical": ["pi-1"]}, {"physical": ["pi-2", "pi-1"]}],
            "fleet.physical: names must differ, got 'pi-1' twice",
        ),
        ([{"physical": ["Pi 1"]}], "fleet[0].physical[0]"),
        (
            [{"physical": ["raspberry-pi-4b-2"]}, {"profile": "raspberry-pi-4b", "count": 3}],
            "fleet[1].name: an emulated device must not have the name of a physical one, got "
            "'raspberry-pi-4b-2' for both; give this group another name",
        ),
    ],
)
def test_what_cannot_be_a_mixed_fleet_is_refused_in_one_line(
    fleet: list[dict[str, object]], problem: str
) -> None:
    with pytest.raises(ExperimentError) as refused:
        planned(mixed(fleet=fleet, selection={"per_round": 1, "beta": 0.0}))
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_wait_for_a_mixed_fleet_names_the_physical_devices_that_are_missing() -> None:
    registry = Registry(emulated={"board-1", "board-2"})
    registry.expect(["board-1", "pi-kitchen", "board-2", "pi-hall"])
    assert waiting_line(registry, now=0.0, wanted=4, left_s=595.2) == (
        "0 of 4 devices are ready for round 1, 595 s left; physical devices missing: pi-kitchen, "
        "pi-hall; not ready: board-1 awaited, board-2 awaited"
    )


def write(folder: Path, text: str) -> Path:
    path = folder / "mixed.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_private_broker_is_refused_for_physical_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path, 'name = "mixed"\n[[fleet]]\nphysical = ["pi-1", "pi-2", "pi-3", "pi-4"]\n'
    )
    assert main(["run", str(path), "--headless", "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "broker.url: must be a broker that physical devices such as pi-1 reach" in err
    assert 'set it to "lab"' in err


def test_a_replay_of_physical_devices_needs_their_profiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path, 'name = "mixed"\n[[fleet]]\nphysical = ["pi-1", "pi-2", "pi-3", "pi-4"]\n'
    )
    assert main(["replay", str(path), "--out", str(tmp_path / "replay")]) == 2
    assert "fairbed record --all --run RUN --out DIR writes their profiles" in (
        capsys.readouterr().err
    )


FLEET = """
[[fleet]]
name = "board"
profile = "raspberry-pi-4b"
link = "wifi-board"
[[fleet]]
physical = ["pi-kitchen"]
[[fleet]]
name = "zero"
profile = "raspberry-pi-zero-2w"
[emulation]
backend = "process"
host_core_speed = 8.0
"""


@contextmanager
def physical_agent(url: str, name: str, folder: Path, config: str = "") -> Iterator[None]:
    """Run a plain `device-agent` that the testbed does not know."""
    file = folder / f"{name}.toml"
    file.write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "fairbed.device_agent.cli", "--broker", url, "--name", name]
    command += ["--config", str(file)]
    folders = ["--cache", str(folder / "cache"), "--state", str(folder / "state")]
    with (folder / f"{name}.log").open("wb") as log:
        agent = subprocess.Popen([*command, *folders], stdout=log, stderr=log)
    try:
        yield
    finally:
        agent.terminate()
        agent.wait(LIMIT_S)


def assert_mixed(folder: Path) -> None:
    """Check that a run had two emulated devices and the physical one, and knows which is which."""
    with RunReader(folder) as reader:
        devices = reader.devices()
        assert {row.name for row in reader.truths()} == {"board-1", "zero-1"}
        kitchen = reader.exchanges_of("pi-kitchen")
    assert {row.name: row.kind for row in devices} == {
        "board-1": "emulated",
        "pi-kitchen": "physical",
        "zero-1": "emulated",
    }
    assert [row.name for row in devices] == ["board-1", "pi-kitchen", "zero-1"]
    assert any(x.outcome == "done" and x.is_valid for x in kitchen), [x.reason for x in kitchen]
    assert all(x.contended_s is None for x in kitchen)


@pytest.mark.anyio
@pytest.mark.broker
@pytest.mark.slow
async def test_two_emulated_devices_and_one_agent_of_its_own_make_one_run(tmp_path: Path) -> None:
    async with start_broker("mosquitto", folder=tmp_path) as broker:
        with (
            physical_agent(broker.url, "pi-kitchen", tmp_path),
            running(tmp_path, 6, 1, FLEET, url=broker.url) as run,
        ):
            code, out, err = await anyio.to_thread.run_sync(run.finish)
    assert code == 0, err
    assert json.loads(out)["status"] == "done"
    assert_mixed(run.folder)


@pytest.mark.anyio
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        "process",
        pytest.param("namespace", marks=pytest.mark.full),
        pytest.param("container", marks=pytest.mark.full),
    ],
)
async def test_emulated_devices_check_the_certificate_of_a_broker_behind_their_links(
    backend: str, tmp_path: Path, certificate: Path
) -> None:
    if backend != "process" and (problem := (await problem_with("namespace"))) is not None:
        pytest.skip(problem)
    fleet = FLEET.replace('"process"', f'"{backend}"')
    async with tls_broker(tmp_path, certificate) as plain:
        url = f"{plain}?cafile={certificate}"
        with (
            physical_agent(url, "pi-kitchen", tmp_path),
            running(tmp_path, 6, 1, fleet, url=url) as run,
        ):
            code, _, err = await anyio.to_thread.run_sync(run.finish)
    assert code == 0, err
    assert_mixed(run.folder)
