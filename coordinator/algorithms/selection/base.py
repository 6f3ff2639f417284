"""What every selector sees and answers.

Devices are rows: the registry gives each name a row for the whole run, rows are only ever
appended, and every column has shape (N,).
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints

Sample: TypeAlias = Literal["all", "batch"]
"""What a device evaluates when it is asked for its loss: its whole training set, or one
mini-batch of it."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The fleet at the instant of selection."""

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
    """The true expected exchange time, seconds, shape (N,): what only a replay can tell."""
    loss: Floats | None = None
    """F_n of the model that the round begins with, nats, shape (N,), NaN for a device without
    a reply; None if the selector queries no losses (`TwoStepSelector`)."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of a round's selection."""

    round: int
    is_selected: Bools
    """x_{t,n}, shape (N,)."""
    is_aggregated: Bools
    """Its update entered the model, shape (N,)."""
    n_k: Ints | None = None
    """Training examples, shape (N,); None is unknown."""
    tau_s: Floats | None = None
    """Measured exchange times, seconds, shape (N,); NaN or None is unknown."""
    loss: Floats | None = None
    """Mean training loss that a device has reported, nats, shape (N,); NaN or None is unknown."""


class Selector(Protocol):
    """Chooses a cohort each round; state across rounds is keyed by row."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, shape (<= k,); changes no state."""
        ...

    def observe(self, outcomes: Outcomes) -> None:
        """Learn what became of the selection; called once for every round, void ones too."""
        ...

    def queues(self, n: int) -> Floats:
        """Return the fairness debt Z of the first `n` rows, shape (n,); zeros if it has none."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        ...


@runtime_checkable
class TwoStepSelector(Selector, Protocol):
    """A selector in two steps: it names whom to ask, and selects when the losses are known.

    Between the steps each of them is sent the model and evaluates it. Who does not answer in
    time is not available to `select`, whose candidates then hold `loss`.
    """

    @property
    def sample(self) -> Sample:
        """What the devices evaluate."""
        ...

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the distinct available rows that are asked; changes no state."""
        ...
