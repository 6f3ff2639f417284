"""Oort: devices of high statistical utility that are not too slow."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Reason
from fairbed.coordinator.algorithms.selection.pool import (
    available_rows,
    shuffled_rows,
    weighted_draw,
)

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation


CONFIDENCE = 0.1
"""Factor under the root of the bonus for devices not selected for long (oort.py)."""
LEAST_RANGE = 1e-4
"""Lower bound of the range of utilities (oort.py)."""
STEADY, JUMP = 0.1, 5.0
"""Relative changes of utility between two windows: below the first the pacer raises T, above the
second it lowers T (oort.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OortSettings:
    """Parameters of Oort; the defaults are those of its authors' code."""

    exploration: float = 0.9
    """Initial share of the cohort for devices never tried."""
    exploration_decay: float = 0.98
    """Factor on `exploration` per round."""
    exploration_min: float = 0.2
    clip_quantile: float = 0.95
    """Quantile at which utilities are clipped."""
    penalty: float = 2.0
    """Exponent on T / t of a device slower than the preferred duration T."""
    threshold: float = 30.0
    """Initial T, as a percentile of the known durations; 100 is no preference."""
    pacer_step: int = 20
    """Rounds in one window of the pacer."""
    pacer_delta: float = 5.0
    """Step of the pacer, percentile points."""
    cut_off: float = 0.95
    """Devices are drawn among those above this share of the lowest score of the top devices."""


class Oort:
    """Exploits devices by utility and speed, and explores those never tried.

        U_n     = n_n L_n                                            statistical utility
        score_n = (min(U_n, clip) - Umin) / Urange + sqrt(0.1 ln t / last_n)
        score_n = score_n (T / t_n)^penalty  if t_n > T              slower than preferred

    int(k (1 - eps_t)) devices that were tried are drawn in proportion to their score, among those
    above a cut-off; the rest are devices never tried, drawn in proportion to their examples. T is
    a percentile of the known durations; the pacer raises it when utility stalls.

    Source:
        Lai et al., OSDI 2021 (arXiv:2010.06081); SymbioticLab/Oort, oort.py.
    Deviates:
        U has the mean loss where the paper has the root of the mean squared loss of the samples,
        which a device does not send. No blacklist. `exploration` decays with the round number, so
        that `select` changes no state. A device that missed the deadline counts with that lower
        bound of its time; one that was tried and has no bound counts as not slower than T.
    """

    def __init__(self, settings: OortSettings | None = None) -> None:
        """Set the parameters.

        Raises:
            ValueError: A value is out of range.
        """
        s = settings or OortSettings()
        for name in ("exploration", "exploration_decay", "exploration_min", "clip_quantile"):
            value = getattr(s, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"oort: {name} must be in [0, 1], got {value}; it is a share")
        if not (0.0 < s.threshold <= 100.0 and s.pacer_step >= 1 and s.penalty >= 0.0):
            raise ValueError(
                "oort: threshold must be in (0, 100], pacer_step >= 1 and penalty >= 0, got "
                f"{s.threshold}, {s.pacer_step} and {s.penalty}"
            )
        self._settings = s
        self._threshold = s.threshold
        self._utility: Floats = np.zeros(0)
        self._duration_s: Floats = np.zeros(0)
        """Last exchange time, or a lower bound of it, seconds; 0 is unknown."""
        self._last: Ints = np.zeros(0, dtype=np.int64)
        """Round in which a device was last selected; 0 is never."""
        self._exploited: list[float] = []
        """Sum of the utility of exploited devices, for each round of the last two windows."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return min(k, available) distinct rows, ascending; changes no state.

        Raises:
            ValueError: `k` is negative.
        """
        rows = available_rows(candidates, k)
        if k >= len(rows):
            return rows
        n = len(candidates.is_available)
        tried, fresh = self._split(rows, n)
        n_exploit = self._n_exploit(k, len(tried), candidates.round)
        chosen = self._exploit(tried, n_exploit, n, candidates.round, rng)
        explored = weighted_draw(rng, candidates.n_k, fresh, k - n_exploit)
        taken = np.concatenate([chosen, explored])
        if len(taken) < k:
            is_free = candidates.is_available.copy()
            is_free[taken] = False
            others = shuffled_rows(rng, is_free)[: k - len(taken)]
            taken = np.concatenate([taken, others])
        return np.sort(taken)

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> "Explanation":
        """Return why `select` chose this cohort; the score is Oort's, NaN for a device never tried.

        The margin of an outranked device is the distance of its score from the cut-off.
        """
        from fairbed.coordinator.algorithms.selection.explanation import (
            Explanation,
            explain_draw,
            spread,
        )

        n, rows = len(candidates.is_available), available_rows(candidates, k)
        tried, fresh = self._split(rows, n)
        score = self.score(tried, candidates.round)
        why = explain_draw(n, rows, chosen, score=np.full(len(rows), np.nan))
        if k >= len(rows):
            return replace(why, score=spread(n, tried, score))
        reason, margin = why.reason, np.full(n, np.nan)
        reason[np.intersect1d(chosen, fresh)] = Reason.EXPLORED
        if n_exploit := self._n_exploit(k, len(tried), candidates.round):
            short = self._cut_off(score, n_exploit) - score
            is_low = (short > 0.0) & (reason[tried] == Reason.NOT_DRAWN)
            reason[tried[is_low]], margin[tried[is_low]] = Reason.OUTRANKED, short[is_low]
        return Explanation(reason, spread(n, tried, score), margin)

    def score(self, rows: Ints, round_id: int) -> Floats:
        """Return the scores of devices that were tried, shape (len(rows),)."""
        utility, last = self._utility[rows], self._last[rows]
        positive = self._utility[self._utility > 0.0]
        clip = np.quantile(positive, self._settings.clip_quantile) if positive.size else 0.0
        clipped = np.minimum(utility, clip)
        lowest = 0.999 * float(clipped.min()) if clipped.size else 0.0
        spread = max(float(clipped.max()) - lowest, LEAST_RANGE) if clipped.size else 1.0
        score: Floats = (clipped - lowest) / spread
        score += np.sqrt(CONFIDENCE * math.log(max(round_id, 1)) / last)
        preferred_s = self._preferred_s()
        duration_s = self._duration_s[rows]
        slow = duration_s > preferred_s
        score[slow] *= (preferred_s / duration_s[slow]) ** self._settings.penalty
        return score

    def observe(self, outcomes: Outcomes) -> None:
        """Learn losses and durations; move the pacer at the end of each window."""
        self._grow(len(outcomes.is_selected))
        exploited = outcomes.is_selected & (self._last > 0)
        self._exploited.append(float(self._utility[exploited].sum()))
        known = outcomes.is_aggregated & _is_number(outcomes.loss, len(self._last))
        if outcomes.loss is not None:
            n_k = outcomes.n_k if outcomes.n_k is not None else np.ones_like(self._last)
            self._utility[known] = n_k[known] * np.maximum(outcomes.loss[known], 0.0)
        timed = _is_number(outcomes.tau_s, len(self._last))
        if outcomes.tau_s is not None:
            self._duration_s[timed] = outcomes.tau_s[timed]
        bounded = _is_number(outcomes.at_least_s, len(self._last)) & ~timed
        if outcomes.at_least_s is not None:
            longer_s = np.maximum(self._duration_s[bounded], outcomes.at_least_s[bounded])
            self._duration_s[bounded] = longer_s
        self._last[outcomes.is_selected] = outcomes.round
        self._move_pacer(outcomes.round)

    def queues(self, n: int) -> Floats:
        """Return zeros, shape (n,): there are no virtual queues."""
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists."""
        return {
            "threshold": self._threshold,
            "utility": self._utility.tolist(),
            "duration_s": self._duration_s.tolist(),
            "last": self._last.tolist(),
            "exploited": list(self._exploited),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._threshold = float(state["threshold"])
        self._utility = np.array(state["utility"], dtype=np.float64)
        self._duration_s = np.array(state["duration_s"], dtype=np.float64)
        self._last = np.array(state["last"], dtype=np.int64)
        self._exploited = [float(value) for value in state["exploited"]]

    def _exploit(
        self, tried: Ints, size: int, n: int, round_id: int, rng: np.random.Generator
    ) -> Ints:
        """Return `size` tried rows of n, drawn by score among those above the cut-off."""
        if size == 0:
            return tried[:0]
        score, weights = self.score(tried, round_id), np.zeros(n)
        weights[tried] = score
        return weighted_draw(rng, weights, tried[score >= self._cut_off(score, size)], size)

    def _split(self, rows: Ints, n: int) -> tuple[Ints, Ints]:
        """Return which of `rows` were tried, and which never."""
        is_tried = grown(self._last, n)[rows] > 0
        return rows[is_tried], rows[~is_tried]

    def _n_exploit(self, k: int, n_tried: int, round_id: int) -> int:
        """Return how many of k places go to devices that were tried."""
        s = self._settings
        share = max(s.exploration * s.exploration_decay**round_id, s.exploration_min)
        return min(int(k * (1.0 - share)), n_tried)

    def _cut_off(self, score: Floats, size: int) -> float:
        """Return the score below which no device is drawn."""
        rank = min(size, len(score) - 1)
        return float(-self._settings.cut_off * np.partition(-score, rank)[rank])

    def _preferred_s(self) -> float:
        known = self._duration_s[self._duration_s > 0.0]
        if self._threshold >= 100.0 or known.size == 0:
            return math.inf
        return float(np.percentile(known, self._threshold))

    def _move_pacer(self, round_id: int) -> None:
        step, delta = self._settings.pacer_step, self._settings.pacer_delta
        del self._exploited[: -2 * step]
        if len(self._exploited) < 2 * step or round_id % step:
            return
        before, now = sum(self._exploited[:step]), sum(self._exploited[step:])
        if abs(now - before) <= STEADY * before:
            self._threshold = min(100.0, self._threshold + delta)
        elif abs(now - before) >= JUMP * before:
            self._threshold = max(delta, self._threshold - delta)

    def _grow(self, n: int) -> None:
        self._utility = grown(self._utility, n).copy()
        self._duration_s = grown(self._duration_s, n).copy()
        self._last = grown(self._last, n).copy()


def _is_number(column: Floats | None, n: int) -> Bools:
    return np.zeros(n, dtype=np.bool_) if column is None else np.isfinite(column)
