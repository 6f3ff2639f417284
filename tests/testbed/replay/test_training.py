"""Replays with training: stored accuracy, the same bits after a resume, shared data."""

import hashlib
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from fairbed.coordinator.report.summary import summarise_run, summary_table
from fairbed.coordinator.rounds.loop import NothingAggregatedError
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import Experiment, ExperimentError, parse_experiment
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of
from tests.testbed.replay.fleets import EXAMPLES
from tests.tiers import in_depth

LINEAR = {"model": "linear", "theta": [1.0, 0.5, 0.2], "count": 8, "availability": 1.0}
PROFILES = {"profile": "raspberry-pi-4b", "count": 8}
DIGITS = 'data.dataset="digits"'
MIXED = [
    {"profile": "raspberry-pi-4b", "count": 5},
    {"profile": "raspberry-pi-zero-2w", "count": 3},
]
CODED = {"exchange": {"up": "top-k", "top_k": 0.1, "down": "delta"}}
FREE = {"round": {"mode": "async", "buffer": 2, "max_staleness": 20}}
HURRY_S = 0.035
"""A deadline that the slower devices miss."""
OORT = {"selection": {"policy": "oort", "per_round": 3}, "model": {"name": "mlp"}}
MOMENTUM = {"aggregation": {"server": "momentum", "server_learning_rate": 0.1}}
QUERIES = {"selection": {"policy": "power-of-choice", "variant": "pow-d", "per_round": 3}}
TABLES = ("device", "truth", "round", "selection", "loss_query", "exchange", "device_metric")


class Killed(Exception):
    """The replay was interrupted."""


Groups: TypeAlias = dict[str, object] | list[dict[str, object]]


def an_experiment(fleet: Groups = LINEAR, **sections: object) -> Experiment:
    raw: dict[str, object] = {
        "name": "trains",
        "rounds": 12,
        "data": {"dataset": "digits", "partition": {"kind": "by-class", "classes_per_device": 5}},
        "model": {"name": "softmax"},
        "training": {"epochs": 4, "batch_size": 20, "learning_rate": 0.2},
        "selection": {"policy": "uniform", "per_round": 4},
        "evaluation": {"every": 3},
        "fleet": fleet if isinstance(fleet, list) else [fleet],
    }
    return parse_experiment(raw | sections, "trains.toml")


def tables(folder: Path) -> dict[str, object]:
    """Return all rows of a replay without the times of this machine."""
    with sqlite3.connect(folder / "run.db") as connection:
        found: dict[str, object] = {
            name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall()
            for name in TABLES
        }
    with RunReader(folder) as reader:
        found["metric"] = [replace(row, evaluate_s=0.0) for row in reader.metrics()]
    models = sorted((folder / "models").glob("*.safetensors"))
    found["model"] = hashlib.sha256(models[-1].read_bytes()).hexdigest()
    return found


def cut_off_at(round_id: int, of: Experiment, folder: Path) -> None:
    def listener(replayed: ReplayedRound) -> None:
        if replayed.choice.round == round_id:
            raise Killed

    with pytest.raises(Killed):
        replay_experiment(of, folder, "run", listener, checkpoint_s=0.0)


@pytest.mark.parametrize("fleet", [LINEAR, PROFILES], ids=["linear", "profiles"])
def test_a_replay_learns_and_its_summary_has_the_accuracy(
    tmp_path: Path, fleet: dict[str, object]
) -> None:
    replay_experiment(an_experiment(fleet), tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        summary, metrics, exchanges = summarise_run(reader), reader.metrics(), reader.exchanges()
    assert [row.round for row in metrics] == [3, 6, 9, 12]
    assert summary.accuracy is not None
    assert summary.accuracy.mean is not None
    assert summary.accuracy.mean == metrics[-1].accuracy_mean
    assert summary.accuracy.mean > 0.8
    assert sum(row.n_k for row in exchanges if row.round == 1) > 300
    assert all(row.loss_train is not None for row in exchanges if row.outcome == "done")
    assert summary.weights.divergence == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("fleet", [LINEAR, PROFILES], ids=["linear", "profiles"])
def test_the_store_has_the_weight_of_each_update(tmp_path: Path, fleet: dict[str, object]) -> None:
    aggregation = {"rule": "corefed", "M": 4.0}
    experiment = an_experiment(fleet, aggregation=aggregation, rounds=4)
    replay_experiment(experiment, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        summary, exchanges = summarise_run(reader), reader.exchanges()
    for round_id in range(1, 5):
        merged = [x for x in exchanges if x.aggregated_round == round_id and x.outcome == "done"]
        losses = np.array([x.loss_before for x in merged], dtype=np.float64)
        utilities = 4.0 - losses
        shares = (1 / utilities) / (1 / utilities).sum()
        assert [x.weight for x in merged] == pytest.approx((1 / utilities / len(merged)).tolist())
        assert [x.weight_share for x in merged] == pytest.approx(shares.tolist())
        n_k = np.array([x.n_k for x in merged])
        assert [x.n_share for x in merged] == pytest.approx((n_k / n_k.sum()).tolist())
    assert summary.weights.divergence is not None
    assert summary.weights.divergence > 0.0
    ratios = {one.name: one.weight_ratio for one in summary.fleet if one.weight_ratio is not None}
    assert summary.weights.highest == max(ratios, key=lambda name: ratios[name])
    assert "\nweights    corefed: " in summary_table(summary)


@pytest.mark.parametrize(
    ("fleet", "sections"),
    [
        in_depth(LINEAR, {}),
        (PROFILES, {"aggregation": {"rule": "q-fedavg", "weights": "n_over_pi"}}),
        in_depth(
            LINEAR, {"selection": {"policy": "oort", "per_round": 3}, "model": {"name": "mlp"}}
        ),
        in_depth(PROFILES, {"exchange": {"up": "top-k", "top_k": 0.1, "down": "delta"}}),
        (MIXED, CODED | {"round": {"late": "merge", "deadline_s": HURRY_S}}),
        (MIXED, CODED | FREE),
        (PROFILES, QUERIES),
        in_depth(LINEAR, QUERIES | {"round": {"late": "merge", "deadline_s": 1.5}}),
        in_depth(PROFILES, {"aggregation": {"rule": "aaggff-s", "cdf": "normal"}}),
        in_depth(LINEAR, {"aggregation": {"rule": "aaggff-d", "impute": "previous_mean"}}),
        in_depth(LINEAR, {"aggregation": {"rule": "corefed", "weights": "n"}}),
        in_depth(LINEAR, {"aggregation": {"rule": "afl", "gamma": 0.01}}),
        in_depth(LINEAR, {"aggregation": {"rule": "fedmgda+", "epsilon": 0.2}}),
        (PROFILES, {"aggregation": {"rule": "aaggff-d", "server": "adam"}}),
        in_depth(MIXED, {"aggregation": {"pseudo_gradient": "fednova", "server": "yogi"}}),
        in_depth(
            MIXED, FREE | {"aggregation": {"server": "momentum", "server_learning_rate": 0.1}}
        ),
    ],
    ids=[
        *("linear", "q-fedavg", "oort", "codecs", "late", "async", "asks", "asks late"),
        *("aaggff-s", "aaggff-d", "corefed", "afl", "fedmgda+"),
        *("adam", "fednova", "momentum async"),
    ],
)
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, fleet: Groups, sections: dict[str, object]
) -> None:
    of = an_experiment(fleet, **sections)
    replay_experiment(of, tmp_path / "whole", "run", lambda replayed: None, threads=1)
    for at in (3, 7):
        cut_off_at(at, of, tmp_path / "parts")
    replay_experiment(of, tmp_path / "parts", "run", lambda replayed: None, threads=3)
    assert tables(tmp_path / "parts") == tables(tmp_path / "whole")
    with RunReader(tmp_path / "parts") as reader:
        summary = summarise_run(reader)
    assert bool(summary.exchange.aggregated_late) == of.round.merges_late_updates, (
        "something was under way"
    )
    assert bool(summary.loss_queries.answered) == (of.selection.variant == "pow-d")


def test_arms_share_data_fleet_and_traces_and_start_from_one_model() -> None:
    one = setup_of(an_experiment(seed=4))
    seeds = {"selection": 1, "training": 2, "init": 3}
    other = setup_of(an_experiment(seed=4, seeds=seeds, selection={"policy": "oort"}))
    assert one.data is not None
    assert other.data is not None
    for mine, theirs in zip(one.data.train_rows, other.data.train_rows, strict=True):
        assert mine.tolist() == theirs.tolist()
    assert list(one.names) == list(other.names)


@pytest.mark.parametrize(
    ("seeds", "same"), [({}, True), ({"training": 9}, False), ({"init": 9}, False)]
)
def test_seeds_of_training_and_init_change_the_model(
    tmp_path: Path, seeds: dict[str, int], same: bool
) -> None:
    for name, of in (("a", an_experiment()), ("b", an_experiment(seeds=seeds))):
        replay_experiment(of, tmp_path / name, "run", lambda replayed: None)
    a, b = tables(tmp_path / "a"), tables(tmp_path / "b")
    assert a["exchange" if same else "round"] == b["exchange" if same else "round"]
    assert (a["model"] == b["model"]) is same


def test_a_device_that_diverges_has_failed_and_is_not_merged(tmp_path: Path) -> None:
    steep = {"learning_rate": 1e15, "epochs": 2}
    of = an_experiment(model={"name": "mlp"}, training=steep, rounds=2)
    with pytest.raises(NothingAggregatedError, match="no update was aggregated in 2 rounds"):
        replay_experiment(of, tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        assert reader.run().status == "failed"
        rounds, exchanges = reader.rounds(), reader.exchanges()
    assert {row.outcome for row in exchanges} == {"failed"}
    assert {row.status for row in rounds} == {"void"}
    assert exchanges[0].reason == "training diverged; lower learning_rate or set clip_norm"


@pytest.mark.full
def test_without_training_a_replay_has_times_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = []
    for name, options in (("a", []), ("b", ["--no-training"]), ("c", ["--set", DIGITS])):
        out = ["--out", str(tmp_path / name), "--json", "--set", "rounds=8", *options]
        assert main(["replay", str(EXAMPLES / "rbcs-f-paper.toml"), *out, "--threads", "1"]) == 0
        summary.append(json.loads(capsys.readouterr().out))
    assert [one["accuracy"]["mean"] is None for one in summary] == [True, True, False]
    assert summary[0]["virtual_s"] == summary[1]["virtual_s"] == summary[2]["virtual_s"]


def test_training_needs_a_partition_of_the_data() -> None:
    with pytest.raises(ExperimentError, match=r"examples must not be set for a replay that trains"):
        an_experiment(replay={"training": True, "examples": 100})
    assert not an_experiment(replay={"examples": 100}).trains_in_replay
