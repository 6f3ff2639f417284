"""Faults of a whole run through real brokers: same result, bounded memory.

`test_protocol_faults.py` does the same at each step of the protocol, with a broker in memory.
"""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest
from anyio.abc import Process
from msgspec import structs

from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.broker.configuration import BrokerKind
from fairbed.testbed.run.broker import start_broker
from fairbed.wire.codec import decode
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import Grant
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from tests.brokers import PRODUCTION_BROKERS
from tests.coordinator import rogue
from tests.coordinator.lab import Lab, Links, lab, make_config
from tests.coordinator.real_broker import ChunkFaults, RealBroker, is_bulk
from tests.coordinator.rogue import Rogue
from tests.ledger import Ledger, watch_memory
from tests.wire.transport.memory import MemoryBroker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

NAMES = ("pi-0", "pi-1", "pi-2")
VICTIM = "pi-1"
ARTIFACT = load_task("softmax", (784,), 10)
CHUNK_BYTES = 2048
"""A model of 31 kB makes 16 of them."""

ROUNDS = 2
GIVE_UP_S = 120.0
MEMORY_MB = 80.0

CONFIG = make_config(
    rounds=ROUNDS,
    selection=SelectionConfig(policy="uniform", per_round=len(NAMES)),
    round=RoundConfig(min_devices=len(NAMES), deadline_s=60.0, join_timeout_s=60.0),
)

Act: TypeAlias = Callable[[Lab], Awaitable[None]]


async def undisturbed(place: Lab) -> None:
    """Run to the end."""
    assert await place.run(CONFIG) == "done"


@asynccontextmanager
async def fleet(folder: Path, links: Links, names: tuple[str, ...] = NAMES) -> AsyncIterator[Lab]:
    """Devices whose rows and data do not depend on the order of joining."""
    async with lab(folder, agents=0, limit_s=GIVE_UP_S, broker=links, artifact=ARTIFACT) as place:
        place.max_chunk_bytes = CHUNK_BYTES
        place.device_names = NAMES
        for name in NAMES:
            place.shards.shard(name)
        for name in names:
            place.start_agent(name)
        yield place


async def play(folder: Path, links: Links, act: Act = undisturbed) -> tuple[list[str], float]:
    """Return the models' hashes after each round, and how long it took."""
    async with fleet(folder, links) as place:
        started_s = anyio.current_time()
        await act(place)
        took_s = anyio.current_time() - started_s
    assert {x.outcome for x in exchanges(place)} == {"done"}
    return hashes(place), took_s


def hashes(place: Lab) -> list[str]:
    with place.reader() as reader:
        assert [row.status for row in reader.rounds()] == ["done"] * ROUNDS
        return [row.model_sha256 for row in reader.rounds()]


def exchanges(place: Lab) -> list[ExchangeRow]:
    with place.reader() as reader:
        return list(reader.exchanges(0))


async def left_behind(links: RealBroker) -> list[str]:
    """Return the topics of retained blobs."""
    topics, found = Topics(), []
    async with links.transport("inspector") as link:
        async for event in link.events():
            if isinstance(event, LinkUp):
                await link.subscribe(topics.intent("+"), f"{topics.base}/b/+/c/+", qos=1)
                await link.subscribe("inspector/mark", qos=1)
                await link.publish("inspector/mark", b"end", qos=1)
            elif isinstance(event, Packet):
                if event.topic == "inspector/mark":
                    break
                found.append(event.topic)
    return found


@pytest.fixture(params=PRODUCTION_BROKERS)
async def links(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RealBroker]:
    kind: BrokerKind = request.param
    async with start_broker(kind, folder=tmp_path / "broker") as broker:
        yield RealBroker(broker, seed=11)


FAULTS = {
    "1 % of chunks lost": ChunkFaults(loss_ratio=0.01),
    "10 % of chunks lost": ChunkFaults(loss_ratio=0.1),
    "10 % of chunks doubled": ChunkFaults(duplicate_ratio=0.1),
    "20 % of chunks out of order": ChunkFaults(reorder_ratio=0.2),
    "5 % of chunks damaged": ChunkFaults(corruption_ratio=0.05),
}


async def test_no_fault_of_chunks_changes_a_model(
    links: RealBroker, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fairbed.wire.transfer.RETRY_FLOOR_S", 0.2
    )  # 2 s: the rest is the same, but slow
    expected, _ = await play(tmp_path / "memory", MemoryBroker())
    undisturbed_hashes, usual_s = await play(tmp_path / "undisturbed", links)
    assert undisturbed_hashes == expected
    assert links.broker.pid is not None
    for case, faults in FAULTS.items():
        links.faults = faults
        async with watch_memory(broker=links.broker.pid) as peaks:
            found, took_s = await play(tmp_path / case, links)
        assert found == expected, case
        assert await left_behind(links) == []
        ledger.note(links.broker.kind, case, lost_s=took_s - usual_s, peaks=peaks)
        peaks.stay_below(MEMORY_MB)
    assert links.n_faults > 20


KILLS = {"mosquitto": 40, "nats": 15}
MOST_CHUNKS = 80
"""Largest number of chunks between two kills; a reconnect alone takes about 20."""


async def test_a_broker_killed_again_and_again_changes_no_model(
    links: RealBroker, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.wire.transfer.RETRY_FLOOR_S", 0.5)
    expected, usual_s = await play(tmp_path / "undisturbed", links)
    left = links.rng.randint(1, MOST_CHUNKS)
    is_due = anyio.Event()
    kills = 0

    def on_publish(client: str, topic: str, payload: bytes) -> None:
        nonlocal left
        left -= is_bulk(topic)
        if left == 0:
            is_due.set()

    async def kill_often() -> None:
        nonlocal left, is_due, kills
        for _ in range(KILLS[links.broker.kind]):
            await is_due.wait()
            await links.broker.restart()
            kills += 1
            left, is_due = links.rng.randint(1, MOST_CHUNKS), anyio.Event()

    links.on_publish = on_publish
    assert links.broker.pid is not None
    async with watch_memory() as peaks, anyio.create_task_group() as group:
        group.start_soon(kill_often)
        found, took_s = await play(tmp_path / "killed", links)
        group.cancel_scope.cancel()
    assert found == expected
    assert kills >= 2
    what = f"broker killed in mid-run {kills} times, each"
    ledger.note(links.broker.kind, what, lost_s=(took_s - usual_s) / kills, peaks=peaks)
    peaks.stay_below(MEMORY_MB)


CRASHES = {"mosquitto": 10, "nats": 4}


async def test_a_coordinator_killed_between_any_two_publishes_leaves_nothing_wrong(
    links: RealBroker, tmp_path: Path, ledger: Ledger
) -> None:
    published = 0

    def count(client: str, topic: str, payload: bytes) -> None:
        nonlocal published
        published += client == "coordinator"

    links.on_publish = count
    expected, usual_s = await play(tmp_path / "undisturbed", links)
    total, lost_s = published, []
    for instant in links.rng.sample(range(1, total), CRASHES[links.broker.kind]):
        links.on_publish = count
        found, took_s = await play(
            tmp_path / str(instant), links, partial(_crash, links=links, at=instant)
        )
        assert found == expected, instant
        assert await left_behind(links) == [], instant
        lost_s.append(took_s - usual_s)
    what = f"coordinator killed at {len(lost_s)} publishes, each"
    ledger.note(links.broker.kind, what, lost_s=sum(lost_s) / len(lost_s))


async def _crash(place: Lab, links: RealBroker, at: int) -> None:
    """Kill the coordinator before its publish number `at`, and start another one."""
    life, left = anyio.CancelScope(), at

    def on_publish(client: str, topic: str, payload: bytes) -> None:
        nonlocal left
        if client != "coordinator":
            return
        left -= 1
        if left == 0:
            links.disconnect("coordinator", reconnects=False)
            life.cancel()
        if left <= 0:
            raise Disconnected("killed")

    links.on_publish = on_publish
    with life:
        await place.run(CONFIG)
    assert left <= 0
    links.on_publish = lambda client, topic, payload: None
    store = place.open_store()
    try:
        assert await place.coordinator(CONFIG, store, attempt=1).run() == "done"
    finally:
        store.close()


async def test_an_agent_killed_in_mid_exchange_costs_its_own_updates_only(
    links: RealBroker, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.coordinator.state.registry.OFF_GRACE_S", 1.0)
    survivors = tuple(name for name in NAMES if name != VICTIM)
    async with fleet(tmp_path / "without", links, survivors) as place:
        few = structs.replace(CONFIG, round=structs.replace(CONFIG.round, min_devices=2))
        started_s = anyio.current_time()
        assert await place.run(few) == "done"
        usual_s = anyio.current_time() - started_s
    expected = hashes(place)
    for at in (1, 9):  # chunks of its first update
        async with fleet(tmp_path / str(at), links) as place:
            left = at

            def on_publish(client: str, topic: str, payload: bytes, place: Lab = place) -> None:
                nonlocal left
                left -= topic == Topics().upload(VICTIM)
                if left == 0:
                    place.kill_agent(VICTIM)

            links.on_publish = on_publish
            started_s = anyio.current_time()
            assert await place.run(CONFIG) == "done"
            lost_s = anyio.current_time() - started_s - usual_s
        outcomes = {(x.round, x.device): x.outcome for x in exchanges(place)}
        assert outcomes[1, VICTIM] == "lost"
        assert {o for (_, device), o in outcomes.items() if device != VICTIM} == {"done"}
        assert hashes(place) == expected
        ledger.note(links.broker.kind, f"agent killed at chunk {at} of its update", lost_s=lost_s)


@asynccontextmanager
async def agent_process(folder: Path, links: RealBroker) -> AsyncIterator[Process]:
    """Run the victim as a real process."""
    command = [sys.executable, "-m", "fairbed.device_agent.cli", "--broker", links.broker.url]
    options = ["--name", VICTIM, "--cache", str(folder / "cache")]
    process = await anyio.open_process(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    async with process:
        try:
            yield process
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()


async def stop_at_grant(links: RealBroker, pid: int, stop_s: float) -> None:
    """Stop a process for some time when it gets its first upload grant."""
    granted = anyio.Event()

    def on_publish(client: str, topic: str, payload: bytes) -> None:
        if topic == Topics().control(VICTIM) and isinstance(decode(payload), Grant):
            if not granted.is_set():
                os.kill(pid, signal.SIGSTOP)
            granted.set()

    links.on_publish = on_publish
    await granted.wait()
    await anyio.sleep(stop_s)
    os.kill(pid, signal.SIGCONT)


async def test_an_agent_that_is_stopped_for_a_while_loses_nothing(
    links: RealBroker, tmp_path: Path, ledger: Ledger
) -> None:
    stop_s = 1.5
    expected, usual_s = await play(tmp_path / "undisturbed", links)
    async with (
        agent_process(tmp_path, links) as agent,
        fleet(tmp_path / "stopped", links, ("pi-0", "pi-2")) as place,
        anyio.create_task_group() as group,
    ):
        group.start_soon(stop_at_grant, links, agent.pid, stop_s)
        assert await place.run(CONFIG) == "done"
    assert {x.outcome for x in exchanges(place)} == {"done"}
    assert hashes(place) == expected
    longest_s = max(x.tau_s or 0.0 for x in exchanges(place) if x.device == VICTIM)
    what = f"agent stopped for {stop_s:g} s in its upload"
    ledger.note(links.broker.kind, what, lost_s=longest_s - usual_s / ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("links", [PRODUCTION_BROKERS[0]], indirect=True)
async def test_an_agent_that_is_stopped_for_30_s_is_lost_and_comes_back(
    links: RealBroker, tmp_path: Path, ledger: Ledger
) -> None:
    expected, usual_s = await play(tmp_path / "undisturbed", links)
    async with (
        agent_process(tmp_path, links) as agent,
        fleet(tmp_path / "stopped", links, ("pi-0", "pi-2")) as place,
        anyio.create_task_group() as group,
    ):
        group.start_soon(stop_at_grant, links, agent.pid, 30.0)
        started_s = anyio.current_time()
        assert await place.run(CONFIG) == "done"
        lost_s = anyio.current_time() - started_s - usual_s
        first = {(x.round, x.device): x.outcome for x in exchanges(place)}
        store = place.open_store("again")  # another run: the device has to be back for it
        try:
            assert await place.coordinator(CONFIG, store).run() == "done"
        finally:
            store.close()
    assert first[1, VICTIM] == "lost"
    assert {o for (_, device), o in first.items() if device != VICTIM} == {"done"}
    with RunReader(tmp_path / "stopped" / "again") as reader:
        assert {x.outcome for x in reader.exchanges(0)} == {"done"}
        assert [row.model_sha256 for row in reader.rounds()] == expected
    ledger.note(links.broker.kind, "agent stopped for 30 s: lost", lost_s=lost_s)


GREEDY = (
    rogue.grants_itself_everything,
    rogue.offers_ten_gigabytes,
    rogue.never_sends_the_last_chunk,
    rogue.requests_chunks_endlessly,
)


async def test_greedy_devices_cost_no_other_device_anything(
    links: RealBroker, tmp_path: Path, ledger: Ledger
) -> None:
    expected, usual_s = await play(tmp_path / "undisturbed", links)
    deadline_s = 2.0
    config = structs.replace(
        CONFIG,
        selection=SelectionConfig(policy="uniform", per_round=len(NAMES) + len(GREEDY)),
        round=structs.replace(
            CONFIG.round, min_devices=len(NAMES) + len(GREEDY), deadline_s=deadline_s
        ),
    )
    assert links.broker.pid is not None
    async with (
        fleet(tmp_path / "greedy", links) as place,
        anyio.create_task_group() as group,
        watch_memory(broker=links.broker.pid) as peaks,
    ):
        for trick in GREEDY:
            device = Rogue(trick)
            device.name = trick.__name__.replace("_", "-")
            group.start_soon(device.run, place)
        started_s = anyio.current_time()
        assert await place.run(config) == "done"
        lost_s = anyio.current_time() - started_s - usual_s
        group.cancel_scope.cancel()
    good = {x.outcome for x in exchanges(place) if x.device in NAMES}
    bad = {x.outcome for x in exchanges(place) if x.device not in NAMES}
    assert (good, "done" in bad) == ({"done"}, False)
    assert hashes(place) == expected
    what = f"four greedy devices, deadline {deadline_s:g} s, {ROUNDS} rounds"
    ledger.note(links.broker.kind, what, lost_s=lost_s, peaks=peaks)
    peaks.stay_below(MEMORY_MB)
