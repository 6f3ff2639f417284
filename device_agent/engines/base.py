"""The interface of training engines, and their errors.

EngineError            the engine is missing, or cannot run this task
└── EngineMismatch     the results of the engine differ from the expected results of the task
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.artifact import TaskSpec
from fairbed.wire.evaluation import Evaluation, Targets


class EngineError(Exception):
    """The engine is missing, or cannot run a task."""


class EngineMismatch(EngineError):
    """The results of the engine differ from the expected results of the task."""


Examples = NDArray[np.float32] | NDArray[np.int64]


class Engine(Protocol):
    """Computes losses and gradients of one task on flat vectors. Not thread-safe."""

    spec: TaskSpec

    def gradient(
        self, vector: NDArray[np.float32], x: Examples, y: Targets
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the mean loss of a mini-batch and its gradient, shape (n_params,).

        `vector` has shape (n_values,); its buffers, if any, are updated in place. The caller may
        change the returned array; the next call overwrites it.
        """
        ...

    def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
        """Return the evaluation of examples, in evaluation mode."""
        ...
