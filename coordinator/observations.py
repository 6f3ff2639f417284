"""What a round taught about the devices that were selected."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.algorithms.arrays import Bools, Floats, Ints
from coordinator.algorithms.estimation.base import CONTEXT, PHASES


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
