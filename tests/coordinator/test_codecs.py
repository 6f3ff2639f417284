"""Runs with encoded models and updates, for every codec, with and without faults."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from fairbed.coordinator.policy.config import AggregationConfig, CoordinatorConfig, ExchangeConfig
from fairbed.coordinator.records.rows import UNACCOUNTED_FLOOR_S
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.wire.messages import Message, Offer, Train, UploadResult
from tests.coordinator.faulty import (
    VICTIM,
    Fault,
    FaultyBroker,
    message_of,
    model_chunk,
    update_chunk,
)
from tests.coordinator.lab import ARTIFACT, NAMES, PATIENT, WHOLE_FLEET, Lab, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

EXCHANGES = {
    "up float16": ExchangeConfig(up="float16"),
    "up int8": ExchangeConfig(up="int8"),
    "up top-k": ExchangeConfig(up="top-k", top_k=0.05),
    "down float16": ExchangeConfig(down="float16"),
    "down int8": ExchangeConfig(down="int8"),
    "down delta": ExchangeConfig(down="delta"),
    "both": ExchangeConfig(up="top-k", top_k=0.05, down="delta"),
}
ALL = pytest.mark.parametrize("name", EXCHANGES)
STATEFUL = "both"
"""Top-k sends the rest of an update later, and a delta needs the model before: both have a state
that a fault could damage."""
OTHERS = [name for name in EXCHANGES if name != STATEFUL]
VECTOR_BYTES = ARTIFACT.spec.layout.size_bytes
ROUNDS = 3

History = list[tuple[object, ...]]


def config_of(name: str, rounds: int = ROUNDS, rule: str = "fedavg") -> CoordinatorConfig:
    return make_config(
        rounds=rounds,
        selection=WHOLE_FLEET,
        round=PATIENT,
        aggregation=AggregationConfig(rule=rule),
        exchange=EXCHANGES[name],
    )


@asynccontextmanager
async def fleet(folder: Path, broker: FaultyBroker | None = None) -> AsyncIterator[Lab]:
    """Three devices whose rows and data do not depend on the order of joining."""
    async with lab(folder, agents=0, broker=broker) as place:
        place.device_names = NAMES
        for name in NAMES:
            place.shards.shard(name)
            place.start_agent(name)
        yield place


def history(place: Lab) -> History:
    """Return rounds, models and outcomes of a run."""
    with place.reader() as reader:
        return [
            *((row.round, row.status, row.model_sha256) for row in reader.rounds()),
            *sorted((x.round, x.device, x.outcome) for x in reader.exchanges(0)),
        ]


def exchanges(place: Lab) -> list[ExchangeRow]:
    with place.reader() as reader:
        return list(reader.exchanges(0))


async def _play(folder: Path, name: str, rule: str) -> History:
    async with fleet(folder) as place:
        assert await place.run(config_of(name, rule=rule)) == "done"
    return history(place)


@cache
def undisturbed(name: str, rule: str = "fedavg") -> History:
    """Return the history of the run without a fault."""
    with TemporaryDirectory() as folder:
        return anyio.run(_play, Path(folder), name, rule)


async def expected(name: str, rule: str = "fedavg") -> History:
    return await anyio.to_thread.run_sync(undisturbed, name, rule)


@ALL
async def test_every_codec_makes_transfers_smaller(name: str, tmp_path: Path) -> None:
    wanted = EXCHANGES[name]
    async with fleet(tmp_path) as place:
        assert await place.run(config_of(name)) == "done"
    rows = exchanges(place)
    assert {x.outcome for x in rows} == {"done"}
    assert {x.codec_up for x in rows} == {wanted.up}
    for x in rows:
        has_base = wanted.down != "delta" or x.round > 1
        assert x.codec_down == (wanted.down if has_base else "float32")
        assert (x.bytes_down < VECTOR_BYTES) is (x.codec_down != "float32")
        assert (x.bytes_up < VECTOR_BYTES) is (wanted.up != "float32")
        assert (x.coordinator_decode_s is not None) is (wanted.up != "float32")
        assert x.decode_s is not None
        assert x.unaccounted_s is not None
        assert x.signal_s is not None
        assert x.unaccounted_s + x.signal_s >= UNACCOUNTED_FLOOR_S
    with place.reader() as reader:
        packed = [row.coordinator_encode_s is not None for row in reader.rounds()]
    assert packed == [wanted.down != "float32"] * ROUNDS


@pytest.mark.parametrize(
    ("name", "rule"), [(STATEFUL, "q-fedavg"), *((name, "fedavg") for name in EXCHANGES)]
)
async def test_a_run_is_the_same_bit_for_bit_in_any_order_of_devices(
    name: str, rule: str, tmp_path: Path
) -> None:
    assert await _play(tmp_path, name, rule) == await expected(name, rule)


LOST = {"model chunk lost": model_chunk, "update chunk lost": update_chunk}
"""Faults of what a codec has written."""

CASES: dict[str, tuple[Fault, Callable[[str, bytes], bool]]] = {
    **{name: ("lost", is_it) for name, is_it in LOST.items()},
    "update chunk, then device cut": ("device cut after", update_chunk),
    "coordinator cut, then update chunk": ("coordinator cut before", update_chunk),
    "offer, then broker restarted": ("broker restarted after", message_of(Offer, 1)),
    "upload-result lost": ("lost", message_of(UploadResult, 1)),
    "train twice": ("twice", message_of(Train, 2)),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [*((STATEFUL, case) for case in CASES), *((name, case) for name in OTHERS for case in LOST)],
)
async def test_a_fault_changes_nothing_in_the_end(
    name: str,
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fairbed.wire.transfer.RETRY_FLOOR_S", 0.5
    )  # 2 s: the rest is the same, but slow
    broker = FaultyBroker(*CASES[case])
    async with fleet(tmp_path, broker) as place:
        assert await place.run(config_of(name)) == "done"
    assert broker.has_struck
    assert history(place) == await expected(name)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *((STATEFUL, step) for step in (Offer, UploadResult, Train)),
        *((name, Offer) for name in OTHERS),
    ],
)
async def test_a_coordinator_killed_in_the_second_round_resumes_the_same_run(
    name: str, step: type[Message], tmp_path: Path
) -> None:
    broker = FaultyBroker("lost", message_of(step, 2))
    async with fleet(tmp_path, broker) as place:
        life = anyio.CancelScope()

        def kill() -> None:
            broker.disconnect("coordinator", reconnects=False)
            life.cancel()

        broker.on_strike = kill
        with life:
            await place.run(config_of(name))
        store = place.open_store()
        try:
            assert await place.coordinator(config_of(name), store, attempt=1).run() == "done"
        finally:
            store.close()
    assert broker.has_struck
    assert history(place) == await expected(name)
    assert [topic for topic in broker.retained if "/b/" in topic] == []


@pytest.mark.parametrize("name", [STATEFUL, "up top-k", "down delta"])
async def test_a_restarted_device_pulls_the_whole_model(name: str, tmp_path: Path) -> None:
    broker = FaultyBroker("lost", message_of(Offer, 2))
    async with fleet(tmp_path, broker) as place:

        def restart() -> None:
            place.kill_agent(VICTIM)
            place.start_agent(VICTIM)

        broker.on_strike = restart
        assert await place.run(config_of(name, rounds=6)) == "done"
    assert broker.has_struck
    rows = [x for x in exchanges(place) if x.device == VICTIM]
    assert [x.outcome for x in rows if x.round == 2] == ["lost"]
    later = [x for x in rows if x.round > 2]
    assert {x.outcome for x in later} <= {"done"}
    if EXCHANGES[name].down == "delta" and later:
        assert later[0].codec_down == "float32"
        assert {x.codec_down for x in later[1:] if x.round - 1 in {y.round for y in later}} <= {
            "delta"
        }
