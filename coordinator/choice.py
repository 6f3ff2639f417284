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

    def joined(self, later: "Choice") -> "Choice":
        """Return this choice and a later one of the same round, of other devices, as one.

        What was known of a device is that of its choice, or of the last one if it has none.
        """
        mine = self.rows

        def keep(earlier: Floats, now: Floats) -> Floats:
            kept: Floats = now.copy()
            kept[mine] = earlier[mine]
            return kept

        before, after = self.prediction, later.prediction
        is_available = later.is_available.copy()
        is_available[: len(self.is_available)] |= self.is_available
        return replace(
            later,
            rows=np.concatenate([mine, later.rows]),
            is_available=is_available,
            context=keep(self.context, later.context),
            propensity=keep(self.propensity, later.propensity),
            audit_row=self.audit_row,
            prediction=Prediction(
                tau_hat_s=keep(before.tau_hat_s, after.tau_hat_s),
                width_s=keep(before.width_s, after.width_s),
                transfer_hat_s=keep(before.transfer_hat_s, after.transfer_hat_s),
            ),
        )
