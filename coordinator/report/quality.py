"""How good a model is by its task: the accuracy of classes, or the error of regression."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.fairness import (
    ErrorSummary,
    FairnessSummary,
    summarise,
    summarise_errors,
)
from fairbed.coordinator.algorithms.sampling_noise import SamplingNoise, sampling_noise
from fairbed.coordinator.store.tables import DeviceMetricRow, MetricRow, PersonalScoreRow

ScoreRow: TypeAlias = DeviceMetricRow | PersonalScoreRow
"""The score of a model on the held-out examples of one device."""


class Spread(NamedTuple):
    """Accuracy over devices, or for regression the root mean squared error; None: not known."""

    mean: float | None
    worst10: float | None
    """Mean over the tenth of the devices with the lowest accuracy, or the largest error."""
    best10: float | None
    gap: float | None
    """Between the best and the worst device."""


NO_SPREAD = Spread(None, None, None, None)


def measure(task: str) -> str:
    """Return the name of what a spread measures: accuracy, or RMSE for regression."""
    return "RMSE" if task == "regression" else "accuracy"


def spread_of(row: MetricRow | None) -> Spread:
    """Return the spread of an evaluation; nothing is known of None."""
    if row is None:
        return NO_SPREAD
    if row.accuracy_mean is None:
        return Spread(row.rmse_mean, row.rmse_worst10, row.rmse_best10, row.rmse_gap)
    return Spread(row.accuracy_mean, row.accuracy_worst10, row.accuracy_best10, row.accuracy_gap)


def worst_tenth(row: MetricRow | None, chosen: str) -> tuple[str, float | None]:
    """Return the worst tenth of the devices in an evaluation: the metric by name, and its value.

    Args:
        row: The evaluation; None without one.
        chosen: `evaluation.worst`; the name is empty if that is the measure of the task.
    """
    if row is None or row.metric_worst10 is None:
        return "", spread_of(row).worst10
    return chosen, row.metric_worst10


def quality_of(row: ScoreRow) -> float | None:
    """Return accuracy or error of one device."""
    return row.rmse if row.accuracy is None else row.accuracy


def accuracies_of(rows: Sequence[ScoreRow]) -> FairnessSummary | None:
    """Return the accuracies over devices; None without any, as in regression."""
    if not rows or any(row.accuracy is None for row in rows):
        return None
    n, losses = counts_of(rows), losses_of(rows)
    accuracy = np.array([row.accuracy for row in rows], dtype=np.float64)
    return summarise(n, np.rint(accuracy * n).astype(np.int64), losses * n)


def errors_of(rows: Sequence[ScoreRow]) -> ErrorSummary | None:
    """Return the errors over devices; None unless the task is regression."""
    if not rows or any(row.accuracy is not None for row in rows):
        return None
    n = counts_of(rows)
    return summarise_errors(n, losses_of(rows) * n)


def counts_of(rows: Sequence[ScoreRow]) -> Ints:
    """Return over how many examples, or positions, the numbers of each device are."""
    counts = [row.n if row.positions is None else row.positions for row in rows]
    return np.array(counts, dtype=np.int64)


def losses_of(rows: Sequence[ScoreRow]) -> Floats:
    """Return the loss of each device, infinite where the model has diverged."""
    losses = [np.inf if row.loss is None else row.loss for row in rows]
    return np.array(losses, dtype=np.float64)


def counted_tests(
    rows: Iterable[ScoreRow],
) -> Iterator[tuple[int, float | None]]:
    """Yield test examples and accuracy of each device, for `noise_of`.

    None for the accuracy of positions: those of one example are not independent.
    """
    return ((row.n, row.accuracy if row.positions is None else None) for row in rows)


def noise_of(tests: Iterable[tuple[int, float | None]]) -> SamplingNoise | None:
    """Return the sampling noise of the accuracies over devices.

    None for fewer than two devices, for regression, whose errors have no binomial part, and for
    several positions per example.

    Args:
        tests: Of `counted_tests`.
    """
    counted = []
    for n, accuracy in tests:
        if accuracy is None:
            return None
        counted.append((n, round(accuracy * n)))
    return _noise_of(tuple(counted))


@lru_cache(maxsize=32)
def _noise_of(counted: tuple[tuple[int, int], ...]) -> SamplingNoise | None:
    """Return the noise of pairs of examples and correct ones; screens ask for it at each tick."""
    n, correct = np.array(counted, dtype=np.int64).reshape(-1, 2).T
    return sampling_noise(n, correct)


def noise_mark(share: float | None) -> str:
    """Return the share of noise of a number as text to append: ` (noise 96 %)`."""
    return "" if share is None else f" (noise {whole_percent(share)})"


def whole_percent(share: float) -> str:
    """Return a share in whole percent: `96 %`."""
    return f"{100.0 * share:.0f} %"


def examples_text(noise: SamplingNoise) -> str:
    """Return the test examples of the devices: `8 to 44 test examples per device, median 23`."""
    if noise.examples_min == noise.examples_max:
        return f"{noise.examples_max} test examples per device"
    return (
        f"{noise.examples_min} to {noise.examples_max} test examples per device, median "
        f"{noise.examples_median:g}"
    )


def noise_warning(noises: Mapping[str, SamplingNoise | None]) -> list[str]:
    """Return a line if over half of a number over devices is noise, with what to do; else nothing.

    Args:
        noises: Noise by whose it is: nothing for the global model, `of the personal models`, ...
    """
    known = {of: noise for of, noise in noises.items() if noise is not None and noise.mostly_noise}
    if not known:
        return []
    parts = [
        f"{of} {', '.join(f'{name} {whole_percent(x)}' for name, x in noise.mostly_noise.items())}"
        for of, noise in known.items()
    ]
    named = "; ".join(part.strip() for part in parts)
    return [
        f"mostly noise of the test sets: {named}; read the corrected numbers, or {MORE_EXAMPLES}"
    ]


MORE_EXAMPLES = "give devices more test examples (data.test_fraction, fewer devices, more data)"
"""What to do about noise."""
