"""Losses that are asked for before a selection, in a replay: what they cost, and who is told."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.rounds.loop import NothingAggregatedError
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow, LossQueryRow, RoundRow
from fairbed.testbed.experiment.file import Experiment, ExperimentError, parse_experiment
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.engine.loss_query import NO_LOSS, query_losses
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import FORWARD_RATIO, setup_of
from fairbed.testbed.replay.world.world import LastRound
from tests.testbed.replay.fleets import COSTS, experiment, seconds
from tests.testbed.replay.test_profile_replay import DEVICE, MODEL_BITS, SPEED, STORAGE

POW_D = {"policy": "power-of-choice", "variant": "pow-d", "per_round": 2, "candidates": 4}
NO_EXAMPLES = {"examples": None}


@pytest.fixture
def device(tmp_path: Path) -> str:
    """Return the path of a profile."""
    path = tmp_path / "plain.toml"
    path.write_text(DEVICE)
    return str(path)


def asking(*fleet: dict[str, Any], **sections: Any) -> Experiment:
    """Return an experiment that trains and asks."""
    chosen = {"selection": POW_D | sections.pop("selection", {}), "rounds": 6}
    return experiment(*fleet, **(chosen | {"replay": NO_EXAMPLES} | sections))


class Kept:
    """What a replay left."""

    def __init__(self, of: Experiment, folder: Path) -> None:
        with suppress(NothingAggregatedError):
            replay_experiment(of, folder, "run", lambda replayed: None)
        with RunReader(folder) as reader:
            self.summary = summarise_run(reader)
            self.rounds: dict[int, RoundRow] = {row.round: row for row in reader.rounds()}
            self.asks: dict[int, list[LossQueryRow]] = {t: [] for t in self.rounds}
            self.exchanges: dict[int, list[ExchangeRow]] = {t: [] for t in self.rounds}
            for ask in reader.loss_queries():
                self.asks[ask.round].append(ask)
            for x in reader.exchanges():
                self.exchanges[x.round].append(x)
            self.n_k = {row.name: row.n_k for row in reader.devices()}


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d"])
def test_a_question_takes_what_the_profile_says_and_the_exchange_no_more_of_it(
    device: str, tmp_path: Path, variant: str
) -> None:
    of = asking({"profile": device, "count": 6}, selection={"variant": variant})
    kept = Kept(of, tmp_path / "run")
    trained = set[str]()
    for t, asks in kept.asks.items():
        assert len(asks) == 4
        for ask in asks:
            n = kept.n_k[ask.device]
            looked_at = min(n, 20) if variant == "cpow-d" else n
            cold_s = n * (64 * 4 + 8) / STORAGE + COSTS["load_s"] / SPEED
            evaluate_s = (COSTS["evaluation_step_s"] * -(-looked_at // 256)) / SPEED
            evaluate_s += COSTS["evaluation_example_s"] * looked_at / SPEED
            assert ask.outcome == "answered"
            assert ask.was_cold == (ask.device not in trained)
            assert ask.download_s == pytest.approx(0.06 + MODEL_BITS / 400e3)
            assert ask.load_s == pytest.approx(cold_s if ask.was_cold else 0.0)
            assert ask.evaluate_s == pytest.approx(evaluate_s)
            parts_s = ask.download_s or 0.0, ask.load_s or 0.0, ask.evaluate_s or 0.0
            assert ask.duration_s == pytest.approx(0.06 + sum(parts_s))
            assert ask.bytes_down == MODEL_BITS / 8
        losses = {ask.device: ask.loss or 0.0 for ask in asks}
        worst = sorted(losses, key=lambda name: -losses[name])[:2]
        cohort = kept.exchanges[t]
        assert sorted(x.device for x in cohort) == sorted(worst)
        for x in cohort:
            assert (x.outcome, x.bytes_down, x.download_s, x.load_s) == ("done", 0, 0.0, 0.0)
            assert x.was_cold is False
            assert x.tau_s == pytest.approx((x.train_s or 0.0) + 0.06 + 0.06 + MODEL_BITS / 100e3)
        trained = {x.device for x in cohort}
        row = kept.rounds[t]
        assert row.loss_query_s == pytest.approx(max(ask.duration_s or 0.0 for ask in asks))
        assert row.duration_s == pytest.approx(row.loss_query_s + row.tau_max_s)
        assert row.bytes_down == 4 * MODEL_BITS / 8
    assert (kept.summary.loss_queries.count, kept.summary.loss_queries.answered) == (24, 24)
    assert kept.summary.virtual_s == pytest.approx(kept.rounds[6].closed_at_s)
    assert max(ask.loss or 0.0 for ask in kept.asks[6]) < max(a.loss or 0.0 for a in kept.asks[1])


def test_expected_times_know_who_has_the_model(device: str, tmp_path: Path) -> None:
    of, known = asking({"profile": device, "count": 4}, selection={"per_round": 4}), list[Floats]()

    def tell(replayed: ReplayedRound) -> None:
        known.append(replayed.snapshot.true_tau_s)

    replay_experiment(of, tmp_path / "run", "run", tell)
    with RunReader(tmp_path / "run") as reader:
        rows = {(x.round, x.device): x.tau_s for x in reader.exchanges()}
        names = [row.name for row in reader.devices()]
    for t, true_tau_s in enumerate(known, 1):
        assert true_tau_s.tolist() == pytest.approx([rows[t, name] for name in names])


def test_who_does_not_answer_in_time_is_not_available(tmp_path: Path) -> None:
    # Cold, a question takes these a start of 0.1 and of 40 s.
    fleet = [seconds(1.0, 3), seconds(1.0) | {"theta": [1.0, 40.0, 0.0]}]
    fleet[0]["theta"] = [1.0, 0.1, 0.0]
    of = asking(*fleet, selection={"per_round": 4, "loss_query_timeout_s": 5.0})
    kept = Kept(of, tmp_path / "run")
    for t, asks in kept.asks.items():
        late = [ask for ask in asks if ask.device == "linear-2-1"]
        assert [(ask.outcome, ask.loss, ask.bytes_down) for ask in late] == [("late", None, 0)]
        assert late[0].reason == "no answer within 5 s"
        assert kept.rounds[t].loss_query_s == 5.0
        assert "linear-2-1" not in {x.device for x in kept.exchanges[t]}
        assert len(kept.exchanges[t]) == 3
    assert kept.summary.loss_queries.late == 6


def test_who_is_gone_meanwhile_is_lost_and_not_waited_for(device: str, tmp_path: Path) -> None:
    pulled = {"kind": "unplugged", "start_s": 0.01, "duration_s": 1e3}
    fleet = [{"profile": device, "count": 3}]
    fleet.append({"profile": device, "count": 1, "name": "pulled", "outage": [pulled]})
    kept = Kept(asking(*fleet, rounds=2), tmp_path / "run")
    assert {ask.device: ask.outcome for ask in kept.asks[1]}["pulled-1"] == "lost"
    assert 5.0 < kept.rounds[1].loss_query_s < 6.0
    assert len(kept.asks[2]) == 3


def test_in_a_linear_world_a_question_is_a_part_of_training(tmp_path: Path) -> None:
    fleet = seconds(6.0, 4) | {"theta": [6.0, 0.5, 0.0]}
    of = asking(fleet, training={"epochs": 2, "batch_size": 20})
    kept = Kept(of, tmp_path / "run")
    for ask in kept.asks[1]:
        assert ask.evaluate_s == pytest.approx(6.0 * FORWARD_RATIO / 2)
        assert ask.load_s == 0.5
    assert all(x.tau_s == 6.0 for x in kept.exchanges[1])


def test_nobody_is_there_to_be_asked(tmp_path: Path) -> None:
    kept = Kept(asking(seconds(1.0, 4) | {"availability": 0.0}, rounds=3), tmp_path / "run")
    assert {(row.status, row.loss_query_s, row.duration_s) for row in kept.rounds.values()} == {
        ("void", 0.0, 1.0)
    }
    assert not any(kept.asks.values())


class Diverged:
    """A model whose loss is infinite on the data of one device."""

    def queried_losses(self, round_id: int, rows: Ints, examples: int | None) -> Floats:
        return np.where(rows == 2, np.inf, 1.5)


def test_a_device_whose_loss_is_no_number_cannot_answer() -> None:
    setup = setup_of(asking(seconds(1.0, 4)))
    world = setup.world
    snapshot = world.observe(1, 0.0, LastRound.before_first(4))
    queried = query_losses(setup.decisions, world, snapshot, 1, 0.0, Diverged())
    assert queried is not None
    assert [row.outcome for row in queried.rows] == ["answered", "answered", "failed", "answered"]
    assert queried.rows[2].reason == NO_LOSS
    assert np.isnan(queried.losses.loss).tolist() == [False, False, True, False]


@pytest.mark.parametrize("group", [{"profile": "raspberry-pi-4b", "count": 4}, seconds(1.0, 4)])
def test_without_training_there_is_no_loss_to_ask_for(group: dict[str, Any]) -> None:
    raw = {"name": "x", "selection": POW_D, "fleet": [group], "replay": {"training": False}}
    with pytest.raises(ExperimentError, match="got 'power-of-choice' in a replay without training"):
        setup_of(parse_experiment(raw, "x.toml"))


def hot(folder: Path) -> str:
    """Return the path of a profile that is throttled after 2 s of work."""
    path = folder / "hot.toml"
    thermal = """
[thermal]
sustained_clock_ratio = { value = 0.5, tag = "literature", source = "made up" }
onset_s = { value = 2.0, tag = "literature", source = "made up" }
time_constant_s = { value = 400.0, tag = "literature", source = "made up" }
"""
    path.write_text(DEVICE.replace("cores = { value = 4", "cores = { value = 1") + thermal)
    return str(path)


@pytest.mark.parametrize(("timeout_s", "inverse_mu"), [(30.0, 4.0), (0.05, 2.0)])
def test_a_device_heats_up_by_a_query_that_brought_it_the_model(
    tmp_path: Path, timeout_s: float, inverse_mu: float
) -> None:
    of = asking(
        {"profile": hot(tmp_path), "count": 4},
        selection={"loss_query_timeout_s": timeout_s},
        replay=NO_EXAMPLES | {"task_costs": {**COSTS, "evaluation_example_s": 2e-3}},
    )
    setup = setup_of(of)
    decisions, world, nobody = setup.decisions, setup.world, LastRound.before_first(4)
    cold = world.observe(1, 0.0, nobody)
    queried = query_losses(decisions, world, cold, 1, 0.0, Diverged())
    assert queried is not None
    assert cold.inverse_mu.tolist() == [2.0] * 4
    assert world.observe(2, queried.lasted_s, nobody).inverse_mu.tolist() == [inverse_mu] * 4
