"""Range, scale and resolution of the kinds of numbers that runs are compared by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct


class RunSize(Struct, frozen=True, kw_only=True):
    """How much of each event a run has: the counts that limit the resolution of its measures."""

    rounds: int
    """Closed rounds, at least 1."""
    devices: int
    """Devices, at least 1."""
    selections: int
    """Selections over all rounds and devices, at least 1."""
    test_examples: int | None
    """Held-out examples of all devices in the last evaluation; None if unknown."""


Scale: TypeAlias = Literal["linear", "log"]
Resolution: TypeAlias = Callable[[RunSize, float], float]
"""Smallest change of a measure that can be observed in a run of this size, near this value."""

CLOCK_S = 1e-3
"""Resolution of times, seconds: timers of an event loop wait for whole milliseconds."""
ENERGY_RESOLUTION_J = 0.01
"""`CLOCK_S` at 10 W, a board at work."""
RATIO_RESOLUTION = 1e-3
"""Of the error of predictions, which is a ratio of two times."""
LEAST_EXAMPLES = 100
"""Assumed for a run whose number of test examples is unknown."""


@dataclass(frozen=True, slots=True)
class MetricKind:
    """The kind of number that a measure is."""

    lowest: float | None
    """Smallest possible value; None without a bound, likewise `highest`."""
    highest: float | None
    scale: Scale
    """`log`: positive, and compared by ratios."""
    resolution: Resolution


def _examples(size: RunSize) -> int:
    return size.test_examples or LEAST_EXAMPLES


def _one_example(size: RunSize, value: float) -> float:
    return 1.0 / _examples(size)


def _one_example_of_the_worst(size: RunSize, value: float) -> float:
    worst = max(1, size.devices // 10)
    return size.devices / (worst * _examples(size))


def _one_example_of_one_device(size: RunSize, value: float) -> float:
    return size.devices / _examples(size)


def _variance_of_one_example(size: RunSize, value: float) -> float:
    """Return 2 s / n + 1 / n^2: how one of n examples changes the variance s^2 over devices."""
    n = _examples(size)
    return float(2.0 * np.sqrt(max(value, 0.0)) / n + 1.0 / n**2)


def _share_of_one_example(size: RunSize, value: float) -> float:
    return abs(value) / _examples(size)


TIME = MetricKind(0.0, None, "log", lambda size, value: CLOCK_S)
ENERGY_SUM = MetricKind(0.0, None, "log", lambda size, value: ENERGY_RESOLUTION_J)
RATE = MetricKind(0.0, 1.0, "linear", lambda size, value: 1.0 / size.rounds)
QUEUE = MetricKind(0.0, None, "linear", lambda size, value: 1.0 / size.rounds)
SELECTIONS = MetricKind(0.0, 1.0, "linear", lambda size, value: 1.0 / size.selections)
PREDICTION_ERROR = MetricKind(0.0, None, "linear", lambda size, value: RATIO_RESOLUTION)
SHARE = MetricKind(0.0, 1.0, "linear", _one_example)
WORST_SHARE = MetricKind(0.0, 1.0, "linear", _one_example_of_the_worst)
DEVICE_SHARE = MetricKind(0.0, 1.0, "linear", _one_example_of_one_device)
VARIANCE = MetricKind(0.0, None, "log", _variance_of_one_example)
ERROR = MetricKind(0.0, None, "linear", _share_of_one_example)
R_SQUARED = MetricKind(None, 1.0, "linear", _one_example)
LOG_UTILITY = MetricKind(None, None, "linear", _one_example_of_one_device)
PRODUCT = MetricKind(0.0, None, "log", _share_of_one_example)
COUNT = MetricKind(0.0, None, "linear", lambda size, value: 1.0)
NOISE_RATIO = MetricKind(0.0, None, "linear", lambda size, value: RATIO_RESOLUTION)
ANY_METRIC = MetricKind(None, None, "linear", _share_of_one_example)
NATS = MetricKind(0.0, None, "linear", lambda size, value: RATIO_RESOLUTION)
