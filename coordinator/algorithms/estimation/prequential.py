"""Prequential errors of estimators: each predicts an exchange before it learns from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, Learner, Measured
from fairbed.coordinator.algorithms.estimation.intervals import ConformalIntervals

SEEN: tuple[int, ...] = (1, 2, 5, 10, 20)
"""Lower ends of the ranges by which errors are grouped: number of known exchanges of the device."""


@dataclass(frozen=True, slots=True)
class AllDevices:
    """Context and true exchange time of every device at the selection of one round."""

    context: Floats
    """Shape (N, 4)."""
    true_tau_s: Floats | None
    """True expected exchange times, seconds, shape (N,), NaN where unknown; None if all are."""


@dataclass(frozen=True, slots=True)
class EstimatorTrial:
    """The exchanges of one round from which estimators may learn."""

    rows: Ints
    """Devices, shape (K,)."""
    context: Floats
    """Contexts before the selection, shape (K, 4)."""
    measured: Measured
    counts: bool = True
    """Its errors are counted; otherwise the estimators only learn from it."""
    is_audit: Bools | None = None
    """The audit drew the device, shape (K,); None if the round has no audit."""
    all_devices: AllDevices | None = None
    """None if it was not stored."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predictions for devices with at least one earlier exchange."""

    count: int
    mape: float | None
    """Mean of |tau_hat - tau| / tau."""
    median_ape: float | None
    p95_ape: float | None
    bias: float | None
    """Mean of (tau_hat - tau) / tau; positive if predictions are too long."""
    coverage: float | None
    """Share of exchanges within their interval (`ConformalIntervals`), which states 80 %; None if
    none was bounded."""
    interval: float | None
    """Median of the upper end over the lower end of these intervals."""
    median_ape_from: dict[str, float]
    """Median by number of known exchanges of the device; the key is the lower end of a range."""
    count_from: dict[str, int]
    """Number of errors behind each of these medians."""
    bounded: int = 0
    """Exchanges with a bounded interval."""
    of: int | None = None
    """All exchanges of the rounds, with those that are untimed, failed or were late; None: not
    counted."""
    audit: "Errors | None" = None
    """Errors on the audit sample; None without one."""
    all_devices: "Errors | None" = None
    """Errors on all devices in all rounds, against the true expected exchange time; None if that
    is unknown."""


def prequential(
    learners: Mapping[str, Learner], trials: Sequence[EstimatorTrial]
) -> dict[str, Errors]:
    """Return the errors by name of untrained learners, each run over all trials in order.

    If true expected times are known, `noise floor` is the error of predicting them.
    """
    n = _devices(trials)
    found = {}
    for name, learner in learners.items():
        measured, expected = _run(learner, trials, n)
        found[name] = _all_errors(measured, expected)
    floor = _floor(trials, n)
    if floor is not None:
        found[NOISE_FLOOR] = _all_errors(floor, None)
    return found


def predictions(learner: Learner, trials: Sequence[EstimatorTrial]) -> "Predicted":
    """Return what an untrained learner predicts of the exchanges of one fleet, in their order."""
    return _run(learner, trials, _devices(trials))[0]


def pooled_errors(fleets: Sequence["Predicted"]) -> Errors:
    """Return the errors on the exchanges of several fleets, each predicted on its own."""
    return _errors(Predicted.of(fleets))


def _devices(trials: Sequence[EstimatorTrial]) -> int:
    return max((int(trial.rows.max()) + 1 for trial in trials if trial.rows.size), default=0)


NOISE_FLOOR = "noise floor"
"""Name of a predictor that knows the true parameters: its error is a lower bound."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted and true exchange times; each of shape (M,)."""

    tau_hat_s: Floats
    low_s: Floats
    """Lower end of the interval; NaN if it states none."""
    high_s: Floats
    tau_s: Floats
    known: Ints
    """Earlier exchanges of the device."""
    counts: Bools
    """The error is counted."""
    is_audit: Bools

    @classmethod
    def of(cls, parts: "Sequence[Predicted]") -> "Predicted":
        """Return the concatenation of `parts`."""
        nothing = np.zeros(0)
        return cls(
            tau_hat_s=np.concatenate([nothing, *(part.tau_hat_s for part in parts)]),
            low_s=np.concatenate([nothing, *(part.low_s for part in parts)]),
            high_s=np.concatenate([nothing, *(part.high_s for part in parts)]),
            tau_s=np.concatenate([nothing, *(part.tau_s for part in parts)]),
            known=np.concatenate([nothing.astype(np.int64), *(part.known for part in parts)]),
            counts=np.concatenate([nothing.astype(np.bool_), *(part.counts for part in parts)]),
            is_audit=np.concatenate([nothing.astype(np.bool_), *(part.is_audit for part in parts)]),
        )

    def where(self, mask: Bools) -> "Predicted":
        """Return the entries selected by `mask`."""
        return Predicted(
            tau_hat_s=self.tau_hat_s[mask],
            low_s=self.low_s[mask],
            high_s=self.high_s[mask],
            tau_s=self.tau_s[mask],
            known=self.known[mask],
            counts=self.counts[mask],
            is_audit=self.is_audit[mask],
        )


def _run(
    learner: Learner, trials: Sequence[EstimatorTrial], n: int
) -> tuple[Predicted, Predicted | None]:
    """Return the exchanges in order, and all devices of the rounds with known true times."""
    seen: Ints = np.zeros(n, dtype=np.int64)
    measured, expected = list[Predicted](), list[Predicted]()
    intervals = ConformalIntervals()
    for trial in trials:
        all_devices, rows = trial.all_devices, trial.rows
        context = np.zeros((n, CONTEXT))
        if all_devices is not None:
            size = max(n, len(all_devices.context))
            context, seen = np.zeros((size, CONTEXT)), grown(seen, size)
            context[: len(all_devices.context)] = all_devices.context
        context[rows] = trial.context
        predicted = learner.predict(context)
        tau_hat_s, tau_s = predicted.tau_hat_s, trial.measured.tau_s
        bounds_s = intervals.bounds(tau_hat_s)
        measured.append(_of(tau_hat_s, rows, tau_s, seen, trial, bounds_s))
        intervals.observe(rows, tau_hat_s[rows], tau_s)
        if all_devices is not None and all_devices.true_tau_s is not None:
            every_row = np.arange(len(all_devices.true_tau_s))
            without_audit = replace(trial, is_audit=None)
            truth_s = all_devices.true_tau_s
            expected.append(_of(tau_hat_s, every_row, truth_s, seen, without_audit))
        learner.observe(rows, trial.context, trial.measured)
        seen = seen.copy()
        np.add.at(seen, rows, 1)
    return Predicted.of(measured), Predicted.of(expected) if expected else None


def _of(
    tau_hat_s: Floats,
    rows: Ints,
    tau_s: Floats,
    seen: Ints,
    trial: EstimatorTrial,
    bounds_s: tuple[Floats, Floats] | None = None,
) -> Predicted:
    none = np.zeros(len(rows), dtype=np.bool_)
    unknown = np.full(len(rows), np.nan)
    low_s, high_s = (unknown, unknown) if bounds_s is None else (end[rows] for end in bounds_s)
    return Predicted(
        tau_hat_s=tau_hat_s[rows],
        low_s=low_s,
        high_s=high_s,
        tau_s=tau_s,
        known=seen[rows],
        counts=none | trial.counts,
        is_audit=none if trial.is_audit is None else trial.is_audit,
    )


def _floor(trials: Sequence[EstimatorTrial], n: int) -> Predicted | None:
    """Return the exchanges predicted by their true expected times; None if all are unknown."""
    seen: Ints = np.zeros(n, dtype=np.int64)
    parts = list[Predicted]()
    for trial in trials:
        all_devices = trial.all_devices
        if all_devices is not None and all_devices.true_tau_s is not None:
            true_s = all_devices.true_tau_s
            parts.append(_of(true_s, trial.rows, trial.measured.tau_s, seen, trial))
        np.add.at(seen, trial.rows, 1)
    return Predicted.of(parts) if parts else None


def _all_errors(measured: Predicted, expected: Predicted | None) -> Errors:
    """Return the errors on exchanges, on the audit sample, and on all devices."""
    is_audit = measured.is_audit
    return replace(
        _errors(measured),
        audit=_errors(measured.where(is_audit)) if is_audit.any() else None,
        all_devices=None if expected is None else _errors(expected),
    )


def _errors(predicted: Predicted) -> Errors:
    is_number = np.isfinite(predicted.tau_s) & np.isfinite(predicted.tau_hat_s)
    counted: Bools = predicted.counts & (predicted.known >= SEEN[0]) & (predicted.tau_s > 0.0)
    counted &= is_number
    tau_hat_s, tau_s, known = (
        column[counted] for column in (predicted.tau_hat_s, predicted.tau_s, predicted.known)
    )
    if not tau_s.size:
        return Errors(0, None, None, None, None, None, None, {}, {})
    relative: Floats = (tau_hat_s - tau_s) / tau_s
    ape: Floats = np.abs(relative)
    group = np.searchsorted(SEEN, known, side="right") - 1
    medians = {
        str(first): float(np.median(ape[group == index]))
        for index, first in enumerate(SEEN)
        if (group == index).any()
    }
    sizes = np.bincount(group, minlength=len(SEEN)).tolist()
    low_s, high_s = predicted.low_s[counted], predicted.high_s[counted]
    is_bounded: Bools = np.isfinite(low_s) & np.isfinite(high_s)
    low_s, high_s, bounded_s = low_s[is_bounded], high_s[is_bounded], tau_s[is_bounded]
    is_inside = (low_s <= bounded_s) & (bounded_s <= high_s)
    return Errors(
        count=int(tau_s.size),
        mape=float(ape.mean()),
        median_ape=float(np.median(ape)),
        p95_ape=float(np.percentile(ape, 95)),
        bias=float(relative.mean()),
        coverage=float(is_inside.mean()) if is_inside.size else None,
        interval=float(np.median(high_s / low_s)) if is_inside.size else None,
        median_ape_from=medians,
        count_from={str(first): n for first, n in zip(SEEN, sizes, strict=True) if n},
        bounded=int(is_inside.size),
    )
