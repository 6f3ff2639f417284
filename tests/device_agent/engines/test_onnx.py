"""The onnxruntime engine on the shipped tasks."""

import os
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from fairbed.coordinator.task.catalogue import load_task, read_shipped
from fairbed.coordinator.task.recipes import SHIPPED
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.errors import EngineError, EngineMismatch
from fairbed.device_agent.installed import engine_version
from fairbed.device_agent.memory import release_memory
from fairbed.wire.artifact import (
    Artifact,
    SelfCheck,
    TaskSpec,
    decode_artifact,
    initial_vector,
)
from fairbed.wire.tensors import Layout, Tensor

NAMES = [recipe.name for recipe in SHIPPED]


@pytest.fixture(scope="module")
def cnn() -> Artifact:
    return load_task("cnn", (1, 8, 8), 10)


def examples(n: int, *shape: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, *shape)).astype(np.float32), rng.integers(0, 10, n)


@pytest.mark.parametrize("name", NAMES)
def test_passes_the_self_check_of_every_shipped_task(name: str) -> None:
    self_check(OnnxEngine(decode_artifact(read_shipped(name))))


@pytest.mark.parametrize("field", ["loss", "gradient_l2"])
def test_the_self_check_detects_wrong_results(cnn: Artifact, field: str) -> None:
    right = cnn.spec.selfcheck
    check = msgspec.structs.replace(right, **{field: getattr(right, field) * 1.01})
    spec = msgspec.structs.replace(cnn.spec, selfcheck=check)
    engine = OnnxEngine(msgspec.structs.replace(cnn, spec=spec))
    with pytest.raises(EngineMismatch, match=r"^onnxruntime .*cnn-1x8x8-10: self-check"):
        self_check(engine)


@pytest.mark.parametrize("size", [1, 4, 7, 20, 50])
def test_the_parts_of_a_mini_batch_add_up_to_it(cnn: Artifact, size: int) -> None:
    engine, vector = OnnxEngine(cnn), initial_vector(cnn.spec, 1)
    x, y = examples(20, 1, 8, 8)
    loss, gradient = engine.gradient(vector, x, y)
    whole = gradient.copy()
    in_parts, found = engine.gradient(vector, x, y, size)
    assert in_parts == pytest.approx(loss, rel=1e-6)
    assert np.linalg.norm(found - whole) <= 1e-6 * np.linalg.norm(whole)
    again = OnnxEngine(cnn).gradient(vector.copy(), x, y, size)
    assert again[0] == in_parts
    np.testing.assert_array_equal(again[1], found)
    for n in (size, 20, size):  # weights of a part, of a whole mini-batch, and of a smaller one
        assert (
            engine.gradient(vector, *examples(n, 1, 8, 8))[0]
            == (OnnxEngine(cnn).gradient(vector, *examples(n, 1, 8, 8))[0])
        )


@pytest.mark.parametrize("size", [None, 8])
def test_a_factor_is_in_the_gradient_and_not_in_the_loss(cnn: Artifact, size: int | None) -> None:
    engine, vector, (x, y) = OnnxEngine(cnn), initial_vector(cnn.spec, 1), examples(20, 1, 8, 8)
    loss, gradient = engine.gradient(vector, x, y, size)
    wanted = gradient * np.float32(0.1)
    for _ in range(2):
        scaled, found = engine.gradient(vector, x, y, size, 0.1)
        assert scaled == pytest.approx(loss, rel=1e-6)
        assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)
    assert engine.gradient(vector, x, y, size)[0] == loss


def test_a_step_raises_no_error_inside_the_runtime(cnn: Artifact) -> None:
    engine, vector, (x, y) = OnnxEngine(cnn), initial_vector(cnn.spec, 1), examples(4, 1, 8, 8)
    events = Counter[str]()
    sys.setprofile(lambda frame, event, argument: events.update([event]))
    engine.gradient(vector, x, y)
    sys.setprofile(None)
    assert events["c_call"]
    assert not events["c_exception"]


def test_the_order_of_a_large_graph_changes_no_bit(
    cnn: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = OnnxEngine(cnn)
    monkeypatch.setattr("fairbed.device_agent.engines.onnx.LARGE_GRAPH_BYTES", 0)
    ordered = OnnxEngine(cnn)
    vector, (x, y) = initial_vector(cnn.spec, 1), examples(20, 1, 8, 8)
    (loss, gradient), (other, found) = (e.gradient(vector, x, y) for e in (usual, ordered))
    assert loss == other
    np.testing.assert_array_equal(gradient, found)


@pytest.mark.parametrize("n", [1, 3, 20])
def test_a_mini_batch_of_any_size_is_the_mean_of_its_examples(cnn: Artifact, n: int) -> None:
    engine, vector = OnnxEngine(cnn), initial_vector(cnn.spec, 1)
    x, y = examples(n, 1, 8, 8)
    loss, gradient = engine.gradient(vector, x, y)
    together = gradient.copy()
    losses, gradients = [], []
    for i in range(n):
        one_loss, one = engine.gradient(vector, x[i : i + 1], y[i : i + 1])
        losses.append(one_loss)
        gradients.append(one.copy())
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    mean = np.mean(gradients, axis=0)
    assert np.linalg.norm(together - mean) <= 1e-5 * np.linalg.norm(mean)


def test_uses_changes_of_the_vector_in_place_and_other_vectors(cnn: Artifact) -> None:
    engine, vector = OnnxEngine(cnn), initial_vector(cnn.spec, 1)
    x, y = examples(4, 1, 8, 8)
    before, _ = engine.gradient(vector, x, y)
    vector *= 2.0
    doubled, _ = engine.gradient(vector, x, y)
    halved, _ = engine.gradient(vector * np.float32(0.5), x, y)
    assert doubled != before
    assert halved == pytest.approx(before, rel=1e-6)


def test_never_writes_to_the_parameters(cnn: Artifact) -> None:
    engine, vector = OnnxEngine(cnn), initial_vector(cnn.spec, 1)
    before = vector.copy()
    for n in (5, 2, 5):
        engine.gradient(vector, *examples(n, 1, 8, 8))
    engine.evaluate(vector, *examples(5, 1, 8, 8))
    np.testing.assert_array_equal(vector, before)


def test_evaluation_agrees_with_the_training_loss_and_is_additive(cnn: Artifact) -> None:
    engine, vector = OnnxEngine(cnn), initial_vector(cnn.spec, 1)
    x, y = examples(150, 1, 8, 8)
    mean, _ = engine.gradient(vector, x, y)
    loss_sum, correct, scores, *_ = engine.evaluate(vector, x, y)
    assert loss_sum == pytest.approx(150 * mean, rel=1e-5)
    pieces = [engine.evaluate(vector, x[i : i + 50], y[i : i + 50]) for i in range(0, 150, 50)]
    assert correct == sum(piece.correct for piece in pieces)
    assert isinstance(correct, int)
    assert scores is None


@pytest.mark.parametrize("shape", [(784,), (28, 28), (1, 28, 28)])
def test_reshapes_examples_of_the_right_size(shape: tuple[int, ...]) -> None:
    task = load_task("softmax", shape, 10)
    x, y = examples(6, 784)
    loss, _ = OnnxEngine(task).gradient(initial_vector(task.spec, 1), x.reshape(6, *shape), y)
    flat, _ = OnnxEngine(task).gradient(initial_vector(task.spec, 1), x, y)
    assert loss == flat


def test_takes_examples_that_are_not_contiguous(cnn: Artifact) -> None:
    engine, vector = OnnxEngine(cnn), initial_vector(cnn.spec, 1)
    x, y = examples(8, 1, 8, 8)
    strided, _ = engine.gradient(vector, x[::2], y[::2])
    copied, _ = engine.gradient(vector, x[::2].copy(), y[::2].copy())
    assert strided == copied


def test_refuses_examples_vectors_and_labels_that_do_not_fit(cnn: Artifact) -> None:
    engine, vector = OnnxEngine(cnn), initial_vector(cnn.spec, 1)
    x, y = examples(4, 1, 8, 8)
    for bad_x, bad_y in ((x[:, :, :7], y), (x, y[:3]), (x[:0], y[:0]), (x, y[:, None])):
        with pytest.raises(ValueError, match=r"x must be \(B, 1, 8, 8\)"):
            engine.gradient(vector, bad_x, bad_y)
    with pytest.raises(ValueError, match="x must be float32 and y int64"):
        engine.gradient(vector, x.astype(np.int64), y)
    bad_vectors: list[Any] = [vector[:-1], vector.astype(np.float64), np.repeat(vector, 2)[::2]]
    for bad in bad_vectors:
        with pytest.raises(ValueError, match="vector must be"):
            engine.gradient(bad, x, y)
        with pytest.raises(ValueError, match="vector must be"):
            engine.evaluate(bad, x, y)


def test_a_broken_graph_is_one_line(cnn: Artifact) -> None:
    broken = msgspec.structs.replace(cnn, train=cnn.train.replace(b"Relu", b"Gemm"))
    with pytest.raises(EngineError, match=r"cnn-1x8x8-10 \(train\): the graph must load") as error:
        OnnxEngine(broken)
    assert "\n" not in str(error.value)


def test_a_graph_that_the_exporter_does_not_write_never_reaches_the_runtime(
    cnn: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_runtime() -> None:
        raise EngineError("reached")

    monkeypatch.setattr("fairbed.device_agent.engines.onnx.load_runtime", load_runtime)
    for train in (cnn.train.replace(b"Relu", b"Loop"), cnn.train[:-1], b""):
        broken = msgspec.structs.replace(cnn, train=train)
        with pytest.raises(EngineError, match=r"^cnn-1x8x8-10 \(train\): .*must "):
            OnnxEngine(broken)
    with pytest.raises(EngineError, match="reached"):
        OnnxEngine(cnn)


def test_more_threads_compute_the_same(cnn: Artifact) -> None:
    vector = initial_vector(cnn.spec, 1)
    x, y = examples(20, 1, 8, 8)
    one, _ = OnnxEngine(cnn, threads=1).gradient(vector, x, y)
    two, _ = OnnxEngine(cnn, threads=2).gradient(vector, x, y)
    assert two == pytest.approx(one, rel=1e-5)


def test_importing_the_engine_and_reading_its_version_loads_no_runtime() -> None:
    code = (
        "import sys, fairbed.device_agent.trainer, fairbed.device_agent.engines.onnx;"
        "from fairbed.device_agent.installed import engine_version;"
        "print(engine_version(), 'onnxruntime' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [*engine_version().split(), "False"]


def test_a_vector_is_free_after_its_last_step(cnn: Artifact) -> None:
    engine = OnnxEngine(cnn)
    x, y = examples(8, 1, 8, 8)
    vector = initial_vector(cnn.spec, 1)
    first, _ = engine.gradient(vector, x, y)
    gone = weakref.ref(vector)
    del vector
    assert gone() is None
    again, _ = engine.gradient(initial_vector(cnn.spec, 1), x, y)
    assert again == first


def test_the_telemetry_of_the_runtime_is_disabled(tmp_path: Path) -> None:
    code = (
        "import fairbed.device_agent.engines.onnx as engine, os, sys; engine.load_runtime();"
        "print(len(os.listdir('/proc/self/task')) if sys.platform == 'linux' else 1)"
    )
    quiet = {"HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    drop = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "CI")  # CI would switch it off, too
    environment = {key: value for key, value in os.environ.items() if key not in drop}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment | quiet,
    )
    assert done.stdout.strip() == "1", "a thread of its own"
    assert list(tmp_path.iterdir()) == []


def test_memory_can_be_released_at_any_time(cnn: Artifact) -> None:
    engine = OnnxEngine(cnn)
    release_memory()
    self_check(engine)
    del engine
    release_memory()


def endless_task(side: int = 300, steps: int = 5_000) -> Artifact:
    """Return a task of allowed operations whose step takes many seconds."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    value = helper.make_tensor_value_info
    spec = TaskSpec(
        name="endless",
        model="endless",
        layout=Layout(tensors=(Tensor(name="w", shape=(side, side), offset=0),)),
        x_shape=(1,),
        classes=2,
        opset=20,
        selfcheck=SelfCheck(seed=1, batch=1, loss=0.0, gradient_l2=0.0),
    )
    names = ["p.w", *(f"t{i}" for i in range(steps)), "g.w"]
    nodes = [helper.make_node("MatMul", [names[i], "p.w"], [names[i + 1]]) for i in range(steps)]
    nodes.append(helper.make_node("Relu", [names[steps]], ["g.w"]))
    nodes.append(helper.make_node("ReduceSum", ["w"], ["loss"], keepdims=0))
    inputs = [
        value("p.w", kinds.FLOAT, [side, side]),
        value("x", kinds.FLOAT, ["n", 1]),
        value("y", kinds.INT64, ["n"]),
        value("w", kinds.FLOAT, ["n"]),
    ]
    outputs = [value("loss", kinds.FLOAT, []), value("g.w", kinds.FLOAT, [side, side])]
    graph = helper.make_graph(nodes, "endless", inputs, outputs)
    opsets = [helper.make_opsetid("", 20)]
    train = helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()
    return Artifact(spec=spec, train=train, evaluate=train)


def test_a_step_without_end_is_interrupted_from_another_thread() -> None:
    engine = OnnxEngine(endless_task())
    vector = np.zeros(engine.spec.layout.n_values, np.float32)
    assert engine.running_s() == 0.0
    engine.interrupt()  # nothing is running

    def end() -> None:
        while engine.running_s() < 0.1:
            time.sleep(0.01)
        engine.interrupt()

    watchdog = threading.Thread(target=end)
    watchdog.start()
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"endless: a training step failed: .*terminate flag"):
        engine.gradient(vector, np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    assert time.monotonic() - begun < 10.0
    watchdog.join()
    assert engine.running_s() == 0.0
