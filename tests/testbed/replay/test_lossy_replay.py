"""Replays of devices whose packets are lost."""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.replay.world.tcp_links import TcpLinks
from tests.testbed.replay.fleets import experiment, replay_rounds
from tests.tiers import in_depth

LINK = """
title = "A link"
licence = "CC0-1.0"

[link]
down_bps = {{ value = 6e6, tag = "literature", source = "invented" }}
up_bps = {{ value = 4e6, tag = "literature", source = "invented" }}
delay_s = {{ value = 0.03, tag = "literature", source = "invented" }}
loss_ratio = {{ value = {loss}, tag = "literature", source = "invented" }}
"""


@pytest.fixture
def group(tmp_path: Path) -> Any:
    """Return a function that returns a group of two devices on a link with a loss ratio."""

    def of(loss: float) -> dict[str, Any]:
        file = tmp_path / f"link-{round(1000 * loss)}.toml"
        file.write_text(LINK.format(loss=loss))
        return {"profile": "raspberry-pi-4b", "count": 2, "name": "pi", "link": str(file)}

    return of


def test_loss_makes_transfers_longer_and_different(group: Any) -> None:
    """At 2 % a transfer of a few windows waits for repeated packets."""
    of = {}
    for loss in (0.0, 0.02):
        _, rounds = replay_rounds(experiment(group(loss), model={"name": "cnn"}), 30)
        of[loss] = [x for one in rounds for x in one.exchanges]
    for phase in ("download_s", "upload_s"):
        clean, lossy = ([getattr(x, phase) for x in of[loss]] for loss in (0.0, 0.02))
        assert len(set(clean)) == 1
        assert len(set(lossy)) > 20
        assert statistics.median(lossy) > 1.2 * clean[0]
    assert len({x.signal_s for x in of[0.0]}) == 1
    waited = [x.signal_s for x in of[0.02] if x.signal_s > 0.2]
    assert 1 <= len(waited) <= 12


def test_a_device_without_loss_has_the_times_of_a_fleet_without_loss(group: Any) -> None:
    """The same bits, whoever else is in the fleet."""
    lossy = group(0.02) | {"name": "rover"}
    _, alone = replay_rounds(experiment(group(0.0)), 10)
    _, beside = replay_rounds(experiment(group(0.0), lossy, selection={"per_round": 4}), 10)
    for one, other in zip(alone, beside, strict=True):
        mine = {x.row: x.tau_s for x in other.exchanges if x.row < 2}
        assert {x.row: x.tau_s for x in one.exchanges} == mine


def test_a_resumed_replay_has_the_connections_of_an_uninterrupted_one(group: Any) -> None:
    setups = [setup_of(experiment(group(0.02), model={"name": "cnn"})) for _ in range(2)]
    first, second = (setup.world for setup in setups)
    assert len(list(ReplayEngine(setups[0].decisions, first).replay(3))) == 3
    second.load_state(first.to_state())
    rows = np.array([0, 1])
    resumed, fresh = (
        world.exchange(7, 100.0, rows)
        for world in (second, setup_of(experiment(group(0.02))).world)
    )
    continued = first.exchange(7, 100.0, rows)
    assert resumed.upload_s.tolist() == continued.upload_s.tolist()
    assert fresh.upload_s.tolist() != continued.upload_s.tolist()


def test_the_seed_of_packets_changes_losses_and_no_window(group: Any) -> None:
    taus: dict[int, list[Any]] = {}
    for packets in (1, 1, 2):
        of = experiment(group(0.02), model={"name": "cnn"}, seeds={"traces": 3, "packets": packets})
        _, rounds = replay_rounds(of, 4)
        taus.setdefault(packets, []).append([x.tau_s for one in rounds for x in one.exchanges])
    assert taus[1][0] == taus[1][1]
    assert not set(taus[1][0]) & set(taus[2][0])


def test_a_replay_that_leaves_out_waits_after_holes_has_one_warning(group: Any) -> None:
    outage = [{"kind": "coverage", "start_s": 5, "duration_s": 2}]
    setup = setup_of(experiment(group(0.0) | {"outage": outage}, group(0.02) | {"name": "rover"}))
    (finding,) = [one for one in setup.findings() if one.kind == "not-replayed"]
    assert "after a coverage hole (pi-1 and 1 more;" in finding.text
    assert finding.level == "warning"
    modelled = setup_of(experiment(group(0.02) | {"outage": outage}))
    assert not [one for one in modelled.findings() if one.kind == "not-replayed"]


def test_the_true_time_of_a_lossy_device_includes_its_repeated_packets(group: Any) -> None:
    """The policies that are defined with the true times receive them."""
    fleet = group(0.0), group(0.02) | {"name": "rover"}
    _, rounds = replay_rounds(experiment(*fleet, model={"name": "cnn"}), 20)
    expected_s = rounds[-1].snapshot.true_tau_s
    assert expected_s[2] > 1.2 * expected_s[0]
    took_s = [x.tau_s for one in rounds for x in one.exchanges if x.row >= 2 and not x.was_cold]
    assert expected_s[2] == pytest.approx(statistics.mean(took_s), rel=0.35)


def test_what_a_replay_has_not_of_queues_and_congestion_control_is_named(group: Any) -> None:
    fleet = group(0.0) | {"congestion": "bbr"}, group(0.0) | {"name": "q", "queue": "fq_codel"}
    (finding,) = [
        one for one in setup_of(experiment(*fleet)).findings() if one.kind == "not-replayed"
    ]
    assert "fq_codel of q-1 and 1 more" in finding.text
    assert "bbr, replayed as cubic, of pi-1 and 1 more" in finding.text


def test_a_short_queue_makes_large_transfers_longer(group: Any) -> None:
    """A queue of 10 ms before a round trip of 60 ms at 6 Mbit/s."""
    of = {}
    for name, more in {"usual": {}, "short": {"queue_ms": 10}}.items():
        _, rounds = replay_rounds(experiment(group(0.0) | more, model={"name": "cnn"}), 6)
        of[name] = statistics.median(x.download_s for one in rounds for x in one.exchanges)
    assert of["short"] > 1.05 * of["usual"]


def starlink(seed: int, rounds: int) -> Experiment:
    """Return eight boards behind satellites on a road, whose rate falls to 0 within seconds."""
    group = {"profile": "raspberry-pi-4b", "count": 8, "link": "starlink-driving"}
    more = {"model": {"name": "cnn"}, "selection": {"policy": "rbcs-f", "per_round": 4}}
    return experiment(group, seed=seed, rounds=rounds, replay={"training": False}, **more)


@pytest.mark.parametrize(("seed", "rounds"), [(6, 20), in_depth(1, 60)])
def test_a_replay_over_satellites_ends_and_resumes_where_it_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int
) -> None:
    """Retransmissions of delivered packets once filled a window, and the replay crashed.

    A replay that crashed in such a transfer has the rounds of one without a crash after its resume.
    """
    of, sound, transfers = starlink(seed, rounds), TcpLinks.transfer, 0

    def transfer(*arguments: Any) -> float:
        nonlocal transfers
        transfers += 1
        if transfers == 2 * rounds:
            raise IndexError("list index out of range")
        return sound(*arguments)

    def replay(name: str, checkpoint_s: float = 30.0) -> list[Any]:
        replay_experiment(of, tmp_path / name, name, lambda _: None, checkpoint_s=checkpoint_s)
        with RunReader(tmp_path / name) as reader:
            rows = [(row.round, row.duration_s, row.aggregated) for row in reader.rounds()]
            return [rows, [(x.device, x.outcome, x.tau_s) for x in reader.exchanges()]]

    with monkeypatch.context() as patch:
        patch.setattr(TcpLinks, "transfer", transfer)
        with pytest.raises(IndexError, match="list index"):
            replay("crashed", checkpoint_s=0.0)
    with RunReader(tmp_path / "crashed") as reader:
        assert reader.run().status == "failed"
        assert 0 < len(reader.rounds()) < rounds
    whole = replay("whole")
    assert len(whole[0]) == rounds
    assert replay("crashed") == whole
