"""Records a torch module as graphs of core ATen operations: loss with gradient, and evaluation."""

import io
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx, maybe_enable_thunkify
from torch.fx.traceback import preserve_node_meta
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from fairbed.coordinator.task.decomposition import Rewriting, decompositions, unrecordable
from fairbed.coordinator.task.errors import Unsupported
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.losses import Functions, LossFunction, first_output, functions_of
from fairbed.wire.plugins import place_of

PREFIX = "model."
"""Prefix of the names of a module's tensors in a recorded graph."""

TRACE_BATCH = 13
"""Batch size for recording: each one >= 2 gives the same graph, which is valid for all >= 1."""


class _Stateless(nn.Module):
    """A module that has each of its tensors once, under a number: trained ones as parameters.

    torch records a gradient only for parameters that all have one, and that have one name each. So
    what is frozen or unused is a buffer, and a tied parameter is put at all its places.
    """

    def __init__(self, model: nn.Module, trained: Collection[str]) -> None:
        super().__init__()
        self._hidden = (model,)  # a tuple: its tensors are not those of a submodule
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.labels = {name: f"tensor{number}" for number, name in enumerate(tensors)}
        for name, label in self.labels.items():
            if name in trained:
                self.register_parameter(label, nn.Parameter(tensors[name].detach()))
            else:
                self.register_buffer(label, tensors[name].detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = {name: getattr(self, label) for name, label in self.labels.items()}
        tensors = dict(given)
        output: torch.Tensor = functional_call(self._hidden[0], tensors, (x,), tie_weights=True)
        for name, tensor in given.items():
            if tensors[name] is not tensor:  # forward() gave the name to another one
                tensor.copy_(tensors[name])
        return output


class _TrainingLoss(nn.Module):
    """sum_i w_i l_i with the loss l_i of example i, a sum over its positions."""

    def __init__(self, model: nn.Module, spec: TaskSpec, own: Functions) -> None:
        super().__init__()
        self.model, self.spec, self.own = model, spec, own

    def forward(self, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        output = self.model(x)
        losses: torch.Tensor
        if self.own.loss is not None:
            losses = self.own.loss(output, y)[0].to(w.dtype)
        elif self.spec.kind == "regression":
            losses = _half_squares(output, y)
        else:
            losses = _losses(*_logits(output, self.spec), y, self.spec)
        return (losses * w).sum()


class _Evaluation(nn.Module):
    """The outputs of the evaluation graph: `TaskSpec.evaluation_outputs`."""

    def __init__(self, model: nn.Module, spec: TaskSpec, own: Functions) -> None:
        super().__init__()
        self.model, self.spec, self.own = model, spec, own

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, spec = self.model(x), self.spec
        output = first_output(outputs)
        own, more = self._own(outputs, output, y)
        if spec.kind == "regression":
            loss_sum = _half_squares(output, y).sum() if own is None else own
            found = (output - y).abs().sum() if spec.y_shape else output.reshape(-1)
            return (loss_sum, found, *more)
        return (*self._of_classes(output, y, own), *more)

    def _own(
        self, outputs: Any, output: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Return the sum of the own loss, and the outputs that follow those of the kind."""
        own, loss_sum, more = self.own, None, list[torch.Tensor]()
        if own.loss is not None:
            losses, counts = own.loss(outputs, y)
            loss_sum = losses.to(output.dtype).sum()
            if self.spec.weighs is True and counts is not None:
                more.append(counts.to(output.dtype).sum())
            if self.spec.kind == "regression":
                more.append(2.0 * _half_squares(output, y).sum())
        for metric in own.metrics:
            pair = [part.to(output.dtype) for part in metric(outputs, y)]
            columns = [part.reshape(part.shape[0], -1).sum(0) for part in pair]
            more.append(torch.stack(columns))
        return loss_sum, more

    def _of_classes(
        self, output: torch.Tensor, y: torch.Tensor, own: torch.Tensor | None
    ) -> list[torch.Tensor]:
        spec = self.spec
        logits, axis = _logits(output, spec)
        loss_sum = _losses(logits, axis, y, spec).sum() if own is None else own
        predicted = logits.argmax(axis)
        hits = predicted == y
        found: list[torch.Tensor] = [loss_sum, hits.sum()]
        if spec.y_shape:
            wrong = _of_examples((y >= 0).to(y.dtype)) - _of_examples(hits.to(y.dtype))
            found.append((wrong == 0).sum())
        if spec.counts_classes:
            found.append(_class_counts(predicted.reshape(-1), y.reshape(-1), spec.classes))
        if spec.kind == "multi-label":
            found.append(output)
        elif spec.is_scored:
            signs = 2.0 * torch.arange(2).to(logits.dtype) - 1.0
            found.append((logits * signs).sum(1))
        return found


class _Counts(nn.Module):
    """The weights c of examples in the loss, for any output: they depend on y alone."""

    def __init__(self, output: Any, loss: LossFunction) -> None:
        super().__init__()
        self.output, self.loss = output, loss

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        def zeros(like: torch.Tensor) -> torch.Tensor:
            return torch.zeros((y.shape[0], *like.shape[1:]), dtype=like.dtype)

        counts = self.loss(pytree.tree_map(zeros, self.output), y)[1]
        assert isinstance(counts, torch.Tensor), "the loss weighs examples itself"
        return counts.to(torch.float32)


class _Forward(nn.Module):
    """All outputs of the module."""

    def __init__(self, model: nn.Module, spec: TaskSpec, own: Functions) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)


def _class_counts(predicted: torch.Tensor, y: torch.Tensor, classes: int) -> torch.Tensor:
    """Return `wire.evaluation.ClassCounts` of positions, each input of shape (m,)."""
    numbers = torch.arange(classes)
    is_label = y.unsqueeze(1) == numbers
    is_predicted = (predicted.unsqueeze(1) == numbers) & (y >= 0).unsqueeze(1)
    of_each = [is_label & is_predicted, is_predicted, is_label]
    return torch.stack([each.to(y.dtype).sum(0) for each in of_each])


def _half_squares(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return half the squared error of each example, summed over its numbers, shape (B,)."""
    error = (output if y.dim() > 1 else output.reshape(-1)) - y
    return _of_examples(error * error * 0.5)


def _logits(output: torch.Tensor, spec: TaskSpec) -> tuple[torch.Tensor, int]:
    """Return the logit of each class, and the axis of the classes; one logit z is (0, z)."""
    if spec.kind == "classification":
        return output, 1 if spec.classes_axis == "first" else len(spec.y_shape) + 1
    one = output.reshape(-1, *spec.y_shape, 1)
    return one * torch.arange(2).to(output.dtype), len(spec.y_shape) + 1


def _losses(logits: torch.Tensor, axis: int, y: torch.Tensor, spec: TaskSpec) -> torch.Tensor:
    """Return the cross-entropy of each example, nats, summed over its positions, shape (B,).

    It is a product with the one-hot label instead of an index, so its gradient needs no scatter.
    That of a position without a label is 0.
    """
    labels = y.unsqueeze(axis)
    classes = torch.arange(2 if spec.kind == "multi-label" else spec.classes)
    if axis < y.dim():
        classes = classes.reshape(-1, *[1] * (y.dim() - axis))
    onehot = (labels == classes).to(logits.dtype)
    return _of_examples(-(torch.log_softmax(logits, axis) * onehot).sum(axis))


def _of_examples(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the positions of each example, shape (B,)."""
    return values.sum(tuple(range(1, values.dim()))) if values.dim() > 1 else values


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded program of core ATen operations that change nothing in place."""

    graph: fx.Graph
    inputs: Sequence[tuple[InputKind, str | None]]
    """Kind, and name of the tensor, of each placeholder."""
    outputs: Sequence[tuple[OutputKind, str | None]]
    """Kind, and name of the tensor that it belongs to, of each result."""
    tensors: Mapping[str, torch.Tensor]
    """Values of parameters, buffers and constants by name."""


def _decomposed(program: ExportedProgram, *, has_gradient: bool) -> Recording:
    """Return a program by core operations, with its gradient if asked.

    One pass runs it without values. `ExportedProgram.run_decompositions` runs it two or three
    times, since it also accepts tensors that share memory: 60 % of the time of an export.
    """
    signature, module = program.graph_signature, program.graph_module
    given = [
        (spec.kind, spec.arg.name if spec.kind == InputKind.USER_INPUT else spec.target)
        for spec in signature.input_specs
    ]
    values = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    outputs: list[tuple[OutputKind, str | None]] = []

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        inputs = [FunctionalTensor.to_functional(tensor) for tensor in tensors]
        with maybe_enable_thunkify():
            results = list(fx.Interpreter(module).run(*inputs))
            found = [(spec.kind, spec.target) for spec in signature.output_specs]
            if has_gradient:
                named = zip(given, inputs, strict=True)
                trained = [(of[1], p) for of, p in named if of[0] == InputKind.PARAMETER]
                gradient = torch.autograd.grad(results[0], [value for _, value in trained])
                found[0] = (OutputKind.LOSS_OUTPUT, None)
                found += [(OutputKind.GRADIENT_TO_PARAMETER, name) for name, _ in trained]
                results += gradient
            for (kind, name), value in zip(given, inputs, strict=True):
                if torch._functionalize_has_data_mutation(value.elem):  # type: ignore[attr-defined]
                    found.append((_CHANGES.get(kind, OutputKind.USER_INPUT_MUTATION), name))
                    results.append(value)
            outputs[:] = found
            return [
                result.from_functional() if isinstance(result, FunctionalTensor) else result
                for result in results
            ]

    is_functional = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
    with (
        torch.backends.mkldnn.flags(enabled=False),
        nullcontext() if has_gradient else torch.no_grad(),
        detect_fake_mode(values) or nullcontext(),
        enable_python_dispatcher(),
        FunctionalTensorMode(export=True),
        preserve_node_meta(),
        torch._C._ExcludeDispatchKeyGuard(is_functional),
    ):
        traced = make_fx(run, decompositions(), record_module_stack=True)(*values)
    traced.graph.eliminate_dead_code()
    made = {
        str(node.target): getattr(traced, str(node.target))
        for node in traced.graph.nodes
        if node.op == "get_attr"
    }
    return Recording(
        graph=traced.graph,
        inputs=given,
        outputs=outputs,
        tensors={**program.state_dict, **program.constants, **made},
    )


_CHANGES: Mapping[Any, OutputKind] = {InputKind.BUFFER: OutputKind.BUFFER_MUTATION}


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
        self._own = functions_of(spec)
        self._names = dict[str, str]()
        """Names of the module's tensors by those of `_Stateless`."""

    def output_shape(self, *, takes_first: bool = False) -> tuple[int, ...]:
        """Return the shape of the module's output without the batch.

        Args:
            takes_first: Of several outputs that of the first; otherwise they are refused.

        Raises:
            Unsupported: The module fails, or its output has no batch dimension.
        """
        self._model.eval()
        with self._translated(), torch.no_grad():
            output = self._model(self._examples()["x"])
            if takes_first:
                output = first_output(output)
            if not isinstance(output, torch.Tensor) or output.shape[:1] != (TRACE_BATCH,):
                raise ValueError("the output is not one tensor with a row per example")
        return tuple(output.shape[1:])

    def training_loss(self) -> Recording:
        """Return the loss alone: unlike the gradient's, its nodes contain the name of a layer."""
        return self._decomposed(self._record(_TrainingLoss, "x", "y", "w"))

    def training(self, trained: Collection[str]) -> Recording:
        """Return the weighted loss of a mini-batch and its gradient by parameters.

        Args:
            trained: Names of the parameters on which the loss depends.

        Raises:
            Unsupported: torch cannot differentiate the module ahead of time.
        """
        program = self._record(_TrainingLoss, "x", "y", "w", trained=trained)
        return self._decomposed(program, has_gradient=True)

    def evaluation(self) -> Recording:
        """Return the outputs of `TaskSpec.evaluation_outputs`, in eval mode."""
        return self._decomposed(self._record(_Evaluation, "x", "y", trained=()))

    def forward(self) -> Recording:
        """Return the outputs of the module, in eval mode."""
        return self._decomposed(self._record(_Forward, "x", trained=()))

    def counts(self) -> Recording:
        """Return the weights c of examples from y alone; the loss has them."""
        examples = self._examples()
        assert self._own.loss is not None
        self._model.eval()
        with self._translated(), torch.no_grad():
            output = self._model(examples["x"])
            module = _Counts(output, self._own.loss)
            batch = Dim("batch", min=2)
            y = (examples["y"],)
            program = export(module, y, dynamic_shapes=({0: batch},), strict=False)
        return self._decomposed(program)

    def name_of(self, target: str | None) -> str:
        """Return the name of a tensor of the module by its name in a recorded program."""
        name = str(target).removeprefix(PREFIX)
        return self._names.get(name, name)

    def _record(
        self,
        kind: type[_TrainingLoss] | type[_Evaluation] | type[_Forward],
        *names: str,
        trained: Collection[str] | None = None,
    ) -> ExportedProgram:
        """Record a module; as `_Stateless`, unless `trained` is None."""
        if problem := unrecordable(self._model):
            raise Unsupported(problem)
        self._model.train(kind is _TrainingLoss)
        model = self._model
        if trained is not None:
            model = _Stateless(model, trained)
            self._names = {label: name for name, label in model.labels.items()}
            model.train(kind is _TrainingLoss)
        module = kind(model, self._spec, self._own)
        examples = self._examples()
        batch = Dim("batch", min=2)
        with self._translated(), Rewriting(is_recording=True):
            return export(
                module,
                tuple(examples[name] for name in names),
                dynamic_shapes=tuple({0: batch} for _ in names),
                strict=False,
            )

    def _decomposed(self, program: ExportedProgram, *, has_gradient: bool = False) -> Recording:
        with self._translated():
            return _decomposed(program, has_gradient=has_gradient)

    def _examples(self) -> dict[str, torch.Tensor]:
        spec = self._spec
        shape = (TRACE_BATCH, *spec.x_shape)
        is_float = spec.x_dtype == "float32"
        return {
            "x": torch.zeros(shape, dtype=torch.float32 if is_float else torch.int64),
            "y": torch.zeros((TRACE_BATCH, *spec.y_shape), dtype=getattr(torch, spec.y_dtype)),
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
            place = place_of(exc)
            if "data-dependent" in str(exc):
                raise Unsupported(
                    f"{self._spec.name}: forward() must compute the same operations for all "
                    "values, got a branch, a loop or a size that depends on values"
                    f"{place and f' ({place})'}; use torch.where and masks"
                ) from exc
            reason = next((line for line in str(exc).splitlines() if line), type(exc).__name__)
            reason += f" ({place})" if place else ""
            raise Unsupported(
                f"{self._spec.name}: torch must be able to record the model, got: {reason}; "
                "rewrite that part of it"
            ) from exc
        finally:
            for log, level in zip(logs, levels, strict=True):
                log.setLevel(level)
