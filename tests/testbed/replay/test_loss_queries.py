"""Loss queries before a selection in a replay: costs, outcomes and available devices."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.rounds.loop import NothingAggregatedError
from fairbed.coordinator.state.loss_query import LossQuery
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow, LossQueryRow, RoundRow
from fairbed.testbed.experiment.file import Experiment, ExperimentError, parse_experiment
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.engine.loss_query import NO_LOSS, QueriedLosses, query_losses
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import FORWARD_RATIO, ReplaySetup, setup_of
from fairbed.testbed.replay.world.world import FleetSnapshot, LastRound
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


def querying(*fleet: dict[str, Any], **sections: Any) -> Experiment:
    """Return an experiment that trains and queries losses."""
    chosen = {"selection": POW_D | sections.pop("selection", {}), "rounds": 6}
    return experiment(*fleet, **(chosen | {"replay": NO_EXAMPLES} | sections))


class Kept:
    """Rows and summary of a replay."""

    def __init__(self, of: Experiment, folder: Path) -> None:
        with suppress(NothingAggregatedError):
            replay_experiment(of, folder, "run", lambda replayed: None)
        with RunReader(folder) as reader:
            self.summary = summarise_run(reader)
            self.rounds: dict[int, RoundRow] = {row.round: row for row in reader.rounds()}
            self.queries: dict[int, list[LossQueryRow]] = {t: [] for t in self.rounds}
            self.exchanges: dict[int, list[ExchangeRow]] = {t: [] for t in self.rounds}
            for query in reader.loss_queries():
                self.queries[query.round].append(query)
            for x in reader.exchanges():
                self.exchanges[x.round].append(x)
            self.n_k = {row.name: row.n_k for row in reader.devices()}


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d"])
def test_a_query_has_the_phases_of_the_profile_and_the_exchange_does_not_repeat_them(
    device: str, tmp_path: Path, variant: str
) -> None:
    of = querying({"profile": device, "count": 6}, selection={"variant": variant})
    kept = Kept(of, tmp_path / "run")
    trained = set[str]()
    for t, queries in kept.queries.items():
        assert len(queries) == 4
        for query in queries:
            n = kept.n_k[query.device]
            looked_at = min(n, 20) if variant == "cpow-d" else n
            cold_s = n * (64 * 4 + 8) / STORAGE + COSTS["load_s"] / SPEED
            evaluate_s = (COSTS["evaluation_step_s"] * -(-looked_at // 256)) / SPEED
            evaluate_s += COSTS["evaluation_example_s"] * looked_at / SPEED
            assert query.outcome == "answered"
            assert query.was_cold == (query.device not in trained)
            assert query.download_s == pytest.approx(0.06 + MODEL_BITS / 400e3)
            assert query.load_s == pytest.approx(cold_s if query.was_cold else 0.0)
            assert query.evaluate_s == pytest.approx(evaluate_s)
            parts_s = query.download_s or 0.0, query.load_s or 0.0, query.evaluate_s or 0.0
            assert query.duration_s == pytest.approx(0.06 + sum(parts_s))
            assert query.bytes_down == MODEL_BITS / 8
        losses = {query.device: query.loss or 0.0 for query in queries}
        worst = sorted(losses, key=lambda name: -losses[name])[:2]
        cohort = kept.exchanges[t]
        assert sorted(x.device for x in cohort) == sorted(worst)
        for x in cohort:
            assert (x.outcome, x.bytes_down, x.download_s, x.load_s) == ("done", 0, 0.0, 0.0)
            assert x.was_cold is False
            assert x.tau_s == pytest.approx((x.train_s or 0.0) + 0.06 + 0.06 + MODEL_BITS / 100e3)
        trained = {x.device for x in cohort}
        row = kept.rounds[t]
        assert row.loss_query_s == pytest.approx(max(query.duration_s or 0.0 for query in queries))
        assert row.duration_s == pytest.approx(row.loss_query_s + row.tau_max_s)
        assert row.bytes_down == 4 * MODEL_BITS / 8
    assert (kept.summary.loss_queries.count, kept.summary.loss_queries.answered) == (24, 24)
    assert kept.summary.virtual_s == pytest.approx(kept.rounds[6].closed_at_s)
    assert max(query.loss or 0.0 for query in kept.queries[6]) < max(
        a.loss or 0.0 for a in kept.queries[1]
    )


def test_expected_times_depend_on_which_devices_have_the_model(device: str, tmp_path: Path) -> None:
    of, known = (
        querying({"profile": device, "count": 4}, selection={"per_round": 4}),
        list[Floats](),
    )

    def listener(replayed: ReplayedRound) -> None:
        known.append(replayed.snapshot.true_tau_s)

    replay_experiment(of, tmp_path / "run", "run", listener)
    with RunReader(tmp_path / "run") as reader:
        rows = {(x.round, x.device): x.tau_s for x in reader.exchanges()}
        names = [row.name for row in reader.devices()]
    for t, true_tau_s in enumerate(known, 1):
        assert true_tau_s.tolist() == pytest.approx([rows[t, name] for name in names])


def test_a_device_without_a_reply_in_time_is_not_available(tmp_path: Path) -> None:
    # The cold starts of a query take 0.1 s and 40 s.
    fleet = [seconds(1.0, 3), seconds(1.0) | {"theta": [1.0, 40.0, 0.0]}]
    fleet[0]["theta"] = [1.0, 0.1, 0.0]
    selection = {"per_round": 4, "loss_query_timeout_s": 5.0, "miss_limit": 0}
    kept = Kept(querying(*fleet, selection=selection), tmp_path / "run")
    for t, queries in kept.queries.items():
        late = [query for query in queries if query.device == "linear-2-1"]
        assert [(query.outcome, query.loss, query.bytes_down) for query in late] == [
            ("late", None, 0)
        ]
        assert late[0].reason == "no answer within 5 s"
        assert kept.rounds[t].loss_query_s == 5.0
        assert "linear-2-1" not in {x.device for x in kept.exchanges[t]}
        assert len(kept.exchanges[t]) == 3
    assert kept.summary.loss_queries.late == 6
    answered_s = sum(q.duration_s or 0.0 for queries in kept.queries.values() for q in queries)
    busy_s = sum(x.busy_s or 0.0 for exchanges in kept.exchanges.values() for x in exchanges)
    assert kept.summary.device_s == pytest.approx(busy_s + answered_s + 6 * 5.0)


def test_a_device_that_gives_no_loss_three_times_is_not_queried_for_a_while(tmp_path: Path) -> None:
    fleet = [seconds(1.0, 3), seconds(1.0) | {"theta": [1.0, 40.0, 0.0]}]
    kept = Kept(querying(*fleet, selection={"loss_query_timeout_s": 5.0}), tmp_path / "run")
    queried = [t for t, rows in kept.queries.items() if "linear-2-1" in {x.device for x in rows}]
    assert queried == [1, 2, 3]
    with RunReader(tmp_path / "run") as reader:
        misses = [event for _, event in reader.events() if event.kind == "misses"]
    assert [(event.device, event.round) for event in misses] == [("linear-2-1", 3)]


def test_a_device_that_disconnects_during_a_query_is_lost(device: str, tmp_path: Path) -> None:
    pulled = {"kind": "unplugged", "start_s": 0.01, "duration_s": 1e3}
    fleet = [{"profile": device, "count": 3}]
    fleet.append({"profile": device, "count": 1, "name": "pulled", "outage": [pulled]})
    kept = Kept(querying(*fleet, rounds=2), tmp_path / "run")
    assert {query.device: query.outcome for query in kept.queries[1]}["pulled-1"] == "lost"
    assert 5.0 < kept.rounds[1].loss_query_s < 6.0
    assert len(kept.queries[2]) == 3


def test_in_a_linear_world_a_query_takes_a_share_of_training(tmp_path: Path) -> None:
    fleet = seconds(6.0, 4) | {"theta": [6.0, 0.5, 0.0]}
    of = querying(fleet, training={"epochs": 2, "batch_size": 20})
    kept = Kept(of, tmp_path / "run")
    for query in kept.queries[1]:
        assert query.evaluate_s == pytest.approx(6.0 * FORWARD_RATIO / 2)
        assert query.load_s == 0.5
    assert all(x.tau_s == 6.0 for x in kept.exchanges[1])


def test_without_available_devices_no_query_is_sent(tmp_path: Path) -> None:
    kept = Kept(querying(seconds(1.0, 4) | {"availability": 0.05}, rounds=3), tmp_path / "run")
    empty = [row for row in kept.rounds.values() if not row.available]
    assert {(row.status, row.loss_query_s, row.duration_s) for row in empty} == {("void", 0.0, 1.0)}
    assert not any(kept.queries.get(row.round) for row in empty)
    assert len(kept.rounds) == 3 + len(empty)


class Diverged:
    """A model whose loss is infinite on the data of one device."""

    def queried_losses(self, round_id: int, rows: Ints, examples: int | None) -> Floats:
        return np.where(rows == 2, np.inf, 1.5)


def query(setup: ReplaySetup, fleet: FleetSnapshot) -> QueriedLosses:
    """Return the losses of diverged models that a query of round 1 finds."""
    decisions, world = setup.decisions, setup.world
    demand = decisions.loss_demand(1, fleet, world.transfer_bits, 0.0, fleet.true_tau_s)
    assert demand is not None
    table = LossQuery(1, 0, decisions.config.selection.loss_query_timeout_s)
    return query_losses(decisions.config, world, demand, table, fleet.examples, 0.0, Diverged())


def test_a_device_with_an_infinite_loss_cannot_reply() -> None:
    setup = setup_of(querying(seconds(1.0, 4)))
    world = setup.world
    queried = query(setup, world.observe(1, 0.0, LastRound.before_first(4)))
    rows = queried.rows(setup.names)
    assert [row.outcome for row in rows] == ["answered", "answered", "failed", "answered"]
    assert rows[2].reason == NO_LOSS
    assert np.isnan(queried.query.losses()).tolist() == [False, False, True, False]


@pytest.mark.parametrize("group", [{"profile": "raspberry-pi-4b", "count": 4}, seconds(1.0, 4)])
@pytest.mark.parametrize(
    "selection", [POW_D, POW_D | {"variant": "rpow-d"}, {"policy": "oort", "per_round": 2}]
)
@pytest.mark.parametrize("disabled", [{"training": False}, {"examples": 5}])
def test_without_training_a_policy_that_selects_by_losses_is_refused(
    group: dict[str, Any], selection: dict[str, Any], disabled: dict[str, Any]
) -> None:
    """Without a loss, Oort and rpow-d would be random policies under another name."""
    raw = {"name": "x", "selection": selection, "fleet": [group], "replay": disabled}
    line = (
        f"got '{selection['policy']}' in a replay without training; "
        "set replay.training = true .* or use a policy that needs no loss"
    )
    with pytest.raises(ExperimentError, match=line):
        setup_of(parse_experiment(raw, "x.toml"))
    trained = raw | {"replay": {"training": True}}
    assert setup_of(parse_experiment(trained, "x.toml")).data is not None


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
def test_a_loss_query_heats_a_device_up(
    tmp_path: Path, timeout_s: float, inverse_mu: float
) -> None:
    of = querying(
        {"profile": hot(tmp_path), "count": 4},
        selection={"loss_query_timeout_s": timeout_s},
        replay=NO_EXAMPLES | {"task_costs": {**COSTS, "evaluation_example_s": 2e-3}},
    )
    setup = setup_of(of)
    world, before = setup.world, LastRound.before_first(4)
    cold = world.observe(1, 0.0, before)
    queried = query(setup, cold)
    assert cold.inverse_mu.tolist() == [2.0] * 4
    assert world.observe(2, queried.lasted_s, before).inverse_mu.tolist() == [inverse_mu] * 4
