"""A selection, the question that may come before it, and what was known when it was made. Pure."""

from dataclasses import dataclass, replace

import numpy as np

from coordinator.algorithms.arrays import Bools, Floats, Ints
from coordinator.algorithms.estimation.base import Prediction
from coordinator.algorithms.selection.base import Sample


@dataclass(frozen=True, slots=True)
class Question:
    """Whose losses a selector has to know before it can select."""

    round: int
    rows: Ints
    """Who is asked, shape (K,)."""
    sample: Sample
    """What they evaluate."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What came of a question."""

    rows: Ints
    """Who was asked, shape (K,)."""
    loss: Floats
    """F_n of the model of this round, nats, shape (K,); NaN for who did not answer."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A selection and everything that was known when it was made."""

    round: int
    rows: Ints
    """The cohort, shape (<= m,)."""
    is_available: Bools
    """Shape (N,)."""
    context: Floats
    """Context known before selection, shape (N, 4)."""
    prediction: Prediction
    n_k: Ints
    """Training examples, shape (N,)."""
    propensity: Floats
    """Probability of being in the cohort, given what the selector picked, shape (N,)."""
    audit_row: int | None = None
    """The device that was drawn by chance; None where this round has no audit."""
    known_s: Floats | None = None
    """The true expected exchange times, seconds, shape (N,), where somebody knows them."""


class Picks:
    """The choices of one round, made one after the other, of devices that are all different.

    Of each but the last only what it knew of its own devices is kept: a round may be made of
    thousands of picks from a fleet of a hundred thousand.
    """

    def __init__(self, first: Choice) -> None:
        self._first = self._last = first
        self._is_available = first.is_available
        self._rows, self._known = [first.rows], [_known(first, first.rows)]
        """Of each choice, and what it knew of them."""

    def add(self, later: Choice) -> None:
        """Take one more choice of the round."""
        self._last = later
        is_available = later.is_available.copy()
        is_available[: len(self._is_available)] |= self._is_available
        self._is_available = is_available
        self._rows.append(later.rows)
        self._known.append(_known(later, later.rows))

    def whole(self) -> Choice:
        """Return all choices as one.

        What was known of a device is that of its own choice, or of the last one if it has none.
        """
        if len(self._rows) == 1:
            return self._first
        rows, last = np.concatenate(self._rows), self._last
        columns = _known(last, slice(None))
        for name, column in columns.items():
            column[rows] = np.concatenate([known[name] for known in self._known])
        return replace(
            last,
            rows=rows,
            is_available=self._is_available,
            context=columns["context"],
            propensity=columns["propensity"],
            audit_row=self._first.audit_row,
            known_s=columns.get("known_s"),
            prediction=Prediction(
                tau_hat_s=columns["tau_hat_s"],
                width_s=columns["width_s"],
                transfer_hat_s=columns["transfer_hat_s"],
            ),
        )


def _known(choice: Choice, rows: Ints | slice) -> dict[str, Floats]:
    """Return copies of what a choice knew of some devices, each of shape (K, ...)."""
    prediction = choice.prediction
    columns = {
        "context": choice.context,
        "propensity": choice.propensity,
        "tau_hat_s": prediction.tau_hat_s,
        "width_s": prediction.width_s,
        "transfer_hat_s": prediction.transfer_hat_s,
    }
    if choice.known_s is not None:
        columns["known_s"] = choice.known_s
    return {name: np.array(column[rows]) for name, column in columns.items()}
