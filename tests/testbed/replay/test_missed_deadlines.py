"""Devices that miss every deadline, in the world of the RBCS-F paper."""

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import linear_fleet_of
from fairbed.testbed.replay.world.linear import LinearWorld
from tests.testbed.replay.fleets import experiment as small
from tests.testbed.replay.fleets import replay_rounds
from tests.tiers import some_in_fast

EXAMPLE = Path(__file__).parents[3] / "examples" / "missed-deadlines.toml"
DEVICES, DEAD = 40, 4
LIMIT, BETA = 3, 0.15
DEADLINE_S = 12.0


def experiment(*settings: str, with_dead: bool = True, rounds: int = 500) -> Experiment:
    """Return the example, with or without the devices that miss every deadline."""
    example = load_experiment(EXAMPLE, [f"rounds={rounds}", *settings])
    if with_dead:
        return example
    return msgspec.structs.replace(example, fleet=example.fleet[:-1])


def total_and_calls(replayed: Experiment) -> tuple[float, Ints]:
    """Return the total time, seconds, and the selections of dead devices, shape (T, dead)."""
    laws = linear_fleet_of(replayed).laws
    world = LinearWorld(laws, replayed.replay.update_bits, replayed.seed)
    engine = ReplayEngine(make_decisions(replayed.coordinator()), world)
    dead = np.arange(DEVICES, len(world))
    rounds = list(engine.replay(replayed.rounds))
    return engine.at.now, np.array([np.isin(dead, one.choice.rows) for one in rounds], dtype=int)


@pytest.mark.parametrize(
    "settings",
    some_in_fast(
        [
            ["selection.policy=fedcs"],
            ["selection.policy=fedcs", "selection.deadline_s=3"],
            ["selection.queue_counts=aggregated"],
            ["selection.queue_counts=aggregated", "selection.V=5"],
            ["selection.policy=fedcs", "selection.estimator=phases"],
        ],
        ["selection.policy=fedcs", "selection.deadline_s=3"],
        ["selection.queue_counts=aggregated"],
    ),
    ids=" ".join,
)
def test_devices_that_miss_every_deadline_cost_little_time(settings: list[str]) -> None:
    alone_s, _ = total_and_calls(experiment(*settings, with_dead=False))
    total_s, calls = total_and_calls(experiment(*settings))
    assert total_s < 1.1 * alone_s
    assert calls.sum(axis=0).max() <= LIMIT + 2, "two trials, after 100 and 200 rounds"


@pytest.mark.full
def test_they_cost_oort_little_time_in_a_replay_that_trains(tmp_path: Path) -> None:
    settings = [
        *("selection.policy=oort", "evaluation.every=0", "data.dataset=digits"),
        *("model.name=softmax", "training.learning_rate=0.05", "replay.training=true"),
    ]
    totals_s = list[float]()
    for name, with_dead in (("alone", False), ("with", True)):
        replayed = experiment(*settings, with_dead=with_dead, rounds=300)
        replay_experiment(replayed, tmp_path / name, name, lambda _: None)
        with RunReader(tmp_path / name) as reader:
            totals_s.append(summarise_run(reader).virtual_s or 0.0)
            selected = Counter(x.device for x in reader.exchanges(0))
        calls = max(selected[f"dead-{i}"] for i in range(1, DEAD + 1))
    assert totals_s[1] < 1.1 * totals_s[0]
    assert 1 <= calls <= LIMIT + 2


@pytest.mark.parametrize("V", [0, 20])
@pytest.mark.full
def test_a_guaranteed_selection_rate_costs_the_selections_that_it_owes(V: int) -> None:
    settings = [f"selection.V={V}", "selection.queue_counts=selected"]
    alone_s, _ = total_and_calls(experiment(*settings, with_dead=False))
    total_s, calls = total_and_calls(experiment(*settings))
    after = np.cumsum(calls, axis=0) - LIMIT
    assert (after <= BETA * np.arange(1, len(calls) + 1)[:, None]).all()
    rounds_with_dead = np.count_nonzero(calls.any(axis=1))
    assert total_s - alone_s <= rounds_with_dead * DEADLINE_S


def test_they_are_preferred_if_no_exchange_without_a_time_teaches() -> None:
    """This is what the paper's rule does; the reason for both defaults."""
    old = ("selection.on_timeout=drop", "selection.miss_limit=0")
    _, calls = total_and_calls(experiment("selection.policy=fedcs", *old, rounds=50))
    assert calls.mean() > 0.6


@pytest.mark.parametrize("counts", ["selected", "aggregated"])
def test_each_is_named_once(counts: str, tmp_path: Path) -> None:
    replayed = experiment(f"selection.queue_counts={counts}", "selection.V=0", rounds=60)
    replay_experiment(replayed, tmp_path / "run", "run", lambda _: None)
    with RunReader(tmp_path / "run") as reader:
        events = [event for _, event in reader.events() if event.kind == "misses"]
    assert [event.device for event in sorted(events, key=lambda event: event.device or "")] == [
        f"dead-{i}" for i in range(1, DEAD + 1)
    ]
    text = "cannot be aggregated at the rate beta = 0.15"
    assert all((text in event.text) is (counts == "aggregated") for event in events)


def test_the_phases_before_an_offer_are_seen_of_an_exchange_that_missed_the_deadline() -> None:
    device = {"profile": "raspberry-pi-4b", "count": 1}
    sections = {"selection": {"policy": "uniform", "per_round": 1, "estimator": "phases"}}
    _, (complete,) = replay_rounds(small(device, **sections), 1)
    one = complete.exchanges[0]
    deadline_s = one.ready_s + 0.5 * one.upload_s
    late = small(device, **sections, round={"deadline_s": deadline_s})
    setup, (missed,) = replay_rounds(late, 1)
    assert missed.outcome == ("late",)
    learned = setup.decisions.estimator.to_state()
    assert [phase for phase in ("load", "compute") if learned[phase]["rows"]] == ["load", "compute"]
    assert learned["download"]["times"]["rows"] == [0]
    assert learned["upload"]["times"]["rows"] == learned["rest"]["rows"] == []
    seen_s = (
        one.download_s + one.load_s + one.decode_s + one.evaluate_s + one.train_s + one.encode_s
    )
    assert learned["bounds"]["rest_s"] == pytest.approx([deadline_s - seen_s])
