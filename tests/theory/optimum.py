"""The best that any policy can do in a small world, by linear programming.

Devices have constant exchange times and come and go independently. A stationary policy is a
probability y(S | A) of each cohort S for each set A of devices that are there:

    minimise    sum_A P(A) sum_S y(S | A) max_{n in S} tau_n
    subject to  sum_A P(A) sum_{S with n} y(S | A) >= beta     for every n
                sum_S y(S | A) = 1,   |S| = min(m, |A|)
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

import numpy as np
from scipy.optimize import linprog

from fairbed.coordinator.algorithms.arrays import Floats


@dataclass(frozen=True)
class SmallWorld:
    """Few devices with constant times."""

    tau_s: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
    availability: float = 0.8
    per_round: int = 2
    beta: float = 0.2

    @property
    def devices(self) -> int:
        return len(self.tau_s)

    @property
    def gamma(self) -> float:
        """Gamma = (N beta^2 + m (1 - 2 beta)) / 2: at most what a round adds beside the drift."""
        return (self.devices * self.beta**2 + self.per_round * (1.0 - 2.0 * self.beta)) / 2.0


@cache
def least_time_s(world: SmallWorld, beta: float) -> float:
    """Return the least mean round time with every rate at least beta, seconds.

    Raises:
        ValueError: No policy reaches these rates.
    """
    times, rates, wholes, whole = _program(world)
    found = linprog(times, A_ub=-rates, b_ub=np.full(world.devices, -beta), A_eq=wholes, b_eq=whole)
    if not found.success:
        raise ValueError(f"beta = {beta} is not feasible: {found.message}")
    return float(found.fun or 0.0)


@cache
def most_slack(world: SmallWorld) -> float:
    """Return by how much every rate can exceed beta at the same time."""
    _, rates, wholes, whole = _program(world)
    n, columns = rates.shape
    found = linprog(
        np.concatenate([np.zeros(columns), [-1.0]]),
        A_ub=np.column_stack([-rates, np.ones(n)]),
        b_ub=np.full(n, -world.beta),
        A_eq=np.column_stack([wholes, np.zeros(len(whole))]),
        b_eq=whole,
        bounds=[(0.0, None)] * columns + [(None, None)],
    )
    return -float(found.fun or 0.0)


@cache
def _program(world: SmallWorld) -> tuple[Floats, Floats, Floats, Floats]:
    """Return times (C,), rates (N, C), which choices belong together (A, C), and their sums (A,).

    A column is one cohort of one set of devices, its variable P(A) y(S | A).
    """
    n, p = world.devices, world.availability
    patterns = [tuple(np.flatnonzero(a)) for a in product([0, 1], repeat=n)]
    columns = [
        (at, cohort)
        for at, there in enumerate(patterns)
        for cohort in combinations(there, min(world.per_round, len(there)))
    ]
    times = np.array([max((world.tau_s[i] for i in cohort), default=0.0) for _, cohort in columns])
    rates, wholes = np.zeros((n, len(columns))), np.zeros((len(patterns), len(columns)))
    for column, (at, cohort) in enumerate(columns):
        rates[list(cohort), column] = 1.0
        wholes[at, column] = 1.0
    whole = np.array([p ** len(a) * (1.0 - p) ** (n - len(a)) for a in patterns])
    return times, rates, wholes, whole
