"""Replays with the cohorts of another replay, and the draws that arms of one seed share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.replay.world.world import LastRound
from tests.testbed.replay.fleets import EXAMPLES, experiment, seconds
from tests.testbed.replay.test_resume import cut_off_at, tables

PHONES = EXAMPLES / "phones.toml"
ROUNDS = 40
SETTINGS = [
    "replay.training=false",
    f"rounds={ROUNDS}",
    "replay.noise=0.1",
    "selection.policy=rbcs-f",
    "selection.beta=0.02",
]
NO_REASON: dict[str, Any] = dict.fromkeys(
    ("objective", "alternative", "alternative_out", "alternative_in")
)
"""Columns of a selection that the policy has made itself."""
LOSSES = "aggregation.rule=aaggff-d"
"""The devices evaluate the model before they train, so that every exchange takes longer."""


def phones(*settings: str) -> Experiment:
    """Return drawn phones, most of which are absent at any time."""
    return load_experiment(PHONES, [*SETTINGS, *settings])


def replayed(of: Experiment, folder: Path) -> Path:
    replay_experiment(of, folder, "run", lambda one: None)
    return folder


def cohorts(folder: Path) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    with RunReader(folder) as reader:
        for x in reader.exchanges():
            found.setdefault(x.round, []).append(x.device)
    return found


def durations(folder: Path) -> dict[tuple[int, str], tuple[float | None, float | None]]:
    with RunReader(folder) as reader:
        return {(x.round, x.device): (x.download_s, x.train_s) for x in reader.exchanges()}


def test_with_its_own_cohorts_a_replay_has_the_same_rows(tmp_path: Path) -> None:
    first = replayed(phones(), tmp_path / "first")
    again = replayed(phones(f"replay.cohorts_from={first}"), tmp_path / "again")
    for name in ("exchange", "device", "truth"):
        assert tables(again)[name] == tables(first)[name]
    with RunReader(again) as imposed, RunReader(first) as own:
        for ours, theirs in zip(imposed.rounds(), own.rounds(), strict=True):
            assert replace(ours, **NO_REASON) == replace(theirs, **NO_REASON)


def test_arms_with_imposed_cohorts_differ_in_their_rule_only(tmp_path: Path) -> None:
    first = replayed(phones(), tmp_path / "first")
    own = replayed(phones(LOSSES), tmp_path / "own")
    imposed = replayed(phones(LOSSES, f"replay.cohorts_from={first}"), tmp_path / "imposed")
    assert cohorts(own) != cohorts(first)
    assert cohorts(imposed) == cohorts(first)
    assert durations(imposed) == durations(first)
    with RunReader(imposed) as longer, RunReader(first) as shorter:
        assert longer.rounds()[-1].dispatched_at_s > shorter.rounds()[-1].dispatched_at_s


def test_a_resumed_replay_with_imposed_cohorts_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    first = replayed(phones(), tmp_path / "first")
    of = phones(LOSSES, f"replay.cohorts_from={first}")
    whole = replayed(of, tmp_path / "whole")
    cut_off_at(17, of, tmp_path / "resumed")
    assert tables(replayed(of, tmp_path / "resumed")) == tables(whole)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rounds": 31}, "a run of 30 rounds with a cohort, where 31 are needed"),
        ({"fleet": [seconds(1.0, 5)]}, "a run of 4 devices, which are not the 5 of this"),
        ({"round": {"mode": "async"}}, "exchanges outlive their round"),
    ],
)
def test_cohorts_that_do_not_fit_are_refused(
    changed: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    first = replayed(experiment(seconds(1.0, 4)), tmp_path / "first")
    fleet = changed.pop("fleet", [seconds(1.0, 4)])
    of = experiment(*fleet, replay={"cohorts_from": str(first)}, **changed)
    with pytest.raises(ExperimentError, match=rf"^replay\.cohorts_from: must .*{problem}"):
        setup_of(of)


def test_a_folder_without_a_run_gives_no_cohorts(tmp_path: Path) -> None:
    of = experiment(seconds(1.0, 4), replay={"cohorts_from": str(tmp_path)})
    with pytest.raises(ExperimentError, match=r"^replay\.cohorts_from: .*; replay it first"):
        setup_of(of)


ARMS: dict[str, list[str]] = {
    "fedavg": [],
    "losses": ["aggregation.rule=aaggff-d"],
    "personal": ["personalisation.method=ditto"],
    "longer": ["training.epochs=3"],
}


def test_arms_of_one_seed_share_every_draw_that_is_not_the_trajectory() -> None:
    """Data, first model, fleet, offsets in traces, mini-batches, jitter, and selection numbers."""
    setups = {
        name: setup_of(load_experiment(EXAMPLES / "quickstart.toml", ["replay.noise=0.2", *arm]))
        for name, arm in ARMS.items()
    }
    rows = np.arange(12)
    first = setups["fedavg"]
    assert first.data is not None
    for setup in setups.values():
        assert setup.data is not None
        for shards in ("train_rows", "test_rows"):
            for ours, theirs in zip(
                getattr(setup.data, shards), getattr(first.data, shards), strict=True
            ):
                assert ours.tolist() == theirs.tolist()
        assert setup.names == first.names
        for round_id in (1, 7):
            ours, theirs = (one.decisions.training_seeds(round_id, rows) for one in (setup, first))
            assert ours.tolist() == theirs.tolist()
            selected = [
                one.decisions.select(
                    round_id,
                    one.world.observe(round_id, 100.0, LastRound.before_first(12)),
                    (1e6, 1e6),
                    100.0,
                ).rows.tolist()
                for one in (setup, first)
            ]
            assert selected[0] == selected[1]
            taken = [one.world.exchange(round_id, 100.0, rows).download_s for one in (setup, first)]
            assert taken[0].tolist() == taken[1].tolist()
