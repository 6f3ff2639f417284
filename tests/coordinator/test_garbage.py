"""Rounds leave no reference cycles, which would keep models in memory."""

import gc
from collections import Counter
from pathlib import Path

import pytest

from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.rounds.merging import RoundMerge
from fairbed.device_agent.round import DeviceRound
from fairbed.device_agent.transfers import Pull, Push
from fairbed.wire.transfer import Download, Upload, UploadReceiver
from tests.coordinator.lab import lab, make_config

OF_A_ROUND = (DeviceRound, Push, Pull, Upload, Download, UploadReceiver, RoundMerge)
DEVICES = 3
WHOLE_FLEET = SelectionConfig(policy="uniform", per_round=DEVICES)


@pytest.mark.anyio
async def test_a_round_is_gone_when_the_next_one_runs(tmp_path: Path) -> None:
    alive: Counter[str] = Counter()

    def count(progress: RoundProgress) -> None:
        seen = [type(o).__name__ for o in gc.get_objects() if type(o) in OF_A_ROUND]
        for name, number in Counter(seen).items():
            alive[name] = max(alive[name], number)

    async with lab(tmp_path, DEVICES) as place:
        place.on_progress = count
        gc.collect()
        gc.disable()
        try:
            # All devices in every round: a device that misses one collects garbage by itself.
            await place.run(make_config(12, DEVICES, selection=WHOLE_FLEET))
        finally:
            gc.enable()
    assert alive
    assert all(number <= DEVICES for number in alive.values()), alive
