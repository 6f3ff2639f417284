"""Faults that a live coordinator survives, and its end after the others."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet import membership
from fairbed.coordinator.messaging.publisher import MAX_PENDING, Publisher
from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.coordinator.ports import Score
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.store import StoreError
from fairbed.wire.codec import encode
from fairbed.wire.messages import ChunkRequest, Failed, Offer, Ping, Pong, Status, Train
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, OnComplete, Packet
from tests.coordinator.builders import context, hello
from tests.coordinator.faulty import VICTIM, FaultyBroker, message_of
from tests.coordinator.lab import Lab, NormEvaluator, lab, make_config
from tests.coordinator.rogue import Rogue
from tests.coordinator.server.test_service import send
from tests.wire.transport.memory import MemoryBroker, MemoryTransport

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

WHOLE_FLEET = SelectionConfig(policy="uniform", per_round=3)


class BrokenEvaluator(NormEvaluator):
    """Fails at each evaluation."""

    def evaluate(self, vector: Vector) -> Mapping[str, Score]:
        raise OSError("no such engine")


async def test_an_evaluation_that_fails_costs_only_its_metrics(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        place.evaluator = BrokenEvaluator()
        assert await place.run(make_config(rounds=2)) == "done"
    with place.reader() as reader:
        assert reader.metrics() == []
        texts = [e.text for _, e in reader.events() if e.kind == "not evaluated"]
        assert texts == ["OSError: no such engine"] * 2


async def test_a_full_disk_ends_the_run_with_one_error_and_a_clean_broker(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        store = place.open_store()

        def fill_the_disk(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                store._writer.run(lambda c: c.execute("PRAGMA max_page_count = 1"), 5.0)

        place.on_progress = fill_the_disk
        with pytest.raises(StoreError, match="full"):
            await place.coordinator(make_config(rounds=5_000), store).run()
        kept = [topic for topic in place.broker.retained if "/b/" in topic]
        store.close()
    assert kept == []


async def test_a_blob_that_was_retired_without_a_link_is_cleared_after_it(tmp_path: Path) -> None:
    broker = FaultyBroker("coordinator cut before", lambda topic, data: "/c/" in topic and not data)
    async with lab(tmp_path, broker=broker) as place:
        assert await place.run(make_config(rounds=4)) == "done"
    assert broker.has_struck
    assert [topic for topic in broker.retained if "/b/" in topic] == []


async def test_an_exchange_during_an_outage_of_the_coordinator_is_invalid(tmp_path: Path) -> None:
    broker = FaultyBroker("coordinator cut after", message_of(Train, 1))
    async with lab(tmp_path, broker=broker) as place:
        assert await place.run(make_config(rounds=2, selection=WHOLE_FLEET)) == "done"
    with place.reader() as reader:
        first, second = reader.exchanges(0)[:3], reader.exchanges(0)[3:]
    assert {x.reason for x in first} == {"the coordinator lost its own link during the exchange"}
    assert not any("link" in x.reason for x in second)


async def test_an_outage_of_the_coordinator_ends_no_exchange(tmp_path: Path) -> None:
    deadline_s = 1.0
    rounds = RoundConfig(min_devices=3, deadline_s=deadline_s, join_timeout_s=30.0)
    broker = FaultyBroker("lost", message_of(Offer, 1))
    async with lab(tmp_path, broker=broker) as place, anyio.create_task_group() as group:

        async def outage() -> None:
            broker.disconnect("coordinator", reconnects=False)
            await anyio.sleep(1.5 * deadline_s)
            broker.reconnect("coordinator")

        def strike() -> None:
            group.start_soon(outage)

        broker.on_strike = strike
        config = make_config(rounds=2, selection=WHOLE_FLEET, round=rounds)
        assert await place.run(config) == "done"
    assert broker.has_struck
    with place.reader() as reader:
        assert [x.outcome for x in reader.exchanges(0)] == ["done"] * 6


async def test_several_outages_in_a_row_count_as_one(tmp_path: Path) -> None:
    async with lab(tmp_path) as place, anyio.create_task_group() as group:

        async def outages() -> None:
            for _ in range(30):
                place.broker.restart()
                await anyio.sleep(0.003)

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 2:
                group.start_soon(outages)

        place.on_progress = on_progress
        assert await place.run(make_config(rounds=5, selection=WHOLE_FLEET)) == "done"
    with place.reader() as reader:
        assert [row.selected for row in reader.rounds()] == [3] * 5


async def test_contexts_of_devices_that_are_not_ready_do_not_shorten_void_rounds(
    tmp_path: Path,
) -> None:
    rounds = RoundConfig(min_devices=1, void_wait_s=0.4, join_timeout_s=30.0)

    async def talk(place: Lab) -> None:
        async with place.broker.transport("talker") as link:
            async for event in link.events():
                if isinstance(event, LinkUp):
                    await link.subscribe(Topics().coordinator, qos=1)
                elif isinstance(event, Packet) and b"on" in event.payload:
                    break
            for name in ("talker", "asleep"):  # without a device in contact no round begins
                await link.publish(Topics().up(name), encode(hello(n_k=100)), qos=1)
            seq = 0
            while True:
                seq += 1
                for name, message in (
                    ("talker", context(seq=seq, is_ready=False)),
                    ("asleep", context(seq=seq, is_willing=False)),
                ):
                    await link.publish(Topics().telemetry(name), encode(message))
                await anyio.sleep(0.02)

    async with lab(tmp_path, agents=1) as place, anyio.create_task_group() as group:

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 1:
                group.start_soon(send, place, "exclude", "pi-0")
            if progress.round.rounds_empty == 5:
                group.start_soon(send, place, "include", "pi-0")

        place.on_progress = on_progress
        group.start_soon(talk, place)
        assert await place.run(make_config(rounds=6, round=rounds)) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        void = [row for row in reader.rounds() if row.selected == 0]
    assert len(void) >= 5
    assert all(row.duration_s >= 0.399 for row in void[:5])


async def floods(rogue: Rogue) -> None:
    """1,200 requests at once, each of which costs the coordinator more than the sender."""
    if rogue.pending is not None:
        return
    rogue.pending = (rogue.offer().manifest, b"", None)
    request = encode(ChunkRequest(id=bytes(16), chunks=list(range(64))))
    greeting = encode(hello())
    async with anyio.create_task_group() as group:
        for _ in range(400):
            for message in (greeting, request, encode(rogue.offer(round=99))):
                group.start_soon(rogue.raw, message)


async def joins_and_leaves(rogue: Rogue) -> None:
    """Hellos of 300 agent processes, each of which leaves at once."""
    if rogue.pending is not None:
        return
    rogue.pending = (rogue.offer().manifest, b"", None)
    for boot in range(1_000, 1_300):
        await rogue.raw(encode(structs.replace(hello(), boot=boot)))
        off = encode(Status(state="off", boot=boot))
        await rogue.link.publish(Topics().status(rogue.name), off, qos=1)


async def sends_without_end(rogue: Rogue) -> None:
    """4,000 messages, then one that would have an effect."""
    if rogue.pending is not None:
        return
    rogue.pending = (rogue.offer().manifest, b"", None)
    for _ in range(4_000):
        await rogue.send(Pong(seq=0))
    await rogue.raw(encode(structs.replace(hello(), boot=999)))


async def claims_an_absurd_link(rogue: Rogue) -> None:
    """Rates whose squares are beyond any number."""
    message = context(seq=1 << 30, n_k=40, downlink_bps=1e-300, uplink_bps=1e-300)
    await rogue.link.publish(Topics().telemetry(rogue.name), encode(message))
    await rogue.send(Failed(round=rogue.train.round, phase="training", reason="tired"))


async def tries_to_steer_the_terminal(rogue: Rogue) -> None:
    """A reason with an escape sequence and a second line."""
    reason = "\x1b[2Jgone\nround 1 pi-0 done"
    await rogue.send(Failed(round=rogue.train.round, phase="training", reason=reason))


async def test_a_device_that_claims_an_absurd_link_cannot_end_the_run(tmp_path: Path) -> None:
    config = make_config(rounds=6, round=RoundConfig(min_devices=3, join_timeout_s=30.0))
    async with lab(tmp_path, agents=2) as place, anyio.create_task_group() as group:
        group.start_soon(Rogue(claims_an_absurd_link).run, place)
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()


async def test_text_of_a_device_is_one_printable_line(tmp_path: Path) -> None:
    config = make_config(rounds=2, selection=WHOLE_FLEET)
    async with lab(tmp_path, agents=2) as place, anyio.create_task_group() as group:
        group.start_soon(Rogue(tries_to_steer_the_terminal).run, place)
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        reasons = [x.reason for x in reader.exchanges(0) if x.device == "rogue"]
    assert reasons == ["training: ?[2Jgone round 1 pi-0 done"] * 2


async def test_a_device_without_examples_of_its_own_is_refused(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        link = place.broker.transport("empty")
        async with link:
            async for event in link.events():
                if isinstance(event, LinkUp):
                    break
            place.on_progress = lambda progress: place.broker.route(
                Topics().up("empty"), encode(hello(n_k=0)), 1, False
            )
            await place.run(make_config(rounds=2))
    with place.reader() as reader:
        refusals = [e.text for _, e in reader.events() if e.kind == "refused"]
        assert {device.name for device in reader.devices()} == {"pi-0", "pi-1", "pi-2"}
    assert refusals == ["its own data must hold at least 1 example, got 0"]


async def test_a_lost_failure_message_is_repeated_after_a_second_train(
    tmp_path: Path,
) -> None:
    is_train, is_failed = message_of(Train, 1), message_of(Failed, 1)

    def spoil_the_task(topic: str, payload: bytes) -> bool:
        if is_train(topic, payload):
            for blob in (tmp_path / VICTIM).glob("task-*"):
                blob.write_bytes(b"not a task")
        return is_failed(topic, payload)

    broker = FaultyBroker("lost", spoil_the_task)
    async with lab(tmp_path, agents=2, broker=broker) as place:
        assert await place.run(make_config(rounds=1, devices=2, selection=WHOLE_FLEET)) == "done"
    assert broker.has_struck
    with place.reader() as reader:
        outcomes = {x.device: x.outcome for x in reader.exchanges(0)}
    assert outcomes == {"pi-0": "done", VICTIM: "failed"}


class StuckTransport(MemoryTransport):
    """A link on which no publish completes."""

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | memoryview,
        *,
        qos: int = 0,
        retain: bool = False,
        on_complete: OnComplete,
    ) -> None:
        """Never completes."""


async def test_pending_messages_to_a_device_are_bounded() -> None:
    publisher = Publisher(StuckTransport(MemoryBroker(), "coordinator"), Topics())
    for seq in range(10 * MAX_PENDING):
        publisher.publish("pi-0", Ping(seq=seq))
    publisher.publish("pi-1", Ping(seq=0))
    assert publisher.dropped == 9 * MAX_PENDING


async def test_a_flood_from_one_device_costs_no_other_device_anything(tmp_path: Path) -> None:
    config = make_config(
        rounds=2,
        selection=WHOLE_FLEET,
        round=RoundConfig(min_devices=3, deadline_s=1.5, join_timeout_s=30.0),
    )
    async with lab(tmp_path, agents=2) as place, anyio.create_task_group() as group:
        group.start_soon(Rogue(floods).run, place)
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        others = [x.outcome for x in reader.exchanges(0) if x.device != "rogue"]
        kinds = [e.kind for _, e in reader.events() if e.device == "rogue"]
    assert others == ["done"] * 4
    assert 1 <= kinds.count("flood") <= 3


async def test_a_device_that_floods_is_ignored_for_a_while(tmp_path: Path) -> None:
    """Half a million of its messages may wait at the broker when it is refused there."""
    config = make_config(
        rounds=2,
        selection=WHOLE_FLEET,
        round=RoundConfig(min_devices=3, deadline_s=1.5, join_timeout_s=30.0),
    )
    async with lab(tmp_path, agents=2) as place, anyio.create_task_group() as group:
        group.start_soon(Rogue(sends_without_end).run, place)
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        others = [x.outcome for x in reader.exchanges(0) if x.device != "rogue"]
        kinds = Counter(e.kind for _, e in reader.events() if e.device == "rogue")
    assert others == ["done"] * 4
    assert (kinds["flood"], kinds["joined"], kinds["rejoined"]) == (1, 1, 0)


async def test_a_device_that_joins_and_leaves_writes_few_lines(tmp_path: Path) -> None:
    config = make_config(
        rounds=2,
        selection=WHOLE_FLEET,
        round=RoundConfig(min_devices=3, deadline_s=1.5, join_timeout_s=30.0),
    )
    async with lab(tmp_path, agents=2) as place, anyio.create_task_group() as group:
        group.start_soon(Rogue(joins_and_leaves).run, place)
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        others = [x.outcome for x in reader.exchanges(0) if x.device != "rogue"]
        kinds = Counter(e.kind for _, e in reader.events() if e.device == "rogue")
    assert others == ["done"] * 4
    assert kinds["joined"] + kinds["rejoined"] + kinds["left"] <= 60
    assert kinds["flood"] == 1


async def test_invented_names_do_not_fill_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that may publish on all topics says hello under 2,000 names in no time."""
    monkeypatch.setattr(membership, "NEWCOMERS", (0.1, 20))
    config = make_config(rounds=2, round=RoundConfig(min_devices=2, join_timeout_s=30.0))
    async with lab(tmp_path, agents=2) as place, anyio.create_task_group() as group:
        place.device_names = ("pi-0", "pi-1")

        async def invent() -> None:
            async with place.links.transport("sybil") as link:
                await anext(link.events())
                for number in range(2_000):
                    payload = encode(structs.replace(hello(), n_k=40))
                    await link.publish(Topics().up(f"n{number}"), payload)

        group.start_soon(invent)
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        names = [device.name for device in reader.devices()]
        assert {"pi-0", "pi-1"} <= set(names)
        assert 20 <= len(names) <= 2 + 20 + 5
        floods = [e for _, e in reader.events() if e.kind == "flood" and e.device is None]
        assert len(floods) == 1


async def test_a_resumed_run_keeps_every_row_and_admits_new_devices(tmp_path: Path) -> None:
    config = make_config(rounds=6)
    async with lab(tmp_path) as place:
        place.device_names = ("pi-0", "pi-1", "pi-2")
        store = place.open_store()
        first = place.coordinator(config, store)
        place.on_progress = lambda p: first.stop() if p.round.round == 3 else None
        assert await first.run() == "stopped"
        store.close()
        place.on_progress = lambda p: None
        place.kill_agent("pi-1")
        place.start_agent("pi-3")
        place.device_names = ("pi-9", "pi-2")  # one that never joins
        assert await place.run(config) == "done"
    with place.reader() as reader:
        rows = {device.name: device.row for device in reader.devices()}
        assert [row.status for row in reader.rounds()] == ["done"] * 6
        assert {x.outcome for x in reader.exchanges(0)} == {"done"}
        assert {row.device for row in reader.selections(6)} == {*rows, "pi-9"}
    assert rows == {"pi-0": 0, "pi-1": 1, "pi-2": 2, "pi-3": 4}
