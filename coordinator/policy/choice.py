"""A selection, the question that may come before it, and what was known when it was made. Pure.

What a round taught about the devices that were selected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, PHASES, Prediction
from fairbed.coordinator.algorithms.selection.base import Sample


@dataclass(frozen=True, slots=True)
class Observation:
    """What a round taught about one selected device."""

    row: int
    tau_s: float | None
    """Measured model exchange time; None when not observed or not valid."""
    phases_s: tuple[float, ...] | None
    """Its phases, seconds, in the order of `PHASES`; None with it."""
    is_aggregated: bool
    timed_out: bool
    """Missed the deadline: its exchange took at least that long."""
    loss: float | None = None
    """Mean training loss that the device reports, nats: of the model it was sent if it was asked
    for that, otherwise of its last epoch."""
    at_least_s: float | None = None
    """Where the time is not known: how long it took at least, the queue not counted."""
    context: Floats | None = None
    """What was known when it was chosen, shape (4,), where that was in an earlier round; None
    takes this round's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """The same of K exchanges, as columns of shape (K,); NaN stands for None.

    A device may be there twice, with an exchange of an earlier round.
    """

    rows: Ints
    tau_s: Floats
    phases_s: Floats
    """Shape (K, 5)."""
    is_aggregated: Bools
    timed_out: Bools
    loss: Floats
    at_least_s: Floats
    context: Floats
    """Shape (K, 4)."""

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "Observations":
        """Return observations that were made one by one."""
        no_phases, no_context = (np.nan,) * len(PHASES), (np.nan,) * CONTEXT
        phases = [no_phases if o.phases_s is None else o.phases_s for o in observations]
        contexts = [no_context if o.context is None else o.context for o in observations]
        return cls(
            rows=np.array([o.row for o in observations], dtype=np.int64),
            tau_s=_column([o.tau_s for o in observations]),
            phases_s=np.array(phases, dtype=np.float64).reshape(-1, len(PHASES)),
            is_aggregated=np.array([o.is_aggregated for o in observations], dtype=np.bool_),
            timed_out=np.array([o.timed_out for o in observations], dtype=np.bool_),
            loss=_column([o.loss for o in observations]),
            at_least_s=_column([o.at_least_s for o in observations]),
            context=np.array(contexts, dtype=np.float64).reshape(-1, CONTEXT),
        )

    def __len__(self) -> int:
        """Return K."""
        return len(self.rows)


def _column(values: Sequence[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)  # None becomes NaN


@dataclass(frozen=True, slots=True)
class LossDemand:
    """Whose losses a selector has to know before it can select."""

    round: int
    rows: Ints
    """Who is asked, shape (K,)."""
    sample: Sample
    """What they evaluate."""


@dataclass(frozen=True, slots=True)
class ReportedLosses:
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
