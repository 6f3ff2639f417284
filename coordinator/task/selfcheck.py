"""Verifies an artifact against torch in float64 before it is published.

The graphs run in stock onnxruntime through plain `session.run`, and not in the device's engine:
so two independent programs check the same graphs.
"""

import copy
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import torch
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairbed.coordinator.task.decomposition import Rewriting
from fairbed.coordinator.task.doubles import in_doubles, run_in_doubles
from fairbed.coordinator.task.errors import Unsupported, WrongArtifact
from fairbed.coordinator.task.random_masks import Draw, Drawn
from fairbed.wire.artifact import Artifact, SelfCheck, TaskKind, TaskSpec, draw_masks
from fairbed.wire.evaluation import Evaluation, Targets, mean_weights, positions_of
from fairbed.wire.float_types import compute_in_one_type
from fairbed.wire.losses import Functions, first_output
from fairbed.wire.selfcheck import (
    LOSS_TOLERANCE,
    Examples,
    GradientFunction,
    SelfCheckFailed,
    deviation,
    run_selfcheck,
    selfcheck_inputs,
)
from fairbed.wire.tensors import Layout

Doubles: TypeAlias = NDArray[np.float64]
Masks: TypeAlias = Sequence[NDArray[np.bool_]]
Frozen: TypeAlias = Mapping[str, NDArray[np.float32]]

EMPTY: Frozen = MappingProxyType({})

BATCHES = (8, 3)
"""Two batch sizes; the second is that of an incomplete last mini-batch."""

STEPS = 3
LEARNING_RATE = 0.05

EXACT = 1e-6
"""Limit of the relative L2 error of the graphs in float64. Right ones stay below 1e-9 where no
constant is rounded to float32, and below 1e-7 elsewhere; wrong ones are above 1e-2."""

TOLERANCE = 1e-4
"""Limit of the relative error of loss, buffers and evaluation in float32."""

ROUNDED = 3e-2
"""Limit of the relative L2 error of the gradient in float32, median over all steps. A near-tie of a
max-pool or a value near the kink of a ReLU moves it by 1e-3 to 1e-2 in deep networks, in torch as
in onnxruntime; so float64 judges the graphs."""

STABLE = 0.1
"""Share of a device's tolerances within which the stored results must be met here: a batch without
near-ties is chosen, because other processors round otherwise."""

EQUAL_STEPS = 4
"""Steps with equal inputs that must have the same loss."""

CHOICES = 25
"""Batches of which one must be stable."""

SIGNIFICANT_DIGITS = 7
"""Digits of the recorded numbers: more than the tolerance needs, and equal on all machines."""

_SEVERITY_ERROR = 3


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one gradient computation."""

    loss: float
    """Mean loss, nats."""
    gradient: Doubles
    """Gradient of the loss by all parameters, shape (n_params,)."""
    buffers: Doubles
    """After the forward pass, shape (n_values - n_params,)."""
    count: float
    """Positions of the mini-batch, or what the loss counts instead."""


class Errors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative L2 errors of an artifact against torch in float64."""

    in_float64: float
    """Of the gradient, with the graph in float64; the larger one of two batches."""
    in_float32: float
    """Of the gradient, in onnxruntime; median over steps of two batch sizes."""
    loss: float
    """In onnxruntime, median."""
    buffers: float
    """After a step in onnxruntime, median; 0 without buffers."""


class ExportFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an export took, and how exact it is."""

    export_s: float
    """From the module to the graphs, seconds."""
    check_s: float
    """Comparison with torch, seconds."""
    errors: Errors


class TorchReference:
    """Loss, gradient and evaluation of a module at any flat vector, in float64.

    Args:
        model: The module; it is not changed.
        layout: Its tensors, by the names of the module.
        kind: What the module predicts.
        is_random: Its gradient is computed in evaluation mode, without random numbers.
        is_double: Computed in float64; else in the types of the module.
        classes_axis: As in `TaskSpec`.
        own: Loss and metrics of the task; None: those of its kind.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        kind: TaskKind = "classification",
        *,
        is_random: bool = False,
        is_double: bool = True,
        classes_axis: Literal["first"] | UnsetType = UNSET,
        own: Functions | None = None,
    ) -> None:
        self._own = own or Functions()
        self._count = 0.0
        self._is_random, self._is_double = is_random, is_double
        self._classes_axis = classes_axis
        self.draws: Sequence[Draw] = ()
        """The random masks of the module; without them it draws random numbers."""
        self._model = copy.deepcopy(model)
        if is_double:
            self._model = self._model.double()
            compute_in_one_type(self._model)
        self._layout, self._kind = layout, kind
        self._tensors: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        self._tensors.update(self._model.named_buffers())
        known = {tensor.name for tensor in layout.tensors}
        self._fixed = {n: t.detach().clone() for n, t in self._tensors.items() if n not in known}

    def step(self, vector: NDArray[np.float32], x: Examples, y: Targets, masks: Masks = ()) -> Step:
        """Return the mean loss of a mini-batch in training mode, and its gradient."""
        self._model.zero_grad()
        loss = self._loss(vector, x, y, masks)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return Step(loss.item(), self._flat("param"), self._flat("buffer"), self._count)

    def loss(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> float:
        """Return the mean loss of a mini-batch in training mode."""
        with torch.no_grad():
            return self._loss(vector, x, y, ()).item()

    def _loss(
        self, vector: NDArray[np.float32], x: Examples, y: Targets, masks: Masks
    ) -> torch.Tensor:
        self._load(vector)
        self._model.train(not self._is_random)
        drawn = Drawn(self.draws, masks) if self.draws else nullcontext()
        # As the graphs, or one epsilon of normalisations differs.
        with sdpa_kernel(SDPBackend.MATH), drawn, Rewriting():
            losses, count = self._loss_sum(self._model(self._x(x)), y)
            self._count = count
            return losses / count

    def train_step(self, x: Examples, y: Targets) -> None:
        """Compute loss and gradients at the present values, as a training loop of torch does."""
        self._model.train()
        self._model.zero_grad()
        output = self._model(self._x(x))
        loss = self._losses(output, y).mean() if self._own.loss is None else self._mean(output, y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def unused(self) -> list[str]:
        """Return the parameters on which the loss of the last step did not depend."""
        parameters = self._model.named_parameters()
        return [name for name, p in parameters if p.requires_grad and p.grad is None]

    def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
        """Return the evaluation of examples in eval mode."""
        self._load(vector)
        self._model.eval()
        with torch.no_grad():
            outputs = self._model(self._x(x))
            losses, count = self._loss_sum(outputs, y)
            loss_sum, output = losses.item(), first_output(outputs)
            more = self._own_part(outputs, output, y, count)
            one = output.reshape(y.shape).numpy() if self._kind != "classification" else None
            if self._kind == "regression":
                assert one is not None
                if y.ndim > 1:
                    absolute_sum = float(np.abs(one - y).sum())
                    return Evaluation(loss_sum, 0, absolute_sum=absolute_sum, **more)
                return Evaluation(loss_sum, 0, one, **more)
            if one is not None:
                found, scores = (one > 0.0).astype(np.int64), one if self._has_scores(y) else None
            else:
                logits = self._classes_second(output, y)
                found, scores = logits.argmax(1).numpy(), None
                if logits.shape[1] == 2 and y.ndim == 1:
                    scores = (logits[:, 1] - logits[:, 0]).numpy()
            hits = found == y
            exact = (hits | (y < 0)).reshape(len(y), -1).all(axis=1) if y.ndim > 1 else hits[:0]
            counts = None
            if y.ndim > 1 and self._kind != "multi-label":
                n = logits.shape[1] if one is None else 2
                kinds = (y[hits], found[y >= 0], y[y >= 0])
                counts = np.array([np.bincount(kind, minlength=n) for kind in kinds])
            return Evaluation(
                loss_sum, int(hits.sum()), scores, int(exact.sum()), class_counts=counts, **more
            )

    def _loss_sum(self, outputs: Any, y: Targets) -> tuple[torch.Tensor, float]:
        """Return the sum of the losses, and what a mean divides it by."""
        counts: torch.Tensor | None = None
        if self._own.loss is None:
            losses = self._losses(outputs, y)
        else:
            losses, counts = self._own.loss(outputs, self._y(y))
        count = float(positions_of(y).sum()) if counts is None else counts.double().sum().item()
        return losses.sum(), count

    def _mean(self, outputs: Any, y: Targets) -> torch.Tensor:
        losses, count = self._loss_sum(outputs, y)
        return losses / count

    def _own_part(
        self, outputs: Any, output: torch.Tensor, y: Targets, count: float
    ) -> dict[str, Any]:
        """Return what an evaluation has beside that of the kind."""
        more, target = dict[str, Any](), self._y(y)
        if self._own.loss is not None:
            more["count_sum"] = count
            if self._kind == "regression":
                square_sum = (output.reshape(target.shape) - target).square().sum()
                more["square_sum"] = square_sum.item()
        if self._own.metrics:
            found = [metric(outputs, target) for metric in self._own.metrics]
            more["metrics"] = tuple(
                np.stack([part.double().reshape(len(y), -1).sum(0).numpy() for part in pair])
                for pair in found
            )
        return more

    def _y(self, y: Targets) -> torch.Tensor:
        target = torch.from_numpy(y)
        return target.double() if self._is_double and target.is_floating_point() else target

    def _has_scores(self, y: Targets) -> bool:
        return y.ndim == 1 or self._kind == "multi-label"

    def _classes_second(self, output: torch.Tensor, y: Targets) -> torch.Tensor:
        """Return the logits as (B, classes, *y_shape)."""
        is_last = y.ndim > 1 and self._classes_axis is UNSET
        return output.movedim(-1, 1) if is_last else output

    def _losses(self, output: torch.Tensor, y: Targets) -> torch.Tensor:
        """Return the losses of all examples, or of all positions, in the shape of y."""
        target = torch.from_numpy(y)
        if self._kind == "classification":
            return functional.cross_entropy(
                self._classes_second(output, y), target, reduction="none", ignore_index=-1
            )
        output, wanted = output.reshape(target.shape), target.to(output.dtype)
        if self._kind == "regression":
            return 0.5 * functional.mse_loss(output, wanted, reduction="none")
        losses = functional.binary_cross_entropy_with_logits(
            output, wanted.clamp(min=0.0), reduction="none"
        )
        return torch.where(target < 0, 0.0, losses)

    def _x(self, x: Examples) -> torch.Tensor:
        is_double = self._is_double and x.dtype == np.float32
        return torch.tensor(x.astype(np.float64) if is_double else x)

    def _load(self, vector: NDArray[np.float32]) -> None:
        with torch.no_grad():
            for name, view in self._layout.views(vector).items():
                self._tensors[name].copy_(torch.from_numpy(view))
            for name, values in self._fixed.items():
                self._tensors[name].copy_(values)

    def _flat(self, role: str) -> Doubles:
        """Return the gradients of all parameters or the values of all buffers, concatenated."""
        wanted = [self._tensors[t.name] for t in self._layout.tensors if t.role == role]
        if role == "param":
            wanted = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
        dense = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in wanted]
        flat = [tensor.detach().numpy().astype(np.float64).ravel() for tensor in dense]
        return np.concatenate([np.zeros(0), *flat])


class GraphRunner:
    """Runs the graphs of an artifact with the parameters as a dictionary.

    Args:
        artifact: The artifact.
        frozen: The tensors of its base by name.
    """

    def __init__(self, artifact: Artifact, frozen: Frozen = EMPTY) -> None:
        self.spec = artifact.spec
        self._frozen = {f"f.{name}": values for name, values in frozen.items()}
        self._train = _session(artifact.train)
        self._evaluate = _session(artifact.evaluate)
        self._counts = _session(artifact.counts) if artifact.counts else None

    def step(
        self, vector: NDArray[np.float32], x: Examples, y: Targets, masks: Masks = ()
    ) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """Return mean loss, gradient, shape (n_params,), and buffers after the forward pass."""
        loss, *values = self.train(*self.feeds(vector, x, y, masks))
        flat = np.concatenate([value.ravel() for value in values])
        n_params = self.spec.layout.n_params
        return float(loss), flat[:n_params], flat[n_params:]

    def train(self, names: list[str], feeds: dict[str, Any]) -> list[NDArray[Any]]:
        """Return outputs of the training graph."""
        found: list[NDArray[Any]] = self._train.run(names, feeds)
        return found

    def feeds(
        self, vector: NDArray[np.float32], x: Examples, y: Targets, masks: Masks
    ) -> tuple[list[str], dict[str, Any]]:
        """Return the outputs of the training graph, loss first, and its inputs."""
        tensors = self.spec.layout.tensors
        names = [f"g.{t.name}" if t.role == "param" else f"nb.{t.name}" for t in tensors]
        weights = mean_weights(y)
        if self._counts is not None:
            [counts] = self._counts.run(["c"], {"y": y})
            weights = np.full(len(y), 1.0 / counts.sum(dtype=np.float64), np.float32)
        drawn = {f"m.{i}": mask for i, mask in enumerate(masks)} | {"w": weights}
        return ["loss", *names], self._state(vector) | {"x": x, "y": y} | drawn

    def checked(self, check: SelfCheck) -> GradientFunction:
        """Return the function that a self-check calls."""
        masks = draw_masks(self.spec.masks, check.seed, 0, check.batch)
        return lambda vector, x, y: self.step(vector, x, y, masks)[:2]

    def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
        """Return the evaluation of examples."""
        feeds, names = self._state(vector) | {"x": x, "y": y}, self.spec.evaluation_outputs
        found = zip(names, self._evaluate.run(names, feeds), strict=True)
        return Evaluation.of_outputs(dict(found))

    def _state(self, vector: NDArray[np.float32]) -> dict[str, Any]:
        views = self.spec.layout.views(vector)
        return {
            f"{'p' if t.role == 'param' else 'b'}.{t.name}": views[t.name]
            for t in self.spec.layout.tensors
        } | self._frozen


def check_equal_steps(spec: TaskSpec, reference: TorchReference, *, is_seeded: bool) -> None:
    """Check that equal steps of a module have the same loss.

    Args:
        spec: The task, with the inputs of its self-check.
        reference: The module.
        is_seeded: Each step gets the same random numbers of torch.

    Raises:
        Unsupported: They have not.
    """
    inputs = selfcheck_inputs(spec, spec.selfcheck.seed, spec.selfcheck.batch)
    losses = list[float]()
    for at in range(EQUAL_STEPS):
        with torch.random.fork_rng(devices=[], enabled=is_seeded):
            is_last = at == EQUAL_STEPS - 1  # a gradient, for `TorchReference.unused`
            losses.append(reference.step(*inputs).loss if is_last else reference.loss(*inputs))
    for loss in losses:
        if abs(loss - losses[0]) > LOSS_TOLERANCE * abs(losses[0]):
            raise Unsupported(
                f"{spec.name}: two equal steps must have the same loss, got {losses[0]:g} and "
                f"{loss:g}; draw random numbers with torch, in training mode alone, and keep "
                "what changes from step to step in buffers"
            )


def record_selfcheck(spec: TaskSpec, reference: TorchReference, seed: int, batch: int) -> SelfCheck:
    """Return the expected results on the seeded inputs of a task.

    Raises:
        Unsupported: They are not finite.
    """
    step = reference.step(
        *selfcheck_inputs(spec, seed, batch), draw_masks(spec.masks, seed, 0, batch)
    )
    norm = float(np.linalg.norm(step.gradient))
    if not (np.isfinite(step.loss) and np.isfinite(norm)):
        at = "normal numbers" if spec.selfcheck.x is UNSET else "numbers of the data"
        raise Unsupported(
            f"{spec.name}: loss and gradient must be finite at x of {at} and at random parameters, "
            f"got {step.loss:g} and {norm:g}; correct the module, or build it with "
            "your data: build_task(..., examples=x)"
        )
    return SelfCheck(
        seed=seed,
        batch=batch,
        loss=_rounded(step.loss),
        gradient_l2=_rounded(norm),
        x=spec.selfcheck.x,
        y=spec.selfcheck.y,
    )


def stable_check(
    artifact: Artifact, reference: TorchReference, seed: int, batch: int, frozen: Frozen
) -> SelfCheck:
    """Return the expected results of the first batch that rounding does not move.

    `frozen` has the tensors of the base by name.

    Raises:
        WrongArtifact: There is none among `CHOICES`.
    """
    runner, least = GraphRunner(artifact, frozen), math.inf
    for at in range(seed, seed + CHOICES):
        check = record_selfcheck(artifact.spec, reference, at, batch)
        spec = msgspec.structs.replace(artifact.spec, selfcheck=check)
        error = deviation(spec, runner.checked(check))
        if error <= STABLE:
            return check
        least = min(least, error)
    raise WrongArtifact(
        f"{artifact.spec.name}: one of {CHOICES} batches must give the loss and gradient of torch "
        f"within {STABLE:g} of the tolerances of a device, got {least:.2g} at best; do not use "
        "this model, report it"
    )


def verify(artifact: Artifact, reference: TorchReference, frozen: Frozen = EMPTY) -> Errors:
    """Compare an artifact with the reference: steps, buffers, evaluation, batch sizes.

    `frozen` has the tensors of the base by name.

    Returns:
        The errors, all within their limits.

    Raises:
        WrongArtifact: An error is above its limit, or the artifact fails its own self-check.
    """
    runner, spec = GraphRunner(artifact, frozen), artifact.spec
    exact = _check_in_doubles(runner, artifact, reference)
    quantities = ("loss", "gradient", "buffers", "evaluation", "scores")
    errors: dict[str, list[float]] = {quantity: [] for quantity in quantities}
    for seed, batch in enumerate(BATCHES):
        vector, _, _ = selfcheck_inputs(spec, seed, batch)
        for step in range(STEPS):
            drawn = len(BATCHES) * (step + 1) + seed
            _, x, y = selfcheck_inputs(spec, drawn, batch)
            masks = draw_masks(spec.masks, drawn, step, batch)
            expected = reference.step(vector, x, y, masks)
            loss, gradient, buffers = runner.step(vector, x, y, masks)
            errors["loss"].append(_error(loss, expected.loss))
            errors["gradient"].append(_error(gradient, expected.gradient))
            errors["buffers"].append(_error(buffers, expected.buffers))
            found, right = runner.evaluate(vector, x, y), reference.evaluate(vector, x, y)
            right = right if found.count_sum is not None else right._replace(count_sum=None)
            errors["evaluation"].append(_error(_sums(found), _sums(right)[: len(_sums(found))]))
            if right.scores is not None:
                errors["scores"].append(_error(found.scores, right.scores))
            vector = np.concatenate(
                [vector[: spec.layout.n_params] - np.float32(LEARNING_RATE) * gradient, buffers]
            )
    medians = {name: float(np.median(values or [0.0])) for name, values in errors.items()}
    for quantity, median in medians.items():
        limit = ROUNDED if quantity == "gradient" else TOLERANCE
        if not median <= limit:
            raise _wrong(spec, quantity, limit, f"a median relative error of {median:.2g}")
    try:
        run_selfcheck(spec, runner.checked(spec.selfcheck))
    except SelfCheckFailed as exc:
        raise WrongArtifact(f"{str(exc).partition('; ')[0]}; do not use this model") from exc
    return Errors(
        in_float64=exact,
        in_float32=medians["gradient"],
        loss=medians["loss"],
        buffers=medians["buffers"],
    )


def _check_in_doubles(runner: GraphRunner, artifact: Artifact, reference: TorchReference) -> float:
    """Compare the graph in float64: one step of each batch size; return the gradient's error.

    Raises:
        WrongArtifact: Loss, gradient or buffers are not exact.
    """
    spec, graph, largest = artifact.spec, in_doubles(artifact.train), 0.0
    for seed, batch in enumerate(BATCHES):
        vector, x, y = selfcheck_inputs(spec, seed, batch)
        masks = draw_masks(spec.masks, seed, 0, batch)
        expected = reference.step(vector, x, y, masks)
        names, feeds = runner.feeds(vector, x, y, masks)
        # In float32 a third has an error of 3e-8.
        feeds["w"] = np.full(batch, 1.0 / expected.count)
        loss, *values = run_in_doubles(graph, names, feeds)
        flat, n_params = np.concatenate([v.ravel() for v in values]), spec.layout.n_params
        errors = {
            "loss": _error(loss, expected.loss),
            "gradient": _error(flat[:n_params], expected.gradient),
            "buffers": _error(flat[n_params:], expected.buffers),
        }
        for quantity, error in errors.items():
            if not error <= EXACT:
                raise _wrong(spec, quantity, EXACT, f"{error:.2g} in float64")
        largest = max(largest, errors["gradient"])
    return largest


def _sums(found: Evaluation) -> list[float]:
    counts = found.class_counts
    of_classes = [] if counts is None or not counts.size else counts.ravel().tolist()
    own = [value for value in (found.count_sum, found.square_sum) if value is not None]
    own += [value for each in found.metrics for value in each.ravel().tolist()]
    first = [found.loss_sum, found.correct, found.exact, found.absolute_sum]
    return [*first, *own, *of_classes]


def _wrong(spec: TaskSpec, quantity: str, limit: float, got: str) -> WrongArtifact:
    return WrongArtifact(
        f"{spec.name}: the exported {quantity} must equal torch's within {limit:g}, got {got}; do "
        "not use this model, report it"
    )


def _error(actual: Any, expected: Any) -> float:
    """Return |actual - expected| / |expected| in L2."""
    actual = np.atleast_1d(actual).astype(np.float64)
    expected = np.atleast_1d(expected).astype(np.float64)
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(actual - expected)) / (norm or 1.0)


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def run_graph(graph: bytes, feeds: dict[str, Any]) -> list[NDArray[Any]]:
    """Return all outputs of a graph."""
    found: list[NDArray[Any]] = _session(graph).run(None, feeds)
    return found


def _session(graph: bytes) -> Any:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, by the import
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = _SEVERITY_ERROR
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
