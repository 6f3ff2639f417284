"""Audit sample: with a given probability, one place of the cohort goes to a random device.

An estimator learns from the devices that a policy prefers, so its errors on them are not those on
the others. A uniform draw from all available devices, with known probability, measures both.
"""

from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.selection.pool import shuffled_rows


@dataclass(frozen=True, slots=True)
class Audited:
    """A cohort after the audit draw."""

    rows: Ints
    """The cohort, ascending, shape (m,)."""
    audit_row: int | None
    """Row of the device drawn; None if this round has no audit."""
    propensity: Floats
    """Probability of each device to be in the cohort, given the selector's choice, shape (N,).
    They add up to m."""


def audit(rows: Ints, is_available: Bools, probability: float, rng: np.random.Generator) -> Audited:
    """Draw the audit device of a round, and replace one selected device by it.

        with probability p:  j uniform in A;  if j is not in S:  S <- S - {r} + {j},  r uniform in S
        P(n in S' | S) = 1 - p (a - m) / (a m)  for n in S,   p / a  for the rest of A,   0 outside

    with a = |A|, m = |S|. So each available device is drawn with probability p / a, whichever the
    selector prefers; an audit device may already be in S. If p is 0, nothing is drawn from `rng`,
    and the cohort is S.

    Args:
        rows: S, the rows selected, ascending, shape (m,).
        is_available: A, shape (N,).
        probability: p, in [0, 1].
        rng: A separate random stream, so that the selector's draws do not depend on p.

    Source:
        Own; weights 1 / propensity are those of Horvitz & Thompson, JASA 47 (1952).
    """
    propensity = np.zeros(len(is_available))
    propensity[rows] = 1.0
    if probability <= 0.0 or rows.size == 0:
        return Audited(rows, None, propensity)
    available = np.flatnonzero(is_available).astype(np.int64)
    a, m = len(available), len(rows)
    propensity[available] = probability / a
    propensity[rows] = 1.0 - probability * (a - m) / (a * m)
    if rng.random() >= probability:
        return Audited(rows, None, propensity)
    drawn = int(shuffled_rows(rng, is_available)[0])
    if drawn not in rows:
        rows = rows.copy()
        rows[rng.integers(m)] = drawn
        rows.sort()
    return Audited(rows, drawn, propensity)
