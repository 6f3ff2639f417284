"""A plug-in in a live run: it selects, and a fault of it stops the run, which can be resumed."""

from pathlib import Path
from typing import Any, ClassVar

import anyio
import numpy as np
import pytest
from msgspec.structs import replace

from examples.longest_waiting import LongestWaiting
from fairbed.coordinator.algorithms.aggregation import Updates
from fairbed.coordinator.algorithms.arrays import Floats, Ints, Vector
from fairbed.coordinator.algorithms.estimation import Measured, Prediction
from fairbed.coordinator.algorithms.selection.base import Candidates
from fairbed.coordinator.policy.config import AggregationConfig, SelectionConfig
from fairbed.coordinator.policy.decisions import FleetSizeError
from fairbed.wire.codec import encode
from fairbed.wire.plugins import PluginError
from fairbed.wire.topics import Topics
from tests.coordinator import rogue
from tests.coordinator.builders import context
from tests.coordinator.lab import PATIENT, Lab, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

HERE = "tests.coordinator.test_plugin_runs"


class FaultyInRound3(LongestWaiting):
    """Selects a device twice in round 3, unless `is_fixed`."""

    is_fixed = False

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        rows = super().select(candidates, k, rng)
        if candidates.round == 3 and not FaultyInRound3.is_fixed:
            return np.repeat(rows[:1], 2)
        return rows


class WithoutState(LongestWaiting):
    """Has a state that cannot be encoded."""

    def to_state(self) -> dict[str, object]:
        return {"when": object()}


def plugged(name: str, **options: object) -> SelectionConfig:
    return SelectionConfig(policy=f"{HERE}:{name}", per_round=2, options=options)


def assert_no_device_waits_twice(place: Lab, rounds: int) -> None:
    with place.reader() as reader:
        for t in range(1, rounds):
            left_out = {row.device for row in reader.selections(t) if not row.is_selected}
            assert left_out <= {row.device for row in reader.selections(t + 1) if row.is_selected}


async def test_a_plugin_selects_the_cohort(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        assert await place.run(make_config(rounds=3, selection=plugged("LongestWaiting"))) == "done"
    assert_no_device_waits_twice(place, rounds=3)


async def run_into(place: Lab, name: str) -> str:
    with pytest.raises(PluginError) as caught:
        await place.run(make_config(rounds=4, selection=plugged(name), round=PATIENT))
    return str(caught.value)


async def test_a_faulty_plugin_stops_the_run_which_resumes_after_its_last_round(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path) as place:
        line = await run_into(place, "FaultyInRound3")
        assert line.startswith(
            f"selector {HERE}:FaultyInRound3: select() of round 3 must return each row once"
        )
        with place.reader() as reader:
            assert [row.status for row in reader.rounds()] == ["done", "done"]
        FaultyInRound3.is_fixed = True
        store = place.open_store()
        try:
            config = make_config(rounds=4, selection=plugged("FaultyInRound3"), round=PATIENT)
            assert await place.coordinator(config, store, attempt=1).run() == "done"
        finally:
            store.close()
    with place.reader() as reader:
        assert [row.round for row in reader.rounds()] == [1, 2, 3, 4]
    assert_no_device_waits_twice(place, rounds=4)  # it continued with its state
    assert [topic for topic in place.broker.retained if "/b/" in topic] == []


async def test_a_state_that_no_checkpoint_holds_stops_the_run_with_its_name(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        line = await run_into(place, "WithoutState")
    assert line.startswith(
        f"selector {HERE}:WithoutState: to_state() must be plain numbers and lists"
    )


class Part:
    """A part of an aggregation that fails in round 3, unless `is_fixed`."""

    is_fixed = False
    needs_loss = needs_norms = needs_models = False

    def __init__(self) -> None:
        self.rounds = 0

    def fails(self) -> bool:
        """Count a round, and return whether the part fails in it."""
        self.rounds += 1
        return self.rounds == 3 and not Part.is_fixed

    def to_state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class NanWeights(Part):
    def decide(self, updates: Updates) -> Floats:
        return np.full(len(updates), np.nan if self.fails() else 0.5)


class TooFewWeights(Part):
    def decide(self, updates: Updates) -> Floats:
        return np.full(len(updates) - self.fails(), 0.5)


class NegativeWeights(Part):
    def decide(self, updates: Updates) -> Floats:
        return np.full(len(updates), -0.5 if self.fails() else 0.5)


class FactorsThatRaise(Part):
    """Fails when an update arrives, not when the round is merged."""

    def factors(self, updates: Updates) -> tuple[Floats, Ints]:
        if updates.round == 3 and not Part.is_fixed:
            raise RuntimeError("out of\nluck")
        return np.ones(len(updates)), np.zeros(len(updates), dtype=np.int64)

    def decide(self, updates: Updates) -> Floats:
        return np.full(len(updates), 1.0 / len(updates))


class StateWithArray(Part):
    def decide(self, updates: Updates) -> Floats:
        self.fails()
        return np.full(len(updates), 0.5)

    def to_state(self) -> dict[str, Any]:
        is_faulty = self.rounds == 3 and not Part.is_fixed
        return {"rounds": self.rounds, "last": np.ones(2) if is_faulty else None}


class ShortChange(Part):
    def combine(self, updates: Updates, a: Floats) -> Floats:
        assert updates.changes is not None
        return updates.changes[0][: -1 if self.fails() else None]


class InfiniteStep(Part):
    def step(self, params: Vector, d: Floats) -> Floats:
        return params + (np.inf if self.fails() else 1.0) * d


class NoPrediction(Part):
    def predict(self, context: Floats) -> Any:
        ones = np.ones(len(context))
        return None if self.fails() else Prediction(ones, ones, ones)

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        pass


RULE, GRADIENT, STEP, ESTIMATOR = "rule", "pseudo_gradient", "server", "estimator"
FAULTS = [
    (RULE, NanWeights, "weight rule {}: decide() of round 3 must return finite numbers, got nan"),
    (
        RULE,
        TooFewWeights,
        "weight rule {}: decide() of round 3 must return numbers of shape",
    ),
    (
        RULE,
        NegativeWeights,
        "weight rule {}: decide() of round 3 must return numbers >= 0, got",
    ),
    (
        RULE,
        FactorsThatRaise,
        "weight rule {}: factors() of round 3 must not raise, got ",
    ),
    (RULE, StateWithArray, "weight rule {}: to_state() must be plain numbers and lists"),
    (
        GRADIENT,
        ShortChange,
        "pseudo-gradient {}: combine() of round 3 must return numbers",
    ),
    (STEP, InfiniteStep, "server step {}: step() must return finite numbers, got "),
    (ESTIMATOR, NoPrediction, "estimator {}: predict() must return a Prediction, got NoneType"),
]


@pytest.mark.parametrize(("key", "part", "why"), FAULTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
async def test_a_faulty_part_stops_the_run_which_stands_at_its_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, part: type[Part], why: str
) -> None:
    monkeypatch.setattr(Part, "is_fixed", False)
    name = f"{HERE}:{part.__name__}"
    selection, aggregation = SelectionConfig(policy="uniform", per_round=2), AggregationConfig()
    if key == ESTIMATOR:
        selection = replace(selection, estimator=name)
    else:
        aggregation = replace(aggregation, **{key: name})
    config = make_config(rounds=4, selection=selection, aggregation=aggregation, round=PATIENT)
    async with lab(tmp_path) as place:
        with pytest.raises(PluginError) as caught:
            await place.run(config)
        assert str(caught.value).startswith(why.format(name))
        assert "\n" not in str(caught.value)
        with place.reader() as reader:
            assert [row.status for row in reader.rounds()] == ["done", "done"]
            stands_at = reader.rounds()[-1].model_sha256
            assert stands_at
        monkeypatch.setattr(Part, "is_fixed", True)
        store = place.open_store()
        try:
            assert await place.coordinator(config, store, attempt=1).run() == "done"
        finally:
            store.close()
    with place.reader() as reader:
        rounds = reader.rounds()
    assert [row.round for row in rounds] == [1, 2, 3, 4]
    assert rounds[1].model_sha256 == stands_at


class NoWeight(Part):
    def decide(self, updates: Updates) -> Floats:
        return np.zeros(len(updates))


async def test_weights_that_are_all_0_leave_the_model(tmp_path: Path) -> None:
    aggregation = AggregationConfig(rule=f"{HERE}:NoWeight", server="momentum")
    selection = SelectionConfig(policy="uniform", per_round=2)
    async with lab(tmp_path) as place:
        config = make_config(rounds=2, selection=selection, aggregation=aggregation, round=PATIENT)
        assert await place.run(config) == "done"
    with place.reader() as reader:
        first, second = (row.model_sha256 for row in reader.rounds())
        assert first == second != ""
        assert [row.status for row in reader.rounds()] == ["done", "done"]


class CountsDevices(Part):
    """Counts the devices that a rule is told of in each round."""

    max_devices = 10
    seen: ClassVar[list[int]] = []

    def decide(self, updates: Updates) -> Floats:
        CountsDevices.seen.append(updates.registered)
        return np.full(len(updates), 0.5)


async def test_a_rule_knows_the_whole_fleet_from_the_first_round_on(tmp_path: Path) -> None:
    """So it does in the first round after a restart."""
    CountsDevices.seen.clear()
    selection = SelectionConfig(policy="weighted", weights=(1.0, 1.0, 0.0, 0.0), per_round=2)
    aggregation = AggregationConfig(rule=f"{HERE}:CountsDevices")
    config = make_config(devices=4, selection=selection, aggregation=aggregation)
    async with lab(tmp_path, agents=4) as place:
        assert await place.run(replace(config, rounds=1)) == "done"
        store = place.open_store()
        try:
            again = place.coordinator(replace(config, rounds=3), store, attempt=1)
            assert await again.run() == "done"
        finally:
            store.close()
    assert CountsDevices.seen == [4, 4, 4]


async def test_more_devices_than_a_rule_is_made_for_end_the_run(tmp_path: Path) -> None:
    aggregation = AggregationConfig(rule=f"{HERE}:CountsDevices")
    async with lab(tmp_path, agents=11) as place:
        with pytest.raises(FleetSizeError) as caught:
            await place.run(make_config(devices=11, aggregation=aggregation))
    assert str(caught.value) == (
        f"aggregation.rule must not be '{HERE}:CountsDevices' with more than 10 devices, got 11; "
        "use another rule, or fewer devices"
    )


async def test_the_audit_of_a_live_run_is_stored(tmp_path: Path) -> None:
    selection = SelectionConfig(policy="uniform", per_round=1, audit=1.0)
    async with lab(tmp_path) as place:
        assert await place.run(make_config(rounds=5, selection=selection, round=PATIENT)) == "done"
    with place.reader() as reader:
        audits, exchanges = reader.audits(), reader.exchanges()
        rows = [row for t in range(1, 6) for row in reader.selections(t)]
    assert {(x.round, x.device) for x in exchanges} == audits
    there = [row for row in rows if row.is_available]
    assert all(row.propensity == pytest.approx(1 / 3) for row in there if len(there) == 15)
    assert sum(row.is_audit for row in rows) == 5


async def test_a_clamped_value_has_one_event_with_its_number(tmp_path: Path) -> None:
    async def exaggerate(device: rogue.Rogue) -> None:
        for seq in (10_001, 10_002):
            absurd = context(seq=seq, n_k=40, mu_cores=4096.0, downlink_bps=1e-9, uplink_bps=1e15)
            await device.link.publish(Topics().telemetry(device.name), encode(absurd))
        await rogue.behaves(device)

    async with lab(tmp_path, agents=1) as place, anyio.create_task_group() as group:
        group.start_soon(rogue.Rogue(exaggerate).run, place)
        config = make_config(rounds=3, devices=2, selection=SelectionConfig(per_round=2))
        assert await place.run(config) == "done"
        group.cancel_scope.cancel()
    with place.reader() as reader:
        texts = [e.text for _, e in reader.events() if e.kind == "clamped"]
        exchanges = [x for x in reader.exchanges() if x.device == "rogue"]
    assert sorted(texts) == [
        "reports downlink 1e-09 bit/s, counts as 1000",
        "reports mu 4096 cores, counts as 64",
        "reports uplink 1e+15 bit/s, counts as 1e+12",
    ]
    assert all(np.isfinite(x.tau_hat_s or 0.0) for x in exchanges)
