"""What exchanges that ended have shown, as columns, and what is learned from them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.policy.selection import Observations
from fairbed.coordinator.state.exchange import ExchangeState

_CODES = {state: code for code, state in enumerate(ExchangeState)}
_DONE, _LATE, _CANCELLED = (
    _CODES[state] for state in (ExchangeState.DONE, ExchangeState.LATE, ExchangeState.CANCELLED)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """K exchanges that ended, as columns of shape (K,); NaN is a number that is not known."""

    rows: Ints
    """Rows of their devices."""
    states: Sequence[ExchangeState]
    """How they ended."""
    is_late: Bools
    """They missed the deadline; with late updates they may have gone on."""
    is_trusted: Bools
    """Their times are those of the device, and not of a busy host or a lost link."""
    tau_s: Floats
    """Exchange times."""
    phases_s: Floats
    """Shape (K, 5), in the order of `PHASES`; those that were seen."""
    at_least_s: Floats
    """Time used until they were abandoned."""
    wasted_s: Floats
    """Time used by those that gave no update because of the device."""
    loss: Floats
    """Reported training loss, nats."""
    was_cold: Bools
    """Devices that claim that they had to load data and session."""
    context: Floats
    """Contexts at selections of earlier rounds, shape (K, 4); NaN: that of this round."""

    def observations(self) -> Observations:
        """Return what the selector and the estimator learn.

        An update that arrived has a time. An exchange that the coordinator ended has a lower bound
        of it, and the phases before its offer. Any other end was wasted because of the device.
        """
        codes = np.array([_CODES[state] for state in self.states], dtype=np.int64)
        is_done, timed_out = codes == _DONE, (codes == _LATE) & self.is_trusted
        is_cancelled = (codes == _CANCELLED) & self.is_trusted
        has_time, is_bound = is_done & self.is_trusted, timed_out | is_cancelled
        is_wasted = ~(is_done | (codes == _LATE) | (codes == _CANCELLED)) & self.is_trusted
        was_ended_early = (timed_out & self.is_late) | is_cancelled
        has_phases = has_time | is_bound
        return Observations(
            rows=self.rows,
            tau_s=np.where(has_time, self.tau_s, np.nan),
            phases_s=np.where(has_phases[:, None], self.phases_s, np.nan),
            is_aggregated=is_done,
            timed_out=timed_out,
            loss=self.loss,
            at_least_s=np.where(was_ended_early, self.at_least_s, np.nan),
            context=self.context,
            was_cold=self.was_cold,
            wasted_s=np.where(is_wasted, self.wasted_s, np.nan),
        )
