"""A plug-in in a live run: it selects, and a fault of it stops the run, which can be resumed."""

from pathlib import Path

import anyio
import numpy as np
import pytest

from examples.longest_waiting import LongestWaiting
from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.plugin import PluginError
from fairbed.coordinator.algorithms.selection.base import Candidates
from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.wire.codec import encode
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
