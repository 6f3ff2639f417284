"""The speed of this machine is measured once, cached, and used as a number in the fleet."""

import os
import time
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from fairbed.coordinator.policy.config import TrainingConfig
from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.api.planning import plan_run
from fairbed.testbed.cli import doctor
from fairbed.testbed.emulation.work import StepCost, WorkCosts
from fairbed.testbed.experiment.file import (
    EmulationConfig,
    Experiment,
    FleetConfig,
    parse_experiment,
)
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.host.calibration import Measured, Probe
from fairbed.testbed.host.speed import (
    REFERENCE_STEP_S,
    cache_path,
    costs_path,
    cpu_model,
    forget,
    host_speed,
)
from fairbed.wire.scale import Scale

EXPERIMENT = """
name = "auto"
rounds = 1
[selection]
per_round = 1
beta = 0.0
[emulation]
host_core_speed = "auto"
[[fleet]]
profile = "raspberry-pi-4b"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_is_measured_once_and_then_read(environ: dict[str, str]) -> None:
    first = host_speed(environ)
    assert first.core_speed == pytest.approx(REFERENCE_STEP_S / first.step_s, rel=0.01)
    assert 1e-5 < first.step_s < 10.0
    path = cache_path(environ)
    kept = msgspec.json.decode(path.read_bytes(), type=Measured)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(kept, reference_s=0.001)))
    assert host_speed(environ).core_speed == REFERENCE_STEP_S / 0.001
    assert {file.name for file in path.parent.iterdir()} == {path.name, "calibration.lock"}


@pytest.mark.parametrize("content", [b"", b"{", b'{"reference_s": 0}'])
@pytest.mark.full
def test_a_damaged_cache_is_measured_again(content: bytes, environ: dict[str, str]) -> None:
    path = cache_path(environ)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert host_speed(environ).step_s > 0.0
    assert msgspec.json.decode(path.read_bytes(), type=Measured).reference_s > 0.0


@pytest.mark.full
def test_a_cache_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert host_speed({"XDG_CACHE_HOME": str(tmp_path / "file")}).step_s > 0.0


def test_the_cache_is_for_this_processor_and_in_the_users_folder() -> None:
    assert cpu_model()
    path = cache_path({"HOME": "/home/user"})
    assert path.parent == Path("/home/user/.cache/fairbed")


@pytest.mark.full
def test_doctor_states_what_was_measured_and_measures_again(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", environ["XDG_CACHE_HOME"])
    cost = StepCost(fixed_s=0.001, per_example_s=0.0001)
    kept = Measured(
        task="softmax-64-10",
        batch_size=20,
        costs=WorkCosts(train=cost, evaluate=cost),
        reference_s=0.005,
        spread_ratio=0.012,
        reference_spread_ratio=0.004,
        measured_at=time.time() - 7300.0,
    )
    path = cache_path(environ)
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(kept))
    probe = Probe.of(load_task("softmax", (64,), 10), TrainingConfig(batch_size=20))
    task = costs_path(probe, environ)
    assert task is not None
    task.write_bytes(msgspec.json.encode(kept))
    host, costs = doctor._host(None)
    assert "a training step takes 5.00 ms, ±0.4 %, measured 2 h ago" in host.found
    assert costs.name == "softmax-64-10"
    assert costs.found == ("a training step of 20 examples takes 3 ms, ±1.2 %, measured 2 h ago")
    forget(environ)
    (again,) = doctor._host(None)
    assert "measured 0 s ago" in again.found or "measured 1 s ago" in again.found


def test_the_data_of_a_run_have_no_costs_of_their_own() -> None:
    task = load_task("softmax", (64,), 10)
    scale = Scale(low=0.0, high=1.0, mean=0.5, spread=0.1)
    same = structs.replace(task, scale=scale, labels=tuple("abcdefghij"))
    training = TrainingConfig(batch_size=20)
    assert Probe.of(same, training) == Probe.of(task, training)


@pytest.mark.full
def test_auto_becomes_a_number_that_the_run_keeps(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", environ["XDG_CACHE_HOME"])
    path = tmp_path / "auto.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    planned = plan_run(path, out=tmp_path / "out").experiment
    assert planned.emulation.host_core_speed == host_speed(os.environ).core_speed
    again = parse_experiment(msgspec.toml.decode(planned.resolved_toml()), "again")
    assert again.hash() == planned.hash()


def test_a_fleet_is_not_planned_for_a_machine_of_unknown_speed() -> None:
    plan = Experiment(
        name="auto",
        fleet=(FleetConfig(profile="n100", count=4),),
        emulation=EmulationConfig(host_core_speed="auto"),
    )
    with pytest.raises(ValueError, match="must be measured before a fleet is planned, got auto"):
        plan_fleet(plan, {})


def test_another_word_than_auto_is_refused() -> None:
    raw = {"name": "x", "emulation": {"host_core_speed": "fast"}}
    with pytest.raises(Exception, match=r"emulation\.host_core_speed: must be") as caught:
        parse_experiment(raw, "x.toml")
    assert "\n" not in str(caught.value)
