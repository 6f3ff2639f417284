"""An agent and its coordinator: joining, refusals, exit."""

from pathlib import Path

import anyio
import msgspec
import numpy as np
import pytest
from msgspec import structs

from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.errors import AgentRefused, DataError
from fairbed.device_agent.state.lifecycle import Phase
from fairbed.wire.artifact import encode_artifact
from fairbed.wire.chunks import encode_chunk, manifest_of
from fairbed.wire.codec import decode_from_device, encode
from fairbed.wire.messages import (
    ChunkRequest,
    Context,
    CoordinatorStatus,
    Failed,
    Goodbye,
    Hello,
    LinkProbe,
    Ping,
    Pong,
    Refuse,
    Status,
)
from fairbed.wire.shard import encode_shard
from tests.device_agent.conftest import NAME, AgentSetup
from tests.device_agent.coordinator import CHUNK_BYTES, TIMEOUT_S, FakeCoordinator
from tests.device_agent.softmax import FEATURES, N_VALUES, examples, softmax_artifact, softmax_task

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

TASK = softmax_task()
SHARD = encode_shard(examples(40))
LARGE = 2000
LARGE_SHARD = encode_shard(examples(LARGE))
ZEROS = np.zeros(N_VALUES, np.float32)


async def test_joins_and_reports_its_capabilities(setup: AgentSetup) -> None:
    async with setup.running() as (agent, coordinator):
        context = await coordinator.join(TASK, SHARD)
        hello = coordinator.seen[Hello][0]
        assert isinstance(hello, Hello)
        assert hello.n_k is None
        assert hello.capabilities.engine.startswith("onnxruntime ")
        assert context.boot == hello.boot
        assert context.n_k == 40
        assert context.mu_cores > 0.0
        assert not context.is_warm
        assert agent.phase is Phase.IDLE


async def test_repeats_hello_until_a_welcome(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        first, second = await coordinator.expect(Hello), await coordinator.expect(Hello)
        assert first.clock_s is not None
        assert second == structs.replace(first, clock_s=second.clock_s)


async def test_downloads_a_shard_once_and_then_reads_it_from_disk(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        assert coordinator.seen[ChunkRequest]
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        assert not coordinator.seen[ChunkRequest]


def chunks_requested(coordinator: FakeCoordinator, data: bytes) -> set[int]:
    blob = manifest_of(data, "shard", CHUNK_BYTES).id
    requests = (x for x in coordinator.seen[ChunkRequest] if isinstance(x, ChunkRequest))
    return {index for request in requests if request.id == blob for index in request.chunks}


@pytest.mark.parametrize("damage", [b"", b"\0\0\0\xff", b"\xff" * 50])
async def test_a_killed_agent_continues_the_download_of_its_shard(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    caplog.set_level("INFO")
    count = manifest_of(LARGE_SHARD, "shard", CHUNK_BYTES).chunk_count
    async with setup.running() as (_, coordinator):
        coordinator.withheld = frozenset(range(20, count))
        await coordinator.welcome(TASK, LARGE_SHARD)
        with anyio.fail_after(TIMEOUT_S):
            while not list(setup.folder.glob("cache/shard-*.arrived")):  # noqa: ASYNC110
                await anyio.sleep(0.1)
            await anyio.sleep(10.0)
    (path,) = setup.folder.glob("cache/shard-*.arrived")
    with path.open("ab") as file:
        file.write(damage)
    async with setup.running() as (_, coordinator):
        context = await coordinator.join(TASK, LARGE_SHARD)
        assert context.n_k == LARGE
        assert chunks_requested(coordinator, LARGE_SHARD) == set(range(20, count))
        assert f"continues a download, 20 of {count} chunks are on disk" in caplog.text
        await coordinator.run_round(1, ZEROS)
    assert not list(setup.folder.glob("cache/*.arrived"))


async def test_wrong_chunks_on_disk_cost_one_more_download(setup: AgentSetup) -> None:
    manifest = manifest_of(LARGE_SHARD, "shard", CHUNK_BYTES)
    cache = BlobCache(setup.folder / "cache", 1 << 20)
    cache.arrived(manifest).append([encode_chunk(manifest.id, 3, bytes(CHUNK_BYTES))])
    async with setup.running() as (_, coordinator):
        context = await coordinator.join(TASK, LARGE_SHARD)
        assert context.n_k == LARGE
        requested = chunks_requested(coordinator, LARGE_SHARD)
        assert requested == set(range(manifest.chunk_count))


async def test_downloads_a_shard_again_that_is_corrupt_on_disk(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
    (path,) = setup.folder.glob("cache/shard-*")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    async with setup.running() as (_, coordinator):
        context = await coordinator.join(TASK, SHARD)
        assert context.n_k == 40
        assert coordinator.seen[ChunkRequest]


async def test_trains_on_its_own_data(setup: AgentSetup, tmp_path: Path) -> None:
    setup.data = tmp_path / "own.npz"
    x, y = examples(25).arrays()
    np.savez(setup.data, x=x, y=y)
    async with setup.running() as (_, coordinator):
        context = await coordinator.join(TASK, None)
        hello = coordinator.seen[Hello][0]
        assert isinstance(hello, Hello)
        assert (hello.n_k, context.n_k) == (25, 25)
        assert not coordinator.seen[ChunkRequest]
        offer, _ = await coordinator.run_round(1, ZEROS)
        assert offer.n_k == 25


async def test_missing_own_data_ends_the_agent_at_once(setup: AgentSetup) -> None:
    setup.data = setup.folder / "none.npz"
    with pytest.raises(DataError, match=r"must be a readable \.npz file"):
        await setup.agent().run()


@pytest.mark.parametrize(
    ("task", "shard"),
    [
        (b"not a task", SHARD),
        (TASK, b"not a shard"),
        (softmax_task(features=FEATURES + 1), SHARD),
        (softmax_task(classes=2), SHARD),
    ],
    ids=["no task", "no shard", "examples do not fit", "labels do not fit"],
)
async def test_is_not_ready_with_an_unusable_task_or_shard_and_joins_again(
    setup: AgentSetup, task: bytes, shard: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with setup.running() as (agent, coordinator):
        await coordinator.welcome(task, shard)
        await coordinator.expect(Hello)
        assert not agent.is_ready
        (line,) = [r for r in caplog.messages if "preparation failed" in r][:1]
        assert line.startswith(f"{NAME}: preparation failed: ")
        await coordinator.join(TASK, SHARD)


async def test_refuses_an_engine_with_wrong_results(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = softmax_artifact()
    check = msgspec.structs.replace(artifact.spec.selfcheck, loss=9.0)
    spec = msgspec.structs.replace(artifact.spec, selfcheck=check)
    wrong = encode_artifact(msgspec.structs.replace(artifact, spec=spec))
    async with setup.running() as (agent, coordinator):
        await coordinator.welcome(wrong, SHARD)
        await coordinator.expect(Hello)
        assert not agent.is_ready
        assert "self-check loss must be 9" in caplog.text


async def test_answers_a_ping_at_once(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.expect(Hello)
        await coordinator.send(Ping(seq=7), qos=0)
        assert (await coordinator.expect(Pong)).seq == 7


async def test_a_train_before_it_is_ready_is_answered(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.expect(Hello)
        await coordinator.request_training(1, ZEROS)
        failed = await coordinator.expect(Failed)
        assert (failed.round, failed.phase) == (1, "joining")
        assert failed.reason.startswith("not ready")


async def test_a_final_refusal_ends_the_agent(setup: AgentSetup) -> None:
    async with setup.running() as (agent, coordinator):
        await coordinator.expect(Hello)
        await coordinator.send(Refuse(reason="the run is full", is_final=True))
        status = await coordinator.expect(Status)
        while status.state == "on":
            status = await coordinator.expect(Status)
        assert agent.phase is Phase.STOPPED
        with anyio.fail_after(TIMEOUT_S):
            await setup.ended.wait()
    assert isinstance(setup.fault, AgentRefused)
    assert str(setup.fault) == f"{NAME}: refused by the coordinator: the run is full"


async def test_a_refusal_for_one_run_is_logged_once_and_tried_again(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async with setup.running() as (_, coordinator):
        reasons = ["no data left"] * 4 + ["the run is full"] * 2
        for reason in reasons:
            await coordinator.expect(Hello)
            await coordinator.send(Refuse(reason=reason))
        await coordinator.join(TASK, SHARD)
    lines = [line for line in caplog.messages if "refused by the coordinator" in line]
    assert [line.split(": ", 2)[2] for line in lines] == ["no data left", "the run is full"]


async def test_a_new_coordinator_is_greeted_at_once_after_many_refusals(setup: AgentSetup) -> None:
    setup.timeouts = type(setup.timeouts)(refused_s=1e6)
    async with setup.running() as (_, coordinator):
        await coordinator.expect(Hello)
        await coordinator.send(Refuse(reason="the run is full"))
        await coordinator.expect_context(is_ready=False, phase="joining")
        began = anyio.current_time()
        coordinator.boot = 2
        coordinator.status_on = CoordinatorStatus(state="on", boot=2)
        await coordinator.announce()
        await coordinator.join(TASK, SHARD)
        assert anyio.current_time() - began < 1e5


async def test_any_refusal_ends_an_agent_that_serves_once(setup: AgentSetup) -> None:
    setup.once = True
    async with setup.running() as (_, coordinator):
        await coordinator.expect(Hello)
        await coordinator.send(Refuse(reason="no data left"))
        with anyio.fail_after(TIMEOUT_S):
            await setup.ended.wait()
    assert isinstance(setup.fault, AgentRefused)


async def test_a_task_that_cannot_be_used_is_logged_once(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async with setup.running() as (_, coordinator):
        for _ in range(3):
            await coordinator.welcome(TASK, b"not a shard")
            await coordinator.expect(Hello)
        await coordinator.join(TASK, SHARD)
    assert len([line for line in caplog.messages if "preparation failed" in line]) == 1


@pytest.mark.parametrize("once", [True, False])
async def test_a_goodbye_stops_an_agent_that_serves_once(setup: AgentSetup, once: bool) -> None:
    setup.once = once
    async with setup.running() as (agent, coordinator):
        await coordinator.join(TASK, SHARD)
        await coordinator.transport.publish(
            coordinator.topics.control_all, encode(Goodbye(reason="done")), qos=1
        )
        if once:
            statuses = [await coordinator.expect(Status) for _ in range(2)]
            assert [s.state for s in statuses] == ["on", "off"]
            assert agent.phase is Phase.STOPPED
        else:
            await coordinator.expect(Context)
            assert agent.phase is Phase.IDLE
    assert setup.fault is None


async def test_publishes_its_off_status_when_it_is_cancelled(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
    farewell = setup.broker.retained[setup.topics.status(NAME)]
    status = decode_from_device(farewell)
    assert isinstance(status, Status)
    assert status.state == "off"


async def test_an_invalid_message_is_logged_in_one_line(
    setup: AgentSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        topic = coordinator.topics.control(NAME)
        for payload in (b"\x01garbage", b"\x63", b"\x01" + b"\x91" * 2000):
            await coordinator.transport.publish(topic, payload, qos=1)
        await coordinator.transport.publish(coordinator.topics.data(NAME), b"FB junk")
        await coordinator.run_round(1, ZEROS)
    lines = [r for r in caplog.messages if "ignored a packet on" in r]
    assert len(lines) == 4
    assert "got 99; update fairbed on this side" in lines[1]


async def test_waits_while_the_coordinator_is_offline_and_joins_the_next(setup: AgentSetup) -> None:
    async with setup.running() as (agent, first):
        await first.join(TASK, SHARD)
        off = CoordinatorStatus(state="off", boot=first.boot)
        await first.transport.publish(first.topics.coordinator, encode(off), qos=1, retain=True)
        await first.expect_context(is_ready=False, phase="waiting")
        assert agent.phase is Phase.WAITING
        first.status_on = CoordinatorStatus(state="on", boot=2)
        first.boot = 2
        await first.announce()
        assert (await first.join(TASK, SHARD)).is_ready


async def test_joins_a_coordinator_after_the_broker_lost_its_status(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        off = CoordinatorStatus(state="off", boot=coordinator.boot)
        topic = coordinator.topics.coordinator
        await coordinator.transport.publish(topic, encode(off), qos=1, retain=True)
        await coordinator.expect_context(is_ready=False, phase="waiting")
        greetings = len(coordinator.seen[Hello])
        setup.broker.retained[topic] = encode(CoordinatorStatus(state="on", boot=2))
        await coordinator.expect(Hello)
        assert len(coordinator.seen[Hello]) > greetings


async def test_measures_both_directions_before_it_is_ready(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        context = await coordinator.join(TASK, SHARD)
        probes = [p for p in coordinator.seen[LinkProbe] if isinstance(p, LinkProbe)]
        assert [(len(p.payload), p.reply_bytes) for p in probes] == [
            (0, 0),
            (0, 65536),
            (65536, 0),
        ]
        assert context.downlink_bps is not None
        assert context.uplink_bps is not None
        assert context.link_age_s is not None


async def test_a_large_download_replaces_the_downlink_probe(setup: AgentSetup) -> None:
    shard = encode_shard(examples(1000))
    assert len(shard) > 16 * CHUNK_BYTES
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, shard)
        probes = [p for p in coordinator.seen[LinkProbe] if isinstance(p, LinkProbe)]
        assert [(len(p.payload), p.reply_bytes) for p in probes] == [(0, 0), (65536, 0)]


async def test_is_ready_without_a_rate_if_its_probes_get_no_reply(setup: AgentSetup) -> None:
    setup.timeouts = type(setup.timeouts)(probe_s=0.01)
    async with setup.running() as (_, coordinator):
        coordinator.replies_to_probes = False
        context = await coordinator.join(TASK, SHARD)
        assert context.downlink_bps is None
        assert context.uplink_bps is None


async def test_waits_for_a_broker_that_starts_later(setup: AgentSetup) -> None:
    setup.broker.stop()
    async with anyio.create_task_group() as group:
        agent = setup.agent()
        group.start_soon(agent.run)
        await anyio.wait_all_tasks_blocked()
        assert agent.phase is Phase.OFFLINE
        setup.broker.start()
        async with setup.coordinator().running() as coordinator:
            await coordinator.join(TASK, SHARD)
        group.cancel_scope.cancel()
