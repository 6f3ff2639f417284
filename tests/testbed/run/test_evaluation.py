import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.ports import Evaluator
from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent.engines.base import Engine, Examples
from fairbed.testbed.experiment.data import DataConfig, Iid
from fairbed.testbed.experiment.datasets import load
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.run.evaluation import BATCH, EvaluationStopped, FleetEvaluator, check_fit
from fairbed.wire.artifact import Artifact, SelfCheck, TaskSpec
from fairbed.wire.evaluation import Evaluation, Targets, positions_of
from fairbed.wire.tensors import Layout, Tensor

PIXELS, CLASSES = 6, 4
VECTOR: Vector = np.random.default_rng(1).standard_normal(PIXELS * CLASSES).astype(np.float32)


class Softmax:
    """Softmax regression without bias, in numpy."""

    name = "softmax 1.0"

    def __init__(self, artifact: Artifact) -> None:
        self.spec = artifact.spec
        self.batch_sizes: list[int] = []

    def running_s(self) -> float:
        return 0.0

    def interrupt(self) -> None:
        pass

    def reseed(self, seed: int, step: int) -> None:
        pass

    def gradient(
        self,
        vector: NDArray[np.float32],
        x: Examples,
        y: Targets,
        micro_batch: int | None = None,
        factor: float = 1.0,
    ) -> tuple[float, NDArray[np.float32]]:
        raise AssertionError("evaluation needs no gradient")

    def counts(self, y: Targets) -> NDArray[np.float64]:
        return positions_of(y).astype(np.float64)

    def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
        assert x.dtype == np.float32
        self.batch_sizes.append(len(y))
        logits = x.reshape(len(x), -1) @ vector.reshape(PIXELS, CLASSES)
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
        correct = int((logits.argmax(axis=1) == y).sum())
        return Evaluation(float(losses.sum(dtype=np.float64)), correct)


def artifact(x_shape: tuple[int, ...] = (1, 2, 3), classes: int = CLASSES) -> Artifact:
    spec = TaskSpec(
        name="softmax",
        model="softmax",
        layout=Layout(tensors=(Tensor(name="w", shape=(PIXELS, CLASSES), offset=0),)),
        x_shape=x_shape,
        classes=classes,
        opset=20,
        selfcheck=SelfCheck(seed=0, batch=1, loss=0.0, gradient_l2=0.0),
    )
    return Artifact(spec=spec, train=b"", evaluate=b"")


def fleet(n: int = 3000, devices: int = 3) -> FleetData:
    rng = np.random.default_rng(2)
    dataset = Dataset(
        name="own",
        x=rng.integers(0, 256, (n, 1, 2, 3), dtype=np.uint8),
        y=rng.integers(0, CLASSES, n),
        classes=CLASSES,
        description="",
        source="",
        origin="own",
    )
    config = DataConfig(source="own.npz", partition=Iid(), test_fraction=0.5)
    return FleetData(dataset, config, devices=devices, seed=3, names=("a", "b"))


def evaluator(data: FleetData, threads: int = 1) -> FleetEvaluator:
    return FleetEvaluator(data, artifact(), threads=threads, make_engine=Softmax)


def test_scores_each_device_on_its_own_held_out_examples() -> None:
    data = fleet()
    checked: Evaluator = evaluator(data)
    scores = checked.evaluate(VECTOR)
    assert list(scores) == ["a", "b"]
    for k, name in enumerate("ab"):
        rows = data.test_rows[k]
        x = data.dataset.x[rows].astype(np.float32) / np.float32(255)
        loss_sum, correct, *_ = Softmax(artifact()).evaluate(VECTOR, x, data.dataset.y[rows])
        assert scores[name].n == len(rows) == 500
        assert scores[name].correct == correct
        assert scores[name].loss_sum == pytest.approx(loss_sum, rel=1e-6)


def test_a_model_of_zeros_guesses_on_the_shipped_task() -> None:
    data = FleetData(
        load(DataConfig(), 0, {}), DataConfig(), devices=3, seed=0, names=("a", "b", "c")
    )
    task = load_task("softmax", data.dataset.x_shape, data.dataset.classes)
    scores = FleetEvaluator(data, task).evaluate(np.zeros(task.spec.layout.n_values, np.float32))
    for score, rows in zip(scores.values(), data.test_rows, strict=True):
        assert score.n == len(rows)
        assert score.loss_sum / score.n == pytest.approx(np.log(10), rel=1e-5)
        assert score.correct == (data.dataset.y[rows] == 0).sum()  # the first of equal logits


def test_the_test_set_of_the_server_is_that_of_all_shards_also_of_free_ones() -> None:
    data = fleet()
    judge = evaluator(data)
    whole, held = judge.test(VECTOR), judge.evaluate(VECTOR)
    for k in range(len(data.test_rows) - len(held)):
        data.shard(f"late-comer-{k}")
    parts = judge.evaluate(VECTOR).values()
    assert len(parts) == len(data.test_rows) > len(held)
    assert whole.n == sum(part.n for part in parts) == sum(map(len, data.test_rows))
    assert whole.correct == sum(part.correct for part in parts)
    assert whole.loss_sum == pytest.approx(sum(part.loss_sum for part in parts))


def test_a_device_counts_from_when_it_holds_a_shard() -> None:
    data = fleet()
    judge = evaluator(data)
    data.shard("late-comer")
    assert list(judge.evaluate(VECTOR)) == ["a", "b", "late-comer"]


def test_the_result_does_not_depend_on_the_number_of_threads() -> None:
    data = fleet()
    assert evaluator(data).evaluate(VECTOR) == evaluator(data, threads=4).evaluate(VECTOR)


def test_the_engine_sees_bounded_batches() -> None:
    engines: list[Softmax] = []

    def make(task: Artifact) -> Engine:
        engines.append(Softmax(task))
        return engines[-1]

    FleetEvaluator(fleet(), artifact(), make_engine=make).evaluate(VECTOR)
    assert sum(engines[0].batch_sizes) == 1000
    assert max(engines[0].batch_sizes) <= BATCH


def test_closing_stops_a_running_evaluation() -> None:
    begun, closed = threading.Event(), threading.Event()

    class Waiting(Softmax):
        def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
            begun.set()
            assert closed.wait(30)
            return super().evaluate(vector, x, y)

    judge = FleetEvaluator(fleet(), artifact(), make_engine=Waiting)
    raised: list[BaseException] = []

    def evaluate() -> None:
        try:
            judge.evaluate(VECTOR)
        except EvaluationStopped as exc:
            raised.append(exc)

    thread = threading.Thread(target=evaluate)
    thread.start()
    assert begun.wait(30)
    judge.close()
    closed.set()
    thread.join(30)
    assert len(raised) == 1


def test_an_engine_failure_reaches_the_caller() -> None:
    class Broken(Softmax):
        def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
            raise OSError("no kernel")

    with pytest.raises(OSError, match="no kernel"):
        FleetEvaluator(fleet(), artifact(), threads=2, make_engine=Broken).evaluate(VECTOR)


@pytest.mark.parametrize(
    "task", [lambda: artifact(x_shape=(1, 3, 3)), lambda: artifact(classes=10)]
)
def test_refuses_a_model_for_other_data(task: Callable[[], Artifact]) -> None:
    with pytest.raises(DatasetError, match=r"model softmax: must take 6 float32 values and 4"):
        FleetEvaluator(fleet(), task(), make_engine=Softmax)


def test_tokens_and_labels_outside_and_covered_examples_are_refused_before_a_run() -> None:
    spec = structs.replace(
        artifact(x_shape=(2,)).spec, x_dtype="int64", x_classes=5, positions=(2,)
    )
    good = Dataset(
        name="words",
        x=np.array([[0, 4], [1, 2]]),
        y=np.array([[0, 3], [-1, 2]]),
        classes=CLASSES,
        x_classes=5,
        description="",
        source="",
        origin="own",
    )
    check_fit(good, spec)
    for changes, problem in (
        ({"x": good.x + 1}, r"every token must be in 0\.\.4, .* got 1\.\.5; number the tokens"),
        ({"x": good.x - 1}, r"every token must be in 0\.\.4, .* got -1\.\.3; number the tokens"),
        ({"y": good.y + 1}, r"every label must be in 0\.\.3 \(-1: none\), got 0\.\.4; choose"),
        ({"y": good.y - 1}, r"every label must be in 0\.\.3 \(-1: none\), got -2\.\.2; choose"),
        ({"y": good.y * 0 - 1}, r"a label at one position, got -1 at all of example 0; leave it"),
        ({"y": good.y[:, 0]}, r"must take 2 int64 values of 5 tokens and 4 classes, as data set"),
        ({"x_classes": 6}, r"must take 2 int64 values of 6 tokens and 4 classes at positions of"),
    ):
        with pytest.raises(DatasetError, match=problem) as caught:
            check_fit(replace(good, **changes), spec)
        assert "\n" not in str(caught.value)
