"""Parts of the trainers: stacked mini-batches, ordered threads and the choice of a trainer."""

import sys
import threading

import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.task.catalogue import build_task
from fairbed.device_agent.trainer import local_steps, mini_batches
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import CohortEngine, ExperimentError
from fairbed.testbed.replay.cohort.batches import Batches, longest_first
from fairbed.testbed.replay.cohort.choose import make_trainer
from fairbed.testbed.replay.cohort.dense import DenseTrainer
from fairbed.testbed.replay.cohort.devices import DeviceTrainer
from fairbed.testbed.replay.cohort.functional import TorchTrainer
from fairbed.testbed.replay.cohort.ordered import OrderedThreads
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.tensors import Layout
from tests.testbed.replay.cohort.fleets import RECIPES, fleet_data, shipped


@pytest.mark.parametrize(
    ("sizes", "max_steps", "steps"),
    [
        ((45, 40, 7), None, [6, 4, 2]),
        ((45, 45), None, [6, 6]),
        ((40, 40), None, [4, 4]),
        ((7,), None, [2]),
        ((45, 45), 2, [2, 2]),
        ((45, 45), 5, [5, 5]),
        ((450, 45, 25, 7), 3, [3, 3, 3, 2]),
    ],
)
def test_mini_batches_equal_those_of_the_device(
    sizes: tuple[int, ...], max_steps: int | None, steps: list[int]
) -> None:
    h = Hyperparameters(epochs=2, batch_size=20, learning_rate=0.1, max_steps=max_steps)
    seeds = [50 + k for k in range(len(sizes))]
    rows = [np.arange(n) + 100 * k for k, n in enumerate(sizes)]
    batches = Batches(seeds, rows, h)
    assert batches.steps == steps
    own = [
        list(mini_batches(len(of_one), h, seed)) for of_one, seed in zip(rows, seeds, strict=True)
    ]
    for step in range(steps[0]):
        active = sum(steps > step for steps in batches.steps)
        found = batches.next(active)
        for i in range(active):
            is_first, places = own[i][step]
            assert (i in found.begins) == is_first
            assert found.index[i, : found.count[i]].tolist() == rows[i][places].tolist()
            assert set(found.index[i].tolist()) <= set(rows[i].tolist())
            real, padding = np.split(found.weights[i], found.count[i : i + 1])
            assert real.tolist() == [np.float32(1.0 / len(places))] * len(places)
            assert not padding.any()


def test_the_longest_come_first_and_ties_by_index() -> None:
    h = Hyperparameters(epochs=1, batch_size=10, learning_rate=0.1)
    n_k = [5, 31, 40, 9, 31]
    assert longest_first(n_k, [local_steps(n, h) for n in n_k]) == [2, 1, 4, 3, 0]
    limited = Hyperparameters(epochs=1, batch_size=10, learning_rate=0.1, max_steps=2)
    assert [local_steps(n, limited) for n in (5, 31)] == [1, 2]


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_few_wait(threads: int) -> None:
    begun = []

    def do(number: int) -> int:
        begun.append(number)
        return number * number

    workers, done = OrderedThreads(threads), 0
    for number, result in enumerate(workers.run(do, range(50))):
        assert result == number * number
        done += 1
        assert len(begun) <= done + 2 * threads + 1
    workers.close()
    assert done == 50


@pytest.mark.parametrize("threads", [2, 3])
def test_the_caller_is_one_of_the_threads(threads: int) -> None:
    workers, together = OrderedThreads(threads), threading.Barrier(threads, timeout=10.0)
    idents = set()

    def do(number: int) -> int:
        together.wait()
        idents.add(threading.get_ident())
        return number

    assert list(workers.run(do, range(threads))) == list(range(threads))
    workers.close()
    assert len(idents) == threads
    assert threading.get_ident() in idents


@pytest.mark.parametrize("threads", [2, 3])
def test_other_threads_may_use_another_function(threads: int) -> None:
    workers, together = OrderedThreads(threads), threading.Barrier(threads, timeout=10.0)

    def here(_: int) -> int:
        together.wait()
        return threading.get_ident()

    def elsewhere(number: int) -> int:
        return -here(number)

    idents = list(workers.run(here, range(threads), elsewhere))
    workers.close()
    assert [ident for ident in idents if ident > 0] == [threading.get_ident()]
    assert len(set(idents)) == threads


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_the_work_reaches_the_caller(threads: int) -> None:
    workers = OrderedThreads(threads)
    with pytest.raises(ZeroDivisionError):
        list(workers.run(lambda number: 1 // number, [2, 1, 0, 1]))
    workers.close()


@pytest.mark.parametrize(
    ("name", "engine", "kind"),
    [
        ("softmax-60-10", "auto", DenseTrainer),
        ("mlp-64-64-10", "auto", DenseTrainer),
        ("mlp-64-64-10", "device", DeviceTrainer),
        ("cnn-1x8x8-10", "device", DeviceTrainer),
        ("cnn-1x8x8-10", "torch", TorchTrainer),
    ],
)
def test_the_trainer_depends_on_model_and_setting(
    name: str, engine: CohortEngine, kind: type
) -> None:
    recipe = RECIPES[name]
    assert type(make_trainer(shipped(recipe), fleet_data(recipe), engine)) is kind


def test_an_impossible_trainer_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = RECIPES["cnn-1x8x8-10"]
    artifact, data = shipped(recipe), fleet_data(recipe)
    with pytest.raises(ExperimentError, match=r"^replay.engine: batched must have one of the mod"):
        make_trainer(artifact, data, "batched")
    monkeypatch.setitem(sys.modules, "fairbed.testbed.replay.cohort.functional", None)
    with pytest.raises(
        ExperimentError, match=r"^replay.engine: torch must be installed.*fairbed\["
    ):
        make_trainer(artifact, data, "torch")
    with pytest.raises(DatasetError, match=r"^model cnn-1x8x8-10: must take 60 float32 values"):
        make_trainer(artifact, fleet_data(RECIPES["softmax-60-10"]))


def test_without_torch_a_convolution_is_trained_by_the_devices_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = RECIPES["cnn-1x8x8-10"]
    monkeypatch.setitem(sys.modules, "torch", None)
    trainer = make_trainer(shipped(recipe), fleet_data(recipe))
    assert type(trainer) is DeviceTrainer


def test_a_model_with_buffers_is_trained_by_the_devices_engine() -> None:
    data = fleet_data(RECIPES["cnn-1x8x8-10"])
    artifact = build_task("tests.testbed.replay.cohort.test_parts:normalised", (1, 8, 8), 10)
    assert artifact.spec.layout.n_values > artifact.spec.layout.n_params
    assert type(make_trainer(artifact, data)) is DeviceTrainer
    with pytest.raises(ExperimentError, match="without buffers"):
        make_trainer(artifact, data, "torch")


def test_a_model_of_which_devices_keep_a_part_is_trained_by_the_devices_engine() -> None:
    """Batched products know one anchor for all devices, and no section of FedRep."""
    artifact = shipped(RECIPES["softmax-60-10"])
    [*others, last] = artifact.spec.layout.tensors
    layout = Layout(tensors=(*others, structs.replace(last, is_local=True)))
    artifact = structs.replace(artifact, spec=structs.replace(artifact.spec, layout=layout))
    data = fleet_data(RECIPES["softmax-60-10"])
    assert type(make_trainer(artifact, data)) is DeviceTrainer
    for engine in ("batched", "torch"):
        with pytest.raises(ExperimentError, match=r"got model\.personal"):
            make_trainer(artifact, data, engine)


def normalised(x_shape: tuple[int, ...], classes: int) -> object:
    from torch import nn

    features = x_shape[0] * x_shape[1] * x_shape[2]
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(features), nn.Linear(features, classes))
