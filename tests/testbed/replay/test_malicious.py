"""Replays with malicious devices: their effect, ground truth, resume, and what they need."""

from dataclasses import fields
from pathlib import Path

import pytest

from fairbed.coordinator.algorithms.aggregation.base import Report, Stack, Updates
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import DeviceRow, ExchangeRow, SelectionRow
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of
from tests.testbed.replay.test_training import LINEAR, PROFILES, an_experiment, cut_off_at, tables

LIE = {"kind": "lying-context", "count": 2}
QUEUES = {"selection": {"policy": "rbcs-f", "per_round": 3, "beta": 0.1}}


def ignore(replayed: ReplayedRound) -> None:
    """Take no note of a round."""


@pytest.mark.parametrize("fleet", [LINEAR, PROFILES], ids=["linear", "profiles"])
@pytest.mark.parametrize("sections", [QUEUES, {"selection": {"policy": "oort", "per_round": 3}}])
def test_being_malicious_has_no_effect_beside_the_lie(
    tmp_path: Path, fleet: dict[str, object], sections: dict[str, object]
) -> None:
    true = LIE | {"speed": 1.0}
    replay_experiment(an_experiment(fleet, **sections), tmp_path / "a", "a", ignore)
    replay_experiment(
        an_experiment(fleet | {"malicious": true}, **sections), tmp_path / "b", "b", print
    )
    honest, malicious = tables(tmp_path / "a"), tables(tmp_path / "b")
    assert honest.pop("truth") != malicious.pop("truth")
    assert honest == malicious


def test_no_decision_and_no_table_of_the_coordinator_knows_the_malicious_devices() -> None:
    for record in (Candidates, Outcomes, Report, Stack, Updates, DeviceRow, SelectionRow):
        names = {field.name for field in fields(record)}
        assert not {name for name in names if "malicious" in name or "attack" in name}
    assert "malicious" not in {field.name for field in fields(ExchangeRow)}


def test_the_truth_names_the_malicious_devices(tmp_path: Path) -> None:
    of = an_experiment(PROFILES | {"malicious": {"kind": "A3", "share": 0.25}}, rounds=2)
    replay_experiment(of, tmp_path / "run", "run", ignore)
    with RunReader(tmp_path / "run") as reader:
        kinds = {truth.name: truth.malicious for truth in reader.truths()}
        details = [truth.details for truth in reader.truths() if truth.malicious]
    attacks = setup_of(of).attacks
    assert sorted(kinds) == sorted(setup_of(of).names)
    assert {n for n, kind in kinds.items() if kind} == {setup_of(of).names[row] for row in attacks}
    assert set(kinds.values()) == {"model-replacement", None}
    assert all('"attack":{"kind":"model-replacement","scale":4.0' in text for text in details)


@pytest.mark.parametrize("fleet", [LINEAR, PROFILES], ids=["linear", "profiles"])
def test_a_false_context_changes_what_is_known_and_not_what_happens(
    tmp_path: Path, fleet: dict[str, object]
) -> None:
    sections = {"selection": {"policy": "uniform", "per_round": 8}, "rounds": 3}
    lie = LIE | {"speed": 4.0, "claims_cold": True}
    of = an_experiment(fleet | {"malicious": lie}, **sections)
    replay_experiment(an_experiment(fleet, **sections), tmp_path / "a", "a", ignore)
    replay_experiment(of, tmp_path / "b", "b", ignore)
    with RunReader(tmp_path / "a") as a, RunReader(tmp_path / "b") as b:
        pairs = list(zip(a.exchanges(), b.exchanges(), strict=True))
        liars = {truth.name for truth in b.truths() if truth.malicious}
    assert len(liars) == 2
    for honest, found in pairs:
        factor = 4.0 if found.device in liars else 1.0
        assert honest.mu_cores is not None
        assert honest.uplink_bps is not None
        assert found.mu_cores == pytest.approx(factor * honest.mu_cores)
        assert found.uplink_bps == pytest.approx(factor * honest.uplink_bps)
        assert found.tau_s == honest.tau_s
        assert found.was_cold == (honest.was_cold or found.device in liars)
    assert {honest.was_cold for honest, _ in pairs} == {True, False}


def test_a_device_that_is_honest_at_first_lies_after_its_exchanges(tmp_path: Path) -> None:
    lie = {"kind": "lying-context", "names": ["linear-1-3"], "speed": 4.0, "honest_exchanges": 2}
    always = {"selection": {"policy": "uniform", "per_round": 8}, "rounds": 4}
    replay_experiment(an_experiment(LINEAR, **always), tmp_path / "a", "a", ignore)
    replay_experiment(
        an_experiment(LINEAR | {"malicious": lie}, **always), tmp_path / "b", "b", ignore
    )
    with RunReader(tmp_path / "a") as a, RunReader(tmp_path / "b") as b:
        pairs = list(zip(a.exchanges(), b.exchanges(), strict=True))
    for honest, found in pairs:
        assert honest.mu_cores is not None
        lies = found.device == "linear-1-3" and found.round > 2
        assert found.mu_cores == pytest.approx((4.0 if lies else 1.0) * honest.mu_cores)


def test_a_replay_distrusts_contexts_that_exchanges_contradict(tmp_path: Path) -> None:
    selection = {"policy": "uniform", "per_round": 8, "context_check": 5.0}
    lie = LIE | {"speed": 50.0}
    of = an_experiment(PROFILES | {"malicious": lie}, selection=selection, rounds=5)
    replay_experiment(of, tmp_path / "run", "run", ignore)
    with RunReader(tmp_path / "run") as reader:
        events = [event for _, event in reader.events() if event.kind == "context check"]
        liars = {truth.name for truth in reader.truths() if truth.malicious}
    assert {(event.device, event.round) for event in events} == {(name, 3) for name in liars}
    assert all("contradict its claims, so predictions use" in event.text for event in events)


def test_fedcs_believes_a_device_that_claims_to_be_fast(tmp_path: Path) -> None:
    slow = {"profile": "raspberry-pi-zero-2w", "name": "zero", "count": 2}
    fast = {"profile": "raspberry-pi-4b", "name": "pi", "count": 6}
    selection = {"policy": "fedcs", "per_round": 3, "estimator": "ridge"}

    def selections_of_slow(name: str, group: dict[str, object]) -> int:
        of = an_experiment([fast, group], selection=selection, rounds=6)
        replay_experiment(of, tmp_path / name, name, ignore)
        with RunReader(tmp_path / name) as reader:
            counts = {count.device: count.selected for count in reader.selection_counts()}
        return counts["zero-1"] + counts["zero-2"]

    lie = {"kind": "lying-context", "count": 2, "speed": 100.0}
    honest = selections_of_slow("honest", slow)
    assert selections_of_slow("lying", slow | {"malicious": lie}) > honest


@pytest.mark.parametrize(
    "malicious",
    [
        {"kind": "replayed-update", "count": 3},
        {"kind": "A2", "count": 3},
        LIE | {"honest_exchanges": 3},
    ],
    ids=["replayed", "random", "context"],
)
def test_a_resumed_replay_has_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, malicious: dict[str, object]
) -> None:
    of = an_experiment(LINEAR | {"malicious": malicious})
    replay_experiment(of, tmp_path / "whole", "run", ignore, threads=1)
    for at in (3, 7):
        cut_off_at(at, of, tmp_path / "parts")
    replay_experiment(of, tmp_path / "parts", "run", ignore, threads=3)
    assert tables(tmp_path / "parts") == tables(tmp_path / "whole")


def test_nan_is_rejected_and_changes_nothing(tmp_path: Path) -> None:
    of = an_experiment(
        LINEAR | {"malicious": {"kind": "nan", "count": 3}},
        selection={"policy": "uniform", "per_round": 8},
        rounds=3,
    )
    replay_experiment(of, tmp_path / "run", "run", ignore)
    with RunReader(tmp_path / "run") as reader:
        exchanges = reader.exchanges()
        malicious = {truth.name for truth in reader.truths() if truth.malicious}
        assert reader.metrics()[-1].loss_mean is not None, "the model is finite"
    rejected = [x for x in exchanges if x.outcome == "rejected"]
    assert {x.device for x in rejected} == malicious
    assert len(rejected) == 9
    assert {x.reason for x in rejected} == {"vector: every value must be finite, got nan at 0"}
    assert {x.weight_share for x in rejected} == {None}
    assert {x.outcome for x in exchanges if x.device not in malicious} == {"done"}


@pytest.mark.parametrize("kind", ["A1", "A2", "A3", "free-rider", "nan", "lying-loss"])
def test_without_training_there_are_false_contexts_only(kind: str) -> None:
    group = LINEAR | {"malicious": {"kind": kind, "count": 1}}
    of = an_experiment(group, replay={"training": False})
    with pytest.raises(ExperimentError, match=r"^fleet\[0\]\.malicious\.kind: must be \"lying-con"):
        setup_of(of)
    setup_of(an_experiment(LINEAR | {"malicious": LIE}, replay={"training": False}))


def test_a_vector_fleet_has_no_malicious_devices() -> None:
    group = {"population": "phones-2025", "count": 10_001, "malicious": LIE}
    of = an_experiment(group, replay={"examples": 10})
    with pytest.raises(
        ExperimentError, match=r"^fleet\[0\]\.malicious: must not be set in a fleet"
    ):
        setup_of(of)


def test_a_named_device_of_a_linear_fleet_must_exist() -> None:
    of = an_experiment(LINEAR | {"malicious": {"kind": "A1", "names": ["linear-1-9"]}})
    with pytest.raises(ExperimentError, match="must be devices of this group, got 'linear-1-9'"):
        setup_of(of)
