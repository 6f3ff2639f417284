"""The training engine on torch, for modules that cannot be exported as graphs.

The only module of the agent that imports torch; it is imported for a task that needs it, and no
earlier.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from fairbed.device_agent.engines.base import (
    EMPTY,
    Examples,
    checked_vector,
    evaluation_batch,
    parts,
    shaped_examples,
)
from fairbed.device_agent.errors import EngineError
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.evaluation import Evaluation, Targets, mean_weights, positions_of
from fairbed.wire.float_types import cast_floats
from fairbed.wire.losses import Functions, first_output, functions_of
from fairbed.wire.models import call_factory, freeze_statistics, sourced_factory
from fairbed.wire.plugins import PluginError, users_code

_random_numbers = Lock()
"""Held while a module draws: layers such as dropout know one generator, that of the process."""


MODULE_SEED, MODULE_BATCH = 0, 2
"""Of the random numbers of a factory, and of the zeros from which lazy layers take their sizes.
Their values do not matter: vector and task have those of all tensors."""


class TorchEngine:
    """An `Engine` that runs a torch module on a flat vector.

    Vector and examples are copied into memory that torch aligns, since the last bits of a product
    may depend on the alignment. What is no part of the vector, such as a frozen parameter or a
    counter, has the value that the task gives it, in each step.

    Args:
        artifact: A task with a module.
        threads: Threads of torch's kernels; one number for the whole process.
        base: The frozen parameters beside the task, by name.

    Raises:
        EngineError: The module cannot be imported or made, or is not that of the task.
    """

    def __init__(
        self,
        artifact: Artifact,
        threads: int = 1,
        base: Mapping[str, NDArray[np.float32]] = EMPTY,
    ) -> None:
        source = artifact.module
        assert source is not None, "a task with graphs has an engine of its own"
        torch.set_num_threads(threads)
        self.spec, self._source, self._fixed = artifact.spec, source, artifact.fixed
        self._module = make_module(artifact, base)
        self._base = base
        self._own = _functions(self.spec)
        n_params, n_values = self.spec.layout.n_params, self.spec.layout.n_values
        self._params = torch.zeros(n_params, dtype=torch.float32)
        self._gradient = torch.zeros(n_params, dtype=torch.float32)
        self._n_buffers = n_values - n_params
        self._versions = dict[str, tuple[torch.Tensor, int]]()
        """The tensors that are no part of the vector, and torch's counts of their changes."""
        self._seed: tuple[int, int] | None = None
        self._blank: Any = None
        """An output of the module, for its structure; None before it is needed."""
        self._bind()

    @property
    def name(self) -> str:
        """Engine and version, for messages."""
        return f"torch {torch.__version__}"

    def of_length(self, artifact: Artifact) -> "TorchEngine":
        """Return the engine of a shorter length of the task, with the same module and memory."""
        other = copy.copy(self)
        other.spec = artifact.spec
        return other

    def running_s(self) -> float:
        """Return 0: a step is not watched, as the owner of the device allowed its code."""
        return 0.0

    def interrupt(self) -> None:
        """Do nothing: torch cannot end a step from outside."""

    def reseed(self, seed: int, step: int) -> None:
        """Set the random numbers (dropout) of the next gradients.

        Until the first call a module that draws random numbers runs in evaluation mode.
        """
        self._seed = seed, step

    def gradient(
        self,
        vector: NDArray[np.float32],
        x: Examples,
        y: Targets,
        micro_batch: int | None = None,
        factor: float = 1.0,
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the mean loss (nats) of a mini-batch and its gradient; see `Engine.gradient`.

        Raises:
            ValueError: A shape or dtype does not fit the task.
            EngineError: The module failed.
        """
        inputs, labels = self._tensors(x, y)
        self._load(vector)
        self._gradient.zero_()
        if self._own.loss is not None:
            return self._own_gradient(vector, inputs, labels, micro_batch, factor)
        weights, loss_sum = torch.from_numpy(mean_weights(y, factor)), 0.0
        with self._drawing(), self._failing("a training step"):
            for part in parts(len(labels), micro_batch):
                losses = target_losses(self._module(inputs[part]), labels[part], self.spec)
                of_examples = losses.flatten(1).sum(1) if losses.dim() > 1 else losses
                loss = (weights[part].to(losses.dtype) * of_examples).sum()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                loss_sum += loss.item()
        self._save_buffers(vector)
        return loss_sum / factor, self._gradient.numpy()

    def _own_gradient(
        self,
        vector: NDArray[np.float32],
        inputs: torch.Tensor,
        labels: torch.Tensor,
        micro_batch: int | None,
        factor: float,
    ) -> tuple[float, NDArray[np.float32]]:
        """Return loss and gradient of a loss by name or of the user: sum l / sum c.

        The sum of c is known after the last part, so the gradient is divided at the end.
        """
        loss_sum, count = 0.0, 0.0
        with self._drawing(), self._failing("a training step"):
            for part in parts(len(labels), micro_batch):
                losses, counts = self._losses(self._module(inputs[part]), labels[part])
                loss = losses.sum()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                loss_sum += loss.item()
                count += counts
        self._gradient.mul_(factor / count if count else 0.0)
        self._save_buffers(vector)
        return loss_sum / count if count else 0.0, self._gradient.numpy()

    def _losses(self, output: Any, y: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return the own loss of each example, and the sum of c."""
        assert self._own.loss is not None
        losses, counts = self._own.loss(output, y)
        if losses.shape != (len(y),):
            raise ValueError(f"a loss of shape {tuple(losses.shape)} for {len(y)} examples")
        if counts is None:
            return losses, float(positions_of(y.numpy()).sum())
        return losses, counts.double().sum().item()

    def counts(self, y: Targets) -> NDArray[np.float64]:
        """Return the weights c of examples in a loss that has its own, shape (B,).

        Raises:
            EngineError: Module or loss failed.
        """
        assert self._own.loss is not None
        target = torch.tensor(y)
        with torch.no_grad(), self._failing("counting"):
            if self._blank is None:
                x, tokens = torch.zeros((MODULE_BATCH, *self.spec.x_shape)), self.spec.x_classes
                x = x.long() + min(1, tokens - 1) if tokens else x
                self._blank = self._module.eval()(x)

            def zeros(like: torch.Tensor) -> torch.Tensor:
                return torch.zeros((len(target), *like.shape[1:]), dtype=like.dtype)

            counts = self._own.loss(pytree.tree_map(zeros, self._blank), target)[1]
        assert counts is not None, "the loss weighs examples itself"
        found: NDArray[np.float64] = counts.double().numpy()
        return found

    def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
        """Return the evaluation of examples, in evaluation mode.

        Raises:
            ValueError: A shape or dtype does not fit the task.
            EngineError: The module failed.
        """
        inputs, targets = self._tensors(x, y)
        self._load(vector)
        self._module.eval()
        evaluations = list[Evaluation]()
        with torch.no_grad(), self._failing("an evaluation"):
            for batch in parts(len(targets), evaluation_batch(self.spec)):
                evaluations.append(self._evaluation(self._module(inputs[batch]), targets[batch]))
        return Evaluation.pooled(evaluations)

    def _evaluation(self, outputs: Any, target: torch.Tensor) -> Evaluation:
        """Return the evaluation of what the module returned."""
        spec, scores, absolute_sum = self.spec, None, 0.0
        output: torch.Tensor = first_output(outputs) if spec.has_own_loss else outputs
        more = self._own_part(outputs, output, target)
        loss_sum = more.pop("loss_sum", None)
        if loss_sum is None:
            loss_sum = target_losses(output, target, spec).sum().item()
        if spec.kind == "classification":
            logits = _classes_second(output, spec)
            found = logits.argmax(1)
            scores = logits[:, 1] - logits[:, 0] if spec.is_scored else None
        else:
            one = output.reshape(target.shape)
            found = (one > 0.0).to(target.dtype)
            scores = one if spec.is_scored else None
        if spec.kind == "regression":
            absolute_sum = 0.0 if spec.is_scored else (one - target).abs().sum().item()
            found = torch.full_like(target, torch.nan)  # equals no number
        hits = found == target
        exact = (hits | (target < 0)).flatten(1).all(1) if spec.y_shape else hits[:0]
        counts = None
        if spec.counts_classes:
            is_labelled = target >= 0
            kinds = target[hits], found[is_labelled], target[is_labelled]
            of_each = [torch.bincount(kind, minlength=spec.classes) for kind in kinds]
            counts = torch.stack(of_each).numpy()
        return Evaluation(
            loss_sum,
            int(hits.sum()),
            None if scores is None else scores.numpy(),
            int(exact.sum()) if spec.kind != "regression" else 0,
            absolute_sum,
            counts,
            **more,
        )

    def _own_part(self, outputs: Any, output: torch.Tensor, target: torch.Tensor) -> dict[str, Any]:
        """Return the fields of an evaluation that own losses and metrics have."""
        found = dict[str, Any]()
        if self._own.loss is not None:
            losses, count = self._losses(outputs, target)
            found["loss_sum"] = losses.sum().item()
            if self.spec.weighs is True:
                found["count_sum"] = count
            if self.spec.kind == "regression":
                squares = (output.reshape(target.shape) - target).square()
                found["square_sum"] = squares.sum().item()
        if self._own.metrics:
            pairs = [metric(outputs, target) for metric in self._own.metrics]
            found["metrics"] = tuple(
                np.stack([part.double().flatten(1).sum(0).numpy() for part in map(_columns, pair)])
                for pair in pairs
            )
        return found

    def _bind(self) -> None:
        """Make the parameters of the module views of one vector, and their gradients of another.

        Raises:
            EngineError: The tensors of the module are not those of the task.
        """
        wanted = {tensor.name: tensor.shape for tensor in self.spec.layout.tensors}
        got = {
            name: tuple(tensor.shape)
            for name, tensor in named_tensors(self._module).items()
            if name not in self._fixed
            and name not in self._base
            and (tensor.requires_grad or tensor.is_floating_point())
        }
        if got != wanted:
            name = min(set(got.items()) ^ set(wanted.items()))[0]
            raise EngineError(
                f"model {self._source.path}: must have the tensors of the coordinator's, got "
                f"{name} of shape {got.get(name)} instead of {wanted.get(name)}; install the same "
                "versions of torch and of the module on both"
            )
        params = dict(self._module.named_parameters())
        for tensor in self.spec.layout.tensors:
            if tensor.role == "param":
                parameter = params[tensor.name]
                part = slice(tensor.offset, tensor.offset + tensor.size)
                parameter.data = self._params[part].view(tensor.shape)
                parameter.grad = self._gradient[part].view(tensor.shape)

    def _tensors(self, x: Examples, y: Targets) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = shaped_examples(self.spec, x, y)
        return torch.tensor(x), torch.tensor(y)

    def _load(self, vector: NDArray[np.float32]) -> None:
        """Copy a vector into the module, which goes to the mode of the next step."""
        checked_vector(self.spec, vector)
        self._params.copy_(torch.from_numpy(vector[: len(self._params)]))
        self._module.train(self._seed is not None or not self._source.is_random)
        with torch.no_grad():
            if self._n_buffers:
                views = self.spec.layout.views(vector)
                for tensor in self.spec.layout.tensors:
                    if tensor.role == "buffer":
                        values = torch.tensor(views[tensor.name])
                        self._module.get_buffer(tensor.name).copy_(values)
            self._restore()

    def _restore(self) -> None:
        """Give tensors that are no part of the vector their first values, where they changed."""
        tensors = named_tensors(self._module)
        for name, values in self._fixed.items():
            tensor = tensors[name]
            if self._versions.get(name) != (tensor, tensor._version):
                tensor.copy_(_of_bytes(values, tensor))
                self._versions[name] = tensor, tensor._version

    def _save_buffers(self, vector: NDArray[np.float32]) -> None:
        if self._n_buffers:
            views = self.spec.layout.views(vector)
            for tensor in self.spec.layout.tensors:
                if tensor.role == "buffer":
                    views[tensor.name][...] = self._module.get_buffer(tensor.name).detach().numpy()

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Seed torch for the time of a step, if the module draws random numbers."""
        if self._seed is None or not self._source.is_random:
            yield
            return
        with _random_numbers:
            numbers = np.random.SeedSequence(self._seed).generate_state(1, np.uint64)
            torch.default_generator.manual_seed(int(numbers[0]))
            yield

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Turn any error of the module into one line."""
        path = self._source.path
        with users_code(lambda got: EngineError(f"model {path}: {what} failed: {got}")):
            yield


def _columns(part: torch.Tensor) -> torch.Tensor:
    """Return sums or weights as (B, columns)."""
    return part.unsqueeze(1) if part.dim() == 1 else part


def _functions(spec: TaskSpec) -> Functions:
    """Return loss and metrics of a task.

    Raises:
        EngineError: One is absent, or has another source than at the coordinator.
    """
    try:
        return functions_of(spec)
    except (PluginError, OSError) as exc:
        raise EngineError(str(exc)) from exc


def make_module(artifact: Artifact, base: Mapping[str, NDArray[np.float32]] = EMPTY) -> nn.Module:
    """Return the module of a task.

    Its floats are float32, lazy layers are real, and fixed tensors are those of the task. It is
    adapted as the task states; frozen parameters share the memory of `base`.

    Raises:
        EngineError: The module cannot be imported or made, or is not that of the task.
    """
    source, spec = artifact.module, artifact.spec
    assert source is not None, "a task with graphs has no module"
    path = source.path
    try:
        factory = sourced_factory(source)
        with _random_numbers, torch.random.fork_rng(devices=[]):
            torch.manual_seed(MODULE_SEED)
            module = call_factory(path, factory, spec.x_shape, spec.classes, spec.x_classes)
            if not isinstance(module, nn.Module):
                raise EngineError(f"model {path}: must be a torch.nn.Module, got {type(module)}")
            cast_floats(module)
            if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
                dtype = getattr(torch, spec.x_dtype)
                x = torch.zeros((MODULE_BATCH, *spec.x_shape), dtype=dtype)
                with users_code(PluginError), torch.no_grad():
                    module.eval()(x)
            if artifact.adaptation is not None:
                from fairbed.wire.adapters import adapt

                adapt(module, artifact.adaptation)
    except (PluginError, OSError, ValueError) as exc:
        raise EngineError(str(exc)) from exc
    _load_base(module, artifact, base)
    _load_fixed(module, artifact)
    if artifact.batch_norm == "frozen":
        freeze_statistics(module)
    return module


def _load_base(
    module: nn.Module, artifact: Artifact, base: Mapping[str, NDArray[np.float32]]
) -> None:
    """Let frozen parameters of a module be those of the base, in its memory."""
    params = dict(module.named_parameters())
    for name, values in base.items():
        parameter = params.get(name)
        if parameter is None or tuple(parameter.shape) != values.shape:
            got = "none" if parameter is None else str(tuple(parameter.shape))
            raise EngineError(
                f"model {artifact.spec.name}: must have the parameters of the coordinator's, got "
                f"{got} for {name} of shape {values.shape}; install the same version of the module "
                "on both"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the memory is read-only, and nothing writes to it
            parameter.data = torch.from_numpy(values)


def _load_fixed(module: nn.Module, artifact: Artifact) -> None:
    """Copy the tensors that are no part of the vector into a module."""
    tensors = named_tensors(module)
    with torch.no_grad():
        for name, values in artifact.fixed.items():
            tensor = tensors.get(name)
            if tensor is None or tensor.numel() * tensor.element_size() != len(values):
                got = "none" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
                raise EngineError(
                    f"model {artifact.spec.name}: must have the tensors of the coordinator's, got "
                    f"{got} for {name}, which has {len(values)} bytes there; install the same "
                    "versions of torch and of the module on both"
                )
            tensor.copy_(_of_bytes(values, tensor))


def _of_bytes(values: bytes, tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor of this type and shape."""
    flat = torch.frombuffer(bytearray(values), dtype=tensor.dtype) if values else tensor
    return flat.view(tensor.shape)


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def target_losses(output: torch.Tensor, y: torch.Tensor, spec: TaskSpec) -> torch.Tensor:
    """Return the loss of each target, in the shape of y; 0 where a position has no label.

    Args:
        output: Of the module: (B, classes), at positions (B, *y_shape, classes) or
            (B, classes, *y_shape), or one number per target.
        y: Targets, shape (B, *y_shape).
        spec: The task.
    """
    if spec.kind == "classification":
        if spec.y_shape and spec.classes_axis != "first":  # moving axes is slower
            flat = output.reshape(-1, spec.classes), y.reshape(-1)
            losses = functional.cross_entropy(*flat, reduction="none", ignore_index=-1)
            return losses.reshape(y.shape)
        return functional.cross_entropy(output, y, reduction="none", ignore_index=-1)
    output = output.reshape(y.shape)
    if spec.kind == "regression":
        return 0.5 * (output - y).square()
    losses = functional.binary_cross_entropy_with_logits(
        output, y.clamp(min=0).to(output.dtype), reduction="none"
    )
    return torch.where(y < 0, 0.0, losses) if spec.y_shape else losses


def _classes_second(output: torch.Tensor, spec: TaskSpec) -> torch.Tensor:
    """Return the logits as (B, classes, *y_shape)."""
    return output if spec.classes_axis == "first" or not spec.y_shape else output.movedim(-1, 1)
