"""Linear maps along spatial axes: means over windows, and changes of the size of pictures."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.task.lowering import Lowering


def along_axes(lowering: Lowering, value: str, matrices: Sequence[NDArray[np.float32]]) -> str:
    """Return a value that is multiplied by a matrix along each spatial axis.

    Args:
        lowering: Receives the operations.
        value: Shape (B, C, ...), with one axis for each matrix.
        matrices: Shape (outputs, inputs) of each axis.
    """
    graph, rank = lowering.graph, len(matrices)
    for axis, matrix in enumerate(matrices):
        constant = graph.constant(matrix)
        if axis == rank - 1:
            turned = graph.constant(np.ascontiguousarray(matrix.T))
            value = graph.op("MatMul", value, turned)
        elif axis == rank - 2:
            value = graph.op("MatMul", constant, value)
        else:
            order = [*range(rank + 2)]
            order[2 + axis], order[-2] = order[-2], order[2 + axis]
            swapped = graph.op("Transpose", value, perm=order)
            value = graph.op("Transpose", graph.op("MatMul", constant, swapped), perm=order)
    return value
