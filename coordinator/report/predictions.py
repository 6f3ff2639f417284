"""Predicted against measured exchange times: errors by round, phase and device.

An exchange counts if the estimator had predicted it and may learn from it; errors carry how many of
all exchanges that are. Its residual is
tau - tau_hat; its error is the residual relative to the measured time, with the sign of
`estimation.prequential`: positive if the prediction was too long.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.intervals import ConformalIntervals
from fairbed.coordinator.report.quantities import SampleCount
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.wire.messages import DEVICE_PHASES

LIMIT = 2_000
"""Number of newest exchanges that are read."""

RECENT_ROUNDS = 10
"""Rounds whose error is compared with that of as many rounds before."""

TIE_DIGITS = 6
"""Shares and errors equal up to this digit are equal: others depend on the processor."""

MEASURED_PHASES = (*DEVICE_PHASES, "upload")
"""Phases of an exchange time; the wait for an upload grant is no part of it."""

REST = "rest"
"""Part of an exchange time in no phase: control messages in transit, mostly."""
PREDICTION = "prediction"
"""Changes of the prediction itself."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Exchanges with predicted and measured times, oldest first; arrays of shape (M,).

    They are those of `every_round` exchanges, shape (N,), that count.
    """

    round: Ints
    device: tuple[str, ...]
    tau_s: Floats
    tau_hat_s: Floats
    low_s: Floats
    """Lower ends of their 80 % intervals (`ConformalIntervals`)."""
    high_s: Floats
    """Upper ends; infinity where too few errors were known."""
    phases_s: Mapping[str, Floats]
    """Time of each phase; their sum and `REST` are tau."""
    every_round: Ints
    """Rounds of all exchanges that were read, shape (N,)."""
    every_device: tuple[str, ...]
    """Their devices."""

    @property
    def error(self) -> Floats:
        """(tau_hat - tau) / tau, shape (M,)."""
        return (self.tau_hat_s - self.tau_s) / self.tau_s


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """Errors of some exchanges; None if too few of them count."""

    sample: SampleCount
    """Exchanges that count, of all."""
    median_ape: float | None
    """Median of |tau_hat - tau| / tau."""
    bias: float | None
    """Mean of (tau_hat - tau) / tau."""
    coverage: float | None
    """Share within their 80 % interval, of those with a bounded one."""
    width: float | None
    """Median of the width of the interval / tau_hat, of those with a bounded one."""
    bounded: SampleCount
    """Exchanges that count and have a bounded interval, of all."""


@dataclass(frozen=True, slots=True)
class PartOfResidual:
    """How one phase contributes to the residuals of devices around their own means."""

    name: str
    """A phase, `REST` or `PREDICTION`."""
    mean_s: float
    spread_s: float
    """Standard deviation around the mean of each device."""
    share: float | None
    """Covariance with the residual / variance of the residual; the parts add up to 1. None if the
    residuals do not vary."""


@dataclass(frozen=True, slots=True)
class DeviceError:
    """Errors of the exchanges of one device."""

    device: str
    errors: PredictionErrors
    tau_s: float
    """Newest measured time."""
    tau_hat_s: float
    """Its prediction."""


def read_predictions(reader: RunReader, until_round: int, limit: int = LIMIT) -> Predictions:
    """Return those of the newest exchanges up to a round that count.

    Args:
        reader: Reader of the run.
        until_round: The last round.
        limit: Largest number of exchanges, of those that count and of the others.
    """
    columns = [f"{phase}_s" for phase in MEASURED_PHASES]
    every = reader.columns(
        ExchangeRow,
        ("round", "device", "tau_s", "tau_hat_s", *columns, "outcome", "is_valid"),
        "WHERE round <= ? ORDER BY round DESC, attempt DESC, device DESC LIMIT ?",
        (until_round, limit),
    )[::-1]
    rows = [
        row[:-2]
        for row in every
        if row[-2] == "done" and row[-1] and (row[2] or 0.0) > 0.0 and (row[3] or 0.0) > 0.0
    ]
    numbers = np.array([[row[0], *row[2:]] for row in rows], dtype=np.float64)
    numbers = numbers.reshape(-1, 3 + len(columns))
    phases_s = np.nan_to_num(numbers[:, 3:])
    rounds, tau_s, tau_hat_s = numbers[:, 0].astype(np.int64), numbers[:, 1], numbers[:, 2]
    device = tuple(row[1] for row in rows)
    low_s, high_s = intervals_of(rounds, device, tau_s, tau_hat_s)
    return Predictions(
        round=rounds,
        device=device,
        tau_s=tau_s,
        tau_hat_s=tau_hat_s,
        low_s=low_s,
        high_s=high_s,
        phases_s={
            **dict(zip(MEASURED_PHASES, phases_s.T, strict=True)),
            REST: numbers[:, 1] - phases_s.sum(axis=1),
        },
        every_round=np.array([row[0] for row in every], dtype=np.int64),
        every_device=tuple(row[1] for row in every),
    )


def intervals_of(
    rounds: Ints, device: Sequence[str], tau_s: Floats, tau_hat_s: Floats
) -> tuple[Floats, Floats]:
    """Return the ends of the interval of each prediction, learned from earlier rounds.

    Args:
        rounds: Round of each exchange, ascending, shape (M,).
        device: Its device.
        tau_s: Its time, seconds, shape (M,).
        tau_hat_s: Its prediction, seconds, shape (M,).
    """
    names, rows = np.unique(np.array(device, dtype=str), return_inverse=True)
    low_s, high_s = np.zeros(len(rows)), np.full(len(rows), np.inf)
    intervals, predicted_s = ConformalIntervals(), np.zeros(len(names))
    starts = np.flatnonzero(np.diff(rounds, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(rows)]):
        at = slice(start, end)
        predicted_s[rows[at]] = tau_hat_s[at]
        ends = intervals.bounds(predicted_s)
        low_s[at], high_s[at] = (of_device[rows[at]] for of_device in ends)
        intervals.observe(rows[at], tau_hat_s[at], tau_s[at])
    return low_s, high_s


def errors_of(
    found: Predictions, mask: Bools | None = None, of: int | None = None
) -> PredictionErrors:
    """Return the errors of all exchanges, or of those in a mask.

    Args:
        found: The exchanges.
        mask: Those whose errors are wanted, shape (M,).
        of: Number of exchanges to which the mask applies, with those that do not count; None: all.
    """
    counted = np.ones(len(found.tau_s), dtype=np.bool_) if mask is None else mask
    total = len(found.every_round) if of is None else of
    error, tau_hat_s, tau_s = (x[counted] for x in (found.error, found.tau_hat_s, found.tau_s))
    low_s, high_s = found.low_s[counted], found.high_s[counted]
    is_bounded = np.isfinite(high_s)
    is_inside = ((low_s <= tau_s) & (tau_s <= high_s))[is_bounded]
    sample, bounded = SampleCount(len(error), total), SampleCount(len(is_inside), total)
    has_errors, has_intervals = not sample.why_none, not bounded.why_none
    return PredictionErrors(
        sample=sample,
        median_ape=float(np.median(np.abs(error))) if has_errors else None,
        bias=float(error.mean()) if has_errors else None,
        coverage=float(is_inside.mean()) if has_intervals else None,
        width=float(np.median(((high_s - low_s) / tau_hat_s)[is_bounded]))
        if has_intervals
        else None,
        bounded=bounded,
    )


def drift(found: Predictions) -> tuple[PredictionErrors, PredictionErrors]:
    """Return the errors of the newest rounds and of as many rounds before."""
    last = int(found.every_round.max()) if found.every_round.size else 0

    def within(rounds: Ints, ago: int) -> Bools:
        return np.asarray((rounds <= last - ago) & (rounds > last - ago - RECENT_ROUNDS))

    recent, before = (
        errors_of(found, within(found.round, ago), int(within(found.every_round, ago).sum()))
        for ago in (0, RECENT_ROUNDS)
    )
    return recent, before


def errors_by_round(found: Predictions) -> list[tuple[int, float, float]]:
    """Return round, median |error| and mean error of each round with exchanges."""
    rounds, group = np.unique(found.round, return_inverse=True)
    error = found.error
    return [
        (
            int(number),
            float(np.median(np.abs(error[group == at]))),
            float(error[group == at].mean()),
        )
        for at, number in enumerate(rounds)
    ]


def parts_of_residual(found: Predictions) -> list[PartOfResidual]:
    """Return how the phases contribute to the spread of the residuals, largest share first.

    Equal shares have the order of the phases.

    Residual and phases are taken around their means of each device, so that a constant error of a
    device, its bias, does not count. As tau is the sum of the phases, the covariances of phases,
    rest and (negative) prediction with the residual add up to its variance. Too few exchanges have
    no parts.
    """
    sample = SampleCount(len(found.device), len(found.every_round))
    if sample.why_none:
        return []
    _, group = np.unique(np.array(found.device), return_inverse=True)
    counts = np.bincount(group)

    def around_mean(values: Floats) -> Floats:
        around: Floats = values - (np.bincount(group, values) / counts)[group]
        return around

    residual = around_mean(found.tau_s - found.tau_hat_s)
    variance = float(residual @ residual)
    parts = []
    for name, values in {**found.phases_s, PREDICTION: -found.tau_hat_s}.items():
        around = around_mean(values)
        parts.append(
            PartOfResidual(
                name=name,
                mean_s=float(np.abs(values).mean()),
                spread_s=float(np.sqrt(np.mean(around**2))),
                share=float(around @ residual) / variance if variance > 0.0 else None,
            )
        )
    return sorted(parts, key=lambda part: -round(part.share or 0.0, TIE_DIGITS))


def errors_by_device(found: Predictions) -> list[DeviceError]:
    """Return the errors of each device, the largest median first, those with too few last."""
    names, group = np.unique(np.array(found.device, dtype=str), return_inverse=True)
    every = Counter(found.every_device)
    devices = []
    for at, name in enumerate(names.tolist()):
        mask: Bools = np.asarray(group == at)
        last = int(np.flatnonzero(mask)[-1])
        devices.append(
            DeviceError(
                device=name,
                errors=errors_of(found, mask, every[name]),
                tau_s=float(found.tau_s[last]),
                tau_hat_s=float(found.tau_hat_s[last]),
            )
        )
    return sorted(devices, key=_by_error)


def _by_error(device: DeviceError) -> tuple[float, str]:
    return -round(device.errors.median_ape or 0.0, TIE_DIGITS), device.device
