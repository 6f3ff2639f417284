"""Messages of earlier runs, and forged ones, cost no round and change no model (#34, 8 and 9).

The attacker has the topics of one device: what the coordinator sends it, its chunks, what it sends
itself. The agent process is the same in all runs, so each message was valid once.
"""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio
import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.uploads import OTHER_MODEL
from fairbed.coordinator.messaging.signatures import FleetSignatures
from fairbed.coordinator.policy.config import CoordinatorConfig, RoundConfig, SelectionConfig
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.store import RunReader
from fairbed.wire.chunks import decode_chunk, encode_chunk
from fairbed.wire.codec import decode_from_device, encode
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Failed, Ping, Status, UploadDone
from fairbed.wire.signature import Binding, session_keys, sign, task_key
from fairbed.wire.topics import Topics
from tests.coordinator import rogue
from tests.coordinator.builders import context, hello, offer
from tests.coordinator.lab import Lab, lab, make_config
from tests.wire.transport.memory import MemoryBroker

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

NAMES = ("pi-0", "pi-1")
VICTIM = NAMES[0]
KEY = task_key("secret of the lab", VICTIM)
BINDING = Binding("run", 1, bytes(32))
ZERO = bytes(32)
ROUNDS = 4
EARLIER = ("run-a", "run-b", "run-c")
PER_PACKET = 6
"""Old messages that follow each packet of the run under attack."""


SEEDS = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 12))]
)
"""Of the orders in which old messages are sent."""


class ReplayingBroker(MemoryBroker):
    """A broker on which a client repeats old packets of one device."""

    def __init__(self, victim: str) -> None:
        super().__init__()
        topics = Topics()
        self._topics = (
            topics.control(victim), topics.data(victim), topics.up(victim),
            topics.telemetry(victim), topics.upload(victim), topics.status(victim),
        )  # fmt: skip
        self._chunks = f"{topics.base}/b/"
        self.recorded: list[tuple[str, bytes]] = []
        """Topic and payload of each packet of the device, and each public chunk."""
        self.is_recording = True
        self._to_send: list[tuple[str, bytes]] = []
        self._per_packet = PER_PACKET
        self.sent = 0

    def attack(
        self, seed: int, packets: Sequence[tuple[str, bytes]] = (), per_packet: int = PER_PACKET
    ) -> None:
        """Send packets in a random order, some after each packet of the device from now on.

        Args:
            seed: Of the order.
            packets: Topic and payload of each; by default those that were recorded.
            per_packet: How many follow each packet of the device.
        """
        self._per_packet = per_packet
        self.is_recording = False
        self._to_send = list(packets or self.recorded)
        random.Random(seed).shuffle(self._to_send)

    @property
    def left(self) -> int:
        """Recorded packets that were not sent yet."""
        return len(self._to_send)

    def route(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        """Deliver a packet, then some of the old ones; swap each chunk of a model."""
        is_chunk = topic.startswith(self._chunks) and payload != b"" and "/c/" in topic
        if is_chunk and not self.is_recording:
            chunk = decode_chunk(payload)
            swapped = encode_chunk(chunk.blob, chunk.index, bytes(len(chunk.payload)))
            super().route(self._topics[1], swapped, 0, False)
        super().route(topic, payload, qos, retain)
        if not (topic in self._topics or is_chunk):
            return
        if self.is_recording:
            self.recorded.append((topic, payload))
        for _ in range(min(self._per_packet, len(self._to_send))):
            old_topic, old = self._to_send.pop()
            self.sent += 1
            super().route(old_topic, old, 1, False)


def config(seed: int) -> CoordinatorConfig:
    whole = make_config(
        ROUNDS,
        len(NAMES),
        selection=SelectionConfig(policy="uniform", per_round=len(NAMES)),
        round=RoundConfig(min_devices=len(NAMES), deadline_s=30.0, join_timeout_s=30.0),
    )
    return structs.replace(whole, seed_init=seed)


async def run(place: Lab, name: str, seed: int) -> Vector:
    """Run an experiment; return its last model, shape (n_values,)."""
    store = place.open_store(name, run_id=name)
    try:
        end = await place.coordinator(config(seed), store).run()
        store.set_status(end)
    finally:
        store.close()
    assert end == "done"
    with RunReader(place.folder / name) as reader:
        final = reader.final_model()
    assert final is not None
    assert final[0] == ROUNDS
    return final[1]


async def start(place: Lab) -> None:
    place.device_names = NAMES
    for name in NAMES:
        place.task_keys[name] = task_key("secret of the lab", name)
        place.start_agent(name, task_key=place.task_keys[name])


def check_run(folder: Path) -> None:
    """Check that each device has finished each round."""
    with RunReader(folder) as reader:
        outcomes = [(x.round, x.device, x.outcome) for x in reader.exchanges()]
        events = [(x.kind, x.device, x.text) for _, x in reader.events() if x.level != "info"]
    assert sorted(outcomes) == [(r, x, "done") for r in range(1, ROUNDS + 1) for x in NAMES], events


def check_model(attacked: Vector, undisturbed: Vector) -> None:
    """Check that two models are the same but for the order in which updates were added."""
    np.testing.assert_allclose(attacked, undisturbed, rtol=1e-4, atol=1e-6)


@SEEDS
async def test_a_run_among_the_messages_of_three_earlier_ones_equals_one_without(
    tmp_path: Path, seed: int
) -> None:
    broker = ReplayingBroker(VICTIM)
    async with lab(tmp_path, agents=0, broker=broker, limit_s=600.0) as place:
        await start(place)
        for number, name in enumerate(EARLIER):
            await run(place, name, number)
        undisturbed = await run(place, "undisturbed", 7)
        broker.attack(seed)
        attacked = await run(place, "attacked", 7)
    assert (broker.left, broker.sent) == (0, len(broker.recorded))
    check_run(tmp_path / "attacked")
    check_model(attacked, undisturbed)


@SEEDS
async def test_a_resumed_run_among_the_messages_of_its_former_start_loses_nothing(
    tmp_path: Path, seed: int
) -> None:
    """Run and task are the same: the start of the coordinator is not."""
    broker = ReplayingBroker(VICTIM)
    async with lab(tmp_path, agents=0, broker=broker, limit_s=600.0) as place:
        await start(place)
        await run(place, "undisturbed", 7)
        with anyio.CancelScope() as killed:

            def kill(progress: RoundProgress) -> None:
                if progress.round.round == 2:
                    broker.disconnect("coordinator", reconnects=False)
                    killed.cancel()

            place.on_progress = kill
            store = place.open_store("attacked", run_id="attacked")
            try:
                await place.coordinator(config(7), store).run()
            finally:
                store.close()
        assert killed.cancelled_caught
        place.on_progress = lambda progress: None
        broker.attack(seed)
        await run(place, "attacked", 7)
    assert (broker.left, broker.sent) == (0, len(broker.recorded))
    check_run(tmp_path / "attacked")


def forged(rounds: Iterable[int], boot: int) -> list[tuple[str, bytes]]:
    """Return what a client with the login of the device sends for it, without its key."""
    up, found = Topics().up(VICTIM), list[tuple[str, bytes]]()
    for number, round_id in enumerate(rounds):
        own = offer(round_id)
        found += [
            (up, encode(hello(boot=boot))),
            (up, encode(hello(boot=number, n_k=40))),
            (up, encode(own)),
            (up, encode(UploadDone(round=round_id, id=own.manifest.id, sha256=ZERO, model=ZERO))),
            (up, encode(Failed(round=round_id, phase="train", reason="forged"))),
            (up, encode(sign(Failed(round=round_id, phase="train", reason="forged"), ZERO))),
            (up, encode(sign(hello(boot=boot), ZERO))),
            (Topics().telemetry(VICTIM), encode(context(1 << 30, boot, is_willing=False))),
        ]
    return found


async def test_a_login_without_the_key_of_the_device_costs_no_round_and_changes_no_model(
    tmp_path: Path,
) -> None:
    broker = ReplayingBroker(VICTIM)
    async with lab(tmp_path, agents=0, broker=broker, limit_s=600.0) as place:
        await start(place)
        undisturbed = await run(place, "undisturbed", 7)
        with RunReader(tmp_path / "undisturbed") as reader:
            assert len(reader.exchanges()) == ROUNDS * len(NAMES)
        [boot] = {
            message.boot
            for topic, payload in broker.recorded
            if topic == Topics().status(VICTIM)
            and isinstance(message := decode_from_device(payload), Status)
        }
        broker.attack(1, forged([*range(1, ROUNDS + 1)] * 2, boot), 1)
        attacked = await run(place, "attacked", 7)
    assert broker.left == 0
    check_run(tmp_path / "attacked")
    check_model(attacked, undisturbed)
    with RunReader(tmp_path / "attacked") as reader:
        kinds = {x.kind for _, x in reader.events() if x.device == VICTIM and x.level == "warning"}
    assert {"refused", "bad message"} <= kinds


async def test_a_device_with_its_login_and_no_key_takes_no_part(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=1, limit_s=600.0) as place:
        place.task_keys["pi-1"] = task_key("secret of the lab", "pi-1")
        place.start_agent("pi-1")
        store = place.open_store()
        assert await place.coordinator(make_config(2, 1), store).run() == "done"
        store.close()
        with place.reader() as reader:
            assert {x.device for x in reader.exchanges()} == {"pi-0"}
            texts = {x.text for _, x in reader.events() if x.device == "pi-1"}
    assert any("must be signed with the task key that the lab has for it" in x for x in texts)


@pytest.mark.parametrize("is_former", [False, True])
async def test_the_hello_of_an_agent_process_that_was_replaced_begins_no_session(
    tmp_path: Path, is_former: bool
) -> None:
    signatures = FleetSignatures(BINDING, lambda device: KEY)
    first, second = hello(boot=1), hello(boot=2)
    for one in (first, second):
        signed = sign(one, session_keys(KEY, BINDING, one).from_device)
        assert await signatures.begin(VICTIM, one, signed) == ""
    again = first if is_former else second
    signed = sign(again, session_keys(KEY, BINDING, again).from_device)
    problem = await signatures.begin(VICTIM, again, signed)
    assert ("must be signed" in problem) == is_former
    current = session_keys(KEY, BINDING, second)
    assert signatures.signed(VICTIM, Ping(seq=1)) == sign(Ping(seq=1), current.to_device)


async def test_a_key_that_cannot_be_read_admits_nothing() -> None:
    def unreadable(device: str) -> str | None:
        raise LookupError(device)

    signatures = FleetSignatures(BINDING, unreadable)
    assert "must be readable" in await signatures.begin(VICTIM, hello(), None)
    assert not signatures.devices


async def test_a_key_that_a_device_loses_during_a_run_opens_nothing() -> None:
    keys: dict[str, str] = {VICTIM: KEY}
    signatures = FleetSignatures(BINDING, keys.get)
    one = hello()
    signed = sign(one, session_keys(KEY, BINDING, one).from_device)
    assert await signatures.begin(VICTIM, one, signed) == ""
    keys[VICTIM] = task_key("another enrolment", VICTIM)
    assert "must be signed" in await signatures.begin(VICTIM, one, signed)
    keys.clear()
    assert "must be signed" in await signatures.begin(VICTIM, hello(boot=9), None)
    with pytest.raises(DecodeError, match="must be signed"):
        signatures.opened(VICTIM, Failed(round=1, phase="train", reason="forged"))


@pytest.mark.parametrize("of", ["offer", "hash"])
async def test_an_update_of_another_model_is_refused(tmp_path: Path, of: str) -> None:
    async def trick(device: rogue.Rogue) -> None:
        if of == "offer":
            await device.send(device.offer(model=ZERO))
            return
        made = device.offer()
        await device.send(made)
        await anyio.sleep(0.5)
        round_id = device.train.round
        await device.send(UploadDone(round=round_id, id=made.manifest.id, sha256=ZERO, model=ZERO))

    async with lab(tmp_path, agents=1) as place, anyio.create_task_group() as group:
        group.start_soon(rogue.Rogue(trick).run, place)
        assert await place.run(make_config(2, 2)) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        reasons = {(x.outcome, x.reason) for x in reader.exchanges() if x.device == "rogue"}
    assert reasons == {("rejected", OTHER_MODEL)}
