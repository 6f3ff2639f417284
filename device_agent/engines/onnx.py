"""Training and evaluation with stock onnxruntime: it computes gradients, numpy does the rest.

onnxruntime is imported by the first engine, not with this module, so that an agent that waits
for its first task stays small.
"""

import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.engines.base import Engine, EngineError, EngineMismatch, Examples
from fairbed.device_agent.memory import installed_version
from fairbed.wire.artifact import Artifact
from fairbed.wire.selfcheck import SelfCheckFailed, run_selfcheck
from fairbed.wire.tensors import Tensor

DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")
"""All install the module `onnxruntime`; Jetson boards often carry the second."""

EVALUATION_BATCH = 64
"""Examples per evaluation run: bounds the activations in memory."""

_SEVERITY_ERROR = 3


def engine_version() -> str:
    """Return the engine's name and version, such as `onnxruntime 1.31.1`, without importing it.

    Raises:
        EngineError: It is not installed.
    """
    for name in DISTRIBUTIONS:
        version = installed_version(name)
        if version is not None:
            return f"onnxruntime {version}"
    raise EngineError("engine: onnxruntime must be installed; run `pip install onnxruntime`")


class OnnxEngine:
    """An `Engine` that runs the two graphs of a task, reading parameters from the flat vector.

    The inputs of the training graph are bound to slices of the caller's vector, its outputs to
    slices of one gradient array: no tensor is copied. No output is ever bound onto the memory
    of an input, which the runtime answers with wrong numbers instead of an error.

    Args:
        artifact: The task.
        threads: Threads of the runtime's kernels.

    Raises:
        EngineError: onnxruntime is missing, or does not accept the training graph.
    """

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        self.spec = artifact.spec
        layout = artifact.spec.layout
        self._n_params = layout.n_params
        self._loss = np.zeros((), np.float32)
        self._gradient = np.zeros(layout.n_params, np.float32)
        self._buffers = np.zeros(layout.n_values - layout.n_params, np.float32)
        self._bound: weakref.ref[NDArray[np.float32]] | None = None
        """The vector that the binding points into; not kept alive, it is as large as the model."""
        self._train = _open(f"{self.spec.name} (train)", artifact.train, threads)
        self._evaluation_graph = artifact.evaluate
        self._threads = threads
        self._binding = self._train.io_binding()
        self._bind_outputs()

    def gradient(
        self, vector: NDArray[np.float32], x: Examples, y: NDArray[np.int64]
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the mean loss (nats) of a mini-batch and its gradient, shape (n_params,).

        `vector` has shape (n_values,). The returned array may be changed; the next call overwrites
        it.

        Raises:
            ValueError: A shape or dtype does not fit the task.
            EngineError: The runtime failed.
        """
        x, y = self._examples(x, y)
        if self._bound is None or self._bound() is not vector:
            self._bind_vector(vector)
        self._bind("x", x)
        self._bind("y", y)
        weights = np.full(len(y), 1.0 / len(y), np.float32)
        self._bind("w", weights)
        try:
            self._train.run_with_iobinding(self._binding)
        except Exception as exc:  # the runtime's errors share no base class
            raise EngineError(f"{self.spec.name}: a training step failed: {_line(exc)}") from exc
        vector[self._n_params :] = self._buffers
        return float(self._loss), self._gradient

    def evaluate(
        self, vector: NDArray[np.float32], x: Examples, y: NDArray[np.int64]
    ) -> tuple[float, int]:
        """Return the summed loss (nats) and the number of correct answers, in eval mode.

        Raises:
            ValueError: A shape or dtype does not fit the task.
            EngineError: The runtime failed.
        """
        x, y = self._examples(x, y)
        vector = self._checked(vector)
        views = self.spec.layout.views(vector)
        feeds: dict[str, Any] = {_state(t): views[t.name] for t in self.spec.layout.tensors}
        loss_sum, correct_sum = 0.0, 0
        for start in range(0, len(y), EVALUATION_BATCH):
            batch = slice(start, start + EVALUATION_BATCH)
            feeds |= {"x": x[batch], "y": y[batch]}
            try:
                loss, correct = self._evaluation.run(["loss_sum", "correct_sum"], feeds)
            except Exception as exc:  # the runtime's errors share no base class
                raise EngineError(f"{self.spec.name}: evaluation failed: {_line(exc)}") from exc
            loss_sum += float(loss)
            correct_sum += int(correct)
        return loss_sum, correct_sum

    @cached_property
    def _evaluation(self) -> Any:
        """The session of the second graph; most rules never need one on a device."""
        return _open(f"{self.spec.name} (evaluate)", self._evaluation_graph, self._threads)

    def _examples(self, x: Examples, y: NDArray[np.int64]) -> tuple[Examples, NDArray[np.int64]]:
        """Return x as (B, *x_shape) and y as (B,), contiguous and of the task's dtype."""
        spec = self.spec
        if y.ndim != 1 or len(x) != len(y) or len(y) == 0 or x.size != len(y) * self._x_size():
            raise ValueError(
                f"{spec.name}: x must be (B, {', '.join(map(str, spec.x_shape))}) and y (B,) "
                f"with B >= 1, got {x.shape} and {y.shape}"
            )
        if x.dtype != spec.x_dtype or y.dtype != np.int64:
            raise ValueError(
                f"{spec.name}: x must be {spec.x_dtype} and y int64, got {x.dtype} and {y.dtype}"
            )
        shaped: Examples = x.reshape((len(y), *spec.x_shape))
        if not shaped.flags.c_contiguous:
            shaped = shaped.copy()
        return shaped, np.ascontiguousarray(y)

    def _x_size(self) -> int:
        return int(np.prod(self.spec.x_shape, dtype=np.int64))

    def _checked(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        n_values = self.spec.layout.n_values
        if vector.shape != (n_values,) or vector.dtype != np.float32:
            raise ValueError(
                f"{self.spec.name}: vector must be ({n_values},) float32, "
                f"got {vector.shape} {vector.dtype}"
            )
        if not (vector.flags.c_contiguous and vector.flags.aligned):
            raise ValueError(f"{self.spec.name}: vector must be contiguous; copy it first")
        return vector

    def _bind_vector(self, vector: NDArray[np.float32]) -> None:
        views = self.spec.layout.views(self._checked(vector))
        for tensor in self.spec.layout.tensors:
            self._bind(_state(tensor), views[tensor.name])
        self._bound = weakref.ref(vector)

    def _bind_outputs(self) -> None:
        self._bind_output("loss", self._loss)
        for tensor in self.spec.layout.tensors:
            if tensor.role == "param":
                out, start = self._gradient, tensor.offset
                name = f"g.{tensor.name}"
            else:
                out, start = self._buffers, tensor.offset - self._n_params
                name = f"nb.{tensor.name}"
            self._bind_output(name, out[start : start + tensor.size].reshape(tensor.shape))

    def _bind(self, name: str, array: NDArray[Any]) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _bind_output(self, name: str, array: NDArray[Any]) -> None:
        self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def self_check(engine: Engine) -> None:
    """Run the task's self-check on an engine.

    Raises:
        EngineMismatch: Its results differ from what the task says a right engine computes.
    """
    try:
        run_selfcheck(engine.spec, engine.gradient)
    except SelfCheckFailed as exc:
        raise EngineMismatch(f"{engine_version()}: {exc}") from exc


def release_memory() -> None:
    """Hand memory of dropped engines back to the system; call it after dropping the last one."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Hand freed pages back to the system, which glibc keeps until asked.

    The runtime's arena goes with its session (a CNN's agent: about 30 MB), and loading data takes
    a multiple of its size for a moment. Nothing happens where there is no glibc.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def _state(tensor: Tensor) -> str:
    """Return the graph input of a tensor."""
    return f"{'p' if tensor.role == 'param' else 'b'}.{tensor.name}"


def load_runtime() -> Any:
    """Import onnxruntime and return the module; it tells nobody that it is used.

    Since 1.29 it would report each session to its maker, over the network and from a thread of
    its own, and keep an identifier of the device on disk.

    Raises:
        EngineError: It is not there, or does not work here.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, by the import
    try:
        import onnxruntime
    except ImportError as exc:
        raise EngineError(
            f"engine: onnxruntime must be importable, got {_line(exc)}; "
            "run `pip install onnxruntime`"
        ) from exc
    return onnxruntime


def _open(what: str, graph: bytes, threads: int) -> Any:
    onnxruntime = load_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _SEVERITY_ERROR
    # A memory plan is kept for every shape of the input, and the last mini-batch of an epoch has
    # one of its own: without plans a step takes as long, and a CNN's agent 5 to 14 MB less.
    options.enable_mem_pattern = False
    # Idle kernel threads sleep: spinning would be billed to every other agent of the machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # the runtime's errors share no base class
        raise EngineError(
            f"{what}: the graph must load, got {_line(exc)}; "
            f"update {engine_version()} or the coordinator"
        ) from exc


def _line(exc: BaseException) -> str:
    """Return the first line of an error."""
    return (str(exc).splitlines() or [type(exc).__name__])[0]
