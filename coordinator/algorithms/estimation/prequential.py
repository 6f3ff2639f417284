"""How good are estimators? Each predicts an exchange before it learns from it (prequential)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.algorithms.arrays import Bools, Floats, Ints
from coordinator.algorithms.estimation.base import CONTEXT, Learner, Measured, Prediction

SEEN: tuple[int, ...] = (1, 2, 5, 10, 20)
"""Errors are told apart by how many exchanges of the device were known: from each of these on."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The exchanges of one round that may teach."""

    rows: Ints
    """Devices, shape (K,)."""
    context: Floats
    """Known before selection, shape (K, 4)."""
    measured: Measured
    counts: bool = True
    """Its errors are told; otherwise it only teaches."""


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


def prequential(
    learners: Mapping[str, Learner], trials: Sequence[Trial], alpha: float
) -> dict[str, Errors]:
    """Return the errors of learners that know nothing yet, each fed all trials in order.

    Args:
        learners: By name.
        trials: Rounds in order.
        alpha: Half of a confidence interval, in widths.
    """
    n = max((int(trial.rows.max()) + 1 for trial in trials if trial.rows.size), default=0)
    return {name: _errors(_play(one, trials, n), alpha) for name, one in learners.items()}


@dataclass(frozen=True, slots=True)
class _Played:
    """Every exchange in order, beside what was said of it before; each of shape (M,)."""

    tau_hat_s: Floats
    width_s: Floats
    tau_s: Floats
    known: Ints
    """Exchanges of the device that had been measured before."""
    counts: Bools
    """Its error is told."""


def _play(learner: Learner, trials: Sequence[Trial], n: int) -> _Played:
    seen: Ints = np.zeros(n, dtype=np.int64)
    said, known = list[Prediction](), list[Ints]()
    for trial in trials:
        context = np.zeros((n, CONTEXT))
        context[trial.rows] = trial.context
        said.append(learner.predict(context))
        known.append(seen[trial.rows])
        learner.observe(trial.rows, trial.context, trial.measured)
        np.add.at(seen, trial.rows, 1)
    nothing = np.zeros(0)
    pairs = list(zip(said, trials, strict=True))
    return _Played(
        tau_hat_s=np.concatenate([nothing, *(p.tau_hat_s[trial.rows] for p, trial in pairs)]),
        width_s=np.concatenate([nothing, *(p.width_s[trial.rows] for p, trial in pairs)]),
        tau_s=np.concatenate([nothing, *(trial.measured.tau_s for trial in trials)]),
        known=np.concatenate([nothing.astype(np.int64), *known]),
        counts=np.repeat(
            np.array([trial.counts for trial in trials], dtype=np.bool_),
            np.array([len(trial.rows) for trial in trials], dtype=np.int64),
        ),
    )


def _errors(played: _Played, alpha: float) -> Errors:
    counted: Bools = played.counts & (played.known >= SEEN[0]) & (played.tau_s > 0.0)
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
