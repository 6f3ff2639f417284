"""The training engine on stock onnxruntime: gradients and evaluation.

The first engine imports onnxruntime, not this module: an agent without a task needs less memory.
"""

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.engines.base import (
    EMPTY,
    Examples,
    checked_vector,
    evaluation_batch,
    parts,
    shaped_examples,
    weights_of,
)
from fairbed.device_agent.engines.optimised import OptimisedGraphs
from fairbed.device_agent.errors import EngineError
from fairbed.device_agent.installed import engine_version
from fairbed.wire.artifact import Artifact, draw_masks
from fairbed.wire.errors import DecodeError
from fairbed.wire.evaluation import Evaluation, Targets, are_complete
from fairbed.wire.graphs import check_graph
from fairbed.wire.tensors import Tensor

_SEVERITY_ERROR = 3

_NO_CAPTURE = "gpu_graph_id", "-1"
"""Run without capture of a graph. The runtime looks for this entry before each step, and an absent
one is an error inside it, which takes as long as all bindings of a step."""

LARGE_GRAPH_BYTES = 1 << 15
"""Above this size of a graph operations run in the order of their priority: a gradient is computed
as soon as it can, and frees what it reads. Results have the same bits; peaks fall by 4 to 20 %, and
steps take 0.97 to 1.04 times as long, but 1.08 times in the shipped CNN, which is smaller."""


class _Run(NamedTuple):
    """A step in progress."""

    options: Any
    """`onnxruntime.RunOptions`."""
    began_s: float


class OnnxEngine:
    """An `Engine` that runs the two graphs of a task on a flat vector.

    The inputs of the training graph are bound to slices of the caller's vector, its outputs to
    slices of one gradient array: no tensor is copied. An output never shares memory with an input:
    the runtime would return wrong numbers without an error.

    Args:
        artifact: The task.
        threads: Threads of the runtime's kernels.
        optimised: Keeps the optimised graphs on the disk; None optimises them each time.
        gradient: Memory of the gradient, shape (n_params,), which several engines of one thread may
            have in common; None: of its own.
        base: The frozen parameters beside the task, by name; they may be read-only.

    Raises:
        EngineError: onnxruntime is missing, or does not accept the training graph.
    """

    def __init__(
        self,
        artifact: Artifact,
        threads: int = 1,
        optimised: OptimisedGraphs | None = None,
        gradient: NDArray[np.float32] | None = None,
        base: Mapping[str, NDArray[np.float32]] = EMPTY,
    ) -> None:
        self.spec = artifact.spec
        self._base = {f"f.{name}": values for name, values in base.items()}
        layout = artifact.spec.layout
        self._n_params = layout.n_params
        self._loss = np.zeros((), np.float32)
        self._gradient = np.zeros(layout.n_params, np.float32) if gradient is None else gradient
        self._buffers = np.zeros(layout.n_values - layout.n_params, np.float32)
        self._weights: NDArray[np.float32] | None = None
        """The bound weights of the last mini-batch, shape (B,); None if others are bound."""
        self._factor = 1.0
        self._seed = 0, 0
        self._run: _Run | None = None
        """The step in progress."""
        self._bound: weakref.ref[NDArray[np.float32]] | None = None
        """The vector of the current binding; a weak reference, as it is as large as the model."""
        self._open = partial(_open, threads=threads, optimised=optimised)
        self._train = self._open(f"{self.spec.name} (train)", artifact.train)
        self._evaluation_graph = artifact.evaluate
        self._counts = self.counts if artifact.counts else None
        self._counts_graph = artifact.counts
        self._options: Callable[[], Any] = load_runtime().RunOptions
        self._binding = self._train.io_binding()
        try:
            for name, values in self._base.items():
                self._bind(name, values)
            self._bind_outputs()
        except Exception as exc:  # the runtime's errors share no base class
            raise EngineError(
                f"{self.spec.name}: the graph must have the outputs of the task, got {_line(exc)}; "
                "update the coordinator"
            ) from exc

    @property
    def name(self) -> str:
        """Engine and version, for messages."""
        return engine_version()

    def reseed(self, seed: int, step: int) -> None:
        """Set the random masks of the next gradients; before the first call both are 0."""
        self._seed = seed, step

    def gradient(
        self,
        vector: NDArray[np.float32],
        x: Examples,
        y: Targets,
        micro_batch: int | None = None,
        factor: float = 1.0,
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the mean loss of a mini-batch and its gradient; see `Engine.gradient`.

        Raises:
            ValueError: A shape or dtype does not fit the task.
            EngineError: The runtime failed.
        """
        x, y = shaped_examples(self.spec, x, y)
        if self._bound is None or self._bound() is not vector:
            self._bind_vector(vector)
        n, declared = len(y), self.spec.masks
        masks = draw_masks(declared, *self._seed, n) if declared else []
        if micro_batch is None or micro_batch >= n:
            weights = self._weights_of(y, factor)
            loss = self._step(vector, x, y, weights, masks)
            is_kept = are_complete(y) and self._counts is None
            self._weights, self._factor = weights if is_kept else None, factor
            return loss / factor, self._gradient
        weights = weights_of(y, self._counts, factor)
        loss, total = 0.0, self._gradient
        for i, part in enumerate(parts(n, micro_batch)):
            of_part = [
                mask[part] if each.is_per_example else mask
                for each, mask in zip(declared, masks, strict=True)
            ]
            loss += self._step(vector, x[part], y[part], weights[part], of_part)
            if i:
                total += self._gradient
            else:
                total = self._gradient.copy()
        return loss / factor, total

    def _weights_of(self, y: Targets, factor: float) -> NDArray[np.float32]:
        """Return the weights of a mini-batch, shape (B,): those of the last one if they are equal.

        Complete examples all have the weight `factor` / (B positions).
        """
        last = self._weights
        is_equal = last is not None and len(last) == len(y) and self._factor == factor
        return (
            last
            if last is not None and is_equal and are_complete(y)
            else weights_of(y, self._counts, factor)
        )

    def _step(
        self,
        vector: NDArray[np.float32],
        x: Examples,
        y: Targets,
        weights: NDArray[np.float32],
        masks: Sequence[NDArray[np.bool_]],
    ) -> float:
        """Compute a part of a mini-batch: its loss; its gradient is in `self._gradient`.

        Args:
            vector: The bound vector, whose buffers are updated.
            x: Examples, shape (m, *x_shape).
            y: Targets, shape (m,).
            weights: Of each example in the mini-batch, shape (m,).
            masks: Random masks, those of each example with its rows.
        """
        self._bind("x", x)
        self._bind("y", y)
        if weights is not self._weights:
            self._bind("w", weights)
            self._weights = None
        for i, mask in enumerate(masks):
            self._bind(f"m.{i}", mask)
        try:
            self._train.run_with_iobinding(self._binding, self._started())
        except Exception as exc:  # the runtime's errors share no base class
            raise EngineError(f"{self.spec.name}: a training step failed: {_line(exc)}") from exc
        finally:
            self._run = None
        vector[self._n_params :] = self._buffers
        return float(self._loss)

    def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
        """Return the evaluation of examples, in evaluation mode.

        Raises:
            ValueError: A shape or dtype does not fit the task.
            EngineError: The runtime failed.
        """
        x, y = shaped_examples(self.spec, x, y)
        vector = checked_vector(self.spec, vector)
        views = self.spec.layout.views(vector)
        feeds: dict[str, Any] = {_state(t): views[t.name] for t in self.spec.layout.tensors}
        feeds |= self._base
        names = self.spec.evaluation_outputs
        evaluations = list[Evaluation]()
        for batch in parts(len(y), evaluation_batch(self.spec)):
            feeds |= {"x": x[batch], "y": y[batch]}
            try:
                outputs = self._evaluation.run(names, feeds, self._started())
            except Exception as exc:  # the runtime's errors share no base class
                raise EngineError(f"{self.spec.name}: evaluation failed: {_line(exc)}") from exc
            finally:
                self._run = None
            evaluations.append(Evaluation.of_outputs(dict(zip(names, outputs, strict=True))))
        return Evaluation.pooled(evaluations)

    def counts(self, y: Targets) -> NDArray[np.float64]:
        """Return the weights c of examples in a loss that has its own, shape (B,).

        Raises:
            EngineError: The runtime failed.
        """
        y = y if y.flags.c_contiguous else y.copy()
        try:
            [found] = self._counting.run(["c"], {"y": y}, self._options())
        except Exception as exc:  # the runtime's errors share no base class
            raise EngineError(f"{self.spec.name}: counting failed: {_line(exc)}") from exc
        counts: NDArray[np.float64] = found.astype(np.float64)
        return counts

    def running_s(self) -> float:
        """Return how long the step in progress has taken; 0 between steps."""
        run = self._run
        return 0.0 if run is None else time.monotonic() - run.began_s

    def interrupt(self) -> None:
        """End the step in progress after the operation that is computed now."""
        run = self._run
        if run is not None:
            run.options.terminate = True

    def _started(self) -> Any:
        """Return the options of a step that begins, by which another thread may end it."""
        options = self._options()
        options.add_run_config_entry(*_NO_CAPTURE)
        self._run = _Run(options, time.monotonic())
        return options

    @cached_property
    def _evaluation(self) -> Any:
        """Session of the evaluation graph, opened on first use; most runs do not need it."""
        return self._open(f"{self.spec.name} (evaluate)", self._evaluation_graph)

    @cached_property
    def _counting(self) -> Any:
        """Session of the graph of counts, which few tasks have."""
        return self._open(f"{self.spec.name} (counts)", self._counts_graph)

    def _bind_vector(self, vector: NDArray[np.float32]) -> None:
        views = self.spec.layout.views(checked_vector(self.spec, vector))
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


def _state(tensor: Tensor) -> str:
    """Return the name of the graph input of a tensor."""
    return f"{'p' if tensor.role == 'param' else 'b'}.{tensor.name}"


def load_runtime() -> Any:
    """Import onnxruntime with its telemetry disabled; return the module.

    Since 1.29 it reports each session to its vendor over the network, from a thread of its own,
    and keeps an identifier of the device on disk.

    Raises:
        EngineError: onnxruntime is missing, or cannot be imported.
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


def _open(name: str, graph: bytes, threads: int, optimised: OptimisedGraphs | None) -> Any:
    try:
        check_graph(graph, name)
    except DecodeError as exc:
        raise EngineError(str(exc)) from exc
    open_session = partial(_session, load_runtime(), threads)
    try:
        if optimised is None:
            return open_session(graph, None, False)
        return optimised.session(graph, open_session)
    except Exception as exc:  # the runtime's errors share no base class
        raise EngineError(
            f"{name}: the graph must load, got {_line(exc)}; "
            f"update {engine_version()} or the coordinator"
        ) from exc


def _session(
    onnxruntime: Any, threads: int, graph: bytes, path: Path | None, is_optimised: bool
) -> Any:
    """Open a session; an `OpenSession` after its first two arguments."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _SEVERITY_ERROR
    if len(graph) > LARGE_GRAPH_BYTES:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    # The runtime keeps a memory plan per input shape, and the last mini-batch of an epoch has
    # another shape. Without plans a step takes as long, and a CNN needs 5 to 14 MB less.
    options.enable_mem_pattern = False
    # The runtime compares each tensor with all that it may replace, which takes 70 % of opening a
    # graph of 5,000 nodes. The arena reuses memory anyway: a step needs no more time or memory.
    options.enable_mem_reuse = False
    # Idle kernel threads must sleep: spinning takes CPU time from other agents on this machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if path is not None:
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.save_model_format", "ORT")
    if is_optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.load_model_format", "ORT")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _line(exc: BaseException) -> str:
    """Return the first line of an error."""
    return (str(exc).splitlines() or [type(exc).__name__])[0]
