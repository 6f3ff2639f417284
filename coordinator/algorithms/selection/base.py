"""Inputs, results and interfaces of the selectors.

Devices are rows: the registry gives each name a row for the whole run, rows are only appended, and
every column has shape (N,).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints

Sample: TypeAlias = Literal["all", "batch"]
"""Examples that a device evaluates for a loss query: its whole training set, or one mini-batch."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The fleet at the time of a selection."""

    round: int
    """1 for the first."""
    is_available: Bools
    """I_{t,n}, shape (N,)."""
    tau_hat_s: Floats
    """The estimator's expected exchange time, seconds, shape (N,)."""
    width_s: Floats
    """Confidence width sqrt(c^T H^-1 c) of that estimate, seconds, shape (N,)."""
    transfer_hat_s: Floats
    """The part of tau_hat_s that is the transfer of the model, seconds, shape (N,)."""
    n_k: Ints
    """Training examples, shape (N,)."""
    true_tau_s: Floats | None = None
    """True expected exchange time, seconds, shape (N,), known in a replay only; None if unknown."""
    loss: Floats | None = None
    """F_n of the model that the round begins with, nats, shape (N,), NaN for a device without
    a reply; None if the selector queries no losses (`TwoStepSelector`)."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcome of a selection, at the end of the round."""

    round: int
    is_selected: Bools
    """x_{t,n}, shape (N,)."""
    is_aggregated: Bools
    """The update entered the model, shape (N,)."""
    n_k: Ints | None = None
    """Training examples, shape (N,); None is unknown."""
    tau_s: Floats | None = None
    """Measured exchange times, seconds, shape (N,); NaN or None is unknown."""
    loss: Floats | None = None
    """Mean training loss that the device reported, nats, shape (N,); NaN or None is unknown."""
    at_least_s: Floats | None = None
    """Lower bounds of exchange times that are unknown, seconds, shape (N,), such as the deadline of
    a device that missed it; NaN or None is no bound."""
    has_left: Bools | None = None
    """The device has left the fleet for good, shape (N,): the round does not count for it. None: no
    device has."""


class Selector(Protocol):
    """Chooses the cohort of each round; its state across rounds is keyed by row."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, shape (<= k,); changes no state."""
        ...

    def observe(self, outcomes: Outcomes) -> None:
        """Learn the outcome of a selection; called once for every round, void rounds included."""
        ...

    def queues(self, n: int) -> Floats:
        """Return the virtual queues Z of the first `n` rows, shape (n,); zeros if it has none."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        ...


@runtime_checkable
class TwoStepSelector(Selector, Protocol):
    """A selector that queries losses: it names candidates, and selects when losses are known.

    Between the two steps each candidate is sent the model and evaluates it. A candidate without a
    reply in time is not available to `select`, whose `Candidates` have `loss`.
    """

    @property
    def sample(self) -> Sample:
        """Examples that the candidates evaluate."""
        ...

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the distinct available rows to query; changes no state."""
        ...


class Reason(IntEnum):
    """Why a device is in the cohort, or not; the store has its `word`."""

    UNSTATED = 0
    """The policy gives no reason."""
    RANKED = 1
    """In the cohort: the best ones by the objective of the policy."""
    DRAWN = 2
    """In the cohort: drawn at random."""
    EXPLORED = 3
    """In the cohort: never selected before, drawn to be tried."""
    NEEDED = 4
    """In the cohort: there are no more candidates than places."""
    FALLBACK = 5
    """In the cohort: the fastest one, because no device meets the deadline."""
    EARLIER = 6
    """In the cohort: by an earlier selection of an asynchronous round."""
    AUDIT = 7
    """In the cohort: drawn uniformly for the audit sample."""
    OUTRANKED = 8
    """A candidate, but with it in the place of another the objective would be worse."""
    NOT_DRAWN = 9
    """A candidate, but not drawn."""
    OVER_DEADLINE = 10
    """Its predicted exchange would end after the deadline."""
    AUDITED_OUT = 11
    """The policy had chosen it; the audit sample took its place."""
    MISS_LIMIT = 12
    """It missed too many deadlines in a row."""
    NO_LOSS = 13
    """It was queried for its loss and gave no finite one."""
    UNAVAILABLE = 14
    """Not available."""
    OFFLINE = 15
    """Not connected, or without a recent report."""
    EXCLUDED = 16
    """An operator excluded it."""
    PREPARING = 17
    """It has not finished its preparation."""
    UNWILLING = 18
    """It reported that it does not want to train."""
    BUSY = 19
    """It was still at work on an earlier exchange."""
    UNFIT = 20
    """It cannot do what the run asks of every device."""

    @property
    def is_in_cohort(self) -> bool:
        """The device is in the cohort."""
        return Reason.RANKED <= self <= Reason.AUDIT

    @property
    def word(self) -> str:
        """Return the name in the store, in lower case with spaces; empty for `UNSTATED`."""
        return "" if self is Reason.UNSTATED else self.name.lower().replace("_", " ")


WORDS = np.array([reason.word for reason in Reason], dtype=object)
"""The word of each reason, by its number."""
