"""What an experiment changes of the module that a factory returns: weights, what is trained.

This module does not import torch before a module is changed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.policy.config import OF_MODULE
from fairbed.coordinator.task.errors import UnknownTask, Unsupported
from fairbed.wire.adaptation import LORA_A, LORA_B, fitting, unused
from fairbed.wire.artifact import Adaptation, TaskSpec, initial_vector

if TYPE_CHECKING:
    from torch import nn

SUFFIX = ".safetensors"

SHOWN = 6
"""Names that an error shows of each kind."""


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """What is changed of a module before it becomes a task."""

    weights: str | None = None
    """A `.safetensors` file, or `module`; None: each parameter starts at random."""
    fresh: tuple[str, ...] = ()
    """Patterns of names that start at random although there are weights, as a new head does."""
    adaptation: Adaptation | None = None

    def apply(self, module: "nn.Module") -> None:
        """Change a module in place: values of the file, then what is trained.

        Raises:
            UnknownTask: The file is not there, or is no file of weights.
            Unsupported: Names, shapes or patterns do not fit the module.
        """
        if self.weights not in (None, OF_MODULE):
            self._load(module, Path(str(self.weights)).expanduser())
        names = [name for name, _ in module.named_parameters()]
        if missed := unused(names, self.fresh):
            raise Unsupported(
                f"model.fresh: {missed[0]} must fit the name of a parameter, got "
                f"{_shown(names)}; correct the pattern"
            )
        if self.adaptation is None:
            return
        from fairbed.wire.adapters import AdaptationError, adapt

        try:
            adapt(module, self.adaptation)
        except AdaptationError as exc:
            raise Unsupported(str(exc)) from exc

    def first_vector(self, spec: TaskSpec, module: "nn.Module", seed: int) -> NDArray[np.float32]:
        """Return the model before round 1, shape (n_values,).

        Args:
            spec: The task.
            module: Its module, changed by `apply`.
            seed: Of the values that start at random: `model.fresh`, adapters, and without weights
                all.
        """
        vector = initial_vector(spec, seed)
        if self.weights is None:
            return vector
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        views = spec.layout.views(vector)
        drawn = fitting(views, self.fresh)
        for name, view in views.items():
            if name not in drawn and name.rpartition(".")[2] not in (LORA_A, LORA_B):
                view[...] = values[name].detach().float().numpy()
        return vector

    def _load(self, module: "nn.Module", file: Path) -> None:
        """Copy the tensors of a file into a module.

        Raises:
            UnknownTask: The file is not there, or is no file of weights.
            Unsupported: Names or shapes do not fit the module.
        """
        import torch

        found = _read(file)
        wanted = module.state_dict(keep_vars=True)
        drawn = fitting(wanted, self.fresh)
        needed = {name: value for name, value in wanted.items() if name not in drawn}
        given = {name: value for name, value in found.items() if name not in drawn}
        counters = {n for n in needed if n.rpartition(".")[2] == "num_batches_tracked"}
        problems = {
            "missing": sorted(needed.keys() - given.keys() - counters),
            "unknown": sorted(given.keys() - needed.keys()),
            "of another shape": [
                f"{name} {tuple(given[name].shape)} for {tuple(needed[name].shape)}"
                for name in sorted(needed.keys() & given.keys())
                if given[name].shape != needed[name].shape
            ],
            "of another kind": [
                f"{name} {given[name].dtype} for {needed[name].dtype}".replace("torch.", "")
                for name in sorted(needed.keys() & given.keys())
                if given[name].is_floating_point() != needed[name].is_floating_point()
            ],
            "not finite": sorted(
                name for name, value in given.items() if not bool(torch.isfinite(value).all())
            ),
        }
        if any(problems.values()):
            got = ", ".join(f"{_shown(names)} {what}" for what, names in problems.items() if names)
            raise Unsupported(
                f"model.weights: {file} must have the tensors of the model, got {got}; take the "
                "weights of this network, or name what starts at random in model.fresh"
            )
        with torch.no_grad():
            for name, value in given.items():
                needed[name].copy_(value)


def _read(file: Path) -> "dict[str, Any]":
    """Return the tensors of a `.safetensors` file by name.

    Raises:
        UnknownTask: The file is not there, or is another one.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except OSError as exc:
        raise UnknownTask(
            f"model.weights: {file} must be a file, got {exc.strerror or exc}; correct the path"
        ) from exc
    except SafetensorError as exc:
        is_pickle = file.suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl")
        got = "a pickle, which runs code when it is read" if is_pickle else str(exc)
        raise UnknownTask(
            f"model.weights: {file} must be a {SUFFIX} file, got {got}; write one with "
            "safetensors.torch.save_file(module.state_dict(), FILE)"
        ) from exc


def _shown(names: list[str]) -> str:
    more = len(names) - SHOWN
    shown = ", ".join(names[:SHOWN]) or "none"
    return f"{shown} and {more} more" if more > 0 else shown
