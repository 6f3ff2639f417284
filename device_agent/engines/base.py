"""What every training engine can do."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wire.artifact import TaskSpec

Examples = NDArray[np.float32] | NDArray[np.int64]


class Engine(Protocol):
    """Computes losses and gradients of one task on flat vectors. Not thread-safe."""

    spec: TaskSpec

    def gradient(
        self, vector: NDArray[np.float32], x: Examples, y: NDArray[np.int64]
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the mean loss (nats) of a mini-batch and its gradient, shape (n_params,).

        `vector`, shape (n_values,), is read; its buffer part is updated in place if the model
        has buffers. The returned array is the caller's to change, until the next call reuses it.
        """
        ...

    def evaluate(
        self, vector: NDArray[np.float32], x: Examples, y: NDArray[np.int64]
    ) -> tuple[float, int]:
        """Return the summed loss (nats) and the number of correct answers, in eval mode."""
        ...
