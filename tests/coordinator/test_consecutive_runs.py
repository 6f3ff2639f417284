"""Runs one after the other over agents that stay: no earlier run counts in a later one."""

from dataclasses import dataclass
from pathlib import Path

import anyio
import numpy as np
import pytest

from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.coordinator.store import RunReader
from fairbed.wire.codec import encode
from fairbed.wire.shard import Shard, make_shard
from fairbed.wire.topics import Topics
from tests.coordinator import rogue
from tests.coordinator.builders import context
from tests.coordinator.lab import Lab, Shards, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

EXAMPLES = 240
"""Of all devices of a run together."""


@dataclass
class DividedShards(Shards):
    """The same examples, divided over the devices of a run."""

    devices: int = 1

    def shard(self, device: str) -> Shard | None:
        """Return the share of one device."""
        n = EXAMPLES // self.devices
        x = np.random.default_rng(self.devices).standard_normal((n, self.width))
        return make_shard(x.astype(np.float32), np.argmax(x[:, :10], axis=1))


async def run_with(place: Lab, devices: int, rounds: int = 2) -> Path:
    """Run with the first devices of the lab; return the folder of the run."""
    name = f"run-{devices}"
    place.shards = DividedShards(devices=devices)
    config = make_config(
        rounds=rounds,
        selection=SelectionConfig(policy="uniform", per_round=devices),
        round=RoundConfig(min_devices=devices, deadline_s=30.0, join_timeout_s=30.0),
    )
    store = place.open_store(name)
    try:
        end = await place.coordinator(config, store).run()
        store.set_status(end)
    finally:
        store.close()
    assert end == "done"
    return place.folder / name


@pytest.mark.parametrize("fleets", [(1, 2, 5), (5, 2, 1)])
async def test_a_shard_of_an_earlier_run_clamps_nothing(
    tmp_path: Path, fleets: tuple[int, ...]
) -> None:
    async with lab(tmp_path, agents=0) as place:
        started = 0
        for devices in fleets:
            for row in range(started, devices):
                place.start_agent(f"pi-{row}")
            for row in range(devices, started):
                place.kill_agent(f"pi-{row}")
            started = devices
            with RunReader(await run_with(place, devices)) as reader:
                assert [e.text for _, e in reader.events() if e.kind == "clamped"] == []
                assert [d.n_k for d in reader.devices()] == [EXAMPLES // devices] * devices
                assert all(x.n_k == EXAMPLES // devices for x in reader.exchanges())


async def test_a_first_exchange_is_cold_although_the_last_run_had_the_same_shard(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, agents=1) as place:
        for attempt in range(2):
            folder = await run_with(place, 1, rounds=1)
            with RunReader(folder) as reader:
                assert [x.was_cold for x in reader.exchanges()] == [True], attempt
            folder.rename(tmp_path / f"earlier-{attempt}")


async def test_a_ready_device_that_reports_more_than_its_shard_is_clamped(tmp_path: Path) -> None:
    async def exaggerate(device: rogue.Rogue) -> None:
        ready = context(seq=10_001, n_k=EXAMPLES)
        await device.link.publish(Topics().telemetry(device.name), encode(ready))
        await rogue.behaves(device)

    async with lab(tmp_path, agents=1) as place, anyio.create_task_group() as group:
        group.start_soon(rogue.Rogue(exaggerate).run, place)
        folder = await run_with(place, 2)
        group.cancel_scope.cancel()
    with RunReader(folder) as reader:
        texts = [e.text for _, e in reader.events() if e.kind == "clamped"]
        known = {d.name: d.n_k for d in reader.devices()}
    assert texts == [f"reports n_k {EXAMPLES} examples, counts as 40"]
    assert known["rogue"] == 40
