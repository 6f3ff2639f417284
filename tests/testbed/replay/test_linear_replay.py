"""Replays of the world of rbcs-f-paper.toml: the recorded reference, repeatable bits, rounds."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.fairness import rate_slack
from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import (
    Experiment,
    ExperimentError,
    FleetConfig,
    load_experiment,
)
from fairbed.testbed.replay.engine.engine import ReplayedRound, ReplayEngine
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import linear_fleet_of
from fairbed.testbed.replay.world.linear import LinearLaw, LinearWorld

PAPER = Path(__file__).parents[3] / "examples" / "rbcs-f-paper.toml"
LAW = LinearLaw(
    theta=(1.0, 0.5, 0.2), mu=(0.5, 2.0), bandwidth_bps=(2e6, 4e6), availability=0.8, noise=0.1
)


def replay_rounds(*settings: str, seed: int = 0, rounds: int | None = None) -> list[ReplayedRound]:
    experiment = load_experiment(PAPER, settings, seed)
    options = experiment.replay
    world = LinearWorld(
        linear_fleet_of(experiment).laws,
        options.update_bits,
        seed,
        cold_start_coding=options.cold_start_coding,
    )
    decisions = make_decisions(experiment.coordinator())
    return list(ReplayEngine(decisions, world).replay(rounds or experiment.rounds))


def total_s(rounds: list[ReplayedRound]) -> float:
    return rounds[-1].started_s + rounds[-1].duration_s


@pytest.mark.parametrize(
    ("settings", "mild_s", "slack"),
    [
        pytest.param(["selection.policy=uniform"], 3241, 0.03, marks=pytest.mark.full),
        pytest.param(["selection.V=0"], 3286, 0.03, marks=pytest.mark.full),
        (["selection.V=20"], 1520, 0.03),
        pytest.param(["selection.V=50"], 1429, 0.03, marks=pytest.mark.full),
        pytest.param(["selection.policy=fastest-known"], 1022, 0.03, marks=pytest.mark.full),
        (["selection.policy=rbcs-f-known", "selection.V=20"], 1443, 0.03),
    ],
)
@pytest.mark.full
def test_total_times_are_those_of_the_reference_simulation(
    settings: list[str], mild_s: float, slack: float
) -> None:
    found = np.mean([total_s(replay_rounds(*settings, seed=seed)) for seed in range(3)])
    assert found == pytest.approx(mild_s, rel=slack)


@pytest.mark.full
def test_learning_costs_time_and_knowing_it_is_the_floor() -> None:
    learned, known = (
        np.mean([total_s(replay_rounds(f"selection.policy={p}", seed=s)) for s in range(3)])
        for p in ("rbcs-f", "rbcs-f-known")
    )
    assert 1.0 < learned / known < 1.1


def test_in_a_literal_world_devices_of_the_last_round_are_slower() -> None:
    rounds = replay_rounds(
        "replay.cold_start_coding=literal_seed", "selection.policy=uniform", rounds=9
    )
    before = set[int]()
    for replayed in rounds:
        for exchange in replayed.exchanges:
            assert (exchange.load_s > 0.0) == (exchange.row in before)
        before = set(replayed.choice.rows.tolist())


@pytest.mark.full
def test_in_a_literal_world_the_literal_coding_loses_no_time() -> None:
    """The estimator and the world then have the same feature."""
    both = "replay.cold_start_coding=literal_seed", "selection.cold_start_coding=literal_seed"
    literal, mixed, random = (
        total_s(replay_rounds(*settings))
        for settings in (both, both[:1], (*both, "selection.policy=uniform"))
    )
    assert literal < mixed < random
    known = total_s(replay_rounds(*both, "selection.policy=rbcs-f-known"))
    assert literal / known < 1.1


def test_policies_share_their_world() -> None:
    settings = ("selection.policy=uniform", "selection.V=0")
    one, other = (replay_rounds(setting, rounds=9) for setting in settings)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.snapshot.up_bps, b.snapshot.up_bps)
        np.testing.assert_array_equal(a.choice.is_available, b.choice.is_available)


def test_the_same_seed_gives_the_same_bits_and_another_one_another_run() -> None:
    first, again, other = (replay_rounds(rounds=40, seed=seed) for seed in (0, 0, 1))
    assert [p.tau_s.tolist() for p in first] == [p.tau_s.tolist() for p in again]
    assert total_s(first) != total_s(other)


def digest(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("settings", "rows", "taus", "outcomes", "end_s"),
    [
        (
            ["selection.policy=uniform"],
            "37e0a67b00f915d9",
            "c7e81ad383ab7d3c",
            "2f6dc701086f702c",
            "0x1.971786a338230p+11",
        ),
        (
            ["selection.policy=uniform", "round.over_select=3", "round.deadline_s=4.0"],
            "abf52544ed32fc64",
            "2c37e3307b5f768a",
            "1f51184f2af91b79",
            "0x1.d6f26f4994d2dp+10",
        ),
    ],
    ids=["waits for all", "takes the first"],
)
def test_the_bits_equal_the_published_ones(
    settings: list[str], rows: str, taus: str, outcomes: str, end_s: str
) -> None:
    """Published numbers depend on these bits."""
    rounds = replay_rounds(*settings, seed=3)
    assert digest(one.choice.rows.tobytes() for one in rounds) == rows
    assert digest(one.tau_s.tobytes() for one in rounds) == taus
    words = " ".join(word for one in rounds for word in one.outcome)
    assert digest([words.encode()]) == outcomes
    assert total_s(rounds).hex() == end_s


def test_the_queue_invariant_is_exact() -> None:
    experiment = load_experiment(PAPER)
    world = LinearWorld(linear_fleet_of(experiment).laws, experiment.replay.update_bits, 0)
    decisions, counts = make_decisions(experiment.coordinator()), np.zeros(len(world), np.int64)
    for t, one in enumerate(ReplayEngine(decisions, world).replay(200), 1):
        counts[one.choice.rows] += 1
        queues = decisions.selector.queues(len(world))
        assert rate_slack(counts, t, experiment.selection.beta, queues).min() >= -1e-9


def small(rounds: RoundConfig, per_round: int, law: LinearLaw = LAW) -> list[ReplayedRound]:
    config = Experiment(
        name="small",
        selection=SelectionConfig(policy="uniform", per_round=per_round),
        round=rounds,
        fleet=(FleetConfig(model="linear", theta=law.theta, count=9),),
    ).coordinator()
    return list(ReplayEngine(make_decisions(config), LinearWorld([law] * 9, 2e6, 0)).replay(60))


def test_a_round_waits_for_all_devices_up_to_its_deadline() -> None:
    for one in small(RoundConfig(deadline_s=1.5), 4):
        late = [word == "late" for word in one.outcome]
        assert late == (one.tau_s > 1.5).tolist()
        assert one.duration_s == (1.5 if any(late) else one.tau_s.max())


def test_over_selection_merges_the_first_and_cancels_the_others() -> None:
    for one in small(RoundConfig(deadline_s=1e3, over_select=2), 3):
        if len(one.outcome) < 5:
            continue
        assert one.outcome.count("done") == 3
        assert one.outcome.count("cancelled") == 2
        assert one.duration_s == np.sort(one.tau_s)[2]


def test_a_round_without_devices_is_void_and_lasts_the_void_wait() -> None:
    rounds = small(RoundConfig(void_wait_s=2.5), 3, replace(LAW, availability=0.02))
    empty = [one for one in rounds if not one.exchanges]
    assert {one.duration_s for one in empty} == {2.5}
    assert len(rounds) == 60 + len(empty) > 70, "60 rounds have a cohort"


def test_a_device_is_cold_unless_it_trained_in_the_round_before() -> None:
    trained: set[int] = set()
    for one in small(RoundConfig(deadline_s=1.5), 4):
        rows = one.choice.rows.tolist()
        assert [x.was_cold for x in one.exchanges] == [row not in trained for row in rows]
        trained = {row for row, word in zip(rows, one.outcome, strict=True) if word == "done"}


def test_a_replay_is_stored_and_summarised_like_any_run(tmp_path: Path) -> None:
    experiment = load_experiment(PAPER, ["rounds=50"])
    seen = list[ReplayedRound]()
    replay_experiment(experiment, tmp_path / "run", "run", seen.append)
    with RunReader(tmp_path / "run") as reader:
        summary, rows, devices = summarise_run(reader), reader.exchanges(), reader.devices()
    assert (summary.status, summary.rounds_completed, summary.devices) == ("done", 50, 40)
    assert summary.virtual_s == pytest.approx(total_s(seen))
    assert 0.0 < summary.wall_s < summary.virtual_s, "a minute of it takes far less than a minute"
    assert summary.dilation == pytest.approx(summary.wall_s / summary.virtual_s)
    assert summary.fairness.invariant_holds
    pairs = zip(seen[6].choice.rows, seen[6].tau_s, strict=True)
    tau_s = {devices[row].name: at for row, at in pairs}
    assert {row.device: row.tau_s for row in rows if row.round == 7} == pytest.approx(tau_s)
    for row in rows:
        parts = (row.train_s or 0.0) + (row.load_s or 0.0) + (row.upload_s or 0.0)
        assert parts == pytest.approx(row.tau_s)


def test_the_command_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "run"), "--json", "--seed", "3", "--set", "rounds=20"]
    assert main(["replay", str(PAPER), *out]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rounds_completed"], summary["seed"]) == (20, 3)
    assert summary["rounds_per_s"] > 0.0


@pytest.mark.parametrize("estimator", ["ridge", "phases"])
def test_both_estimators_learn_this_world(tmp_path: Path, estimator: str) -> None:
    experiment = load_experiment(PAPER, ["rounds=200", f"selection.estimator={estimator}"])
    replay_experiment(experiment, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        error = summarise_run(reader).estimator.median_ape
    assert error is not None
    assert error < 0.08


def test_a_linear_fleet_is_neither_emulated_nor_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(PAPER), "--headless", "--out", str(tmp_path / "b")]) == 2
    assert "use fairbed replay" in capsys.readouterr().err
    mixed = (
        FleetConfig(model="linear", theta=(1.0, 1.0, 1.0)),
        FleetConfig(profile="raspberry-pi-4b", count=4),
    )
    with pytest.raises(ExperimentError, match="for all groups or for none"):
        linear_fleet_of(Experiment(name="x", fleet=mixed))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        ({"model": "linear"}, "theta must be given"),
        ({"theta": [1, 1, 1]}, "theta must be given"),
        ({"model": "linear", "theta": [1, 1, 1], "profile": "n100"}, "model excludes"),
        ({"model": "linear", "theta": [1, 1, 1], "mu": [2.0, 1.0]}, "mu must be"),
    ],
)
def test_a_linear_fleet_with_a_mistake_is_refused(fleet: dict[str, object], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(fleet, FleetConfig)


def test_two_groups_of_one_name_are_refused() -> None:
    group = FleetConfig(model="linear", theta=(1.0, 1.0, 1.0), name="a", count=5)
    with pytest.raises(ExperimentError, match="names must differ"):
        linear_fleet_of(Experiment(name="x", fleet=(group, group)))
