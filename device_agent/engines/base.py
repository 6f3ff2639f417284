"""What every training engine can do.

Errors of the engines.

EngineError            the engine cannot run this task
└── EngineMismatch     it runs, and computes something else than the task says
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.artifact import TaskSpec


class EngineError(Exception):
    """The engine is missing, or cannot run a task."""


class EngineMismatch(EngineError):
    """The engine's results differ from what the task says a right engine computes."""


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
