"""Predicted against measured exchange times: errors by round, phase and device.

An exchange counts if the estimator had predicted it and may learn from it. Its residual is
tau - tau_hat; its error is the residual relative to the measured time, with the sign of
`estimation.prequential`: positive if the prediction was too long.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.wire.messages import DEVICE_PHASES

LIMIT = 2_000
"""Number of newest exchanges that are read."""

RECENT_ROUNDS = 10
"""Rounds whose error is compared with that of as many rounds before."""

MEASURED_PHASES = (*DEVICE_PHASES, "upload")
"""Phases of an exchange time; the wait for an upload grant is no part of it."""

REST = "rest"
"""Part of an exchange time in no phase: control messages in transit, mostly."""
PREDICTION = "prediction"
"""Changes of the prediction itself."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Exchanges with predicted and measured times, oldest first; arrays of shape (M,)."""

    round: Ints
    device: tuple[str, ...]
    tau_s: Floats
    tau_hat_s: Floats
    width_s: Floats
    """Widths of the confidence intervals; NaN where the estimator states none."""
    phases_s: Mapping[str, Floats]
    """Time of each phase; their sum and `REST` are tau."""

    @property
    def error(self) -> Floats:
        """(tau_hat - tau) / tau, shape (M,)."""
        return (self.tau_hat_s - self.tau_s) / self.tau_s


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """Errors of some exchanges; None without exchanges."""

    count: int
    median_ape: float | None
    """Median of |tau_hat - tau| / tau."""
    bias: float | None
    """Mean of (tau_hat - tau) / tau."""
    coverage: float | None
    """Share with |tau_hat - tau| <= alpha width; None if no width is known."""
    width: float | None
    """Median of alpha width / tau_hat; None if no width is known."""


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
    """Return the newest exchanges up to a round.

    Args:
        reader: Reader of the run.
        until_round: The last round.
        limit: Largest number of exchanges.
    """
    columns = [f"{phase}_s" for phase in MEASURED_PHASES]
    rows = reader.columns(
        ExchangeRow,
        ("round", "device", "tau_s", "tau_hat_s", "width_s", *columns),
        "WHERE round <= ? AND outcome = 'done' AND is_valid AND tau_s > 0 AND tau_hat_s > 0 "
        "ORDER BY round DESC, attempt DESC, device DESC LIMIT ?",
        (until_round, limit),
    )[::-1]
    numbers = np.array([[row[0], *row[2:]] for row in rows], dtype=np.float64)
    numbers = numbers.reshape(-1, 4 + len(columns))
    phases_s = np.nan_to_num(numbers[:, 4:])
    return Predictions(
        round=numbers[:, 0].astype(np.int64),
        device=tuple(row[1] for row in rows),
        tau_s=numbers[:, 1],
        tau_hat_s=numbers[:, 2],
        width_s=numbers[:, 3],
        phases_s={
            **dict(zip(MEASURED_PHASES, phases_s.T, strict=True)),
            REST: numbers[:, 1] - phases_s.sum(axis=1),
        },
    )


def errors_of(found: Predictions, alpha: float, mask: Bools | None = None) -> PredictionErrors:
    """Return the errors of all exchanges, or of those in a mask of shape (M,).

    Args:
        found: The exchanges.
        alpha: Half of a confidence interval, in widths.
        mask: The exchanges that count.
    """
    counted = np.ones(len(found.tau_s), dtype=np.bool_) if mask is None else mask
    error, tau_hat_s, tau_s = (x[counted] for x in (found.error, found.tau_hat_s, found.tau_s))
    if not error.size:
        return PredictionErrors(0, None, None, None, None)
    half_s = alpha * found.width_s[counted]
    is_known: Bools = np.asarray(half_s > 0.0)
    inside = np.abs(tau_hat_s - tau_s)[is_known] <= half_s[is_known]
    return PredictionErrors(
        count=int(error.size),
        median_ape=float(np.median(np.abs(error))),
        bias=float(error.mean()),
        coverage=float(inside.mean()) if inside.size else None,
        width=float(np.median((half_s / tau_hat_s)[is_known])) if inside.size else None,
    )


def drift(found: Predictions, alpha: float) -> tuple[PredictionErrors, PredictionErrors]:
    """Return the errors of the newest rounds and of as many rounds before."""
    last = int(found.round.max()) if found.round.size else 0
    recent: Bools = np.asarray(found.round > last - RECENT_ROUNDS)
    before: Bools = np.asarray(~recent & (found.round > last - 2 * RECENT_ROUNDS))
    return errors_of(found, alpha, recent), errors_of(found, alpha, before)


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

    Residual and phases are taken around their means of each device, so that a constant error of a
    device, its bias, does not count. As tau is the sum of the phases, the covariances of phases,
    rest and (negative) prediction with the residual add up to its variance.
    """
    if not found.device:
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
    return sorted(parts, key=lambda part: -(part.share or 0.0))


def errors_by_device(found: Predictions, alpha: float) -> list[DeviceError]:
    """Return the errors of each device, the largest median first."""
    names, group = np.unique(np.array(found.device, dtype=str), return_inverse=True)
    devices = []
    for at, name in enumerate(names.tolist()):
        mask: Bools = np.asarray(group == at)
        last = int(np.flatnonzero(mask)[-1])
        devices.append(
            DeviceError(
                device=name,
                errors=errors_of(found, alpha, mask),
                tau_s=float(found.tau_s[last]),
                tau_hat_s=float(found.tau_hat_s[last]),
            )
        )
    return sorted(devices, key=_by_error)


def _by_error(device: DeviceError) -> tuple[float, str]:
    return -(device.errors.median_ape or 0.0), device.device
