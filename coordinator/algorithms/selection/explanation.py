"""Why a selector chose its cohort: a score and a reason for each device, and the best exchange."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Reason, Selector


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a selector chose its cohort; the reasons of rows that are no candidates are not read."""

    reason: Ints
    """Numbers of `Reason`, shape (N,)."""
    score: Floats
    """The number by which the policy ranks a device; NaN: none, or no candidate. Shape (N,)."""
    margin: Floats
    """How much worse the objective is after the best exchange of this device with one on the other
    side; for OVER_DEADLINE the seconds beyond it; NaN: unknown. Shape (N,)."""
    objective: float | None = None
    """Value of the cohort; None: the policy has no objective, or it is infinite."""
    alternative: float | None = None
    """Value of the best cohort that differs in one device; None: there is none."""
    exchange: tuple[int, int] | None = None
    """Rows of that exchange: the device that leaves the cohort, and the one that enters it."""


@runtime_checkable
class ExplainingSelector(Selector, Protocol):
    """A selector that can explain its choice. A plug-in may lack this method."""

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> Explanation | None:
        """Return why `select(candidates, k, rng)` returned `chosen`; changes no state.

        `rng` is in the state in which `select` got it, so random draws can be repeated. None: this
        selector cannot explain.
        """
        ...


Explain: TypeAlias = Callable[[Candidates, Ints, int, np.random.Generator], Explanation | None]
"""`ExplainingSelector.explain`."""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Every cohort that differs from the chosen one in one device, by the objective."""

    objective: float
    margin: Floats
    """Shape (M,); see `exchanges`. NaN: there is nothing to exchange with."""
    alternative: float | None
    best: tuple[int, int] | None
    """Positions of the best exchange: out, in."""


def exchanges(costs: Floats, gains: Floats, is_chosen: Bools) -> Exchanges:
    """Return by how much each exchange of two devices would raise the objective.

        J(S) = max_{n in S} cost_n - sum_{n in S} gain_n
        margin_j = min_{r in S} J(S - r + j) - J(S)   for j outside S
        margin_r = min_{j outside} J(S - r + j) - J(S)   for r in S

    If r is the slowest of S, the largest remaining cost counts; for all other r the largest cost
    stays, so among them only the one with the smallest gain matters: O(M). A difference below 0,
    which an optimal S has by rounding only, counts as 0.

    Args:
        costs: Shape (M,), finite.
        gains: Shape (M,), finite.
        is_chosen: S, shape (M,), at least one device.

    Returns:
        The best exchange is the one of the smallest margin; a tie goes to the smaller position.
    """
    chosen = np.flatnonzero(is_chosen)
    own_costs, own_gains = costs[chosen], gains[chosen]
    slowest = int(own_costs.argmax())
    largest, gain_sum = float(own_costs[slowest]), float(own_gains.sum())
    margin = np.full(len(costs), np.nan)
    objective = largest - gain_sum
    others = np.flatnonzero(~is_chosen)
    if others.size == 0:
        return Exchanges(objective, margin, None, None)
    rest_gains, rest_costs = own_gains.copy(), own_costs.copy()
    rest_gains[slowest], rest_costs[slowest] = np.inf, -np.inf
    cheapest = int(rest_gains.argmin())
    costs_in, gains_in = costs[others], gains[others]
    without_slowest = np.maximum(costs_in, rest_costs.max()) - gains_in
    with_slowest = np.maximum(costs_in, largest) - gains_in
    leaving_slowest = without_slowest + float(own_gains[slowest]) - largest
    leaving_cheapest = with_slowest + float(rest_gains[cheapest]) - largest
    margin[others] = np.minimum(leaving_slowest, leaving_cheapest)
    own = float(with_slowest.min()) + own_gains - largest
    own[slowest] = leaving_slowest.min()
    margin[chosen] = own
    np.maximum(margin, 0.0, out=margin)
    enters = int(margin[others].argmin())
    leaves = slowest if leaving_slowest[enters] <= leaving_cheapest[enters] else cheapest
    return Exchanges(
        objective=objective,
        margin=margin,
        alternative=objective + float(margin[others[enters]]),
        best=(int(chosen[leaves]), int(others[enters])),
    )


def explain_ranking(
    n: int,
    rows: Ints,
    chosen: Ints,
    *,
    costs: Floats,
    gains: Floats,
    score: Floats,
) -> Explanation:
    """Return the explanation of a policy that minimises the objective of `exchanges`.

    Args:
        n: Number of devices, N.
        rows: The candidates, shape (M,).
        chosen: The cohort, some of `rows`.
        costs: Shape (M,).
        gains: Shape (M,).
        score: Shape (M,).
    """
    if chosen.size == 0:
        return explain_draw(n, rows, chosen, score=score)
    is_chosen = np.zeros(n, dtype=np.bool_)
    is_chosen[chosen] = True
    found = exchanges(costs, gains, is_chosen[rows])
    return Explanation(
        reason=_reasons(n, rows, chosen, Reason.RANKED, Reason.OUTRANKED),
        score=spread(n, rows, score),
        margin=spread(n, rows, found.margin),
        objective=found.objective,
        alternative=found.alternative,
        exchange=None if found.best is None else (rows[found.best[0]], rows[found.best[1]]),
    )


def explain_largest(n: int, rows: Ints, chosen: Ints, values: Floats) -> Explanation:
    """Return the explanation of a policy that takes the candidates of the largest values.

    The objective, which it maximises, is the sum of the values of the cohort. An infinite value
    comes first, and makes the objective unknown.

    Args:
        n: Number of devices, N.
        rows: The candidates, shape (M,).
        chosen: The cohort, some of `rows`.
        values: Shape (M,), not NaN.
    """
    reason = _reasons(n, rows, chosen, Reason.RANKED, Reason.OUTRANKED)
    column, margin = spread(n, rows, values), np.full(n, np.nan)
    others = np.setdiff1d(rows, chosen)
    total = float(column[chosen].sum())
    objective = total if chosen.size and np.isfinite(total) else None
    if chosen.size == 0 or others.size == 0:
        return Explanation(reason, column, margin, objective)
    leaves, enters = chosen[column[chosen].argmin()], others[column[others].argmax()]
    with np.errstate(invalid="ignore"):  # the difference of two infinite values is unknown
        margin[others] = column[leaves] - column[others]
        margin[chosen] = column[chosen] - column[enters]
        return Explanation(
            reason=reason,
            score=column,
            margin=margin,
            objective=objective,
            alternative=None if objective is None else objective - float(margin[enters]),
            exchange=(leaves, enters),
        )


def explain_draw(n: int, rows: Ints, chosen: Ints, *, score: Floats) -> Explanation:
    """Return the explanation of a random draw.

    Args:
        n: Number of devices, N.
        rows: The candidates, shape (M,).
        chosen: The cohort.
        score: By which each candidate is drawn, shape (M,).
    """
    reason = _reasons(n, rows, chosen, Reason.DRAWN, Reason.NOT_DRAWN)
    return Explanation(reason, spread(n, rows, score), np.full(n, np.nan))


def _reasons(n: int, rows: Ints, chosen: Ints, inside: Reason, outside: Reason) -> Ints:
    reason = np.full(n, outside, dtype=np.int64)
    reason[chosen] = inside if len(chosen) < len(rows) else Reason.NEEDED
    return reason


def spread(n: int, rows: Ints, values: Floats) -> Floats:
    """Return a column with a value for each of `rows`, and NaN elsewhere, shape (N,)."""
    column = np.full(n, np.nan)
    column[rows] = values
    return column
