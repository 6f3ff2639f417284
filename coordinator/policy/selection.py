"""Data of a selection: losses demanded before it, its cohort, observations after it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import Prediction
from fairbed.coordinator.algorithms.selection.base import Candidates, Reason, Sample


class Roster(Protocol):
    """The columns of a fleet that decisions read; in a live run the `Registry`."""

    def contexts(self, down_bits: float | Floats, up_bits: float | Floats, coding: str) -> Floats:
        """Return the context of each device before the selection, shape (N, 4)."""
        ...

    def cores(self) -> Floats:
        """Return the cores that a training of each device may use, shape (N,); `inf`: unknown."""
        ...

    def available(self, now: float) -> Bools:
        """Return I_{t,n}, shape (N,)."""
        ...

    def n_k(self) -> Ints:
        """Return the training examples of each device, shape (N,)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What the selector and the estimator learn from K exchanges, as columns of shape (K,).

    NaN: not known. A device may occur twice, if one of its exchanges began in an earlier round.
    """

    rows: Ints
    tau_s: Floats
    """Measured model exchange times; NaN if it was not observed or is not valid."""
    phases_s: Floats
    """Their phases, seconds, in the order of `PHASES`, shape (K, 5); NaN: not seen or not valid.
    Without `tau_s`, those that ended before the exchange was abandoned."""
    is_aggregated: Bools
    timed_out: Bools
    """The exchange missed the deadline, so it took at least that long."""
    loss: Floats
    """Mean training loss that the device reports, nats: of the model that it was sent if the
    aggregation rule needs it, otherwise of its last epoch."""
    at_least_s: Floats
    """Lower bound of an unknown time, without time in the upload queue."""
    context: Floats
    """Contexts at selections of earlier rounds, shape (K, 4); NaN: the context of this round."""
    was_cold: Bools
    """The device claims that it had to load data and session."""
    wasted_s: Floats
    """Time used by an exchange that gave no update because of the device: it left, fell silent,
    failed, or sent what was refused. NaN: another end."""


@dataclass(frozen=True, slots=True)
class LossDemand:
    """The devices whose loss a selector needs before it can select."""

    round: int
    rows: Ints
    """Rows of the devices, shape (K,)."""
    sample: Sample
    """The data that they evaluate."""


@dataclass(frozen=True, slots=True)
class ReportedLosses:
    """The losses that devices reported before a selection."""

    rows: Ints
    """Rows of the devices that were queried, shape (K,)."""
    loss: Floats
    """F_n of the model of this round, nats, shape (K,); NaN without a reply."""


@dataclass(frozen=True, slots=True)
class Picked:
    """The choice of a selector before the audit, and its arguments, from which it is explained."""

    rows: Ints
    """Shape (<= k,)."""
    candidates: Candidates
    """Without the devices that the miss limit excludes."""
    was_available: Bools
    """With them, shape (N,)."""
    k: int
    selections_before: int
    """Number of earlier selections for the same round."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A cohort, and the data that it was selected from."""

    round: int
    rows: Ints
    """The cohort, shape (<= m,)."""
    is_available: Bools
    """Shape (N,)."""
    context: Floats
    """Contexts before the selection, shape (N, 4)."""
    prediction: Prediction
    n_k: Ints
    """Training examples, shape (N,)."""
    propensity: Floats
    """Probability of being in the cohort, given what the selector picked, shape (N,)."""
    audit_row: int | None = None
    """Row of the device that the audit drew at random; None in a round without an audit."""
    true_tau_s: Floats | None = None
    """The true expected exchange times, seconds, shape (N,), where a simulated world gives them."""
    picked: Picked | None = None
    """The last choice of the selector for the round; None: it cannot be explained."""
    absences: Mapping[int, Reason] = field(default_factory=dict)
    """Why devices were not available, by row; others were not available for another reason."""


class SelectionBuilder:
    """Joins the selections of one asynchronous round, whose cohorts are disjoint, into one.

    For each selection but the last, only the columns of its own cohort are kept, because a round
    may have thousands of selections from a fleet of a hundred thousand devices.
    """

    def __init__(self, first: Selection) -> None:
        self._first = self._last = first
        self._is_available = first.is_available
        self._rows, self._columns = [first.rows], [_columns_of(first, first.rows)]
        """The cohort of each selection, and the columns of that cohort."""

    def add(self, later: Selection) -> None:
        """Add one more selection of the round."""
        self._last = later
        is_available = later.is_available.copy()
        is_available[: len(self._is_available)] |= self._is_available
        self._is_available = is_available
        self._rows.append(later.rows)
        self._columns.append(_columns_of(later, later.rows))

    def build(self) -> Selection:
        """Return all selections as one.

        The columns of a selected device are those of its own selection; for all other devices,
        those of the last selection.
        """
        if len(self._rows) == 1:
            return self._first
        rows, last = np.concatenate(self._rows), self._last
        columns = _columns_of(last, slice(None))
        for name, column in columns.items():
            column[rows] = np.concatenate([own[name] for own in self._columns])
        return replace(
            last,
            rows=rows,
            is_available=self._is_available,
            context=columns["context"],
            propensity=columns["propensity"],
            audit_row=self._first.audit_row,
            true_tau_s=columns.get("true_tau_s"),
            prediction=Prediction(
                tau_hat_s=columns["tau_hat_s"],
                width_s=columns["width_s"],
                transfer_hat_s=columns["transfer_hat_s"],
            ),
        )


def _columns_of(selection: Selection, rows: Ints | slice) -> dict[str, Floats]:
    """Return copies of a selection's columns for some devices, each of shape (K, ...)."""
    prediction = selection.prediction
    columns = {
        "context": selection.context,
        "propensity": selection.propensity,
        "tau_hat_s": prediction.tau_hat_s,
        "width_s": prediction.width_s,
        "transfer_hat_s": prediction.transfer_hat_s,
    }
    if selection.true_tau_s is not None:
        columns["true_tau_s"] = selection.true_tau_s
    return {name: np.array(column[rows]) for name, column in columns.items()}
