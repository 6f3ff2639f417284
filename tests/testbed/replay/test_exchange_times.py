"""A replay of a log has the log's distribution: of exchanges, of devices and of rounds."""

import lzma
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.profiles.errors import TraceError
from fairbed.profiles.exchange_log import (
    ExchangeLog,
    format_exchange_log,
    parse_log_columns,
    read_exchange_log,
)
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.replay.engine.engine import ReplayEngine, column
from fairbed.testbed.replay.setup import setup_of
from tests.testbed.replay.fleets import experiment, replay_rounds

DEVICES, ROUNDS = 10, 1000
LIMIT = 0.05
"""Of the Wasserstein-1 distance relative to the mean (issue 19)."""


def made_log(seed: int = 3) -> Floats:
    """Return totals of `ROUNDS` x `DEVICES`: levels of devices, a shared server, and noise."""
    rng = np.random.default_rng(seed)
    level = 40.0 * rng.lognormal(0.0, 0.3, DEVICES)
    server = rng.lognormal(0.0, 0.35, (ROUNDS, 1))
    return np.asarray(level * server * rng.lognormal(0.0, 0.15, (ROUNDS, DEVICES)))


def log_of(totals: Floats, *, has_rounds: bool = True) -> ExchangeLog:
    rounds, devices = totals.shape
    return ExchangeLog(
        devices=tuple(f"pi-{n}" for n in range(devices)),
        device=np.tile(np.arange(devices), rounds),
        round=np.repeat(np.arange(rounds), devices) if has_rounds else None,
        n_rounds=rounds if has_rounds else 0,
        durations_s={"total": totals.ravel()},
    )


def replayed(path: Path, count: int, rounds: int, **fleet: object) -> Floats:
    """Return the exchange times of a replay with all devices in every round, one row each."""
    group = {"profile": "raspberry-pi-4b", "exchange_times": str(path), "count": count, **fleet}
    of = experiment(
        group,
        rounds=rounds,
        selection={"per_round": count},
        round={"deadline_s": 1e5},
        seeds={"traces": 5},
    )
    _, played = replay_rounds(of)
    return np.array([column(one.exchanges, "over_s") for one in played])


def distance(got: Floats, wanted: Floats) -> float:
    """Return the Wasserstein-1 distance relative to the mean of what is wanted."""
    return float(wasserstein_distance(got.ravel(), wanted.ravel()) / wanted.mean())


def test_exchanges_devices_and_rounds_have_the_distribution_of_the_held_out_half(
    tmp_path: Path,
) -> None:
    totals = made_log()
    seen, held_out = totals[::2], totals[1::2]
    path = tmp_path / "pis.csv"
    path.write_text(format_exchange_log(log_of(seen), {"source": "made up"}))
    got = replayed(path, DEVICES, 500)
    assert distance(got, held_out) <= LIMIT
    assert distance(got.max(axis=1), held_out.max(axis=1)) <= LIMIT  # rounds: joint distribution
    assert np.median(got, axis=0) == pytest.approx(np.median(held_out, axis=0), rel=0.15)
    correlation = np.corrcoef(np.log(got.T))[np.triu_indices(DEVICES, 1)].mean()
    expected = np.corrcoef(np.log(held_out.T))[np.triu_indices(DEVICES, 1)].mean()
    assert correlation == pytest.approx(expected, abs=0.1)
    apart = tmp_path / "apart.csv"
    apart.write_text(format_exchange_log(log_of(seen, has_rounds=False), {}))
    independent = replayed(apart, DEVICES, 500)
    assert distance(independent, held_out) <= LIMIT
    assert abs(np.corrcoef(np.log(independent.T))[np.triu_indices(DEVICES, 1)].mean()) < 0.1


def test_a_larger_fleet_repeats_the_devices_with_rounds_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "pis.csv"
    path.write_text(format_exchange_log(log_of(made_log()[:100, :3]), {}))
    got = replayed(path, 6, 60)
    levels = np.median(got, axis=0)
    assert levels[:3] == pytest.approx(levels[3:], rel=0.25)
    assert (got[:, :3] != got[:, 3:]).mean() > 0.9


def test_a_phase_of_the_log_replaces_that_of_the_profile_and_a_total_scales_the_rest(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pis.csv"
    path.write_text("device,round,train_s,total_s\na,1,6,10\na,2,6,10\n")
    of = experiment(
        {"profile": "raspberry-pi-4b", "exchange_times": str(path)},
        selection={"per_round": 1},
    )
    plain = experiment({"profile": "raspberry-pi-4b"}, selection={"per_round": 1})
    (_, (one, *_)), (_, (other, *_)) = replay_rounds(of, 1), replay_rounds(plain, 1)
    assert column(one.exchanges, "train_s") == [6.0]
    assert column(one.exchanges, "over_s") == pytest.approx([10.0])
    ratio = [
        column(x.exchanges, "download_s")[0] / column(x.exchanges, "upload_s")[0]
        for x in (one, other)
    ]
    assert ratio[0] == pytest.approx(ratio[1])  # of the profile
    path.write_text("device,train_s\na,6\n")
    _, (phases, *_) = replay_rounds(of, 1)
    assert column(phases.exchanges, "train_s") == [6.0]
    assert column(phases.exchanges, "upload_s") == pytest.approx(
        column(other.exchanges, "upload_s")
    )
    assert np.isnan(setup_of(of).world._recorded.mean_total_s).all()  # type: ignore[attr-defined]  # of this world


def test_the_known_exchange_time_is_the_mean_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "pis.csv"
    path.write_text("device,total_s\na,10\na,30\nb,5\n")
    of = experiment(
        {"profile": "raspberry-pi-4b", "count": 1},
        {"profile": "raspberry-pi-4b", "exchange_times": str(path), "count": 2, "name": "pi"},
        selection={"per_round": 3},
    )
    world = setup_of(of).world
    _, (one, *_) = replay_rounds(of, 1)
    assert one.exchanges[0].over_s < 5.0  # a device without a log
    snapshot = world.observe(1, 0.0, one.snapshot.last)
    assert snapshot.true_tau_s is not None
    assert snapshot.true_tau_s[1:].tolist() == [20.0, 5.0]


def test_an_upload_that_waits_for_a_slot_keeps_the_duration_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "pis.csv"
    path.write_text("device,upload_s\na,2\n")
    of = experiment(
        {"profile": "raspberry-pi-4b", "exchange_times": str(path), "count": 2},
        {"profile": "raspberry-pi-4b", "link": "lte-driving"},
        selection={"per_round": 3},
        round={"deadline_s": 1e4},
    )
    setup = setup_of(of)
    setup.world.slots = 1
    engine = ReplayEngine(setup.decisions, setup.world)
    exchanges = {x.row: x for x in next(iter(engine.replay(1))).exchanges}
    assert [exchanges[row].upload_s for row in (0, 1)] == [2.0, 2.0]
    starts = sorted(x.over_s - x.upload_s for x in exchanges.values())
    assert starts[1] >= min(x.over_s for x in exchanges.values()) - 1e-9  # one after the other


def test_a_bad_log_is_refused_and_a_linear_device_has_none(tmp_path: Path) -> None:
    path = tmp_path / "pis.csv"
    path.write_text("device,total_s\na,never\n")
    of = experiment(
        {"profile": "raspberry-pi-4b", "exchange_times": str(path)}, selection={"per_round": 1}
    )
    with pytest.raises(TraceError, match="row 2: total_s must be a number, got 'never'"):
        setup_of(of)
    with pytest.raises(ExperimentError, match="link, trace and exchange_times, got both"):
        experiment({"model": "linear", "theta": [1, 1, 1], "exchange_times": str(path)})
    with pytest.raises(ExperimentError, match="exchange_times excludes cell, got both, with cell"):
        experiment({"profile": "n100", "exchange_times": str(path), "cell": "ap"})


SESSIONS = "traces/oboe_sessions.csv.xz"
CHUNKS = 49


@pytest.mark.full
def test_a_replay_of_measured_transfers_has_the_distribution_of_the_held_out_half(
    tmp_path: Path,
) -> None:
    """Viewers of videos: a session is a device, a chunk of its video the transfer of a round."""
    found = Path(os.environ.get("FAIRBED_DATA", "/nonexistent")) / SESSIONS
    if not found.is_file():
        pytest.skip(f"FAIRBED_DATA has no {SESSIONS}")
    columns = parse_log_columns("device=trace,start=t_start_s,end=t_end_s")
    log = read_exchange_log(lzma.decompress(found.read_bytes()), str(found), columns)
    total_s = log.durations_s["total"]
    whole = np.flatnonzero(np.bincount(log.device) == CHUNKS)
    totals = np.stack([total_s[log.device == device] for device in whole], axis=1)
    assert totals.shape[1] > 300
    path = tmp_path / "sessions.csv"
    path.write_text(format_exchange_log(log_of(totals[::2]), {}))
    got = replayed(path, totals.shape[1], len(totals[::2]))
    assert distance(got, totals[1::2]) <= LIMIT
