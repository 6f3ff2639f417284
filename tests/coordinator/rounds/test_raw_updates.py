"""The raw parts of a round merge with its vectors: only those that count, in no order."""

import os
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.algorithms.aggregation.raw import RawRule, decode_raw, encode_raw
from fairbed.coordinator.algorithms.aggregation.staleness import StalenessRule
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from fairbed.coordinator.rounds import raw_updates
from fairbed.coordinator.rounds.merging import RoundMerge
from fairbed.coordinator.rounds.raw_updates import RuleMerger
from fairbed.coordinator.state.exchange import Exchange
from fairbed.coordinator.state.registry import Registry
from fairbed.wire.artifact import ClientArray
from fairbed.wire.messages import Offer
from tests.coordinator.algorithms.aggregation.rounds import Kept
from tests.wire.messages import MESSAGES

pytestmark = pytest.mark.anyio

ARRAYS = [ClientArray(name="trees", dtype="bytes"), ClientArray(name="n", dtype="int64", shape=())]
OLD = encode_raw({"trees": b"", "n": np.array(7)})
NAMES = ["pi-0", "pi-1", "pi-2", "pi-3"]


def names_of(old: dict, updates: list) -> dict:  # type: ignore[type-arg] # of a user
    return {
        "trees": " ".join(f"{device}:{n}" for _, n, device in updates).encode(),
        "n": np.array(sum(int(arrays["n"]) for arrays, *_ in updates)),
    }


async def merge(folder: Path, order: list[int], n_values: int, defence: str = "none") -> RoundMerge:
    """Merge updates of the devices in an order; the vector of pi-3 is far away."""
    registry = Registry()
    registry.expect(NAMES)
    aggregator = make_aggregator(AggregationConfig(defence=defence))  # type: ignore[arg-type]
    sent = np.zeros(n_values, np.float32)
    offer = MESSAGES["offer"]
    assert isinstance(offer, Offer)
    round_merge = RoundMerge(None, registry)
    round_merge.begin(
        aggregator.begin(sent, n_values, 0.1, Kept),
        sent,
        n_values,
        StalenessRule(),
        RuleMerger(RawRule("m:names", ARRAYS, names_of)).begin(OLD, folder),
    )
    for row in order:
        exchange = Exchange(NAMES[row], 0.0, offer=structs.replace(offer, n_k=10 + row))
        vector = np.full(n_values, 1000.0 if row == 3 else 1.0 + row, np.float32)
        buffer = bytearray(encode_raw({"trees": bytes(row), "n": np.array(row)}))
        async with round_merge.lock:
            await round_merge.add(exchange, vector, None, memoryview(buffer))
        buffer[:] = bytes(len(buffer))  # the next upload reuses it
    return round_merge


@pytest.mark.parametrize("memory_bytes", [1, 1 << 20])
@pytest.mark.parametrize("n_values", [0, 5])
async def test_the_order_of_arrival_changes_nothing(
    n_values: int, memory_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_updates, "MEMORY_BYTES", memory_bytes)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        round_merge = await merge(tmp_path, order, n_values)
        merged = await round_merge.finish()
        assert merged.vector.shape == (n_values,)
        assert round_merge.raw is not None
        found = decode_raw(round_merge.raw)
        assert found["trees"] == b"pi-0:10 pi-1:11 pi-2:12 pi-3:13"
        assert int(found["n"]) == 6
    assert os.listdir(tmp_path) == []


async def test_an_update_that_a_defence_leaves_out_has_no_raw_part_either(tmp_path: Path) -> None:
    round_merge = await merge(tmp_path, [3, 1, 0, 2], 5, "krum")
    merged = await round_merge.finish()
    assert round_merge.raw is not None
    kept = [NAMES[row] for row, scale in zip([3, 1, 0, 2], merged.scale, strict=True) if scale]
    assert len(kept) == 1
    assert decode_raw(round_merge.raw)["trees"].decode().partition(":")[0] == kept[0]
