"""Lost links and coordinators during work, and how the agent resumes."""

import math

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from msgspec import structs

from fairbed.device_agent.state.lifecycle import Phase
from fairbed.wire.chunks import encode_chunk
from fairbed.wire.codec import encode
from fairbed.wire.messages import CoordinatorStatus, Failed, Hello, Offer, UploadDone, Welcome
from fairbed.wire.shard import encode_shard, make_shard
from fairbed.wire.transport.base import Packet
from tests.device_agent.conftest import NAME, AgentSetup
from tests.device_agent.coordinator import CHUNK_BYTES, TIMEOUT_S, WINDOW, FakeCoordinator
from tests.device_agent.softmax import Gate, softmax_task
from tests.wire.transport.memory import Faults

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

WIDE = 1500
"""Number of features of a model with many chunks."""

TASK = softmax_task(features=WIDE)
RNG = np.random.default_rng(7)
SHARD = encode_shard(
    make_shard(RNG.standard_normal((20, WIDE)).astype(np.float32), np.arange(20) % 3)
)
MODEL = RNG.standard_normal(3 * WIDE + 3).astype(np.float32) * np.float32(0.01)


class ChunkLoss:
    """Loses model chunks from the n-th on, until it is repaired."""

    def __init__(self, coordinator: FakeCoordinator, after: int) -> None:
        self.reached = anyio.Event()
        self.is_repaired = False
        self._after = after
        self._prefix = f"{coordinator.topics.base}/b/"
        self._delivered = 0

    def is_lost(self, client_id: str, packet: Packet) -> bool:
        if self.is_repaired or client_id != NAME or not packet.topic.startswith(self._prefix):
            return False
        self._delivered += 1
        if self._delivered > self._after:
            self.reached.set()
        return self._delivered > self._after

    async def wait(self) -> None:
        with anyio.fail_after(TIMEOUT_S):
            await self.reached.wait()
        self.is_repaired = True


async def finish(coordinator: FakeCoordinator) -> Offer:
    """Grant the next offer and receive the update."""
    offer = await coordinator.expect(Offer)
    await coordinator.grant(offer)
    await coordinator.receive(offer)
    return offer


async def test_resumes_a_download_after_the_link_was_lost(setup: AgentSetup) -> None:
    async with setup.running() as (agent, coordinator):
        await coordinator.join(TASK, SHARD)
        loss = ChunkLoss(coordinator, after=7)
        setup.broker.faults.is_lost = loss.is_lost
        await coordinator.request_training(1, MODEL)
        await loss.wait()
        setup.broker.disconnect(NAME)
        offer = await finish(coordinator)
        assert 1 <= offer.measured["rerequests_down"] <= WINDOW
        await coordinator.expect_context(is_ready=True, phase="idle")
        assert agent.phase is Phase.IDLE


async def test_requests_a_damaged_chunk_again(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        loss = ChunkLoss(coordinator, after=0)
        setup.broker.faults.is_lost = loss.is_lost
        train = await coordinator.request_training(1, MODEL)
        await loss.wait()
        topic = coordinator.topics.chunk(train.model.id.hex(), 0)
        frame = bytearray(encode_chunk(train.model.id, 0, bytes(CHUNK_BYTES)))
        frame[-1] ^= 1
        await coordinator.transport.publish(topic, bytes(frame))
        offer = await finish(coordinator)
        assert offer.measured["rerequests_down"] >= 1


async def test_a_model_that_does_not_match_its_hash_fails_the_round(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        loss = ChunkLoss(coordinator, after=0)
        setup.broker.faults.is_lost = loss.is_lost
        train = await coordinator.request_training(1, MODEL)
        await coordinator.publish_chunk(train.model, 3, bytes(CHUNK_BYTES))
        await loss.wait()
        setup.broker.disconnect(NAME)
        failed = await coordinator.expect(Failed)
        assert failed.phase == "downloading"
        assert "sha256 must be" in failed.reason


async def test_resumes_an_upload_after_the_link_was_lost(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, MODEL)
        offer = await coordinator.expect(Offer)
        coordinator.acknowledges = False
        await coordinator.grant(offer)
        await coordinator.expect_chunks(min(WINDOW, offer.manifest.chunk_count))
        coordinator.acknowledges = True
        setup.broker.disconnect(NAME)
        await coordinator.receive(offer)
        done = coordinator.seen[UploadDone][-1]
        assert isinstance(done, UploadDone)


async def test_sends_hello_and_offer_again_after_a_lost_link(setup: AgentSetup) -> None:
    setup.timeouts = type(setup.timeouts)(hello_s=0.05)  # repeats nothing by itself
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, MODEL)
        offer = await coordinator.expect(Offer)
        hellos = len(coordinator.seen[Hello])
        setup.broker.disconnect(NAME)
        assert await coordinator.expect(Offer) == offer
        assert len(coordinator.seen[Hello]) == hellos + 1
        await coordinator.grant(offer)
        await coordinator.receive(offer)


async def test_repeats_its_message_when_the_coordinators_link_is_back(setup: AgentSetup) -> None:
    setup.timeouts = type(setup.timeouts)(hello_s=0.05)
    async with setup.running() as (agent, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, MODEL)
        offer = await coordinator.expect(Offer)
        off = CoordinatorStatus(state="off", boot=coordinator.boot)
        await coordinator.transport.publish(coordinator.topics.coordinator, encode(off), qos=1)
        await coordinator.announce()
        assert await coordinator.expect(Offer) == offer
        assert agent.phase is Phase.OFFERING


async def test_a_restarted_coordinator_ends_the_round_and_is_joined(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(5, MODEL)
        await coordinator.expect(Offer)
        coordinator.boot = 2
        coordinator.status_on = CoordinatorStatus(state="on", boot=2)
        await coordinator.announce()
        await coordinator.welcome(TASK, SHARD)
        await coordinator.expect_context(is_ready=False)
        await coordinator.expect_context(is_ready=True, phase="idle")
        first, _ = await coordinator.run_round(5, MODEL)  # the same attempt, as it resumes
        assert not first.was_cold


async def test_a_welcome_of_an_earlier_coordinator_is_ignored(setup: AgentSetup) -> None:
    async with setup.running() as (agent, coordinator):
        await coordinator.expect(Hello)
        manifest = await coordinator.publish_blob("task", TASK)
        shard = coordinator.offer_shard(SHARD)
        await coordinator.send(Welcome(boot=99, task=manifest, shard=shard))
        await coordinator.expect(Hello)
        assert agent.phase is Phase.JOINING


async def test_survives_a_broker_that_loses_its_retained_messages(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.run_round(1, MODEL)
        setup.broker.restart()
        await coordinator.join(TASK, SHARD)
        await coordinator.run_round(2, MODEL)


async def test_trains_on_while_the_link_is_down_and_offers_when_it_is_back(
    setup: AgentSetup,
) -> None:
    gate = Gate()
    setup.open_engine = gate.open_engine
    async with setup.running() as (agent, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, MODEL)
        await coordinator.expect_context(is_ready=True, phase="training")
        setup.broker.disconnect(NAME, reconnects=False)
        gate.opened.set()
        with anyio.fail_after(TIMEOUT_S):
            while agent.phase is not Phase.OFFERING:
                await anyio.lowlevel.checkpoint()
        assert not coordinator.seen[Offer]
        setup.broker.reconnect(NAME)
        await finish(coordinator)


async def test_goes_offline_after_a_round_that_ended_without_a_link(setup: AgentSetup) -> None:
    setup.timeouts = structs.replace(setup.timeouts, outage_s=0.05)
    async with setup.running() as (agent, coordinator):
        await coordinator.join(TASK, SHARD)
        loss = ChunkLoss(coordinator, after=0)
        setup.broker.faults.is_lost = loss.is_lost
        await coordinator.request_training(1, MODEL, deadline_s=0.05)
        await loss.wait()
        setup.broker.disconnect(NAME, reconnects=False)
        with anyio.fail_after(TIMEOUT_S):
            while agent.phase is not Phase.OFFLINE:
                await anyio.lowlevel.checkpoint()
        setup.broker.reconnect(NAME)
        await coordinator.join(TASK, SHARD)


@pytest.mark.parametrize("seed", range(3))
async def test_finishes_rounds_over_a_link_with_loss_duplicates_and_reordering(
    setup: AgentSetup, seed: int
) -> None:
    setup.broker = type(setup.broker)(seed=seed)
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        setup.broker.faults = Faults(loss_ratio=0.03, duplicate_ratio=0.1, reorder_ratio=0.2)
        for round_id in (1, 2):
            await coordinator.request_training(round_id, MODEL)
            offer = await coordinator.expect(Offer)
            await coordinator.grant(offer)
            await coordinator.receive(offer)


def test_the_model_of_these_tests_has_many_chunks() -> None:
    assert math.ceil(MODEL.nbytes / CHUNK_BYTES) > 4 * WINDOW
