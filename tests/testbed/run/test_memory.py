"""Checks of memory and micro-batches before the first round."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fairbed import profiles
from fairbed.coordinator.state.memory import TaskMemory
from fairbed.coordinator.task.catalogue import load_task, read_shipped
from fairbed.device_agent.peak_memory import Request
from fairbed.testbed.emulation.work import StepWork
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment
from fairbed.testbed.host import memory as host_memory
from fairbed.testbed.host.memory import fitting_of
from fairbed.testbed.host.step_work import step_work
from fairbed.testbed.run.memory import (
    NAMED,
    check_parts,
    examples_interact,
    part_sizes,
    unknown_memory,
)
from fairbed.testbed.run.preflight import settings_findings
from fairbed.wire.artifact import decode_artifact, encode_artifact
from fairbed.wire.messages import Hyperparameters, Optimiser

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.toml"
MODELS = "tests.device_agent.engines.torch_models"
MIB = 1 << 20
NET = TaskMemory(fixed_bytes=250.0 * MIB, example_bytes=56.0 * MIB, least_bytes=440.0 * MIB)
CNN = decode_artifact(read_shipped("cnn-1x8x8-10"))
PI_3, PI_4 = "raspberry-pi-3b", "raspberry-pi-4b"


def experiment(*settings: str) -> Experiment:
    return load_experiment(QUICKSTART, ["training.batch_size=16", *settings])


def sizes(found: Experiment, *names: str) -> list[int]:
    fitting = fitting_of(found.training, CNN.spec, NET)
    memory = np.array([profiles.load(name).memory_bytes if name else 0 for name in names])
    labels = [f"{name or 'here'}-1" for name in names]
    n_k = np.full(len(names), 50)
    return [int(size) for size in part_sizes(found, fitting, labels, memory, n_k)]


def test_a_device_that_is_too_small_is_named_before_the_run() -> None:
    with pytest.raises(ExperimentError) as caught:
        sizes(experiment(), PI_4, PI_3, PI_3)
    assert str(caught.value) == (
        "fleet: training must fit into the memory of each device, got 2 of 3 that are too small: "
        "raspberry-pi-3b-1: training on 16 examples at once must need at most 75% of the 1024 MiB "
        "of the device, got 1146 MiB; set training.micro_batch to at most 9; likewise "
        "raspberry-pi-3b-1"
    )


def test_each_device_computes_the_parts_that_fit_into_its_memory() -> None:
    assert sizes(experiment("training.micro_batch=auto"), PI_4, PI_3) == [16, 9]
    assert sizes(experiment("training.micro_batch=4"), PI_4, PI_3) == [4, 4]
    assert sizes(experiment("training.micro_batch=auto"), "", PI_3) == [16, 9], "this machine"
    with pytest.raises(ExperimentError, match=r"2w-1: training on 1 example at once .* leave it"):
        sizes(experiment("training.micro_batch=auto"), "raspberry-pi-zero-2w")


def test_of_many_small_devices_a_few_are_named() -> None:
    with pytest.raises(ExperimentError, match=r"got 20 of 20 .* to at most 9; likewise") as caught:
        sizes(experiment(), *[PI_3] * 20)
    assert str(caught.value).endswith(f"likewise {', '.join([f'{PI_3}-1'] * NAMED)} and 11 more")


def test_a_model_whose_steps_cannot_be_counted_is_named() -> None:
    [found] = unknown_memory("my:net", None, None)
    assert (found.kind, found.level) == ("memory", "warning")
    assert found.text.startswith("the peak memory of training my:net is unknown, as its steps are")
    assert not [*unknown_memory("cnn", None, None)], "a shipped model needs little"
    assert not [*unknown_memory("my:net", step_work(CNN), None)]
    assert not [*unknown_memory("my:net", None, NET)], "as in costs that were given"


def test_nothing_is_checked_for_a_task_that_needs_little() -> None:
    found = experiment()
    assert fitting_of(found.training, CNN.spec, None) is None
    one = np.ones(1, dtype=np.int64)
    assert part_sizes(found, None, ["tiny"], one, one).tolist() == [16]


@pytest.mark.parametrize("name", ["cnn-1x8x8-10", "cnn-1x28x28-10", "mlp-784-318-10"])
def test_shipped_models_are_not_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("no process may start")

    monkeypatch.setattr(host_memory, "peaks", never)
    task = decode_artifact(read_shipped(name))
    h = Hyperparameters(epochs=1, batch_size=20, learning_rate=0.1)
    work, memory = host_memory.memory_here(task, h)
    assert memory is None
    assert work is not None
    assert host_memory.bound_bytes(task.spec.layout, work, 1) > host_memory.AGENT_BYTES
    size, own = task.spec.layout.size_bytes, Optimiser(name="adam")
    for optimiser, more in ((own, 1), (structs.replace(own, keeps_state=True), 9)):
        adam = structs.replace(h, optimiser=optimiser)
        bound = host_memory.bound_bytes(task.spec.layout, work, 1, adam)
        assert bound == host_memory.bound_bytes(task.spec.layout, work, 1) + more * size


def test_the_run_names_statistics_of_parts() -> None:
    def found(*settings: str) -> list[str]:
        lines = settings_findings(experiment(*settings), trains=True)
        return [line.text for line in lines if line.kind == "micro-batch"]

    both = ["training.micro_batch=4", "training.micro_batch_statistics=true"]
    assert found() == found(both[0]) == found(both[1]) == []
    assert found("training.micro_batch=16", both[1]) == []
    [line] = found(*both)
    assert "those of parts of 4 examples, not of the mini-batches of 16" in line


def test_a_model_without_batch_statistics_may_have_parts() -> None:
    assert not examples_interact(CNN)
    check_parts(experiment("training.micro_batch=4"), CNN)


@pytest.mark.slow
@pytest.mark.full
def test_a_model_with_batch_statistics_needs_the_permission() -> None:
    pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
    for engine in ("onnx", "torch"):
        task = load_task(f"{MODELS}:smooth", (6,), 3, engine=engine)
        assert examples_interact(task)
    with pytest.raises(
        ExperimentError,
        match=r"training\.micro_batch: must be left out for a model whose examples affect each "
        r"other, as in batch normalisation, got 4 .*set training\.micro_batch_statistics = true",
    ):
        check_parts(experiment("training.micro_batch=4"), task)
    check_parts(experiment("training.micro_batch=16"), task)
    permitted = ["training.micro_batch=4", "training.micro_batch_statistics=true"]
    check_parts(experiment(*permitted), task)
    for each in ("onnx", "torch"):
        task = load_task(f"{MODELS}:smooth", (6,), 3, engine=each)
        with pytest.raises(
            ExperimentError,
            match=r"training\.micro_batch: must leave no part of one example, .* got 5 for "
            r"mini-batches of 16; set a number of 2 or more that divides training\.batch_size",
        ):
            check_parts(experiment("training.micro_batch=5", permitted[1]), task)


@pytest.mark.slow
@pytest.mark.full
def test_the_memory_of_a_size_between_is_predicted_within_20_percent() -> None:
    task = decode_artifact(read_shipped("cnn-1x28x28-10"))
    encoded = encode_artifact(task)
    h = Hyperparameters(epochs=1, batch_size=600, learning_rate=0.1, momentum=0.5)
    found = host_memory.measured_memory(encoded, h, StepWork(moved_bytes=1.0))
    between = host_memory.peaks(Request(artifact=encoded, hyperparameters=h), 450)
    assert between.train > 1.2 * between.check
    assert found.peak_bytes(450) == pytest.approx(between.train, rel=0.2)
