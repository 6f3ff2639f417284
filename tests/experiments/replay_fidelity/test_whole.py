"""Recording and both replays of a fleet that is itself replayed: what is true of it is known."""

from pathlib import Path
from statistics import mean

import msgspec
import pytest

from experiments.replay_fidelity import comparison
from experiments.replay_fidelity import recorded as experiments
from experiments.replay_fidelity.distances import errors, gap, read_times
from experiments.replay_fidelity.pooled import pooled, timed
from experiments.replay_fidelity.recorded import has_variable_link, record_fleet, replayed
from experiments.replay_fidelity.replays import replay_forced, replay_free
from experiments.replay_fidelity.report import report
from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import Experiment, OutageConfig, parse_experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.replay.run import replay_experiment

ROUNDS = 24


def silent(line: str) -> None:
    """Nobody reads it."""


def experiment(link: str, noise: float = 0.0) -> Experiment:
    """Six devices of two kinds, with a model that takes about a second on the wire."""
    fleet = [
        {"profile": profile, "link": link, "count": 3}
        for profile in ("raspberry-pi-4b", "raspberry-pi-zero-2w")
    ]
    raw = {
        "name": "twins",
        "rounds": ROUNDS,
        "model": {"name": "cnn"},
        "data": {"dataset": "digits"},
        "selection": {"per_round": 2, "V": 2.0},
        "exchange": {"up": "float16", "down": "float16"},
        "fleet": fleet,
        "replay": {"noise": noise, "training": False},
    }
    return parse_experiment(raw, "test")


def stand_in(experiment: Experiment, folder: Path, seed: int = 0) -> Path:
    """Return a run that was replayed from the true profiles, with noise of its own."""
    seeds = msgspec.structs.replace(experiment.seeds, selection=experiment.seed + seed)
    settled = msgspec.structs.replace(experiment, seeds=seeds)
    replay_experiment(settled, folder, folder.name, lambda replayed: None)
    return folder


@pytest.fixture(scope="module", params=["lte-steady", "lte-driving"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run that is recorded, the run to predict, and both replays."""
    folder = tmp_path_factory.mktemp("comparison")
    truth = experiment(request.param)
    planned = plan_fleet(truth, {})
    run_a = stand_in(experiments.recorded(truth), folder / "a")
    run_b = stand_in(experiments.predicted(truth), folder / "b-1")
    files = record_fleet(run_a, planned, folder / "profiles")
    fleet = replayed(experiments.predicted(truth), planned, files)
    assert [device.spec.name for device in plan_fleet(fleet, {})] == [
        device.spec.name for device in planned
    ]
    assert all(has_variable_link(device) == (request.param == "lte-driving") for device in planned)
    replay_forced(fleet, run_a, run_b, folder / "forced-1", silent)
    replay_free(fleet, run_a, run_b, folder / "free-1", silent)
    return folder


def test_the_same_cohorts_at_the_same_instants_take_the_same_times(runs: Path) -> None:
    found = errors(read_times(runs / "b-1"), read_times(runs / "forced-1"))
    assert found.tau.count == 2 * ROUNDS
    assert found.round.count == ROUNDS
    assert found.tau.median is not None
    assert found.tau.p95 is not None
    assert found.tau.median < 0.02
    assert found.tau.p95 < 0.05


def test_empty_rounds_of_the_live_run_are_empty_in_the_forced_replay(tmp_path: Path) -> None:
    away = OutageConfig(kind="unplugged", start_s=20.0, duration_s=10.0)
    steady = experiment("lte-steady")
    fleet = tuple(msgspec.structs.replace(group, outage=(away,)) for group in steady.fleet)
    truth = experiments.predicted(msgspec.structs.replace(steady, fleet=fleet))
    live = stand_in(truth, tmp_path / "live")
    replay_forced(truth, live, live, tmp_path / "forced", silent)
    with RunReader(live) as one, RunReader(tmp_path / "forced") as other:
        theirs, ours = one.rounds(), other.rounds()
    assert theirs[-1].rounds_empty >= 5
    assert [(x.round, x.rounds_empty) for x in ours] == [(x.round, x.rounds_empty) for x in theirs]


def test_what_was_known_is_imposed_too(runs: Path) -> None:
    """So the estimator that learns says much the same as it did."""
    with RunReader(runs / "b-1") as live, RunReader(runs / "forced-1") as forced:
        pairs = list(zip(live.exchanges(), forced.exchanges(), strict=True))
    for theirs, ours in pairs:
        assert (theirs.round, theirs.device) == (ours.round, ours.device)
        assert (theirs.mu_cores, theirs.s_not_previous) == (ours.mu_cores, ours.s_not_previous)
        assert ours.downlink_bps == pytest.approx(theirs.downlink_bps)
        assert ours.uplink_bps == pytest.approx(theirs.uplink_bps)
    late = [(t.tau_hat_s or 0.0, o.tau_hat_s or 0.0) for t, o in pairs if t.round > ROUNDS / 2]
    assert [ours for _, ours in late] == pytest.approx([theirs for theirs, _ in late], rel=0.1)


def test_left_alone_it_is_as_a_whole_what_was_recorded(runs: Path) -> None:
    live, free = read_times(runs / "b-1"), read_times(runs / "free-1")
    assert len(free.tau_s) == len(live.tau_s)
    assert free.total_s == pytest.approx(live.total_s, rel=0.15)


def test_a_replay_that_is_there_is_repeated_by_the_present_model(
    runs: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    truth, out = experiment("lte-steady"), tmp_path / "free-1"
    for noise in (0.5, 0.0):
        noisy = msgspec.structs.replace(truth.replay, noise=noise)
        one = msgspec.structs.replace(truth, replay=noisy)
        replay_free(one, runs / "a", runs / "b-1", out, said.append)
    assert said == [f"free-1: {ROUNDS} rounds replayed"] * 2
    replay_free(truth, runs / "a", runs / "b-1", tmp_path / "free-2", said.append)
    assert read_times(out) == read_times(tmp_path / "free-2")


def test_gaps_are_means_over_all_pairs(runs: Path) -> None:
    a, b, forced, free = (read_times(runs / name) for name in ("a", "b-1", "forced-1", "free-1"))
    found = comparison.comparison_of(
        experiment("lte-driving"),
        True,
        False,
        [a, b, forced, free],
        forced=[forced, forced, forced],
        free=[free, a],
        pairs=pooled([], {}),
    )
    live = [(b, forced), (b, free), (forced, free)]
    assert found.live_gap.tau_ratio == pytest.approx(mean(gap(x, y).tau_ratio for x, y in live))
    pairs = [(x, y) for x in (b, forced, free) for y in (free, a)]
    assert found.replay_gap.rate == pytest.approx(mean(gap(x, y).rate for x, y in pairs))
    assert list(found.counted) == ["a", "b-1", "b-2", "b-3"]
    assert "mean distance of 3 live runs and 2 replays " in report(found)


@pytest.mark.parametrize(
    ("is_moving", "has_loss", "what"),
    [(False, False, "median error"), (True, False, "over the live gap"), (False, True, "bias")],
)
def test_verdicts_are_those_of_the_kind_of_links(
    runs: Path, is_moving: bool, has_loss: bool, what: str
) -> None:
    times = read_times(runs / "b-1")
    with RunReader(runs / "b-1") as live, RunReader(runs / "forced-1") as replay:
        pairs = pooled([("b-1", timed(live.exchanges()), timed(replay.exchanges()))] * 2, {})
    found = comparison.comparison_of(
        experiment("lte-steady"),
        is_moving,
        has_loss,
        [times, times, times],
        forced=[read_times(runs / "forced-1")] * 2,
        free=[read_times(runs / "free-1")],
        pairs=pairs,
    )
    assert all(what in verdict.what for verdict in found.verdicts)
    lines = report(found).splitlines()
    assert lines[0].endswith("valid exchanges: 48 in a, 48 in b-1, 48 in b-2")
    (own,) = [line for line in lines if line.startswith("b-2, same exchanges: exchange")]
    assert own.count("0.0 %") == 3, "it was given as its own repeat"
    if is_moving:
        assert [verdict.ok for verdict in found.verdicts] == [None, None], "no gap to compare with"
    else:
        assert [verdict.ok for verdict in found.verdicts] == [True]
