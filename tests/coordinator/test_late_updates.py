"""Real agents that are late: their updates enter a later round once, or are dropped."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from fairbed.coordinator.policy.config import CoordinatorConfig, ExchangeConfig, RoundConfig
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.wire.messages import Grant, Offer, UploadAck, UploadDone, UploadResult
from tests.coordinator.faulty import VICTIM, Fault, FaultyBroker, message_of, update_chunk
from tests.coordinator.lab import NAMES, WHOLE_FLEET, Lab, lab, make_config
from tests.coordinator.stragglers import Gate, SlowTraining

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

DEADLINE_S = 1.0
TRAIN_S = 0.05
"""Training time of the other devices; a chunk re-request after 2 s costs 40 of their versions."""

ROUNDS = 2_000
"""More than any test waits for."""
MERGING = RoundConfig(
    min_devices=len(NAMES),
    deadline_s=DEADLINE_S,
    join_timeout_s=30.0,
    void_wait_s=0.1,
    late="merge",
    max_staleness=100,
)


def merging(rounds: int = ROUNDS, **sections: object) -> CoordinatorConfig:
    chosen: dict[str, object] = {"selection": WHOLE_FLEET, "round": MERGING}
    return make_config(rounds, len(NAMES), **(chosen | sections))


@asynccontextmanager
async def fleet(folder: Path, gate: Gate, broker: FaultyBroker | None = None) -> AsyncIterator[Lab]:
    """Three devices whose victim trains behind the gate; rows and data are always the same."""
    async with lab(folder, agents=0, broker=broker) as place:
        place.device_names = NAMES
        for name in NAMES:
            place.shards.shard(name)
            place.start_agent(name, host=(gate if name == VICTIM else SlowTraining(TRAIN_S)).host())
        try:
            yield place
        finally:
            gate.open()


def of_victim(place: Lab, round_id: int = 1) -> ExchangeRow:
    with place.reader() as reader:
        (row,) = [x for x in reader.exchanges_of(VICTIM) if x.round == round_id]
    return row


async def run_until(
    place: Lab, config: CoordinatorConfig, is_enough: Callable[[RoundProgress], bool]
) -> None:
    """Run until `is_enough` holds after a round."""
    store = place.open_store()
    try:
        coordinator = place.coordinator(config, store)

        def on_progress(progress: RoundProgress) -> None:
            if is_enough(progress):
                coordinator.stop()

        place.on_progress = on_progress
        assert await coordinator.run() == "stopped"
    finally:
        store.close()


async def held_until(
    place: Lab,
    gate: Gate,
    config: CoordinatorConfig,
    is_enough: Callable[[RoundProgress], bool],
    closed: int = 1,
) -> None:
    """Run with the victim held in its first round until round `closed` has ended."""
    gate.shut()

    def open_gate(progress: RoundProgress) -> bool:
        if progress.round.round == closed:
            gate.open()
        return is_enough(progress)

    await run_until(place, config, open_gate)
    assert gate.held == 1


def is_merged(progress: RoundProgress) -> bool:
    """A late update has entered the model."""
    return progress.round.aggregated_late > 0


def is_selected_again(progress: RoundProgress) -> bool:
    """The victim takes part in a later round."""
    return progress.round.round > 1 and VICTIM in progress.cohort


async def test_a_late_update_enters_a_later_round_and_its_whole_time_is_observed(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with fleet(tmp_path, gate) as place:
        await held_until(place, gate, merging(), is_merged)
    late = of_victim(place)
    assert (late.outcome, late.is_valid, late.reason) == ("done", True, "")
    assert late.staleness is not None
    assert late.aggregated_round is not None
    assert late.aggregated_round == 1 + late.staleness > 1
    assert late.tau_s is not None
    assert late.tau_s > DEADLINE_S
    with place.reader() as reader:
        rounds, summary = reader.rounds(), summarise_run(reader)
        merged = {
            row.device for row in reader.selections(late.aggregated_round) if row.is_aggregated
        }
        assert VICTIM in merged
        counts = {row.device: row for row in reader.selection_counts()}
        kinds = [(event.kind, event.device, event.round) for _, event in reader.events()]
    assert ("straggler", VICTIM, 1) in kinds
    assert rounds[0].aggregated == 2
    assert [row.aggregated_late for row in rounds] == [
        int(r.round == late.aggregated_round) for r in rounds
    ]
    assert sum(row.dropped_late for row in rounds) == 0
    assert counts[VICTIM].selected == counts[VICTIM].aggregated
    assert summary.exchange.aggregated_late == 1
    assert summary.exchange.late == 0
    assert summary.exchange.staleness_mean is not None
    assert summary.exchange.staleness_mean > 0.0
    others = [r for r in rounds if r.round != late.aggregated_round]
    assert all(row.duration_s == pytest.approx(row.tau_max_s + row.close_s) for row in others)


async def test_a_late_device_is_selected_again_when_it_is_done_and_is_warm(tmp_path: Path) -> None:
    gate = Gate()
    async with fleet(tmp_path, gate) as place:
        await held_until(place, gate, merging(), is_selected_again)
    late = of_victim(place)
    assert late.aggregated_round is not None
    with place.reader() as reader:
        mine = {x.round: x for x in reader.exchanges_of(VICTIM)}
    assert set(range(2, late.aggregated_round + 1)).isdisjoint(mine), "it was still at work"
    again = mine[late.aggregated_round + 1]
    assert again.s_not_previous == 0
    assert again.was_cold is False


async def test_with_late_drop_the_same_update_is_lost(tmp_path: Path) -> None:
    gate = Gate()
    drop = msgspec.structs.replace(MERGING, late="drop")
    async with fleet(tmp_path, gate) as place:
        gate.shut()
        assert await place.run(merging(rounds=3, round=drop)) == "done"
    late = of_victim(place)
    assert (late.outcome, late.staleness, late.aggregated_round) == ("late", None, None)
    with place.reader() as reader:
        late_rounds = [x.round for x in reader.exchanges_of(VICTIM) if x.outcome == "late"]
        assert [row.round for row in reader.rounds() if row.dropped_late] == late_rounds
        assert summarise_run(reader).exchange.late == len(late_rounds)


async def test_without_late_devices_the_run_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    histories = []
    for late in ("drop", "merge"):
        patient = msgspec.structs.replace(MERGING, deadline_s=30.0, late=late)
        async with fleet(tmp_path / late, Gate()) as place:
            assert await place.run(merging(rounds=3, round=patient)) == "done"
        with place.reader() as reader:
            rounds = [(r.round, r.status, r.aggregated, r.model_sha256) for r in reader.rounds()]
            exchanges = [(x.round, x.device, x.outcome, x.staleness) for x in reader.exchanges(0)]
            histories.append((rounds, sorted(exchanges)))
    assert histories[0] == histories[1]


async def test_an_exchange_that_would_be_too_stale_ends_and_its_device_comes_back(
    tmp_path: Path,
) -> None:
    gate, least = Gate(), msgspec.structs.replace(MERGING, max_staleness=1)
    async with fleet(tmp_path, gate) as place:
        await held_until(place, gate, merging(round=least), is_selected_again, closed=3)
    late = of_victim(place)
    assert (late.outcome, late.staleness) == ("late", None)
    assert "1 versions late" in late.reason
    with place.reader() as reader:
        assert sum(row.dropped_late for row in reader.rounds()) == 1
        assert sum(row.aggregated_late for row in reader.rounds()) == 0
        assert [topic for topic in place.broker.retained if "/b/" in topic] == []


async def test_the_end_of_the_run_ends_open_exchanges(tmp_path: Path) -> None:
    gate = Gate()
    async with fleet(tmp_path, gate) as place:
        gate.shut()
        assert await place.run(merging(rounds=2)) == "done"
    late = of_victim(place)
    assert (late.outcome, late.reason) == ("late", "the run is over")
    with place.reader() as reader:
        assert [row.dropped_late for row in reader.rounds()] == [0, 1]


@pytest.mark.parametrize(
    "exchange",
    [
        ExchangeConfig(up="int8", down="delta"),
        ExchangeConfig(up="top-k", down="int8", top_k=0.1),
        ExchangeConfig(up="float16", down="float16"),
    ],
    ids=["delta", "top-k", "float16"],
)
async def test_a_coded_update_is_decoded_against_the_version_it_changes(
    exchange: ExchangeConfig, tmp_path: Path
) -> None:
    gate = Gate()
    async with fleet(tmp_path, gate) as place:
        await held_until(place, gate, merging(exchange=exchange), is_merged)
    late = of_victim(place)
    assert (late.outcome, late.codec_up) == ("done", exchange.up)
    assert late.staleness
    with place.reader() as reader:
        assert {x.outcome for x in reader.exchanges(0)} == {"done"}


LATE_STEPS = {
    "offer": message_of(Offer, 1),
    "grant": message_of(Grant, 1),
    "update chunk": update_chunk,
    "upload ack": message_of(UploadAck),
    "upload done": message_of(UploadDone, 1),
    "upload-result": message_of(UploadResult, 1),
}
FAULTS: tuple[Fault, ...] = (
    "lost",
    "twice",
    "device cut after",
    "coordinator cut after",
    "broker restarted after",
)
CASES = [(fault, step) for step in LATE_STEPS for fault in FAULTS]
HURRIED = msgspec.structs.replace(MERGING, deadline_s=0.4, max_staleness=100)


@pytest.mark.parametrize(("fault", "step"), CASES, ids=[f"{step} {fault}" for fault, step in CASES])
async def test_a_fault_on_the_late_path_loses_nothing_and_merges_nothing_twice(
    fault: Fault, step: str, tmp_path: Path
) -> None:
    is_it: Callable[[str, bytes], bool] = LATE_STEPS[step]
    gate, broker = Gate(), FaultyBroker(fault, is_it)
    async with fleet(tmp_path, gate, broker) as place:
        await held_until(place, gate, merging(round=HURRIED), is_merged)
    assert broker.has_struck, f"{VICTIM} has no such step"
    late = of_victim(place)
    assert late.outcome == "done"
    with place.reader() as reader:
        entered = [
            row.round
            for t in range(1, len(reader.rounds()) + 1)
            for row in reader.selections(t)
            if row.device == VICTIM and row.is_aggregated
        ]
        mine = [x.aggregated_round for x in reader.exchanges_of(VICTIM, limit=5000)]
    assert sorted(entered) == sorted(r for r in mine if r is not None)


async def test_a_killed_coordinator_drops_late_exchanges_and_continues(tmp_path: Path) -> None:
    gate = Gate()
    config = merging(rounds=5)
    async with fleet(tmp_path, gate) as place:
        gate.shut()
        life = anyio.CancelScope()

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                place.broker.disconnect("coordinator", reconnects=False)
                life.cancel()

        place.on_progress = on_progress
        with life:
            await place.run(config)
        gate.open()
        place.on_progress = lambda progress: None
        store = place.open_store()
        try:
            assert await place.coordinator(config, store, attempt=1).run() == "done"
        finally:
            store.close()
    late = of_victim(place)
    assert (late.outcome, late.aggregated_round) == ("late", None)
    with place.reader() as reader:
        assert [row.round for row in reader.rounds()] == [1, 2, 3, 4, 5]
        assert {x.outcome for x in reader.exchanges(2)} == {"done"}
        assert any(x.device == VICTIM for x in reader.exchanges(2))
    assert [topic for topic in place.broker.retained if "/b/" in topic] == []


async def test_a_late_device_that_is_restarted_is_lost_and_comes_back(tmp_path: Path) -> None:
    gate = Gate()
    async with fleet(tmp_path, gate) as place:
        gate.shut()

        def on_progress(progress: RoundProgress) -> bool:
            if progress.round.round == 1:
                gate.open()
                place.kill_agent(VICTIM)
                place.start_agent(VICTIM)

            return is_selected_again(progress)

        await run_until(place, merging(), on_progress)
    late = of_victim(place)
    assert (late.outcome, late.aggregated_round) == ("lost", None)


def blobs_in(place: Lab) -> set[str]:
    """Return the blobs that the broker holds."""
    parts = [topic.partition("/b/")[2] for topic in place.broker.retained]
    return {part.partition("/")[0] for part in parts if part}


async def test_memory_of_versions_is_bounded_by_staleness(tmp_path: Path) -> None:
    """While a late device trains, the broker holds the blobs that it may pull and no older ones."""
    gate = Gate()
    seen: list[int] = []
    async with fleet(tmp_path, gate) as place:
        gate.shut()

        def on_progress(progress: RoundProgress) -> None:
            seen.append(len(blobs_in(place)))
            if progress.round.round == 12:
                gate.open()

        place.on_progress = on_progress
        tight = msgspec.structs.replace(MERGING, max_staleness=2)
        assert await place.run(merging(rounds=14, round=tight)) == "done"
    assert seen[0] == seen[1] == 3, "task, model, and the blob that the late device may still pull"
    later = seen[4:12]
    assert min(later) == 2
    assert max(later) <= 3, "the blob that was replaced may be removed a moment later"
