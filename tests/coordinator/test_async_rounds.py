"""Asynchronous rounds of real agents: a version whenever enough updates have arrived."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from fairbed.coordinator.policy.config import (
    AggregationConfig,
    CoordinatorConfig,
    RoundConfig,
    SelectionConfig,
)
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.wire.messages import Offer, Train, UploadDone, UploadResult
from tests.coordinator.faulty import VICTIM, Fault, FaultyBroker, message_of
from tests.coordinator.lab import NAMES, WHOLE_FLEET, Lab, lab, make_config
from tests.coordinator.stragglers import Gate

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

DEVICES = (*NAMES, "pi-3", "pi-4")


def asynchronous(
    rounds: int, *, buffer: int, concurrency: int, deadline_s: float = 30.0, **sections: object
) -> CoordinatorConfig:
    settings: dict[str, object] = {
        "round": RoundConfig(
            mode="async",
            buffer=buffer,
            concurrency=concurrency,
            min_devices=3,
            deadline_s=deadline_s,
            join_timeout_s=30.0,
            void_wait_s=0.1,
            max_staleness=50,
        )
    }
    return make_config(rounds, 3, **(settings | sections))


@asynccontextmanager
async def fleet(
    folder: Path, names: tuple[str, ...] = DEVICES, broker: FaultyBroker | None = None
) -> AsyncIterator[tuple[Lab, Gate]]:
    """Yield a fleet whose victim trains behind a gate."""
    gate = Gate()
    async with lab(folder, agents=0, broker=broker) as place:
        place.device_names = names
        for name in names:
            place.shards.shard(name)
            place.start_agent(name, host=gate.host() if name == VICTIM else None)
        try:
            yield place, gate
        finally:
            gate.open()


async def test_with_all_devices_in_every_buffer_a_run_equals_the_synchronous_one(
    tmp_path: Path,
) -> None:
    """C = K = m: each version waits for all devices, so the models are exactly those of FedAvg."""
    models = []
    for mode in ("sync", "async"):
        config = make_config(rounds=5, selection=WHOLE_FLEET)
        if mode == "async":
            config = asynchronous(5, buffer=3, concurrency=3, selection=WHOLE_FLEET)
        async with fleet(tmp_path / mode, NAMES) as (place, _):
            assert await place.run(config) == "done"
        with place.reader() as reader:
            models.append([row.model_sha256 for row in reader.rounds()])
            assert {x.staleness for x in reader.exchanges(0)} == {0}
    assert models[0] == models[1]


async def test_a_version_is_made_of_as_many_updates_as_the_buffer_takes(tmp_path: Path) -> None:
    config = asynchronous(8, buffer=2, concurrency=3)
    async with fleet(tmp_path) as (place, _):
        assert await place.run(config) == "done"
    with place.reader() as reader:
        rounds, exchanges = reader.rounds(), reader.exchanges(0)
        rows = [reader.selections(t) for t in range(1, 9)]
    assert [row.aggregated for row in rounds] == [2] * 8
    assert {row.status for row in rounds} == {"done"}
    assert len({row.model_sha256 for row in rounds}) == 8
    done = [x for x in exchanges if x.outcome == "done"]
    assert len(done) == 16
    for x in done:
        assert x.aggregated_round is not None
        assert x.staleness == x.aggregated_round - x.round >= 0
        assert x.tau_s is not None
        assert x.weight == x.weight_share == pytest.approx(x.n_share)
    for t in range(1, 9):
        of_round = [x.weight for x in done if x.aggregated_round == t]
        assert sum(w for w in of_round if w is not None) == pytest.approx(1.0)
    assert [row.selected for row in rounds] == [sum(d.is_selected for d in row) for row in rows]
    for before, after in itertools.pairwise(rounds):
        assert after.dispatched_at_s == pytest.approx(before.closed_at_s)


async def test_the_queue_counts_versions(tmp_path: Path) -> None:
    """Z grows by beta per version, and falls by 1 if the device was selected for it."""
    rounds, beta = 10, 0.3
    selection = SelectionConfig(policy="rbcs-f", per_round=2, beta=beta)
    config = asynchronous(rounds, buffer=2, concurrency=2, selection=selection)
    async with fleet(tmp_path) as (place, _):
        assert await place.run(config) == "done"
    with place.reader() as reader:
        rows = [{r.device: r for r in reader.selections(t)} for t in range(1, rounds + 1)]
    for name in DEVICES:
        z = 0.0
        for row in rows:
            z = max(z + beta - row[name].is_selected, 0.0)
            assert row[name].queue == pytest.approx(z)
        rate = sum(row[name].is_selected for row in rows) / rounds
        assert rate >= beta - z / rounds - 1e-12


async def test_a_slow_device_delays_no_other_and_is_merged_versions_later(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (place, gate):
        gate.shut()
        store = place.open_store()
        try:
            selection = SelectionConfig(policy="uniform", per_round=5)
            config = asynchronous(2_000, buffer=2, concurrency=5, selection=selection)
            coordinator = place.coordinator(config, store)

            def on_progress(progress: RoundProgress) -> None:
                if progress.round.round == 5:
                    gate.open()
                with place.reader() as reader:
                    mine = [x for x in reader.exchanges_of(VICTIM) if x.outcome == "done"]
                if mine and progress.round.round > 5:
                    coordinator.stop()

            place.on_progress = on_progress
            assert await coordinator.run() == "stopped"
        finally:
            store.close()
    with place.reader() as reader:
        first = reader.exchanges_of(VICTIM, limit=10_000)[0]
        rounds, summary = reader.rounds(), summarise_run(reader)
    assert first.round == 1
    assert first.staleness is not None
    assert first.staleness >= 5
    assert all(row.aggregated == 2 for row in rounds)
    assert summary.exchange.aggregated_late >= 1


async def test_a_device_that_is_too_slow_is_late_and_the_buffer_does_not_wait(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path, NAMES) as (place, gate):
        gate.shut()
        config = asynchronous(4, buffer=3, concurrency=3, deadline_s=1.0, selection=WHOLE_FLEET)
        assert await place.run(config) == "done"
    with place.reader() as reader:
        (first, *_) = reader.exchanges_of(VICTIM)
        rounds = reader.rounds()
    assert first.outcome == "late"
    assert sum(row.dropped_late for row in rounds) >= 1
    assert all(row.aggregated == 2 for row in rounds[:2])


async def test_the_server_learning_rate_changes_the_model(tmp_path: Path) -> None:
    models = []
    for eta in (1.0, 0.5):
        config = asynchronous(
            2,
            buffer=3,
            concurrency=3,
            selection=WHOLE_FLEET,
            aggregation=AggregationConfig(server_learning_rate=eta),
        )
        async with fleet(tmp_path / str(eta), NAMES) as (place, _):
            assert await place.run(config) == "done"
        with place.reader() as reader:
            models.append([row.model_sha256 for row in reader.rounds()])
    assert models[0][0] != models[1][0]


STEPS = {
    "train": message_of(Train, 1),
    "offer": message_of(Offer, 1),
    "upload done": message_of(UploadDone, 1),
    "upload-result": message_of(UploadResult, 1),
}
FAULTS: tuple[Fault, ...] = ("lost", "device cut after", "coordinator cut after")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_costs_nothing_but_time(fault: Fault, step: str, tmp_path: Path) -> None:
    broker = FaultyBroker(fault, STEPS[step])
    config = asynchronous(6, buffer=3, concurrency=3, selection=WHOLE_FLEET)
    async with fleet(tmp_path, NAMES, broker) as (place, _):
        assert await place.run(config) == "done"
    assert broker.has_struck
    with place.reader() as reader:
        assert [row.aggregated for row in reader.rounds()] == [3] * 6
        assert {x.outcome for x in reader.exchanges(0)} == {"done"}


async def test_a_killed_coordinator_resumes_at_the_open_version(tmp_path: Path) -> None:
    config = asynchronous(6, buffer=2, concurrency=3)
    async with fleet(tmp_path) as (place, _):
        life = anyio.CancelScope()

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 3:
                place.broker.disconnect("coordinator", reconnects=False)
                life.cancel()

        place.on_progress = on_progress
        with life:
            await place.run(config)
        place.on_progress = lambda progress: None
        store = place.open_store()
        try:
            assert await place.coordinator(config, store, attempt=1).run() == "done"
        finally:
            store.close()
    with place.reader() as reader:
        assert [row.round for row in reader.rounds()] == [1, 2, 3, 4, 5, 6]
        assert {row.aggregated for row in reader.rounds()} == {2}
    assert [topic for topic in place.broker.retained if "/b/" in topic] == []


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"buffer": 2}, 'buffer must not be set with mode = "sync", got 2'),
        ({"concurrency": 2}, 'concurrency must not be set with mode = "sync", got 2'),
        ({"mode": "async", "over_select": 1}, 'over_select must be 0 with mode = "async", got 1'),
        ({"mode": "async", "late": "merge"}, 'late must not be set with mode = "async"'),
    ],
)
def test_a_contradictory_configuration_is_refused(settings: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        RoundConfig(**settings)  # type: ignore[arg-type]
