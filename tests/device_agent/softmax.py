"""Softmax regression in plain numpy: an `Engine` for tests that do not need the runtime."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.engines.base import Engine, Examples
from fairbed.wire.artifact import Artifact, SelfCheck, TaskSpec, encode_artifact
from fairbed.wire.evaluation import Evaluation, Targets, positions_of
from fairbed.wire.selfcheck import selfcheck_inputs
from fairbed.wire.shard import Shard, make_shard
from fairbed.wire.tensors import Layout, Tensor

FEATURES, CLASSES = 6, 3
N_VALUES = FEATURES * CLASSES + CLASSES

GATE_S = 20.0
"""Longest wait for a gate to open; then the test fails."""

Hook = Callable[[int], None]


class SoftmaxEngine:
    """Mean cross-entropy of x W + b; `hook` is called with the number of each gradient."""

    name = "softmax 1.0"

    def __init__(self, spec: TaskSpec, hook: Hook | None = None) -> None:
        self.spec = spec
        self.gradients = 0
        self._hook = hook

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
        self.gradients += 1
        if self._hook is not None:
            self._hook(self.gradients)
        probabilities = self._probabilities(vector, x)
        rows = np.arange(len(y))
        with np.errstate(divide="ignore"):
            loss = -np.log(probabilities[rows, y]).mean()
        probabilities[rows, y] -= 1.0
        slope = factor * probabilities / len(y)
        gradient = np.concatenate([(x.T @ slope).ravel(), slope.sum(axis=0)])
        return float(loss), gradient.astype(np.float32)

    def counts(self, y: Targets) -> NDArray[np.float64]:
        return positions_of(y).astype(np.float64)

    def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
        probabilities = self._probabilities(vector, x)
        loss = -np.log(probabilities[np.arange(len(y)), y]).sum()
        return Evaluation(float(loss), int((probabilities.argmax(axis=1) == y).sum()))

    def _probabilities(self, vector: NDArray[np.float32], x: Examples) -> NDArray[np.float64]:
        views = self.spec.layout.views(vector)
        scores = x.astype(np.float64) @ views["W"] + views["b"]
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        ratios: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
        return ratios


@dataclass
class Gate:
    """Blocks the training thread before its n-th gradient until it is opened.

    The first gradient of a training engine belongs to its first mini-batch.
    """

    at: int = 2
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def open_engine(self, artifact: Artifact, threads: int) -> Engine:
        return SoftmaxEngine(artifact.spec, self._hook)

    def _hook(self, gradients: int) -> None:
        if gradients == self.at and not self.opened.is_set():
            self.reached.set()
            assert self.opened.wait(GATE_S)


def softmax_artifact(features: int = FEATURES, classes: int = CLASSES) -> Artifact:
    """Return the task; the engine itself computes its self-check."""
    layout = Layout(
        tensors=(
            Tensor(name="W", shape=(features, classes), offset=0),
            Tensor(name="b", shape=(classes,), offset=features * classes),
        )
    )
    draft = TaskSpec(
        name=f"softmax-{features}-{classes}",
        model="softmax",
        layout=layout,
        x_shape=(features,),
        classes=classes,
        opset=18,
        selfcheck=SelfCheck(seed=1, batch=4, loss=1.0, gradient_l2=1.0),
    )
    loss, gradient = SoftmaxEngine(draft).gradient(*selfcheck_inputs(draft, seed=1, batch=4))
    check = SelfCheck(
        seed=1, batch=4, loss=loss, gradient_l2=float(np.linalg.norm(gradient.astype(np.float64)))
    )
    spec = msgspec.structs.replace(draft, selfcheck=check)
    return Artifact(spec=spec, train=b"-", evaluate=b"-")


def softmax_task(features: int = FEATURES, classes: int = CLASSES) -> bytes:
    """Return the encoded task."""
    return encode_artifact(softmax_artifact(features, classes))


def open_softmax(artifact: Artifact, threads: int) -> Engine:
    """Open the engine of a task."""
    return SoftmaxEngine(artifact.spec)


def examples(n: int, seed: int = 0) -> Shard:
    """Return n linearly separable examples."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    x = rng.standard_normal((n, FEATURES)) + np.eye(CLASSES, FEATURES)[y] * 3.0
    return make_shard(x.astype(np.float32), y)
