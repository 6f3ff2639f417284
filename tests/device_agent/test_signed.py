"""A device with a task key carries out signed messages only (#20, C2), of one session (#34, 8)."""

from hashlib import sha256

import anyio
import numpy as np
import pytest
from msgspec import structs

from fairbed.device_agent.state.lifecycle import Phase
from fairbed.wire.chunks import chunk_slice, encode_chunk, manifest_of
from fairbed.wire.codec import encode
from fairbed.wire.messages import (
    Goodbye,
    Hello,
    Hyperparameters,
    Offer,
    Ping,
    Pong,
    Refuse,
    Train,
    UploadDone,
    Welcome,
)
from fairbed.wire.shard import encode_shard
from fairbed.wire.signature import session_keys, task_key
from fairbed.wire.tensors import vector_to_bytes
from fairbed.wire.topics import Topics
from tests.device_agent.conftest import NAME, AgentSetup
from tests.device_agent.coordinator import CHUNK_BYTES
from tests.device_agent.softmax import N_VALUES, examples, softmax_task

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

TASK = softmax_task()
SHARD = encode_shard(examples(40))
ZEROS = np.zeros(N_VALUES, np.float32)
KEY = task_key("secret of the lab", NAME)


@pytest.fixture(autouse=True)
def demands_signatures(setup: AgentSetup) -> None:
    setup.task_key = KEY


async def test_a_forged_task_is_refused_in_one_line_and_the_device_serves_its_own_coordinator(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async with setup.running() as (agent, coordinator):
        for _ in range(3):
            await coordinator.welcome(TASK, SHARD)
        await coordinator.send(Refuse(reason="forged", is_final=True))
        await coordinator.expect(Hello)
        assert agent.phase is Phase.JOINING
        assert not list(setup.folder.rglob("*-*"))
        lines = [line for line in caplog.messages if "must be signed" in line]
        assert lines == [
            f"{NAME}: ignored, now and later: a message to this device must be signed, got {kind}; "
            "if it is of your own coordinator, enrol this device again: fairbed enroll --upgrade"
            for kind in ("Welcome", "Refuse")
        ]
        await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        _, update = await coordinator.run_round(1, ZEROS)
        assert update.any()
    assert setup.fault is None


OTHERS = ["process", "session", "device", "lab", "run", "start", "task", "direction"]


@pytest.mark.parametrize("other", OTHERS)
async def test_a_signature_of_another_is_refused(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    async with setup.running() as (agent, coordinator):
        hello, key, bound = await coordinator.sign_for(KEY), KEY, coordinator.binding
        match other:
            case "process":
                hello = structs.replace(hello, boot=hello.boot ^ 1)
            case "session":
                hello = structs.replace(hello, nonce=hello.nonce ^ 1)
            case "device":
                key = task_key("secret of the lab", "nano")
            case "lab":
                key = task_key("another lab", NAME)
            case "run":
                bound = bound._replace(run="another run")
            case "start":
                bound = bound._replace(boot=bound.boot + 1)
            case "task":
                bound = bound._replace(task=bytes(32))
        keys = session_keys(key, bound, hello)
        coordinator.session_key = keys.from_device if other == "direction" else keys.to_device
        coordinator.device_key = None
        await coordinator.welcome(TASK, SHARD)
        await coordinator.expect(Hello)
        assert agent.phase is Phase.JOINING
        assert "signature: must be made with the task key of this device" in caplog.text


async def test_a_device_signs_all_that_it_sends(setup: AgentSetup) -> None:
    """The coordinator of these tests drops what is not signed by the key of the session."""
    async with setup.running() as (_, coordinator):
        await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        coordinator.seen.clear()
        coordinator.device_key = b"?" * 32
        await coordinator.request_training(1, ZEROS)
        await coordinator.send(Ping(seq=1))
        await anyio.sleep(1.0)
        assert not coordinator.seen


async def test_a_chunk_of_a_model_on_the_topic_of_the_device_is_ignored(
    setup: AgentSetup,
) -> None:
    """Any chunk there is private; those of models are on topics that no device may write."""
    model, swapped = ZEROS + 1.0, ZEROS + 2.0
    manifest = manifest_of(bytes(vector_to_bytes(model)), "model", CHUNK_BYTES)
    data, topic = bytes(vector_to_bytes(swapped)), Topics().data(NAME)
    async with setup.running() as (_, coordinator):
        await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        await coordinator.send(
            Train(
                round=1,
                model=manifest,
                hyperparameters=Hyperparameters(epochs=1, batch_size=10, learning_rate=0.5),
                seed=1,
                needs_loss=False,
                deadline_s=60.0,
            )
        )
        for index in range(manifest.chunk_count):
            frame = encode_chunk(manifest.id, index, data[chunk_slice(manifest, index)])
            await coordinator.transport.publish(topic, frame)
        await anyio.sleep(0.2)
        await coordinator.publish_blob("model", bytes(vector_to_bytes(model)))
        offer = await coordinator.expect_offer(1)
        assert offer.model == manifest.sha256


async def test_an_offer_names_the_model_that_was_trained(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        offer, _ = await coordinator.run_round(1, ZEROS)
        done = coordinator.seen[UploadDone][-1]
        assert isinstance(done, UploadDone)
        assert offer.model == done.model == sha256(ZEROS.tobytes()).digest()


async def test_each_coordinator_process_has_a_session_of_its_own(setup: AgentSetup) -> None:
    """What was signed for one is worthless for it, too, once another one was there."""
    async with setup.running() as (agent, coordinator):
        first = await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        own, coordinator.device_key = coordinator.status_on, None
        keys = coordinator.session_key
        coordinator.status_on = structs.replace(own, boot=2)
        await coordinator.announce()
        second = await coordinator.sign_for(KEY, first)
        coordinator.status_on, coordinator.device_key = own, None
        await coordinator.announce()
        third = await coordinator.sign_for(KEY, second)
        assert len({first.nonce, second.nonce, third.nonce}) == 3
        coordinator.session_key = keys
        task, shard = manifest_of(TASK, "task"), coordinator.offer_shard(SHARD)
        await coordinator.send(Welcome(boot=1, task=task, shard=shard))
        await anyio.sleep(0.5)
        assert agent.phase is Phase.JOINING


async def test_a_forged_status_ends_no_work(setup: AgentSetup) -> None:
    async with setup.running() as (agent, coordinator):
        await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS)
        offer = await coordinator.expect_offer(1)
        own = coordinator.status_on
        for boot in (2, 3):
            coordinator.status_on = structs.replace(own, boot=boot, run_id=f"forged {boot}")
            await coordinator.announce()
            await anyio.sleep(0.5)
        assert agent.phase.value == "offering"
        coordinator.status_on = own
        await coordinator.announce()
        await coordinator.grant(offer)
        assert (await coordinator.receive(offer)).any()
        await coordinator.expect_context(is_ready=True, phase="idle")
        assert agent.phase is Phase.IDLE


async def test_the_next_coordinator_ends_the_work_as_soon_as_it_has_proved_itself(
    setup: AgentSetup,
) -> None:
    async with setup.running() as (agent, coordinator):
        first = await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS)
        await coordinator.expect_offer(1)
        coordinator.boot, coordinator.device_key = 2, None
        coordinator.status_on = structs.replace(coordinator.status_on, boot=2)
        await coordinator.announce()
        second = await coordinator.sign_for(KEY, first)
        assert agent.phase is Phase.OFFERING
        task, shard = await coordinator.publish_blob("task", TASK), coordinator.offer_shard(SHARD)
        await coordinator.send(Welcome(boot=2, task=task, shard=shard))
        await anyio.sleep(1.0)
        _, update = await coordinator.run_round(2, ZEROS)
        assert update.any()
        assert second.boot == first.boot


async def test_a_coordinator_that_was_not_heard_during_the_work_is_joined_after_it(
    setup: AgentSetup,
) -> None:
    async with setup.running() as (agent, coordinator):
        await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        await coordinator.request_training(1, ZEROS)
        offer = await coordinator.expect_offer(1)
        own = coordinator.status_on
        coordinator.status_on = structs.replace(own, boot=2)
        await coordinator.announce()
        await coordinator.grant(offer)
        await coordinator.receive(offer)
        await anyio.sleep(0.5)
        assert agent.phase is Phase.JOINING


async def test_a_forged_request_trains_nothing(setup: AgentSetup) -> None:
    async with setup.running() as (agent, coordinator):
        await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        signing, coordinator.session_key = coordinator.session_key, None
        await coordinator.request_training(1, ZEROS)
        await coordinator.send(Ping(seq=1))
        coordinator.session_key = signing
        await coordinator.send(Ping(seq=2))
        assert (await coordinator.expect(Pong)).seq == 2
        assert agent.phase is Phase.IDLE
        assert not coordinator.seen[Offer]


async def test_a_forged_goodbye_ends_no_agent(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    """`--once` ends the agent for good; only its own coordinator may do that."""
    setup.once = True
    async with setup.running() as (agent, coordinator):
        await coordinator.sign_for(KEY)
        await coordinator.join(TASK, SHARD)
        everyone = coordinator.topics.control_all
        await coordinator.transport.publish(everyone, encode(Goodbye(reason="forged")), qos=1)
        await coordinator.send(Ping(seq=1))
        assert (await coordinator.expect(Pong)).seq == 1
        assert agent.phase is Phase.IDLE
        assert "must be signed" not in caplog.text, "each run ends with an unsigned one, too"
        await coordinator.send(Goodbye(reason="the run is over"))
        with anyio.fail_after(30.0):
            await setup.ended.wait()
    assert setup.fault is None


async def test_a_device_without_a_key_ignores_signed_messages(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.task_key = None
    async with setup.running() as (agent, coordinator):
        coordinator.session_key = b"?" * 32
        await coordinator.welcome(TASK, SHARD)
        with anyio.fail_after(30.0):
            await coordinator.expect(Hello)
        assert agent.phase is Phase.JOINING
        assert "this device has no task_key to check a signature" in caplog.text
