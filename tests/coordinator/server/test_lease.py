"""One coordinator at a time on a topic tree, in memory and through each real broker."""

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from fairbed.coordinator.policy.config import CoordinatorConfig, SelectionConfig
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.server.lease import AnotherCoordinatorError, check_tree_is_free
from fairbed.coordinator.store import RunReader
from fairbed.testbed.run.broker import start_broker
from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.messages import CoordinatorStatus
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet, Transport
from tests.brokers import BROKERS
from tests.coordinator.lab import Lab, Links, lab, make_config
from tests.coordinator.real_broker import RealBroker
from tests.wire.transport.memory import MemoryBroker

pytestmark = pytest.mark.anyio

TOPIC = Topics().coordinator
WHOLE_FLEET = SelectionConfig(policy="uniform", per_round=2)
REFUSAL = r"^fairbed/main: must have one coordinator at a time, got another one that is on \(run"


@pytest.fixture(params=["memory", *BROKERS])
async def links(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Links]:
    """The broker of all clients."""
    if request.param == "memory":
        yield MemoryBroker()
        return
    async with start_broker(request.param, folder=tmp_path / "broker") as broker:
        yield RealBroker(broker)


@pytest.fixture
async def place(links: Links, tmp_path: Path) -> AsyncIterator[Lab]:
    """Two devices whose rows and data do not depend on the order of joining."""
    async with lab(tmp_path, agents=0, broker=links) as made:
        made.device_names = ("pi-0", "pi-1")
        for name in made.device_names:
            made.shards.shard(name)
            made.start_agent(name)
        yield made


def config(rounds: int = 4) -> CoordinatorConfig:
    return make_config(rounds=rounds, devices=2, selection=WHOLE_FLEET)


async def up(link: Transport) -> None:
    async for event in link.events():
        if isinstance(event, LinkUp):
            return


async def next_status(link: Transport, state: str) -> Packet:
    """Wait for a status of the coordinator."""
    async for event in link.events():
        if isinstance(event, Packet) and event.payload:
            status = decode_to_device(event.payload)
            if isinstance(status, CoordinatorStatus) and status.state == state:
                return event
    raise AssertionError("the transport was left")


async def run_beside(place: Lab, name: str) -> str:
    """Run another coordinator on the same tree; return why it was refused, or how it ended."""
    store = place.open_store(name)
    try:
        return await place.coordinator(config(), store, client_id=name).run()
    except AnotherCoordinatorError as exc:
        return str(exc)
    finally:
        store.close()


def kinds(reader: RunReader) -> Sequence[str]:
    return [event.kind for _, event in reader.events()]


async def test_a_second_coordinator_is_refused_and_disturbs_nothing(place: Lab) -> None:
    answers: list[str] = []

    async with anyio.create_task_group() as group:

        async def beside() -> None:
            answers.append(await run_beside(place, "second"))

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round in (1, 2):
                group.start_soon(beside)

        place.on_progress = on_progress
        assert await place.run(config(rounds=60)) == "done"
    assert len(answers) == 2
    assert all(re.match(REFUSAL, answer) for answer in answers), answers
    with place.reader() as reader:
        assert {x.outcome for x in reader.exchanges(0)} == {"done"}
        assert not {"rejoined", "disconnected", "bad message"} & set(kinds(reader))
        assert kinds(reader).count("joined") == 2


async def test_one_of_two_that_start_at_once_gets_the_lease(place: Lab) -> None:
    ends: dict[str, str] = {}

    async def one(name: str) -> None:
        ends[name] = await run_beside(place, name)

    async with anyio.create_task_group() as group:
        for name in ("left", "right"):
            group.start_soon(one, name)
    assert sorted(end == "done" for end in ends.values()) == [False, True], ends
    winner = next(name for name, end in ends.items() if end == "done")
    with RunReader(place.folder / winner) as reader:
        assert [row.aggregated for row in reader.rounds()] == [2] * 4


async def test_a_coordinator_that_was_killed_does_not_block_the_next(place: Lab) -> None:
    life = anyio.CancelScope()

    def kill(progress: RoundProgress) -> None:
        if progress.round.round == 2:
            place.links.disconnect("coordinator", reconnects=False)
            life.cancel()

    place.on_progress = kill
    with life:
        await place.run(config())
    place.on_progress = lambda progress: None
    store = place.open_store()
    try:
        started = anyio.current_time()
        assert await place.coordinator(config(), store, attempt=1).run() == "done"
        assert anyio.current_time() - started < 30.0
    finally:
        store.close()
    with place.reader() as reader:
        assert [row.aggregated for row in reader.rounds()] == [2] * 4


async def test_the_lease_of_a_dead_coordinator_blocks_for_a_while(
    place: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.coordinator.server.lease.ANSWER_S", 0.7)
    dead = CoordinatorStatus(state="on", boot=0, run="long gone")
    async with place.links.transport("ghost") as ghost:
        await up(ghost)
        await ghost.publish(TOPIC, encode(dead), qos=1, retain=True)
        started = anyio.current_time()
        assert await place.run(config()) == "done"
        assert anyio.current_time() - started >= 0.7


async def test_an_observer_learns_whether_the_tree_is_free(place: Lab) -> None:
    await check_tree_is_free(place.links.transport("look"), Topics())
    found: list[str] = []
    async with anyio.create_task_group() as group:

        async def look_again() -> None:
            with pytest.raises(AnotherCoordinatorError, match=REFUSAL) as caught:
                await check_tree_is_free(place.links.transport("look"), Topics())
            found.append(str(caught.value))

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 1:
                group.start_soon(look_again)

        place.on_progress = on_progress
        assert await place.run(config(rounds=60)) == "done"
    assert "(run 'lab')" in found[0]
    await check_tree_is_free(place.links.transport("look"), Topics())


async def test_a_status_that_another_client_replaced_is_published_again(place: Lab) -> None:
    other = CoordinatorStatus(state="off", boot=3)
    async with place.links.transport("other-client") as link, anyio.create_task_group() as group:

        async def replace_status() -> None:
            await up(link)
            await link.subscribe(TOPIC, qos=1)
            await next_status(link, "on")
            await link.publish(TOPIC, encode(other), qos=1, retain=True)
            await next_status(link, "off")
            assert not (await next_status(link, "on")).retained
            found.set()

        found = anyio.Event()
        group.start_soon(replace_status)
        place.on_progress = lambda progress: None
        assert await place.run(config(rounds=30)) == "done"
        await found.wait()
