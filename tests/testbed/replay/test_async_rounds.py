"""Overlapping rounds: late devices, the rounds that merge their updates, and learning."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_experiment
from tests.testbed.replay.fleets import EXAMPLES, QUICKSTART, experiment, replay_rounds, seconds
from tests.testbed.replay.test_profile_replay import DEVICE

SLOW = 3
"""Row of the device that takes 5.5 s; the three others take 1 s."""


def hurried(rounds: int = 8, **settings: Any) -> Experiment:
    """Return rounds that select all devices, with a deadline that one device misses."""
    return experiment(
        seconds(1.0, 3),
        seconds(5.5),
        rounds=rounds,
        selection={"per_round": 4, "estimator": "ridge"},
        round={"late": "merge", "deadline_s": 2.0} | settings,
    )


def over_of(one: ReplayedRound) -> dict[int, Exchange]:
    return {x.row: x.entry for x in one.over}


def test_a_late_device_continues_and_enters_a_later_round() -> None:
    _, rounds = replay_rounds(hurried())
    assert [one.duration_s for one in rounds[:5]] == [2.0, 1.0, 1.0, 1.0, 1.0]
    assert [len(one.choice.rows) for one in rounds[:6]] == [4, 3, 3, 3, 3, 4]
    assert rounds[0].outcome[SLOW] == "late"
    late = over_of(rounds[4])[SLOW]
    assert (late.state, late.round, late.staleness, late.aggregated_round) == (
        ExchangeState.DONE,
        1,
        4,
        5,
    )
    assert late.tau_s == 5.5
    assert [one.merged.tolist() for one in rounds[:5]] == [[0, 1, 2]] * 4 + [[3, 0, 1, 2]]
    assert all(not one.choice.is_available[SLOW] for one in rounds[1:5])


def test_a_late_time_is_learned_with_the_context_of_its_selection() -> None:
    of = hurried(rounds=6)
    _, rounds = replay_rounds(of)
    predicted = [float(one.choice.prediction.tau_hat_s[SLOW]) for one in rounds]
    assert predicted[:5] == [0.0] * 5, "unknown before the first update arrives"
    # One observation c = [1, 1, 0, M/B] of 5.5 s, with lambda = 1; now it is warm.
    assert 0.3 * 5.5 < predicted[5] < 5.5
    assert rounds[5].snapshot.last.has_trained[SLOW]


def test_a_device_that_would_be_too_stale_is_cancelled_and_selected_again() -> None:
    _, rounds = replay_rounds(hurried(max_staleness=2))
    dropped = over_of(rounds[3])[SLOW]
    assert (dropped.state, dropped.staleness) == (ExchangeState.LATE, None)
    assert dropped.reason == "its update would be more than 2 versions late"
    assert dropped.at_least_s == 4.0
    assert [SLOW in one.choice.rows for one in rounds[:5]] == [True, False, False, False, True]


def test_a_late_exchange_ends_at_its_limit_and_the_round_waits_for_it() -> None:
    of = experiment(
        seconds(9.0, 2),
        rounds=2,
        selection={"per_round": 2},
        round={"late": "merge", "deadline_s": 2.0, "max_staleness": 1},
    )
    _, rounds = replay_rounds(of)
    assert [one.started_s for one in rounds] == [0.0, 2.0, 4.0]
    assert [x.reason for x in over_of(rounds[1]).values()] == ["no update within 4 s"] * 2
    assert rounds[2].choice.rows.tolist() == [0, 1]


def test_the_last_round_cancels_open_exchanges() -> None:
    _, rounds = replay_rounds(hurried(rounds=3))
    given_up = over_of(rounds[2])[SLOW]
    assert (given_up.state, given_up.reason) == (ExchangeState.LATE, "the run is over")


def test_rows_have_the_outcome_of_late_updates(tmp_path: Path) -> None:
    replay_experiment(hurried(rounds=8), tmp_path / "run", "run", lambda replayed: None)
    with RunReader(tmp_path / "run") as reader:
        rounds, summary = reader.rounds(), summarise_run(reader)
        exchanges = {(x.round, x.device): x for x in reader.exchanges()}
        entered = {row.device for row in reader.selections(5) if row.is_aggregated}
    slow = exchanges[1, "linear-2-1"]
    assert (slow.outcome, slow.is_valid, slow.reason) == ("done", True, "")
    assert (slow.staleness, slow.aggregated_round, slow.concurrent) == (4, 5, 3)
    assert slow.tau_s == slow.tau_wall_s == 5.5
    assert "linear-2-1" in entered
    assert [row.aggregated_late for row in rounds] == [0, 0, 0, 0, 1, 0, 0, 0]
    assert [row.dropped_late for row in rounds] == [0] * 7 + [1]
    assert all(row.duration_s == row.tau_max_s + row.close_s for row in rounds)
    assert (summary.exchange.aggregated_late, summary.exchange.late) == (1, 1)
    assert summary.virtual_s == 2.0 + 4 * 1.0 + 2.0 + 2 * 1.0


def rows_of(of: Experiment, folder: Path) -> list[ExchangeRow]:
    replay_experiment(of, folder, "run", lambda replayed: None)
    with RunReader(folder) as reader:
        return sorted(reader.exchanges(), key=lambda x: (x.round, x.device))


BOUNDS = ("selection.policy=rbcs-f", "selection.on_timeout=lower_bound")
"""A cancelled exchange gives a lower bound, and selections depend on it."""

NUMBERS = (
    "tau_hat_s",
    "tau_s",
    "queued_s",
    "upload_s",
    "download_s",
    "load_s",
    "train_s",
    "signal_s",
)


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        (QUICKSTART, ["exchange.down=delta", "exchange.up=int8"]),
        (QUICKSTART, ["round.over_select=3", "replay.noise=0.2"]),
        (EXAMPLES / "rbcs-f-paper.toml", ["round.over_select=2"]),
        (EXAMPLES / "rbcs-f-paper.toml", ["round.over_select=2", *BOUNDS]),
        (QUICKSTART, ["round.over_select=3", "replay.noise=0.2", *BOUNDS]),
    ],
    ids=["codecs", "over-selection", "linear", "linear bounds", "bounds"],
)
def test_without_late_devices_the_rows_equal_those_of_synchronous_rounds(
    tmp_path: Path, path: Path, settings: list[str]
) -> None:
    """The closed form and the events of overlapping rounds give the same rows."""
    bare = ["rounds=25", "replay.training=false", "selection.policy=uniform", *settings]
    drop, merge = (
        rows_of(load_experiment(path, [*bare, f"round.late={late}"]), tmp_path / late)
        for late in ("drop", "merge")
    )
    assert len(drop) == len(merge) > 80
    for a, b in zip(drop, merge, strict=True):
        assert (a.round, a.device, a.outcome) == (b.round, b.device, b.outcome)
        assert (a.was_cold, a.steps, a.n_k) == (b.was_cold, b.steps, b.n_k)
        assert a.context_age_s == pytest.approx(b.context_age_s, abs=1e-6)
        assert (a.reason, a.bytes_down, a.bytes_up) == (b.reason, b.bytes_down, b.bytes_up)
        assert (a.codec_down, a.codec_up) == (b.codec_down, b.codec_up)
        assert a.uplink_bps == pytest.approx(b.uplink_bps, rel=1e-6)
        for name in NUMBERS:
            assert getattr(a, name) == pytest.approx(getattr(b, name), abs=1e-6), name


def staggered(rounds: int = 40, **settings: Any) -> Experiment:
    """Return asynchronous rounds of devices that take 1 to 8 s."""
    return experiment(
        *(seconds(1.0 + 0.71 * k) for k in range(10)),
        rounds=rounds,
        selection={"policy": "rbcs-f", "per_round": 3, "beta": 0.2, "V": 1.0},
        round={"mode": "async", "buffer": 3, "concurrency": 5, "max_staleness": 20} | settings,
    )


def test_a_version_has_as_many_updates_as_the_buffer(tmp_path: Path) -> None:
    rows = rows_of(staggered(), tmp_path / "run")
    with RunReader(tmp_path / "run") as reader:
        rounds = reader.rounds()
    assert [row.aggregated for row in rounds] == [3] * 40
    done = [x for x in rows if x.outcome == "done"]
    assert len(done) == 120
    assert all(x.aggregated_round == x.round + (x.staleness or 0) for x in done)
    assert max(x.staleness or 0 for x in done) > 2
    for before, after in pairwise(rounds):
        assert after.dispatched_at_s == before.closed_at_s
    for x in done:
        assert x.tau_s == pytest.approx(1.0 + 0.71 * (int(x.device.split("-")[1]) - 1))


def test_concurrency_limits_the_devices_at_work_and_none_is_dispatched_twice(
    tmp_path: Path,
) -> None:
    rows = [x for x in rows_of(staggered(), tmp_path / "run") if x.outcome == "done"]
    spans = [(x.dispatched_at_s, x.dispatched_at_s + (x.tau_s or 0.0), x.device) for x in rows]
    for at in np.linspace(0.5, 30.0, 200):
        working = [name for start, end, name in spans if start < at < end]
        assert len(working) == len(set(working)) <= 5
    assert len({(x.round, x.device) for x in rows}) == len(rows)


def test_queues_count_versions() -> None:
    setup, rounds = replay_rounds(staggered())
    z = np.zeros(10)
    for one in rounds:
        assert len(set(one.choice.rows.tolist())) == len(one.choice.rows)
        x = np.zeros(10)
        x[one.choice.rows] = 1.0
        z = np.maximum(z + 0.2 - x, 0.0)
    np.testing.assert_allclose(setup.decisions.selector.queues(10), z, atol=1e-12)


def test_a_version_waits_for_its_updates_no_longer_than_the_deadline(tmp_path: Path) -> None:
    of = experiment(
        seconds(1.0, 2),
        seconds(50.0, 2),
        rounds=4,
        selection={"per_round": 4},
        round={"mode": "async", "deadline_s": 3.0},
    )
    rows = rows_of(of, tmp_path / "run")
    with RunReader(tmp_path / "run") as reader:
        rounds = reader.rounds()
    assert [row.duration_s for row in rounds] == [3.0] * 4
    assert [row.aggregated for row in rounds] == [2] * 4
    assert {x.outcome for x in rows if x.device.startswith("linear-2")} == {"late"}


def test_without_devices_versions_are_void_and_last_the_void_wait() -> None:
    of = experiment(
        seconds(1.0, 3) | {"availability": 0.1},
        rounds=5,
        round={"mode": "async", "void_wait_s": 2.5},
    )
    _, rounds = replay_rounds(of)
    void = [one for one in rounds if not one.over]
    assert {one.duration_s for one in void} == {2.5}
    assert rounds[-1].after.rounds_empty == len(void) == len(rounds) - 5 > 0


@pytest.mark.parametrize("settings", [{"late": "merge", "deadline_s": 2.0}, {"mode": "async"}])
def test_the_same_seed_gives_the_same_bits_and_another_one_another_run(
    settings: dict[str, Any],
) -> None:
    def taus(seed: int) -> list[list[float]]:
        words = [f"round.{key}={value}" for key, value in settings.items()]
        of = load_experiment(EXAMPLES / "phones.toml", ["rounds=15", *words], seed)
        return [one.tau_s.tolist() for one in replay_rounds(of)[1]]

    assert str(taus(1)) == str(taus(1))
    assert str(taus(1)) != str(taus(2))


def test_fleet_statistics_count_late_updates(tmp_path: Path) -> None:
    stats = ["fleet.0.count=12000", "selection.per_round=40", "rounds=6"]
    late = ["round.late=merge", "round.deadline_s=1.0", "selection.beta=0.0"]
    of = load_experiment(EXAMPLES / "million-phones.toml", [*stats, *late])
    rows = rows_of(of, tmp_path / "run")
    with RunReader(tmp_path / "run") as reader:
        rounds, tallies = reader.rounds(), reader.selection_counts()
    done = sum(x.outcome == "done" for x in rows)
    assert sum(row.aggregated_late for row in rounds) > 0
    assert sum(row.aggregated for row in rounds) == done
    assert sum(tally.aggregated for tally in tallies) == done
    assert sum(tally.selected for tally in tallies) == 6 * 40


def test_a_round_without_devices_ends_when_one_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_text(DEVICE)
    hole = {"kind": "unplugged", "start_s": 0.0, "duration_s": 17.5}
    slow = tmp_path / "slow.toml"
    slow.write_text(DEVICE.replace("core_speed = { value = 0.4", "core_speed = { value = 0.01"))
    of = experiment(
        {"profile": str(slow)},
        {"profile": str(path), "outage": [hole]},
        rounds=2,
        selection={"per_round": 1},
        round={"late": "merge", "deadline_s": 5.0, "max_staleness": 20},
    )
    _, rounds = replay_rounds(of)
    assert [one.choice.rows.tolist() for one in rounds] == [[0], [], [], [], [1]]
    starts = [one.started_s for one in rounds]
    assert starts[:4] == [0.0, 5.0, 10.0, 15.0]
    assert 17.5 <= starts[4] < 20.0
