"""How good are estimators? Each predicts an exchange before it learns from it (prequential)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, Learner, Measured, Prediction

SEEN: tuple[int, ...] = (1, 2, 5, 10, 20)
"""Errors are told apart by how many exchanges of the device were known: from each of these on."""


@dataclass(frozen=True, slots=True)
class AllDevices:
    """What was known of every device at the selection of one round."""

    context: Floats
    """Shape (N, 4)."""
    true_tau_s: Floats | None
    """The true expected exchange times, seconds, shape (N,), NaN where nobody knows; or None."""


@dataclass(frozen=True, slots=True)
class EstimatorTrial:
    """The exchanges of one round that may teach."""

    rows: Ints
    """Devices, shape (K,)."""
    context: Floats
    """Known before selection, shape (K, 4)."""
    measured: Measured
    counts: bool = True
    """Its errors are told; otherwise it only teaches."""
    is_audit: Bools | None = None
    """Drawn by chance, shape (K,); None is none of them."""
    everybody: AllDevices | None = None
    """None where it was not kept."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predictions for devices that had been measured before."""

    count: int
    mape: float | None
    """Mean of |tau_hat - tau| / tau."""
    median_ape: float | None
    p95_ape: float | None
    bias: float | None
    """Mean of (tau_hat - tau) / tau; positive means too pessimistic."""
    coverage: float | None
    """Share of exchanges within alpha times the width; None where there is no width."""
    median_ape_from: dict[str, float]
    """Median by the number of known exchanges of the device, each range by its first number."""
    audit: "Errors | None" = None
    """The same over the audit sample only; None without one."""
    everybody: "Errors | None" = None
    """The same over all devices in all rounds, against the known expectation of the exchange time;
    None where nobody knows it."""


def prequential(
    learners: Mapping[str, Learner], trials: Sequence[EstimatorTrial], alpha: float
) -> dict[str, Errors]:
    """Return the errors of learners that know nothing yet, each fed all trials in order.

    Where true expected times are known, `noise floor` is the error of who predicts them.

    Args:
        learners: By name.
        trials: Rounds in order.
        alpha: Half of a confidence interval, in widths.
    """
    n = max((int(trial.rows.max()) + 1 for trial in trials if trial.rows.size), default=0)
    found = {}
    for name, learner in learners.items():
        played, told = _play(learner, trials, n)
        found[name] = _all_errors(played, told, alpha)
    floor = _floor(trials, n)
    if floor is not None:
        found[NOISE_FLOOR] = _all_errors(floor, None, alpha)
    return found


NOISE_FLOOR = "noise floor"
"""Who knows the true parameters: the least error that anybody can hope for."""


@dataclass(frozen=True, slots=True)
class _Played:
    """Predictions beside what came true; each of shape (M,)."""

    tau_hat_s: Floats
    width_s: Floats
    tau_s: Floats
    known: Ints
    """Exchanges of the device that had been measured before."""
    counts: Bools
    """Its error is told."""
    is_audit: Bools

    @classmethod
    def of(cls, parts: "Sequence[_Played]") -> "_Played":
        """Return them all, one after the other."""
        nothing = np.zeros(0)
        return cls(
            tau_hat_s=np.concatenate([nothing, *(part.tau_hat_s for part in parts)]),
            width_s=np.concatenate([nothing, *(part.width_s for part in parts)]),
            tau_s=np.concatenate([nothing, *(part.tau_s for part in parts)]),
            known=np.concatenate([nothing.astype(np.int64), *(part.known for part in parts)]),
            counts=np.concatenate([nothing.astype(np.bool_), *(part.counts for part in parts)]),
            is_audit=np.concatenate([nothing.astype(np.bool_), *(part.is_audit for part in parts)]),
        )

    def where(self, mask: Bools) -> "_Played":
        """Return some of them."""
        return _Played(
            tau_hat_s=self.tau_hat_s[mask],
            width_s=self.width_s[mask],
            tau_s=self.tau_s[mask],
            known=self.known[mask],
            counts=self.counts[mask],
            is_audit=self.is_audit[mask],
        )


def _play(
    learner: Learner, trials: Sequence[EstimatorTrial], n: int
) -> tuple[_Played, _Played | None]:
    """Return the exchanges in order, and every device in every round where the truth is known."""
    seen: Ints = np.zeros(n, dtype=np.int64)
    measured, expected = list[_Played](), list[_Played]()
    for trial in trials:
        everybody, rows = trial.everybody, trial.rows
        context = np.zeros((n, CONTEXT))
        if everybody is not None:
            size = max(n, len(everybody.context))
            context, seen = np.zeros((size, CONTEXT)), grown(seen, size)
            context[: len(everybody.context)] = everybody.context
        context[rows] = trial.context
        said = learner.predict(context)
        measured.append(_of(said, rows, trial.measured.tau_s, seen, trial))
        if everybody is not None and everybody.true_tau_s is not None:
            there = np.arange(len(everybody.true_tau_s))
            all_of_them = replace(trial, is_audit=None)
            expected.append(_of(said, there, everybody.true_tau_s, seen, all_of_them))
        learner.observe(rows, trial.context, trial.measured)
        seen = seen.copy()
        np.add.at(seen, rows, 1)
    return _Played.of(measured), _Played.of(expected) if expected else None


def _of(said: Prediction, rows: Ints, tau_s: Floats, seen: Ints, trial: EstimatorTrial) -> _Played:
    none = np.zeros(len(rows), dtype=np.bool_)
    return _Played(
        tau_hat_s=said.tau_hat_s[rows],
        width_s=said.width_s[rows],
        tau_s=tau_s,
        known=seen[rows],
        counts=none | trial.counts,
        is_audit=none if trial.is_audit is None else trial.is_audit,
    )


def _floor(trials: Sequence[EstimatorTrial], n: int) -> _Played | None:
    """Return what the true expectations say of the exchanges; None where nobody knows them."""
    seen: Ints = np.zeros(n, dtype=np.int64)
    parts = list[_Played]()
    for trial in trials:
        everybody = trial.everybody
        if everybody is not None and everybody.true_tau_s is not None:
            nothing = np.zeros(len(everybody.true_tau_s))
            known = Prediction(everybody.true_tau_s, nothing, nothing)
            parts.append(_of(known, trial.rows, trial.measured.tau_s, seen, trial))
        np.add.at(seen, trial.rows, 1)
    return _Played.of(parts) if parts else None


def _all_errors(measured: _Played, expected: _Played | None, alpha: float) -> Errors:
    """Return the errors on what was measured, on the audit sample, and on all devices."""
    is_audit = measured.is_audit
    return replace(
        _errors(measured, alpha),
        audit=_errors(measured.where(is_audit), alpha) if is_audit.any() else None,
        everybody=None if expected is None else _errors(expected, alpha),
    )


def _errors(played: _Played, alpha: float) -> Errors:
    is_number = np.isfinite(played.tau_s) & np.isfinite(played.tau_hat_s)
    counted: Bools = played.counts & (played.known >= SEEN[0]) & (played.tau_s > 0.0)
    counted &= is_number
    tau_hat_s, width_s = played.tau_hat_s[counted], played.width_s[counted]
    tau_s, known = played.tau_s[counted], played.known[counted]
    if not tau_s.size:
        return Errors(0, None, None, None, None, None, {})
    relative: Floats = (tau_hat_s - tau_s) / tau_s
    ape: Floats = np.abs(relative)
    group = np.searchsorted(SEEN, known, side="right") - 1
    medians = {
        str(first): float(np.median(ape[group == index]))
        for index, first in enumerate(SEEN)
        if (group == index).any()
    }
    is_inside = np.abs(tau_hat_s - tau_s) <= alpha * width_s
    return Errors(
        count=int(tau_s.size),
        mape=float(ape.mean()),
        median_ape=float(np.median(ape)),
        p95_ape=float(np.percentile(ape, 95)),
        bias=float(relative.mean()),
        coverage=float(is_inside.mean()) if (width_s > 0.0).any() else None,
        median_ape_from=medians,
    )
