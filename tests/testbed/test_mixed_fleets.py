"""Fleets of physical and emulated devices: planned, waited for, run, recorded and replayed."""

import json
import os
import re
import sqlite3
import statistics
import subprocess
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from fairbed import profiles
from fairbed.coordinator.policy.config import JOIN_TIMEOUT_S, SelectionConfig
from fairbed.coordinator.rounds.loop import waiting_line
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.store import RunReader
from fairbed.testbed.backends.choice import problem_with
from fairbed.testbed.cli.main import main
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.experiment.file import (
    Experiment,
    ExperimentError,
    load_experiment,
    parse_experiment,
)
from fairbed.testbed.experiment.fleet import PlannedDevice, plan_fleet
from fairbed.testbed.experiment.shards import StoredShards
from fairbed.testbed.lab.folder import LabBroker
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.recording.whole_run import devices_to_record, recorded_experiment
from fairbed.testbed.run.broker import start_broker
from fairbed.testbed.run.preflight import choose_dilation, demand_of
from fairbed.wire.messages import DEVICE_PHASES
from fairbed.wire.topics import Topics
from fairbed.wire.transport.client import MqttTransport
from tests.testbed.lab.labs import FAIRBED, lab_up, make_lab, task_key_line
from tests.testbed.small_run import LIMIT_S, Running, physical_agent, running
from tests.wire.transport.drivers import packets, up

ROOT = Path(__file__).parents[2]

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


COSTS = TaskCosts(step_s=1e-3, example_s=1e-5, evaluation_step_s=0.0, evaluation_example_s=0.0)

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


HIDDEN = """
name = "mixed"
seed = 5
rounds = 30
[data]
dataset = "digits"
[model]
name = "mlp"
[training]
epochs = 4
[selection]
per_round = 3
beta = 0.3
[evaluation]
every = 0
[[fleet]]
name = "board"
profile = "raspberry-pi-4b"
link = "wifi-board"
always_available = true
count = 2
[[fleet]]
physical = ["pi-kitchen"]
profile = "raspberry-pi-zero-2w"
[[fleet]]
physical = ["pi-hall"]
profile = "raspberry-pi-3b-plus"
"""
"""The profiles of the physical devices are hidden from the recording: it must find them."""


@pytest.fixture
def mixed_run(tmp_path: Path) -> Path:
    """Return the folder of a run of two emulated and two physical devices, on a virtual clock."""
    folder = tmp_path / "runs" / "mixed"
    assert main(["replay", str(write(tmp_path, HIDDEN)), "--out", str(folder)]) == 0
    with sqlite3.connect(folder / "run.db") as store:
        store.execute("DELETE FROM truth WHERE name LIKE 'pi-%'")
        store.execute("UPDATE device SET kind = iif(name LIKE 'pi-%', 'physical', 'emulated')")
    store.close()
    experiment = folder / "experiment.toml"
    hidden = r'profile = "raspberry-pi-(zero-2w|3b-plus)"\n'
    experiment.write_text(re.sub(hidden, "", experiment.read_text("utf-8")), "utf-8")
    return folder


def medians(folder: Path) -> dict[str, dict[str, float]]:
    """Return the median exchange time, training time and energy of each device."""
    with RunReader(folder) as reader:
        return {
            row.name: {
                column: statistics.median(
                    value
                    for x in reader.exchanges_of(row.name, limit=-1)
                    if (value := getattr(x, column)) is not None
                )
                for column in ("tau_s", "train_s", "energy_j")
            }
            for row in reader.devices()
        }


def test_the_record_of_a_mixed_run_replays_both_kinds_of_devices(
    mixed_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recorded"
    assert main(["record", "--all", "--run", str(mixed_run), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"replay the run with: fairbed replay {out / 'experiment.toml'}\n")
    replay = tmp_path / "runs" / "again"
    assert main(["replay", str(out / "experiment.toml"), "--out", str(replay)]) == 0
    before, after = medians(mixed_run), medians(replay)
    assert list(before) == list(after) == ["board-1", "board-2", "pi-kitchen", "pi-hall"]
    for name, numbers in before.items():
        for column, median in numbers.items():
            assert after[name][column] == pytest.approx(median, rel=0.1), (name, column)
    with RunReader(replay) as reader:
        assert {row.kind for row in reader.devices()} == {"replayed"}
    capsys.readouterr()
    assert main(["twin", str(mixed_run), "--profiles", str(out), "--json"]) == 0
    twins = json.loads(capsys.readouterr().out)
    assert [twin["device"] for twin in twins] == ["pi-kitchen", "pi-hall"]


def test_the_example_is_that_of_its_page_and_can_be_replayed(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "mixed-fleet.toml").read_text("utf-8")
    page = (ROOT / "docs" / "mixed-fleets.md").read_text("utf-8")
    assert text.partition("\n\n")[2] in page
    command = ["replay", str(ROOT / "examples" / "mixed-fleet.toml"), "--set", "rounds=2"]
    assert main([*command, "--out", str(tmp_path / "replay")]) == 0
    names = ["board-1", "board-2", "board-3", "pi-kitchen", "pi-hall"]
    with RunReader(tmp_path / "replay") as reader:
        assert [row.name for row in reader.devices()] == names


def test_devices_that_were_not_named_are_recorded_after_those_that_were(mixed_run: Path) -> None:
    """Shards are given by the order of requests, and a replay gives them by the order of groups."""
    experiment = load_experiment(mixed_run / "experiment.toml")
    unnamed = msgspec.structs.replace(
        experiment,
        fleet=experiment.fleet[:1],
        selection=SelectionConfig(per_round=2, beta=0.0),
    )
    (mixed_run / "experiment.toml").write_text(unnamed.resolved_toml(), "utf-8")
    (mixed_run / "shards.json").write_text('{"pi-hall": 2, "pi-kitchen": 3}', "utf-8")
    paths = {name: Path(f"{name}.toml") for name in ("pi-kitchen", "pi-hall")}
    found, remarks = recorded_experiment(mixed_run, paths, COSTS)
    assert found.physical == ("pi-hall", "pi-kitchen")
    assert [group.profile for group in found.fleet[1:]] == ["pi-hall.toml", "pi-kitchen.toml"]
    assert remarks == ["the run divided its data among 2 devices, the replay among 4"]


def test_plain_agents_of_a_fleet_keep_their_names_with_a_profile_each(mixed_run: Path) -> None:
    experiment = mixed_run / "experiment.toml"
    text = experiment.read_text("utf-8").replace('profile = "raspberry-pi-4b"\n', "")
    experiment.write_text(text.replace('link = "wifi-board"\n', ""), "utf-8")
    with sqlite3.connect(mixed_run / "run.db") as store:
        store.execute("UPDATE truth SET profile = 'this-machine'")
    store.close()
    names = ["board-1", "board-2", "pi-kitchen", "pi-hall"]
    assert [row.name for row in devices_to_record(mixed_run)] == names
    paths = {name: profiles.find("raspberry-pi-4b") for name in names}
    found, remarks = recorded_experiment(mixed_run, paths, COSTS)
    assert [device.spec.name for device in plan_fleet(found, {})] == names
    assert remarks == []


def test_the_record_names_what_the_replay_cannot_have(mixed_run: Path) -> None:
    with sqlite3.connect(mixed_run / "run.db") as store:
        store.execute("DELETE FROM device WHERE name = 'pi-hall'")
        store.execute("UPDATE device SET has_own_data = 1 WHERE name = 'pi-kitchen'")
    store.close()
    found, remarks = recorded_experiment(mixed_run, {"pi-kitchen": Path("k.toml")}, COSTS)
    assert found.physical == ("pi-kitchen",)
    assert remarks == [
        "pi-hall: never joined the run, so the replay has no such device",
        "pi-kitchen: trained on own data, which stay there; the replay gives a shard",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["pi-hall", "--all", "--run", "RUN"], "--all: records the devices of a run under their"),
        (["--all"], "--all: records the devices of a run under their names, as in: fairbed record"),
        (["--all", "--run", "RUN", "--out", "OUT"], "pi-kitchen.toml: exists already; choose"),
    ],
)
def test_a_mistake_with_a_whole_run_is_one_line(
    arguments: list[str],
    problem: str,
    mixed_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "pi-kitchen.toml").touch()
    places = {"RUN": str(mixed_run), "OUT": str(tmp_path)}
    assert main(["record", *(places.get(each, each) for each in arguments)]) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert err.count("\n") == 1


def test_a_device_that_cannot_be_recorded_leaves_no_file(
    mixed_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(mixed_run / "run.db") as store:
        store.execute("DELETE FROM exchange WHERE device = 'pi-hall'")
    store.close()
    out = tmp_path / "out"
    assert main(["record", "--all", "--run", str(mixed_run), "--out", str(out)]) == 1
    assert "pi-hall: core_speed must be measured or taken from a profile" in capsys.readouterr().err
    assert not out.exists()


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
    assert any(x.outcome == "done" for x in kitchen), [x.reason for x in kitchen]
    assert all(x.contended_s is None for x in kitchen)


def assert_power(folder: Path, watts: float, summary: dict[str, Any]) -> None:
    """Check that the sensor of the physical device reached store and summary.

    The phases of this agent last a few milliseconds, of which a reading that waits for the
    processor is a large part (`tests/device_agent/test_power.py` has the exact sums). An upload
    ends at the device before it arrives.
    """
    with RunReader(folder) as reader:
        known = [x for x in reader.exchanges_of("pi-kitchen", limit=-1) if x.energy_j is not None]
    assert any(x.outcome == "done" for x in known)
    at_device_s = sum(getattr(x, f"{phase}_s") or 0.0 for x in known for phase in DEVICE_PHASES)
    at_device_j = sum(getattr(x, f"{phase}_j") or 0.0 for x in known for phase in DEVICE_PHASES)
    assert at_device_j == pytest.approx(watts * at_device_s, rel=0.5)
    assert all((x.upload_j or 0.0) > 0.0 for x in known if x.outcome == "done")
    (device,) = [each for each in summary["fleet"] if each["name"] == "pi-kitchen"]
    assert (device["kind"], device["energy_j"]) == (
        "physical",
        pytest.approx(sum(x.energy_j or 0.0 for x in known)),
    )
    assert summary["energy"]["total_j"] > device["energy_j"]  # with the emulated ones


@pytest.mark.broker
@pytest.mark.slow
def test_two_emulated_devices_and_one_agent_of_its_own_make_one_run(tmp_path: Path) -> None:
    async def mixed_run() -> tuple[Running, int, str, str]:
        async with start_broker("mosquitto", folder=tmp_path) as broker:
            with (
                physical_agent(broker.url, "pi-kitchen", tmp_path, f'[power]\nfile = "{power}"\n'),
                running(tmp_path, 15, 5, FLEET, url=broker.url) as run,
            ):
                return run, *await anyio.to_thread.run_sync(run.finish)

    power = tmp_path / "power"
    power.write_text("5.0 W\n")
    run, code, out, err = anyio.run(mixed_run)
    assert code == 0, err
    summary = json.loads(out)
    assert summary["status"] == "done"
    assert_mixed(run.folder)
    assert_power(run.folder, 5.0, summary)
    recorded, replay = tmp_path / "recorded", tmp_path / "replay"
    whole = ["record", "--all", "--run", str(run.folder), "--out", str(recorded)]
    whole += ["--like", "n100"]  # if a busy machine leaves too few exchanges
    assert main(whole) == 0
    assert main(["replay", str(recorded / "experiment.toml"), "--out", str(replay)]) == 0
    assert list(medians(replay)) == ["board-1", "pi-kitchen", "zero-1"]


OPEN = """
name = "open"
rounds = 2
[model]
name = "softmax"
[selection]
policy = "uniform"
per_round = 2
[round]
min_devices = 2
[emulation]
backend = "process"
[[fleet]]
name = "zero"
profile = "raspberry-pi-zero-2w"
"""


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.full
def test_a_device_without_an_entry_joins_an_emulated_fleet_that_waits_for_more(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    command = [*FAIRBED, "run", str(write(tmp_path, OPEN)), "--headless", "--out", str(folder)]

    async def joined() -> "subprocess.CompletedProcess[bytes]":
        async with start_broker("mosquitto", folder=tmp_path) as broker:
            with physical_agent(broker.url, "pi-any", tmp_path):
                url = ["--set", f"broker.url={broker.url}"]
                with anyio.fail_after(LIMIT_S):
                    return await anyio.run_process([*command, *url], check=False)

    ended = anyio.run(joined)
    assert ended.returncode == 0, ended.stderr
    assert StoredShards.read(folder) == {"zero-1": 0, "pi-any": 1}
    with RunReader(folder) as reader:
        assert {row.name: row.kind for row in reader.devices()} == {
            "zero-1": "emulated",
            "pi-any": "physical",
        }
        assert {x.device for x in reader.exchanges()} == {"zero-1", "pi-any"}


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.full
def test_an_agent_with_the_name_of_an_emulated_device_is_refused_at_a_plain_broker(
    tmp_path: Path,
) -> None:
    async def collide() -> tuple[int, str, str]:
        async with start_broker("mosquitto", folder=tmp_path) as broker:
            with physical_agent(broker.url, "zero-1", tmp_path):
                async with MqttTransport(broker.url, "look") as link:
                    await up(link)
                    await link.subscribe(Topics().status("zero-1"))
                    await packets(link, 1)
                with running(tmp_path, 1, 1, FLEET, url=broker.url) as run:
                    return await anyio.to_thread.run_sync(run.finish)

    code, _, err = anyio.run(collide)
    assert (code, err.splitlines()[-1]) == (
        1,
        "fairbed: fleet: an emulated device must not have the name of another agent at the broker, "
        "got 'zero-1', which is online; stop that agent, or give its [[fleet]] another name",
    )


FULL = pytest.mark.full


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize(
    ("broker", "backend"),
    [
        ("mosquitto", "process"),
        pytest.param("mosquitto", "namespace", marks=FULL),
        pytest.param("nats", "process", marks=FULL),  # these with TLS on every connection
        pytest.param("nats", "namespace", marks=FULL),
        pytest.param("nats", "container", marks=FULL),
    ],
)
def test_emulated_devices_have_identities_at_a_lab_for_the_time_of_their_run(
    broker: LabBroker, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend != "process" and (problem := anyio.run(problem_with, "namespace")) is not None:
        pytest.skip(problem)
    lab = make_lab(tmp_path, broker)
    monkeypatch.setenv("FAIRBED_LAB", str(lab.folder))
    with lab_up(lab), Identities(lab.database) as identities:
        password = identities.create("pi-kitchen")
        url = f"mqtts://pi-kitchen:{password}@127.0.0.1:{lab.settings.port}?cafile={lab.ca}"
        fleet = FLEET.replace('"process"', f'"{backend}"')
        power = '[power]\ncommand = ["/bin/echo", "4000"]\nunit = "mW"\n'
        with (
            physical_agent(url, "pi-kitchen", tmp_path, task_key_line(lab, "pi-kitchen") + power),
            running(tmp_path, 8, 1, fleet, url="lab") as run,
        ):
            run.wait_round(1)
            during = [(x.name, x.run) for x in identities.all() if x.role == "device"]
            code, out, err = run.finish()
        after = [x.name for x in identities.all() if x.role == "device"]
    assert code == 0, err
    assert during == [("board-1", "run"), ("pi-kitchen", None), ("zero-1", "run")]
    assert after == ["pi-kitchen"]
    assert_mixed(run.folder)
    assert_power(run.folder, 4.0, json.loads(out))


@pytest.mark.broker
@pytest.mark.slow
@FULL
def test_a_mixed_run_that_was_killed_resumes_with_the_same_devices_and_identities_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(tmp_path)
    monkeypatch.setenv("FAIRBED_LAB", str(lab.folder))
    with lab_up(lab), Identities(lab.database) as identities:
        url = "mqtts://pi-kitchen:{}@127.0.0.1:{}?cafile={}".format(
            identities.create("pi-kitchen"), lab.settings.port, lab.ca
        )
        with physical_agent(url, "pi-kitchen", tmp_path, task_key_line(lab, "pi-kitchen")):
            with running(tmp_path, 12, 1, FLEET, url="lab") as run:
                run.wait_round(3)
                run.process.kill()
            assert {x.name for x in identities.all() if x.run == "run"} == {"board-1", "zero-1"}
            again = Running(tmp_path, resume=True)
            code, _, err = again.finish()
        assert [x.name for x in identities.all() if x.role == "device"] == ["pi-kitchen"]
    assert code == 0, err
    assert_mixed(run.folder)
    with RunReader(run.folder) as reader:
        assert [row.round for row in reader.rounds()] == list(range(1, 13))


ABSENT = """
name = "absent"
[selection]
per_round = 2
beta = 0.3
[round]
join_timeout_s = 0.5
[broker]
url = "lab"
[[fleet]]
name = "zero"
[[fleet]]
physical = ["pi-1", "pi-2"]
[emulation]
backend = "process"
"""


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.full
def test_names_at_a_lab_are_of_one_device_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(tmp_path)
    monkeypatch.setenv("FAIRBED_LAB", str(lab.folder))
    absent = write(tmp_path, ABSENT)
    with lab_up(lab), Identities(lab.database) as identities:
        identities.create("board-1")
        with running(tmp_path, 1, 1, FLEET, url="lab") as run:
            code, _, err = run.finish()
        assert (code, err.splitlines()[-1]) == (
            2,
            "fairbed: fleet: an emulated device must not have the name of an enrolled one, got "
            "'board-1' for both; give its [[fleet]] another name",
        )
        identities.create("pi-1")
        command = [*FAIRBED, "run", str(absent), "--headless", "--out", str(tmp_path / "absent")]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    assert ended.returncode == 1
    assert "waiting: pi-2 is not enrolled in the lab; run: fairbed enroll pi-2\n" in ended.stdout
    assert "pi-1 is not enrolled" not in ended.stdout
    assert "fleet: 3 devices must be ready within 0.5 s, got " in ended.stderr
    assert " joined (physical devices missing: pi-1, pi-2); read their logs" in ended.stderr
