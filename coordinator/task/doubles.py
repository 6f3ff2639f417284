"""Runs the graphs of an artifact in float64: what they compute without the rounding of float32.

The reference evaluator of onnx runs them. Convolutions and pools run in torch, and scatters in
numpy, because those of the evaluator are loops in Python, and take minutes for a network of images.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch.nn import functional

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


_MAXIMA = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


def _tensor(value: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.array(value, order="C"))


def _around(pads: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pads of all axes of a batch of maps."""
    rank = len(pads) // 2
    return [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]


class Conv(OpRun):
    """Convolution."""

    def _run(self, x: Any, w: Any, b: Any = None, **given: Any) -> Any:
        found = _CONVOLUTIONS[x.ndim - 2](
            _tensor(np.pad(x, _around(given["pads"]))),
            _tensor(w),
            None if b is None else _tensor(b),
            stride=given["strides"],
            dilation=given["dilations"],
            groups=given["group"] or 1,
        )
        return (found.numpy(),)


class ConvTranspose(OpRun):
    """Transposed convolution."""

    def _run(self, x: Any, w: Any, b: Any = None, **given: Any) -> Any:
        rank = x.ndim - 2
        strides, pads = given["strides"] or [1] * rank, given["pads"] or [0] * 2 * rank
        found = _TRANSPOSED[rank](
            _tensor(x),
            _tensor(w),
            None if b is None else _tensor(b),
            stride=strides,
            dilation=given["dilations"] or [1] * rank,
            groups=given["group"] or 1,
        )
        added = given["output_padding"] or [0] * rank
        for axis in range(rank):  # ONNX: cut the pads; torch refuses an output_padding >= stride
            size = found.shape[2 + axis] - pads[axis] - pads[rank + axis] + added[axis]
            extra = max(0, pads[axis] + size - found.shape[2 + axis])
            if extra:
                found = functional.pad(found, [0, 0] * (rank - 1 - axis) + [0, extra])
            found = found.narrow(2 + axis, pads[axis], size)
        return (found.contiguous().numpy(),)


class MaxPool(OpRun):
    """Maximum of windows, and where it is: of equal inputs the first, as in torch and onnxruntime.

    The evaluator's own takes another one.
    """

    def _run(self, x: Any, **given: Any) -> Any:
        rank, pads = x.ndim - 2, given["pads"] or [0] * (2 * (x.ndim - 2))
        places = np.arange(x.size, dtype=np.int64).reshape(x.shape)
        around = _around(pads)
        values = torch.from_numpy(np.pad(x, around, constant_values=-np.inf))
        padded = np.pad(places, around, constant_values=-1).reshape(*x.shape[:2], -1)
        pooled, at = _MAXIMA[rank](
            values,
            given["kernel_shape"],
            stride=given["strides"],
            dilation=given["dilations"] or 1,
            return_indices=True,
        )
        found = np.take_along_axis(padded, at.numpy().reshape(*x.shape[:2], -1), 2)
        return (pooled.numpy(), found.reshape(pooled.shape))[: len(self.onnx_node.output)]


def _along(axis: int, indices: Any) -> tuple[Any, ...]:
    """Return indices of all axes that differ from the own ones in one axis."""
    places = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices
    return tuple(places)


def _scatter(data: Any, places: tuple[Any, ...], updates: Any, reduction: Any) -> Any:
    found = np.array(data)
    if reduction == "add":
        np.add.at(found, places, updates)
    else:
        found[places] = updates
    return found


class GatherElements(OpRun):
    """Values at indices along an axis; the evaluator's own allows 64 of them."""

    def _run(self, data: Any, indices: Any, axis: Any = None) -> Any:
        return (data[_along(axis or 0, indices)],)


class ScatterElements(OpRun):
    """Values put, or added, at indices along an axis; the evaluator's own is a loop."""

    def _run(
        self, data: Any, indices: Any, updates: Any, axis: Any = None, reduction: Any = None
    ) -> Any:
        return (_scatter(data, _along(axis or 0, indices), updates, reduction),)


class ScatterND(OpRun):
    """Values put, or added, at rows of indices; the evaluator's own is a loop."""

    def _run(self, data: Any, indices: Any, updates: Any, reduction: Any = None) -> Any:
        places = tuple(np.moveaxis(indices, -1, 0))
        return (_scatter(data, places, updates, reduction),)


_OWN = [Conv, ConvTranspose, MaxPool, GatherElements, ScatterElements, ScatterND]


def in_doubles(graph: bytes) -> ReferenceEvaluator:
    """Return a graph whose numbers are float64, ready to run."""
    model = onnx.load_model_from_string(graph)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return ReferenceEvaluator(model, new_ops=_OWN)


def run_in_doubles(
    graph: ReferenceEvaluator, names: Sequence[str], feeds: Mapping[str, NDArray[Any]]
) -> list[NDArray[Any]]:
    """Return outputs of a graph of `in_doubles`; floats of the feeds become float64."""
    wide = {
        name: value.astype(np.float64) if value.dtype == np.float32 else value
        for name, value in feeds.items()
    }
    with np.errstate(over="ignore"):  # the divisor of the gradient of gelu may be infinite
        found: Any = graph.run(list(names), wide)
    return list(found)
