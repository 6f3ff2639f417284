"""The self-check of a task: seeded inputs, and the comparison with the expected results.

The coordinator stores the expected results in the artifact (`wire.artifact.SelfCheck`). A device
runs the same inputs through its own engine before it trains.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from fairbed.wire.artifact import TaskSpec
from fairbed.wire.errors import WireError
from fairbed.wire.evaluation import Targets

Examples: TypeAlias = NDArray[np.float32] | NDArray[np.int64]
GradientFunction: TypeAlias = Callable[
    [NDArray[np.float32], Examples, Targets], tuple[float, NDArray[np.float32]]
]
"""Maps (vector, x, y) to the mean loss and its gradient, shape (n_params,)."""

LOSS_TOLERANCE = 1e-4
"""Relative; float32 engines stay below 1e-6, a wrong kernel deviates by percents."""

GRADIENT_TOLERANCE = 1e-3
"""Relative; a near-tie in a max-pool window may change a gradient by up to 1e-3."""

VECTOR_WIDTH = 0.35
"""Of the interval around 0 of the vector's values, so that their standard deviation is 0.1. Uniform
values take a fifth of the time of normal ones, in each agent at its start."""
UNLABELLED = 0.25
"""Share of the positions without a label, where an example has several."""
BUFFER_FLOOR = 0.5
"""Buffers may be variances, which must be well above 0."""


class SelfCheckFailed(WireError):
    """The results of an engine differ from the expected results."""


def selfcheck_inputs(
    spec: TaskSpec, seed: int, batch: int
) -> tuple[NDArray[np.float32], Examples, Targets]:
    """Draw the inputs of a self-check, as `wire.artifact.SelfCheck` defines them.

    Returns:
        vector, shape (n_values,), x, shape (batch, *x_shape), and y, shape (batch, *y_shape).
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    n_params = spec.layout.n_params
    vector = rng.random(spec.layout.n_values, dtype=np.float32)
    vector -= np.float32(0.5)
    vector *= np.float32(VECTOR_WIDTH)
    vector[n_params:] = np.abs(vector[n_params:]) + np.float32(BUFFER_FLOOR)
    x: Examples
    shape, within = (batch, *spec.x_shape), spec.selfcheck.x
    if spec.x_dtype == "int64":
        x = rng.integers(0, spec.x_classes, shape, dtype=np.int64)
        first = x.reshape(batch, -1)[:, :1]
        np.maximum(first, min(1, spec.x_classes - 1), out=first)
    elif within is UNSET:
        x = rng.standard_normal(shape).astype(np.float32)
    elif within.is_whole:
        x = rng.integers(int(within.low), int(within.high) + 1, shape).astype(np.float32)
    else:
        x = rng.uniform(within.low, within.high, shape).astype(np.float32)
    y: Targets
    targets = (batch, *spec.y_shape)
    values = spec.selfcheck.y
    if values is not UNSET:
        drawn = np.array(values)[rng.integers(0, len(values), targets)]
        y = drawn.astype(np.float32) if spec.kind == "regression" else drawn.astype(np.int64)
    elif spec.kind == "regression":
        y = rng.standard_normal(targets).astype(np.float32)
    else:
        classes = 2 if spec.kind == "multi-label" else spec.classes
        y = rng.integers(0, classes, targets, dtype=np.int64)
    if spec.y_shape and spec.kind != "regression":
        is_left_out = rng.random(targets) < UNLABELLED
        is_left_out.reshape(batch, -1)[:, 0] = False
        y[is_left_out] = -1
    return vector, x, y


def run_selfcheck(spec: TaskSpec, gradient: GradientFunction) -> None:
    """Compare the results of an engine with the expected results of the task.

    Raises:
        SelfCheckFailed: The loss or the norm of the gradient differs.
    """
    for name, got, expected, tolerance in _compared(spec, gradient):
        if not abs(got - expected) <= tolerance * abs(expected):
            raise SelfCheckFailed(
                f"{spec.name}: self-check {name} must be {expected:.6g} within {tolerance:g}, "
                f"got {got:.6g}; this engine computes wrong results, install another version"
            )


def deviation(spec: TaskSpec, gradient: GradientFunction) -> float:
    """Return the largest error of an engine in the self-check, in tolerances; 1 is the limit."""
    errors = [
        abs(got - expected) / (tolerance * abs(expected)) if expected else float(got != expected)
        for _, got, expected, tolerance in _compared(spec, gradient)
    ]
    return float(max(errors)) if np.isfinite(errors).all() else float("inf")


def _compared(spec: TaskSpec, gradient: GradientFunction) -> list[tuple[str, float, float, float]]:
    """Return name, result, expected result and relative tolerance of each number."""
    check = spec.selfcheck
    vector, x, y = selfcheck_inputs(spec, check.seed, check.batch)
    loss, values = gradient(vector, x, y)
    norm = float(np.sqrt(np.einsum("i,i", values, values, dtype=np.float64)))
    return [
        ("loss", loss, check.loss, LOSS_TOLERANCE),
        ("gradient norm", norm, check.gradient_l2, GRADIENT_TOLERANCE),
    ]
