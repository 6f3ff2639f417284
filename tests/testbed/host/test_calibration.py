"""The cost of training steps is measured once per run, by the agent's own training loop."""

import itertools
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from fairbed.coordinator.policy.config import ExchangeConfig, TrainingConfig
from fairbed.coordinator.task.catalogue import read_shipped
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.testbed.emulation.work import StepCost, WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host import calibration, speed
from fairbed.testbed.host import calibration as codec_work
from fairbed.testbed.host.calibration import Measured, Probe, measure, measure_in_child, read_kept
from fairbed.testbed.host.speed import (
    cache_path,
    cached,
    costs_path,
    forget,
    machine_costs,
    reference_probe,
    work_costs,
)
from fairbed.wire.artifact import decode_artifact
from fairbed.wire.plugins import PluginError
from tests.testbed.replay.cohort.fleets import SPLIT_DRIFT
from tests.tiers import in_depth


def probe(task: str, **training: object) -> Probe:
    hyperparameters = TrainingConfig(**training).hyperparameters(1)  # type: ignore[arg-type]
    return Probe(artifact=read_shipped(task), hyperparameters=hyperparameters)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MEASURE_S", 0.05)
    monkeypatch.setattr(codec_work, "REPEATS", 3)


@pytest.mark.alone
def test_more_examples_cost_more() -> None:
    costs = measure(probe("cnn-1x8x8-10", batch_size=32)).costs
    for cost in (costs.train, costs.evaluate):
        assert cost.seconds(256) > 2.0 * cost.seconds(32) > 0.0
    assert costs.train.seconds(64) > costs.evaluate.seconds(64)
    assert costs.load_s > 0.0


@pytest.mark.alone
@pytest.mark.full
def test_a_step_costs_what_its_local_rule_does() -> None:
    plain = probe("mlp-784-318-10", batch_size=64)
    options: dict[str, bool | int | float | str] = {"share": 0.5}
    ruled = msgspec.structs.replace(plain, rule=SPLIT_DRIFT, rule_options=options)
    alone, changed = measure(plain).costs.train, measure(ruled).costs.train
    assert changed.seconds(64) > 1.7 * alone.seconds(64), "the rule takes a second gradient"
    assert changed.seconds(256) > 1.2 * alone.seconds(256)


def test_a_rule_that_cannot_be_measured_is_named_in_one_line() -> None:
    options: dict[str, bool | int | float | str] = {"beta": 0.5}
    faulty = msgspec.structs.replace(probe("softmax-64-10"), rule=SPLIT_DRIFT, rule_options=options)
    with pytest.raises(PluginError, match=r"^local rule .*must be made from the options .*$"):
        anyio.run(measure_in_child, faulty)


@pytest.mark.parametrize("batch_size", [1, pytest.param(1 << 20, marks=pytest.mark.full)])
def test_any_batch_size_can_be_measured(batch_size: int) -> None:
    task = probe("softmax-64-10", batch_size=batch_size, learning_rate=1e6, max_steps=1)
    costs = measure(task).costs
    assert costs.train.seconds(batch_size) > 0.0


@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 20])
def test_no_measured_mini_batch_has_one_example(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch normalisation has no variance of one example: training would diverge here alone."""
    found: list[tuple[int, int]] = []

    def sizes(*arguments: Any, **_: Any) -> None:
        n, large = len(arguments[3]), arguments[4].batch_size
        found.append((large, n - large))

    monkeypatch.setattr(trainer, "train", sizes)
    engine = open_own_engine(decode_artifact(read_shipped("softmax-64-10")))
    settings = TrainingConfig(batch_size=64, micro_batch=size).hyperparameters(1)
    calibration._train_windows(engine, settings, None, lambda: 1.0, 0.0)
    [(large, small)] = found
    assert large > small >= 2
    assert large == max(size, 4)


@pytest.mark.parametrize(
    ("up", "down"),
    [
        in_depth("float32", "float32"),
        in_depth("float16", "float16"),
        in_depth("int8", "int8"),
        ("top-k", "delta"),
    ],
)
def test_codecs_are_measured_on_request(up: str, down: str) -> None:
    exchange = ExchangeConfig(up=up, down=down)  # type: ignore[arg-type]  # each is one
    requested = msgspec.structs.replace(probe("mlp-784-318-10", batch_size=8), exchange=exchange)
    costs = measure(requested).costs
    assert (costs.decode_s > 0.0) == (down != "float32"), "what comes whole is not unpacked"
    assert costs.encode_s > 0.0
    if up == "int8":
        assert costs.encode_s > 2e-4, "a quarter of a million values are not rounded in less"
    plain = measure(probe("softmax-64-10", batch_size=8)).costs
    assert (plain.decode_s, plain.encode_s) == (0.0, 0.0)
    assert b"code_s" not in msgspec.json.encode(plain), "work.json is what it was"


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment with an empty cache, which this process has, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Measure in this process; return the files of the measurements so far."""
    files = list[Path]()

    async def measure_here(probe: Probe, file: Path | None = None) -> Measured:
        assert file is not None
        files.append(file)
        return calibration._measure_or_read(probe, file)

    monkeypatch.setattr(speed, "measure_in_child", measure_here)
    return files


def test_a_task_costs_the_same_in_every_run_on_a_machine(
    environ: dict[str, str], no_child: list[Path]
) -> None:
    task = probe("softmax-64-10", batch_size=8, learning_rate=0.1)
    first = anyio.run(machine_costs, task, environ)
    assert first.spread_ratio is not None
    assert [file.name[:5] for file in no_child] == ["costs", "host-"]
    kept = read_kept(no_child[0])
    assert kept is not None
    keep(no_child[0], msgspec.structs.replace(kept, spread_ratio=0.0))
    same = probe("softmax-64-10", batch_size=8, learning_rate=0.5, epochs=3, max_steps=7)
    assert anyio.run(machine_costs, same, environ).train == first.train
    assert len(no_child) == 2, "what is known is not measured again"
    assert [found.task for found in cached(environ)] == ["softmax-64-10"]
    other = probe("softmax-64-10", batch_size=9)
    assert costs_path(other, environ) != no_child[0]
    forget(environ)
    assert cached(environ) == []
    assert read_kept(cache_path(environ)) is None


def keep(file: Path, measured: Measured) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(measured))


def measured(step_s: float, *, reference_s: float, spread_ratio: float = 0.0) -> Measured:
    cost = StepCost(fixed_s=step_s, per_example_s=0.0)
    return Measured(
        task="t",
        batch_size=8,
        costs=WorkCosts(train=cost, evaluate=cost, decode_s=step_s, encode_s=step_s),
        reference_s=reference_s,
        spread_ratio=spread_ratio,
        reference_spread_ratio=0.0,
        measured_at=0.0,
    )


def test_costs_follow_the_reference_step_of_the_machine(environ: dict[str, str]) -> None:
    """A task that was measured in a slow hour costs what it would have in the hour of the other."""
    task = probe("softmax-64-10", batch_size=8)
    file = costs_path(task, environ)
    assert file is not None
    keep(file, measured(0.003, reference_s=0.006))
    keep(cache_path(environ), measured(0.004, reference_s=0.004))
    costs = anyio.run(machine_costs, task, environ)
    assert costs.train.seconds(8) == pytest.approx(0.002)
    assert costs.decode_s == pytest.approx(0.002)


@pytest.mark.parametrize(("before", "after", "is_measured_again"), [(0.02, 0.3, 0), (0.5, 0.3, 1)])
def test_the_steadier_of_two_measurements_is_kept(
    before: float,
    after: float,
    is_measured_again: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again = list[Probe]()

    def measure_again(probe: Probe) -> Measured:
        again.append(probe)
        return measured(0.002, reference_s=0.004, spread_ratio=after)

    monkeypatch.setattr(calibration, "measure", measure_again)
    file = tmp_path / "cache" / "costs.json"
    keep(file, measured(0.001, reference_s=0.004, spread_ratio=before))
    found = calibration._measure_or_read(probe("softmax-64-10"), file)
    assert len(again) == is_measured_again
    assert found.spread_ratio == min(before, after)
    assert read_kept(file) == found


@pytest.mark.parametrize(("tick_s", "is_processor_time"), [(1e-7, True), (0.01, False)])
def test_processor_time_in_coarse_ticks_is_replaced_by_time_on_the_wall(
    tick_s: float, is_processor_time: bool
) -> None:
    """User Mode Linux counts 10 ms at once: a step took no time, and its ratio had no value."""
    calls = itertools.count()

    def cpu() -> float:
        return next(calls) // 5 * tick_s

    clock = calibration.work_clock(cpu)
    assert clock is (cpu if is_processor_time else time.perf_counter)


@pytest.mark.alone
def test_the_reference_step_costs_one_reference_step() -> None:
    found = measure(reference_probe())
    assert found.costs.train.seconds(20) == pytest.approx(found.reference_s, rel=0.2)


@pytest.mark.full
def test_processes_that_need_the_same_costs_measure_once(environ: dict[str, str]) -> None:
    task = probe("softmax-64-10", batch_size=8)
    file = costs_path(task, environ)
    assert file is not None

    async def both() -> list[Measured]:
        found = list[Measured]()

        async def one() -> None:
            found.append(await measure_in_child(task, file))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        return found

    first, second = anyio.run(both)
    if first.spread_ratio <= calibration.STEADY_SPREAD:
        assert first == second
    assert read_kept(file) in (first, second)
    assert {path.suffix for path in file.parent.iterdir()} == {".json", ".lock"}


def test_a_rule_without_known_code_is_measured_in_every_run(environ: dict[str, str]) -> None:
    for rule in ("some-installed-rule", "no_such_module:Rule"):
        unknown = msgspec.structs.replace(probe("softmax-64-10"), rule=rule)
        assert costs_path(unknown, environ) is None


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
