"""Rounds of one agent: phases, cold and warm starts, duplicates, cancellation, failures."""

import threading

import anyio
import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from fairbed.device_agent.engines.base import Engine
from fairbed.device_agent.jobs import Stopwatch
from fairbed.device_agent.state.lifecycle import Phase
from fairbed.device_agent.trainer import train as reference_train
from fairbed.wire.artifact import Artifact
from fairbed.wire.codec import encode
from fairbed.wire.messages import (
    Cancel,
    CoordinatorStatus,
    Failed,
    Grant,
    Hyperparameters,
    Offer,
    UploadResult,
)
from fairbed.wire.shard import encode_shard
from tests.device_agent.clock import ManualClock
from tests.device_agent.conftest import AgentSetup
from tests.device_agent.coordinator import FakeCoordinator
from tests.device_agent.softmax import (
    N_VALUES,
    Gate,
    SoftmaxEngine,
    examples,
    softmax_artifact,
    softmax_task,
)

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

TASK = softmax_task()
SHARD = encode_shard(examples(40))
ZEROS = np.zeros(N_VALUES, np.float32)


async def training(coordinator: FakeCoordinator) -> None:
    """Wait until the device reports that it trains."""
    await coordinator.expect_context(is_ready=True, phase="training")


class Unpaced:
    def step(self, n_examples: int, length: int | None = None) -> None:
        pass

    def read(self, n_bytes: int) -> None:
        pass


async def test_trains_the_requested_model(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        offer, update = await coordinator.run_round(1, ZEROS, needs_loss=True)
    x, y = examples(40).arrays()
    expected = reference_train(
        SoftmaxEngine(softmax_artifact().spec),
        ZEROS,
        x,
        y,
        Hyperparameters(epochs=1, batch_size=10, learning_rate=0.5),
        1,
        Unpaced(),
        lambda: False,
    )
    np.testing.assert_array_equal(update, expected.vector)
    assert offer.steps == 4
    assert offer.n_k == 40
    assert offer.loss_before == pytest.approx(np.log(3.0))
    assert offer.loss_train == pytest.approx(expected.loss_train)


def test_each_phase_begins_where_the_one_before_ended() -> None:
    clock = ManualClock()
    watch = Stopwatch(clock, clock.now())
    clock.now_s += 2.0
    assert watch.lap("download") == 2.0
    clock.now_s += 0.5
    assert watch.lap("load") == 0.5
    assert (watch["download"], watch["load"]) == (2.0, 0.5)


async def test_no_phase_is_missing(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        offer, _ = await coordinator.run_round(1, ZEROS, needs_loss=True)
        phases = offer.phases
    laps = (phases.download_s, phases.load_s, phases.evaluate_s, phases.train_s)
    assert all(lap > 0.0 for lap in laps)
    assert phases.train_cpu_s > 0.0


async def test_a_device_is_cold_first_warm_next_and_cold_after_a_missed_round(
    setup: AgentSetup,
) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        was_cold = [(await coordinator.run_round(r, ZEROS))[0].was_cold for r in (1, 2, 4, 5)]
        assert was_cold == [True, False, True, False]
        kept, _ = await coordinator.run_round(9, ZEROS, keep_warm=True)
        assert not kept.was_cold


async def test_a_cold_start_opens_the_session_again(setup: AgentSetup) -> None:
    opened = []

    def open_engine(artifact: Artifact, threads: int) -> Engine:
        opened.append(artifact)
        return SoftmaxEngine(artifact.spec)

    setup.open_engine = open_engine
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        for round_id, sessions in ((1, 2), (2, 2), (4, 3)):
            await coordinator.run_round(round_id, ZEROS)
            assert len(opened) == sessions


async def test_a_duplicate_train_starts_nothing_new(setup: AgentSetup) -> None:
    gate = Gate()
    setup.open_engine = gate.open_engine
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        train = await coordinator.request_training(1, ZEROS)
        await training(coordinator)
        await coordinator.send(train)
        gate.opened.set()
        offer = await coordinator.expect(Offer)
        await coordinator.grant(offer)
        await coordinator.receive(offer)
        await coordinator.send(train)
        await coordinator.run_round(2, ZEROS)
        assert {o.round for o in offers(coordinator)} == {1, 2}
        assert len({o.manifest.id for o in offers(coordinator)}) == 2


async def test_an_offer_is_repeated_until_it_is_granted(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS)
        first, second = await coordinator.expect(Offer), await coordinator.expect(Offer)
        assert first == second
        await coordinator.grant(second)
        await coordinator.receive(second)


@pytest.mark.parametrize(("round_id", "attempt"), [(1, 1), (2, 0)])
async def test_a_newer_train_replaces_the_current_one(
    setup: AgentSetup, round_id: int, attempt: int
) -> None:
    gate = Gate()
    setup.open_engine = gate.open_engine
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS)
        await training(coordinator)
        await coordinator.request_training(round_id, ZEROS, attempt=attempt)
        await coordinator.expect_context(is_ready=True, phase="downloading")
        gate.opened.set()
        offer = await coordinator.expect(Offer)
        assert (offer.round, offer.attempt) == (round_id, attempt)
        await coordinator.grant(offer)
        await coordinator.receive(offer)
        assert len({o.manifest.id for o in offers(coordinator)}) == 1
        assert not coordinator.seen[Failed]


async def test_an_older_train_is_a_late_duplicate(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.run_round(2, ZEROS)
        await coordinator.request_training(1, ZEROS)
        await coordinator.run_round(3, ZEROS)
        assert {o.round for o in offers(coordinator)} == {2, 3}


async def test_cancel_stops_the_round_between_two_mini_batches(setup: AgentSetup) -> None:
    gate = Gate()
    setup.open_engine = gate.open_engine
    async with setup.running() as (agent, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS, epochs=1000)
        await training(coordinator)
        await coordinator.send(Cancel(round=7, reason="another round"))
        await coordinator.send(Cancel(round=1, reason="enough"))
        await coordinator.expect_context(is_ready=True, phase="idle")
        assert agent.phase is Phase.IDLE
        gate.opened.set()
        offer, _ = await coordinator.run_round(2, ZEROS)
        assert not offer.was_cold
        assert {o.round for o in offers(coordinator)} == {2}
        assert not coordinator.seen[Failed]


async def test_a_round_past_its_deadline_fails(setup: AgentSetup) -> None:
    never = threading.Event()
    setup.open_engine = lambda artifact, threads: SoftmaxEngine(
        artifact.spec, lambda gradients: (never.wait(0.01), None)[1]
    )
    async with setup.running() as (agent, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS, deadline_s=0.1, epochs=10_000)
        failed = await coordinator.expect(Failed)
        assert failed.reason == "the deadline of 0.1 s has passed"
        await coordinator.expect_context(is_ready=True, phase="idle")
        assert agent.phase is Phase.IDLE


async def test_waiting_for_the_grant_does_not_count_against_the_deadline(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS, deadline_s=0.5)
        offer = await coordinator.expect(Offer)
        for _ in range(7):  # repeated every 0.1 s: the deadline has passed
            await coordinator.expect(Offer)
        await coordinator.grant(offer)
        await coordinator.receive(offer)
        assert not coordinator.seen[Failed]


async def test_an_offline_coordinator_extends_the_deadline(setup: AgentSetup) -> None:
    deadline_s = 0.5
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS, deadline_s=deadline_s)
        offer = await coordinator.expect(Offer)
        await coordinator.grant(offer)
        off = CoordinatorStatus(state="off", boot=coordinator.boot)
        await coordinator.transport.publish(coordinator.topics.coordinator, encode(off), qos=1)
        await anyio.sleep(1.5 * deadline_s)
        await coordinator.announce()
        await coordinator.receive(offer)
        await coordinator.expect_context(is_ready=True, phase="idle")
        assert not coordinator.seen[Failed]


async def test_the_round_fails_if_the_coordinator_stays_offline(setup: AgentSetup) -> None:
    setup.timeouts = structs.replace(setup.timeouts, outage_s=0.1)
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS, deadline_s=0.5)
        offer = await coordinator.expect(Offer)
        await coordinator.grant(offer)
        off = CoordinatorStatus(state="off", boot=coordinator.boot)
        await coordinator.transport.publish(coordinator.topics.coordinator, encode(off), qos=1)
        failed = await coordinator.expect(Failed)
        assert failed.reason == "the deadline of 0.5 s has passed"


async def test_a_rejected_update_ends_the_round(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS)
        offer = await coordinator.expect(Offer)
        await coordinator.grant(offer)
        await coordinator.send(
            UploadResult(round=1, id=offer.manifest.id, accepted=False, reason="not finite")
        )
        await coordinator.expect_context(is_ready=True, phase="idle")
        assert "round 1: not accepted: not finite" in caplog.text


async def test_messages_about_other_uploads_are_ignored(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS)
        offer = await coordinator.expect(Offer)
        stranger = bytes(16)
        await coordinator.send(Grant(round=1, id=stranger, window=4))
        await coordinator.send(Grant(round=9, id=offer.manifest.id, window=4))
        await coordinator.send(UploadResult(round=1, id=stranger, accepted=True))
        await coordinator.expect(Offer)
        await coordinator.grant(offer)
        await coordinator.receive(offer)


async def test_divergence_is_reported_with_its_step(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS, learning_rate=1e14, epochs=50)
        failed = await coordinator.expect(Failed)
        assert failed.phase == "training"
        assert "must be finite" in failed.reason
        await coordinator.run_round(2, ZEROS)


@pytest.mark.parametrize(
    ("vector", "phase", "reason"),
    [
        (np.zeros(N_VALUES + 1, np.float32), "downloading", "model: must be 84 bytes"),
        (np.full(N_VALUES, np.nan, np.float32), "downloading", "every value must be finite"),
    ],
)
async def test_a_model_that_cannot_be_used_fails_the_round_only(
    setup: AgentSetup, vector: NDArray[np.float32], phase: str, reason: str
) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, vector)
        failed = await coordinator.expect(Failed)
        assert failed.phase == phase
        assert reason in failed.reason
        await coordinator.run_round(2, ZEROS)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("surprise"), "internal error: RuntimeError: surprise"),
    ],
)
async def test_a_fault_of_the_engine_fails_the_round_only(
    setup: AgentSetup, fault: Exception, reason: str
) -> None:
    faults = [fault]

    def hook(gradients: int) -> None:
        if is_armed and faults:
            raise faults.pop()

    is_armed = False
    setup.open_engine = lambda artifact, threads: SoftmaxEngine(artifact.spec, hook)
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        is_armed = True
        await coordinator.request_training(1, ZEROS)
        failed = await coordinator.expect(Failed)
        assert failed.phase == "training"
        assert reason in failed.reason
        await coordinator.run_round(2, ZEROS)


async def test_a_failure_is_repeated_after_a_repeated_request(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        train = await coordinator.request_training(1, np.zeros(3, np.float32))
        first = await coordinator.expect(Failed)
        await coordinator.send(train)
        assert await coordinator.expect(Failed) == first


async def test_a_shard_corrupted_between_rounds_is_downloaded_again(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        (path,) = setup.folder.glob("cache/shard-*")
        path.unlink()
        await coordinator.request_training(1, ZEROS)
        failed = await coordinator.expect(Failed)
        assert "missing or corrupt on disk" in failed.reason
        await coordinator.join(TASK, SHARD)
        await coordinator.run_round(2, ZEROS)


def offers(coordinator: FakeCoordinator) -> list[Offer]:
    return [offer for offer in coordinator.seen[Offer] if isinstance(offer, Offer)]
