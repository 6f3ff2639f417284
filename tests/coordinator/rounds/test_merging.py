"""The real executor merges accepted updates while devices upload."""

import hashlib
import tracemalloc
from dataclasses import replace
from pathlib import Path

import anyio
import numpy as np
import pytest
from msgspec import structs

from benchmarks._merge_round import Device, SimulatedFleet, simulated_fleet
from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.base import Accumulator, Merge, Report, Stack
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.uploads import Uploads, fault_in_offer
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from fairbed.coordinator.rounds.merging import RoundMerge
from fairbed.coordinator.rounds.update_store import UpdateStore
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.state.round import Round
from fairbed.wire.chunks import DEFAULT_CHUNK_BYTES
from fairbed.wire.evaluation import Predicted
from fairbed.wire.messages import Offer, Train
from fairbed.wire.tensors import Layout, Tensor, vector_to_bytes
from tests.coordinator.algorithms.aggregation.rounds import Kept
from tests.coordinator.algorithms.aggregation.test_streaming import Median
from tests.wire.messages import MESSAGES

pytestmark = pytest.mark.anyio

N_VALUES = 200_000
"""Four chunks, the last one short."""
N_PARAMS = 150_000
LAYOUT = Layout(
    tensors=(
        Tensor(name="w", shape=(N_PARAMS,), offset=0),
        Tensor(name="m", shape=(N_VALUES - N_PARAMS,), offset=N_PARAMS, role="buffer"),
    )
)
SENT = np.random.default_rng(0).standard_normal(N_VALUES).astype(np.float32)
RULES = {
    "fedavg": AggregationConfig(rule="fedavg", weights="n_over_pi"),
    "q-fedavg": AggregationConfig(rule="q-fedavg", q=2.0),
}

both_rules = pytest.mark.parametrize("rule", RULES)


def begin(rule: str) -> Accumulator:
    made = make_aggregator(RULES[rule])
    assert made.is_streaming
    return made.begin(SENT, N_PARAMS, 0.1, Kept)


def model(k: int) -> Vector:
    """Return the model that device k trained."""
    return SENT + np.random.default_rng(k + 1).standard_normal(N_VALUES).astype(np.float32)


def device(k: int, trained: Vector | None = None) -> Device:
    data = bytes(vector_to_bytes(model(k) if trained is None else trained))
    return Device(
        chunk=lambda index: data[index * DEFAULT_CHUNK_BYTES : (index + 1) * DEFAULT_CHUNK_BYTES],
        sha256=hashlib.sha256(data).digest(),
        n_k=10 + k,
        loss_before=0.5 + k,
    )


def devices(count: int) -> dict[str, Device]:
    return {f"pi-{k}": device(k) for k in range(count)}


def alone(rule: str, accepted: list[int]) -> Vector:
    """Return the merge of these devices alone."""
    merge = begin(rule)
    for k in accepted:
        merge.add(Report(row=k, n_k=10 + k, model=model(k), loss_before=0.5 + k))
    return merge.finish().vector


def accepted(table: Round) -> list[int]:
    return [int(x.device.removeprefix("pi-")) for x in table.in_state(ExchangeState.DONE)]


async def play(
    fleet: dict[str, Device],
    accumulator: Accumulator,
    folder: Path,
    *,
    slots: int = 3,
    target_updates: int | None = None,
) -> tuple[Round, Merge, SimulatedFleet]:
    with anyio.fail_after(60):
        async with simulated_fleet(fleet, LAYOUT, accumulator, folder / "run") as place:
            table = await place.run_round(
                slots, len(fleet) if target_updates is None else target_updates
            )
            return table, await place.merge.finish(), place


@both_rules
async def test_every_update_enters_once_and_the_order_changes_no_bit(
    rule: str, tmp_path: Path
) -> None:
    accumulator = begin(rule)
    table, merge, place = await play(devices(8), accumulator, tmp_path)
    assert accepted(table) == list(range(8))
    assert len(place.arrived) == len(merge.weights) == 8
    np.testing.assert_array_equal(merge.vector, alone(rule, [5, 0, 7, 1, 6, 2, 4, 3]))


@both_rules
async def test_a_failed_update_leaves_no_trace_in_the_merge(rule: str, tmp_path: Path) -> None:
    fleet, poison = devices(7), model(5)
    poison[-1] = np.nan
    fleet["pi-3"] = replace(fleet["pi-3"], vanishes=True)
    fleet["pi-4"] = replace(fleet["pi-4"], sha256=bytes(32))
    fleet["pi-5"] = device(5, poison)
    accumulator = begin(rule)
    table, merge, place = await play(fleet, accumulator, tmp_path, slots=1)
    assert place.arrived == ["pi-0", "pi-1", "pi-2", "pi-4", "pi-5", "pi-6"], "bad ones come later"
    assert [x.device for x in table.in_state(ExchangeState.LOST)] == ["pi-3"]
    assert [x.device for x in table.in_state(ExchangeState.REJECTED)] == ["pi-4", "pi-5"]
    assert len(merge.weights) == 4
    np.testing.assert_array_equal(merge.vector, alone(rule, [0, 1, 2, 6]))


@both_rules
async def test_with_over_selection_only_accepted_updates_enter(rule: str, tmp_path: Path) -> None:
    accumulator = begin(rule)
    table, merge, _ = await play(devices(9), accumulator, tmp_path, slots=9, target_updates=4)
    assert len(table.in_state(ExchangeState.CANCELLED)) == 5
    assert len(merge.weights) == len(accepted(table)) == 4
    np.testing.assert_array_equal(merge.vector, alone(rule, accepted(table)))


@both_rules
async def test_a_round_without_accepted_updates_changes_neither_model_nor_rule(
    rule: str, tmp_path: Path
) -> None:
    chosen = make_aggregator(RULES[rule])
    state = chosen.to_state()
    fleet = {name: replace(gone, vanishes=True) for name, gone in devices(3).items()}
    table, merge, _ = await play(fleet, chosen.begin(SENT, N_PARAMS, 0.1, Kept), tmp_path)
    assert accepted(table) == []
    np.testing.assert_array_equal(merge.vector, SENT)
    assert chosen.to_state() == state


async def test_a_rule_that_needs_all_updates_finds_them_on_disk(tmp_path: Path) -> None:
    rule = Aggregator(FedAvg(), pseudo_gradient=Median())
    accumulator = rule.begin(SENT, N_PARAMS, 0.1, lambda: UpdateStore(tmp_path, N_VALUES))
    table, merge, _ = await play(devices(5), accumulator, tmp_path)
    expected = np.median(np.array([model(k) for k in accepted(table)]), axis=0)
    np.testing.assert_array_equal(merge.vector, expected.astype(np.float32))


async def test_memory_does_not_grow_with_the_number_of_devices(tmp_path: Path) -> None:
    """Two slots, the update being added, the next model and the sums; not all 24 updates."""
    shared = device(0)
    fleet = {f"pi-{k}": shared for k in range(24)}
    accumulator = begin("fedavg")
    tracemalloc.start()
    try:
        table, _, _ = await play(fleet, accumulator, tmp_path, slots=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(accepted(table)) == 24
    assert peak < 7 * LAYOUT.size_bytes


@pytest.mark.parametrize(
    ("positions", "registered", "weight"),
    [(None, 0, 60), (240, 250, 240), (400, 250, 250), (400, 0, 400)],
)
async def test_positions_are_the_weight_up_to_those_of_the_shard(
    positions: int | None, registered: int, weight: int
) -> None:
    registry, kept = Registry(), list[Report]()
    registry.expect(["pi"])
    registry["pi"].n_registered, registry["pi"].positions_registered = 60, registered

    class Keeping(Accumulator):
        """Keeps the reports."""

        def add(self, report: Report) -> None:
            kept.append(report)

        def add_all(self, stack: Stack) -> None:
            raise AssertionError("one update comes at a time")

        def finish(self) -> Merge:
            raise AssertionError("no update is merged")

    offer = MESSAGES["offer"]
    assert isinstance(offer, Offer)
    offer = structs.replace(offer, n_k=60, positions=positions)
    merge = RoundMerge(Keeping(), registry)
    await merge.add(Exchange("pi", 0.0, offer=offer), SENT)
    assert [report.n_k for report in kept] == [weight]


@pytest.mark.parametrize(
    ("y_shape", "positions", "problem"),
    [
        ((), None, None),
        ((4,), 2400, None),
        ((), 600, "offer: must have no positions, as each example has one target"),
        ((4,), None, "offer: must have 600 to 2400 positions, got None"),
        ((4,), 2401, "offer: must have 600 to 2400 positions, got 2401"),
        ((4,), 599, "offer: must have 600 to 2400 positions, got 599"),
    ],
)
def test_an_offer_reports_positions_if_the_task_has_them(
    y_shape: tuple[int, ...], positions: int | None, problem: str | None
) -> None:
    offer, train = MESSAGES["offer"], MESSAGES["train"]
    assert isinstance(offer, Offer)
    assert isinstance(train, Train)
    layout = Layout(tensors=(Tensor(name="w", shape=(offer.manifest.size_bytes // 4,), offset=0),))
    uploads = Uploads(layout, now=lambda: 0.0, predicted=Predicted(y_shape=y_shape))
    found = fault_in_offer(uploads, structs.replace(offer, positions=positions), train)
    assert found == problem


def test_an_offer_with_an_implausible_number_is_refused() -> None:
    offer, train = MESSAGES["offer"], MESSAGES["train"]
    assert isinstance(offer, Offer)
    assert isinstance(train, Train)
    layout = Layout(tensors=(Tensor(name="w", shape=(offer.manifest.size_bytes // 4,), offset=0),))
    changed = structs.replace(offer, measured={"rerequests_down": -1.0})
    found = fault_in_offer(Uploads(layout, now=lambda: 0.0), changed, train)
    assert found == "offer: rerequests_down must be from 0 to 1e+09, got -1"
