"""The cost of training steps is measured once per run, by the agent's own training loop."""

from pathlib import Path

import anyio
import msgspec
import pytest

from fairbed.coordinator.policy.config import ExchangeConfig, TrainingConfig
from fairbed.coordinator.task.catalogue import read_shipped
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host import calibration
from fairbed.testbed.host import calibration as codec_work
from fairbed.testbed.host.calibration import Probe, measure, measure_in_child, work_costs
from fairbed.wire.plugins import PluginError
from tests.testbed.replay.cohort.fleets import SPLIT_DRIFT


def probe(task: str, **training: object) -> Probe:
    hyperparameters = TrainingConfig(**training).hyperparameters(1)  # type: ignore[arg-type]
    return Probe(artifact=read_shipped(task), hyperparameters=hyperparameters)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MEASURE_S", 0.05)
    monkeypatch.setattr(codec_work, "REPEATS", 3)


@pytest.mark.alone
def test_more_examples_cost_more() -> None:
    costs = measure(probe("cnn-1x8x8-10", batch_size=32))
    for cost in (costs.train, costs.evaluate):
        assert cost.seconds(256) > 2.0 * cost.seconds(32) > 0.0
    assert costs.train.seconds(64) > costs.evaluate.seconds(64)


@pytest.mark.alone
def test_a_step_costs_what_its_local_rule_does() -> None:
    plain = probe("mlp-784-318-10", batch_size=64)
    options: dict[str, bool | int | float | str] = {"share": 0.5}
    ruled = msgspec.structs.replace(plain, rule=SPLIT_DRIFT, rule_options=options)
    alone, changed = measure(plain).train, measure(ruled).train
    assert changed.seconds(64) > 1.7 * alone.seconds(64), "the rule takes a second gradient"
    assert changed.per_example_s > 1.2 * alone.per_example_s


def test_a_rule_that_cannot_be_measured_is_named_in_one_line() -> None:
    options: dict[str, bool | int | float | str] = {"beta": 0.5}
    faulty = msgspec.structs.replace(probe("softmax-64-10"), rule=SPLIT_DRIFT, rule_options=options)
    with pytest.raises(PluginError, match=r"^local rule .*must be made from the options .*$"):
        anyio.run(measure_in_child, faulty)


@pytest.mark.parametrize("batch_size", [1, 1 << 20])
def test_any_batch_size_can_be_measured(batch_size: int) -> None:
    costs = measure(probe("softmax-64-10", batch_size=batch_size, learning_rate=1e6, max_steps=1))
    assert costs.train.seconds(batch_size) > 0.0


@pytest.mark.parametrize(
    ("up", "down"),
    [("float32", "float32"), ("float16", "float16"), ("int8", "int8"), ("top-k", "delta")],
)
def test_codecs_are_measured_on_request(up: str, down: str) -> None:
    exchange = ExchangeConfig(up=up, down=down)  # type: ignore[arg-type]  # each is one
    requested = msgspec.structs.replace(probe("mlp-784-318-10", batch_size=8), exchange=exchange)
    costs = measure(requested)
    assert (costs.decode_s > 0.0) == (down != "float32"), "what comes whole is not unpacked"
    assert costs.encode_s > 0.0
    if up == "int8":
        assert costs.encode_s > 2e-4, "a quarter of a million values are not rounded in less"
    plain = measure(probe("softmax-64-10", batch_size=8))
    assert (plain.decode_s, plain.encode_s) == (0.0, 0.0)
    assert b"code_s" not in msgspec.json.encode(plain), "work.json is what it was"


def test_a_resumed_run_keeps_its_costs(tmp_path: Path) -> None:
    requested = probe("softmax-64-10", batch_size=8, momentum=0.9, proximal=0.1, clip_norm=1.0)
    first = anyio.run(work_costs, tmp_path, requested)
    kept = (tmp_path / "work.json").read_bytes()
    assert msgspec.json.decode(kept, type=WorkCosts) == first
    assert anyio.run(work_costs, tmp_path, requested) == first
    (tmp_path / "work.json").write_bytes(b"{")  # cut short by a crash
    assert anyio.run(work_costs, tmp_path, requested).train.seconds(8) > 0.0


def test_a_failed_measurement_is_one_line(tmp_path: Path) -> None:
    broken = msgspec.structs.replace(probe("softmax-64-10"), artifact=b"no task")
    with pytest.raises(BackendError, match=r"^calibration: a training step must run here, got: .+"):
        anyio.run(work_costs, tmp_path, broken)
