"""Runs of a model that cannot be exported: devices import it, if their owners allow it."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: no device can train with it")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

from fairbed.coordinator.policy.config import CoordinatorConfig, RoundConfig, SelectionConfig
from fairbed.coordinator.task.catalogue import load_task
from fairbed.wire.models import package_of
from tests.coordinator.lab import NAMES, lab, make_config

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

MODEL = "tests.device_agent.engines.torch_models:recurrent"
MODULE = package_of(MODEL)


def settings(min_devices: int, per_round: int = 3) -> CoordinatorConfig:
    return make_config(
        3,
        min_devices,
        selection=SelectionConfig(policy="uniform", per_round=per_round),
        round=RoundConfig(min_devices=min_devices, deadline_s=30.0, join_timeout_s=30.0),
    )


async def test_a_device_whose_owner_allows_nothing_is_told_why_and_never_selected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = load_task(MODEL, (60,), 10)
    async with lab(tmp_path, agents=0, artifact=artifact) as place:
        place.start_agent("pi-0")
        place.models = (MODULE,)
        place.start_agent("pi-1")
        place.start_agent("pi-2")
        assert await place.run(settings(min_devices=2)) == "done"
    problem = (
        f"its owner does not allow the module {MODULE} of this model; start its agent with "
        f"--allow-models {MODULE}"
    )
    with place.reader() as reader:
        assert {x.device for x in reader.exchanges()} == {"pi-1", "pi-2"}
        (event,) = [e for _, e in reader.events() if e.kind == "skill"]
    assert (event.device, event.text) == ("pi-0", problem)
    assert f"pi-0: refused by the coordinator: {problem}" in caplog.text


async def test_two_runs_with_dropout_give_the_same_models(tmp_path: Path) -> None:
    artifact, models = load_task(MODEL, (60,), 10), []
    for name in ("one", "other"):
        async with lab(tmp_path / name, agents=0, artifact=artifact) as place:
            place.models = (MODULE,)
            place.shards.given, place.device_names = list(NAMES), NAMES
            for device in NAMES:
                place.start_agent(device)
            assert await place.run(settings(min_devices=len(NAMES))) == "done"
        with place.reader() as reader:
            models.append([row.model_sha256 for row in reader.rounds()])
    assert models[0] == models[1]
    assert len(set(models[0])) == 3
