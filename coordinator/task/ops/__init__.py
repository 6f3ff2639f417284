"""Rules that translate ATen operations to ONNX, one module per kind of operation."""

from collections.abc import Mapping

from fairbed.coordinator.task.lowering import Handler
from fairbed.coordinator.task.ops import (
    convolution,
    elementwise,
    indexing,
    linear,
    normalization,
    pooling,
    recurrent,
    reduction,
    shape,
)

OPERATIONS: Mapping[str, Handler] = {
    **elementwise.OPERATIONS,
    **shape.OPERATIONS,
    **indexing.OPERATIONS,
    **reduction.OPERATIONS,
    **linear.OPERATIONS,
    **convolution.OPERATIONS,
    **pooling.OPERATIONS,
    **normalization.OPERATIONS,
    **recurrent.OPERATIONS,
}
