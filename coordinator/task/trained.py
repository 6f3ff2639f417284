"""A trained model as files that other programs read: ONNX, safetensors, or a state of torch.

Adapters are added to the weights, so that the model has the tensors of the module that the factory
returns. The ONNX file is checked against torch before it is written.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils import _pytree as pytree

from fairbed.coordinator.task.changes import ModelChanges
from fairbed.coordinator.task.errors import Unsupported, WrongArtifact
from fairbed.coordinator.task.export import forward_graph
from fairbed.coordinator.task.modules import make_trainable
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.selfcheck import selfcheck_inputs

ModelFormat: TypeAlias = Literal["onnx", "safetensors", "torch"]

SUFFIXES: Mapping[ModelFormat, str] = {
    "onnx": ".onnx",
    "safetensors": ".safetensors",
    "torch": ".pt",
}

EQUAL = 1e-5
"""Limit of the relative error of the outputs of an ONNX file, and of the weights with adapters."""

_SEEDS, _BATCH = (0, 1), 4


def trained_module(
    artifact: Artifact,
    changes: ModelChanges | None,
    changed: nn.Module,
    plain: nn.Module,
    vector: NDArray[np.float32],
    frozen: Mapping[str, NDArray[np.float32]],
) -> nn.Module:
    """Return the plain module with the values of a trained model, its adapters added to weights.

    Args:
        artifact: The task.
        changes: What the experiment changes of the module.
        changed: The module with these changes; it gets the values of the model.
        plain: The module without them; it becomes the result.
        vector: The model, shape (n_values,).
        frozen: Tensors of the base, by name.

    Raises:
        Unsupported: The module has other tensors than the task.
        WrongArtifact: The result does not compute what the module with adapters computes.
    """
    tensors = {**dict(changed.named_parameters()), **dict(changed.named_buffers())}
    values = {**artifact.spec.layout.views(vector), **frozen}
    for name, value in values.items():
        tensor = tensors.get(name)
        if tensor is None or tuple(tensor.shape) != value.shape:
            raise Unsupported(
                f"{artifact.spec.name}: the module must have the tensors of the run, got "
                f"{'none' if tensor is None else tuple(tensor.shape)} for {name} of shape "
                f"{value.shape}; use the version of the module that the run had"
            )
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.array(value)))
    if changes is None or changes.adaptation is None:
        whole = {name: value.detach().clone() for name, value in changed.state_dict().items()}
    else:
        from fairbed.wire.adapters import merged_weights

        whole = merged_weights(changed)
    plain.load_state_dict(whole)
    for _, x in _inputs(artifact.spec):
        with torch.no_grad():
            _check(artifact.spec, plain.eval()(x), changed.eval()(x), "weights with adapters")
    return plain


def write_model(module: nn.Module, spec: TaskSpec, form: ModelFormat, file: Path) -> None:
    """Write a module with its values to a file.

    Args:
        module: Of `trained_module`.
        spec: The task.
        form: onnx: the network, from x to its output; safetensors, torch: the values by name.
        file: Replaced if it exists.

    Raises:
        Unsupported: The network cannot be exported as ONNX.
        WrongArtifact: The file does not compute what torch computes.
        OSError: The file cannot be written.
    """
    state = {name: value.contiguous().clone() for name, value in module.state_dict().items()}
    if form == "safetensors":
        from safetensors.torch import save_file

        save_file(state, file, metadata={"format": "pt"})
    elif form == "torch":
        torch.save(state, file)
    else:
        graph = forward_graph(module, spec)
        _check_graph(graph, module, spec)
        file.write_bytes(graph)


def plain_module(module: nn.Module, spec: TaskSpec) -> nn.Module:
    """Return a module of a factory as Fairbed trains it: real layers, floats in float32."""
    make_trainable(module, spec.name, spec.x_shape, spec.x_classes)
    return module


def _inputs(spec: TaskSpec) -> list[tuple[int, torch.Tensor]]:
    return [(s, torch.from_numpy(selfcheck_inputs(spec, s, _BATCH)[1])) for s in _SEEDS]


def _check_graph(graph: bytes, module: nn.Module, spec: TaskSpec) -> None:
    from fairbed.coordinator.task.selfcheck import run_graph

    for _, x in _inputs(spec):
        found = [torch.from_numpy(output) for output in run_graph(graph, {"x": x.numpy()})]
        with torch.no_grad():
            _check(spec, found, module.eval()(x), "exported output")


def _check(spec: TaskSpec, found: Any, wanted: Any, what: str) -> None:
    """Compare outputs, each of which may be a tensor or several."""
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        error = float((one - other).abs().max()) / (float(other.abs().max()) or 1.0)
        if not error <= EQUAL:
            raise WrongArtifact(
                f"{spec.name}: the {what} must equal torch's within {EQUAL:g}, got {error:.2g}; do "
                "not use this model, report it"
            )
