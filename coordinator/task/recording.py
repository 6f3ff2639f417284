"""Records a torch module as graphs of core ATen operations: loss with gradient, and evaluation."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.export.exported_program import _decompose_exported_program
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairbed.coordinator.task.decomposition import Rewriting, decompositions, unrecordable
from fairbed.coordinator.task.errors import Unsupported
from fairbed.wire.artifact import TaskKind, TaskSpec
from fairbed.wire.plugins import place_of

PREFIX = "model."
"""Prefix of the names of a module's tensors in a recorded graph."""

TRACE_BATCH = 13
"""Batch size for recording: each one >= 2 gives the same graph, which is valid for all >= 1."""


class _TrainingLoss(nn.Module):
    """sum_i w_i l_i with the loss l_i of the task."""

    def __init__(self, model: nn.Module, spec: TaskSpec) -> None:
        super().__init__()
        self.model, self.spec = model, spec

    def forward(self, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if self.spec.kind == "regression":
            losses = _half_squares(self.model(x), y)
        else:
            losses = _losses(_logits(self.model(x), self.spec.kind), y, self.spec.classes)
        return (losses * w).sum()


class _Evaluation(nn.Module):
    """The outputs of the evaluation graph: `TaskSpec.evaluation_outputs`."""

    def __init__(self, model: nn.Module, spec: TaskSpec) -> None:
        super().__init__()
        self.model, self.spec = model, spec

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output, spec = self.model(x), self.spec
        if spec.kind == "regression":
            return _half_squares(output, y).sum(), output.reshape(-1)
        logits = _logits(output, spec.kind)
        loss_sum = _losses(logits, y, spec.classes).sum()
        correct_sum = (logits.argmax(1) == y).sum()
        if not spec.is_scored:
            return loss_sum, correct_sum
        signs = 2.0 * torch.arange(2).to(logits.dtype) - 1.0
        return loss_sum, correct_sum, (logits * signs).sum(1)


def _half_squares(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return half the squared error of each example, shape (B,)."""
    error = output.reshape(-1) - y
    return error * error * 0.5


def _logits(output: torch.Tensor, kind: TaskKind) -> torch.Tensor:
    """Return the logit of each class, shape (B, classes); one logit z stands for (0, z)."""
    if kind != "binary":
        return output
    return output.reshape(-1, 1) * torch.arange(2).to(output.dtype)


def _losses(logits: torch.Tensor, y: torch.Tensor, classes: int) -> torch.Tensor:
    """Return the cross-entropy of each example, nats, shape (B,).

    It is a product with the one-hot label instead of an index, so its gradient needs no scatter.
    """
    onehot = (y.unsqueeze(1) == torch.arange(classes)).to(logits.dtype)
    return -(torch.log_softmax(logits, 1) * onehot).sum(1)


_TRACERS = (
    "torch._subclasses.fake_tensor",
    "torch.export._trace",
    "torch.fx.experimental.symbolic_shapes",
)
"""Loggers of the parts of torch that run a module without values."""


class Recorder:
    """Records the graphs of one module that a task needs.

    Args:
        model: The module; its mode is changed.
        spec: Shapes and types of x and y.
    """

    def __init__(self, model: nn.Module, spec: TaskSpec) -> None:
        self._model = model
        self._spec = spec

    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the module's output without the batch.

        Raises:
            Unsupported: The module fails, or its output has no batch dimension.
        """
        self._model.eval()
        with self._translated(), torch.no_grad():
            output = self._model(self._examples()["x"])
            if not isinstance(output, torch.Tensor) or output.shape[:1] != (TRACE_BATCH,):
                raise ValueError("the output is not one tensor with a row per example")
        return tuple(output.shape[1:])

    def training_loss(self) -> ExportedProgram:
        """Return the loss alone: unlike the gradient's, its nodes contain the name of a layer."""
        return self._decomposed(self._record(_TrainingLoss, "x", "y", "w"))

    def training(self) -> ExportedProgram:
        """Return the weighted loss of a mini-batch and its gradient by all parameters.

        Raises:
            Unsupported: torch cannot differentiate the module ahead of time.
        """
        program = self._record(_TrainingLoss, "x", "y", "w")
        with self._translated():
            joint: ExportedProgram = _decompose_exported_program(
                program,
                cia_to_decomp={},
                python_decomp_table=decompositions(),
                joint_loss_index=0,
                decompose_custom_triton_ops=False,
            )
            return joint

    def evaluation(self) -> ExportedProgram:
        """Return the outputs of `TaskSpec.evaluation_outputs`, in eval mode."""
        return self._decomposed(self._record(_Evaluation, "x", "y"))

    def _record(
        self, kind: type[_TrainingLoss] | type[_Evaluation], *names: str
    ) -> ExportedProgram:
        if problem := unrecordable(self._model):
            raise Unsupported(problem)
        self._model.train(kind is _TrainingLoss)
        module = kind(self._model, self._spec)
        examples = self._examples()
        batch = Dim("batch", min=2)
        with self._translated(), Rewriting(is_recording=True):
            return export(
                module,
                tuple(examples[name] for name in names),
                dynamic_shapes=tuple({0: batch} for _ in names),
                strict=False,
            )

    def _decomposed(self, program: ExportedProgram) -> ExportedProgram:
        with self._translated():
            decomposed: ExportedProgram = _decompose_exported_program(
                program,
                cia_to_decomp={},
                python_decomp_table=decompositions(),
                joint_loss_index=None,
                decompose_custom_triton_ops=False,
            )
            return decomposed

    def _examples(self) -> dict[str, torch.Tensor]:
        spec = self._spec
        shape = (TRACE_BATCH, *spec.x_shape)
        is_float = spec.x_dtype == "float32"
        return {
            "x": torch.zeros(shape, dtype=torch.float32 if is_float else torch.int64),
            "y": torch.zeros(TRACE_BATCH, dtype=getattr(torch, spec.y_dtype)),
            "w": torch.full((TRACE_BATCH,), 1.0 / TRACE_BATCH),
        }

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of torch's tracer into one line, and suppress its warnings and log."""
        logs = [logging.getLogger(name) for name in _TRACERS]
        levels = [log.level for log in logs]
        for log in logs:
            log.setLevel(logging.CRITICAL)  # they log a traceback of what is raised, too
        try:
            # It prints the graph of what it cannot record, too.
            with (
                warnings.catch_warnings(),
                redirect_stderr(io.StringIO()),
                sdpa_kernel(SDPBackend.MATH),
            ):
                warnings.simplefilter("ignore")
                yield
        except (Exception, SystemExit) as exc:  # the tracer may raise anything
            if "Constraints violated (batch)" in str(exc):
                raise Unsupported(
                    f"{self._spec.name}: the model must accept batches of any size, got a size "
                    "that it makes an integer, as len(x) does; use x.shape[0]"
                ) from exc
            reason = next((line for line in str(exc).splitlines() if line), type(exc).__name__)
            place = place_of(exc)
            reason += f" ({place})" if place else ""
            raise Unsupported(
                f"{self._spec.name}: torch must be able to record the model, got: {reason}; "
                "rewrite that part of it"
            ) from exc
        finally:
            for log, level in zip(logs, levels, strict=True):
                log.setLevel(level)
