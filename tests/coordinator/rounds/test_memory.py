"""A run whose training fits into the memory of some devices in parts, and into one not at all."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig, TrainingConfig
from fairbed.coordinator.state.memory import Fitting, TaskMemory
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.sensors import real_host
from tests.coordinator.lab import lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

MIB = 1 << 20


@dataclass
class SmallMemory:
    """The sensors of this machine, with another memory."""

    n_bytes: int

    def memory_bytes(self) -> int:
        return self.n_bytes

    def __getattr__(self, name: str) -> object:
        return getattr(real_host().sensors, name)


async def test_devices_compute_the_parts_that_fit_and_one_that_is_too_small_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = set[int | None]()
    original = OnnxEngine.gradient

    def gradient(self: OnnxEngine, *arguments: object) -> object:
        if len(arguments) > 3:  # not the self-check
            parts.add(arguments[3])  # type: ignore[arg-type]  # of a call by position
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OnnxEngine, "gradient", gradient)
    training = TrainingConfig(batch_size=20, micro_batch="auto")
    memory = TaskMemory(fixed_bytes=100.0 * MIB, example_bytes=40.0 * MIB)
    config = make_config(
        2,
        2,
        training=training,
        selection=SelectionConfig(policy="uniform", per_round=3),
        round=RoundConfig(min_devices=2, deadline_s=30.0, join_timeout_s=30.0),
    )
    async with lab(tmp_path, agents=0) as place:
        place.fitting = Fitting(memory, 8, batch_size=20, largest_part=20, chooses=True)
        for name, mib in (("pi-0", 128), ("pi-1", 512), ("pi-2", 4096)):
            sensors = SmallMemory(mib * MIB)
            place.start_agent(name, host=replace(real_host(), sensors=sensors))  # type: ignore[arg-type]
        assert await place.run(config) == "done"
    with place.reader() as reader:
        assert {x.device for x in reader.exchanges()} == {"pi-1", "pi-2"}
        events = [event for _, event in reader.events()]
    [refused] = [e for e in events if e.kind == "skill"]
    assert refused.device == "pi-0"
    assert refused.text.startswith("training on 1 example at once must need at most 75% of the 128")
    [chosen] = [e for e in events if e.kind == "memory"]
    assert (chosen.device, chosen.text) == (
        "pi-1",
        "its memory holds 7 examples of a mini-batch at once, so it computes parts of that size",
    )
    assert parts == {7, None}
