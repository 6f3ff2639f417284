"""Compare solvers of the quadratic forms of FedMGDA+ and AAggFF-S: docs/decisions/0014.

pip install daqp==0.11.0    # optional; without it, DAQP has no row
python -m experiments.quadratic_solvers
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy.optimize import LinearConstraint, minimize

from fairbed.coordinator.algorithms.aggregation.aaggff import decision_gradient, responses
from fairbed.coordinator.algorithms.aggregation.fedmgda import RIDGE
from fairbed.coordinator.algorithms.aggregation.quadratic import least_on_simplex
from fairbed.coordinator.algorithms.arrays import Floats

TOLERANCE = 1e-9
"""A solution fails if its gap or its distance from the constraints is above this."""

FAMILIES: Mapping[str, Callable[[np.random.Generator, int], Floats]] = {
    "independent": lambda rng, n: rng.normal(size=(n, 60)),
    "equal in pairs": lambda rng, n: np.repeat(rng.normal(size=(-(-n // 2), 60)), 2, 0)[:n],
    "opposite in pairs": lambda rng, n: np.concatenate([v := rng.normal(size=(n, 60)), -v]),
    "nearly equal": lambda rng, n: rng.normal(size=60) + 1e-6 * rng.normal(size=(n, 60)),
    "equal": lambda rng, n: np.repeat(rng.normal(size=(1, 60)), n, 0),
    "more than dimensions": lambda rng, n: rng.normal(size=(n, 3)),
}
"""Updates of n devices, by how they depend on each other."""

EPSILONS = (1e-8, 1e-6, 1e-3, 0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Form:
    """Minimise 1/2 p.A p - c.p over lower <= p <= upper with sum 1."""

    A: Floats
    c: Floats
    lower: float
    upper: float

    def gap(self, p: Floats) -> float:
        """Return slope.(p - q) for the best feasible q: at least the distance to the minimum."""
        slope = (self.A * p).sum(axis=1) - self.c
        q, left = np.full(len(p), self.lower), 1.0 - len(p) * self.lower
        for k in np.argsort(slope):
            step = min(self.upper - self.lower, left)
            q[k] += step
            left -= step
        return abs(float((slope * (p - q)).sum()))

    def violation(self, p: Floats) -> float:
        """Return the largest distance of p from a constraint."""
        return max(
            abs(float(p.sum()) - 1.0), self.lower - float(p.min()), float(p.max()) - self.upper
        )


Solver: TypeAlias = Callable[[Form], Floats | None]
"""Returns a solution, or None if the solver reports that it found none."""


def ours(form: Form) -> Floats:
    """Solve with the product's function, from equal weights."""
    n = len(form.c)
    return least_on_simplex(form.A, form.c, np.full(n, 1.0 / n), form.lower, form.upper)


def slsqp(form: Form) -> Floats:
    """Solve with SLSQP of scipy, from equal weights.

    Its own verdict is ignored: at this tolerance it often reports a failed line search at the
    solution.
    """
    A, c, n = form.A, form.c, len(form.c)

    def value(p: Floats) -> float:
        return float(0.5 * p @ A @ p - c @ p)

    def slope(p: Floats) -> Floats:
        return np.asarray(A @ p - c, dtype=np.float64)

    found = minimize(
        value,
        np.full(n, 1.0 / n),
        jac=slope,
        bounds=[(form.lower, form.upper)] * n,
        constraints=LinearConstraint(np.ones((1, n)), 1.0, 1.0),
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return np.asarray(found.x, dtype=np.float64)


def daqp_solver(solve: Callable[..., Any]) -> Solver:
    """Return DAQP with its tightest working tolerance."""

    def daqp(form: Form) -> Floats | None:
        n = len(form.c)
        upper = np.append(np.full(n, form.upper), 1.0)
        lower = np.append(np.full(n, form.lower), 1.0)
        sense = np.append(np.zeros(n), 5).astype(np.int32)
        p, _, flag, _ = solve(
            form.A, -form.c, np.ones((1, n)), upper, lower, sense, primal_tol=1e-12
        )
        return np.array(p) if flag == 1 else None

    return daqp


def solvers() -> dict[str, Solver]:
    """Return the solvers that are installed."""
    found: dict[str, Solver] = {"ours": ours, "SLSQP": slsqp}
    try:
        found["DAQP"] = daqp_solver(importlib.import_module("daqp").solve)
    except ImportError:
        sys.stderr.write("DAQP is not installed: pip install daqp==0.11.0\n")
    return found


def common_descents(family: str, count: int) -> Iterator[Form]:
    """Yield forms of FedMGDA+ with 2 to 40 updates and each epsilon."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        u = FAMILIES[family](rng, int(rng.integers(2, 41)))
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        n, epsilon = len(u), EPSILONS[seed % len(EPSILONS)]
        yield Form(
            u @ u.T + RIDGE * np.eye(n),
            np.zeros(n),
            max(0.0, 1.0 / n - epsilon),
            min(1.0, 1.0 / n + epsilon),
        )


def newton_steps(K: int, rounds: int) -> Iterator[tuple[Form, Floats]]:
    """Yield the forms of AAggFF-S over rounds of uneven losses, and the weights before each."""
    rng, A, c, p = np.random.default_rng(0), 4.0 * np.eye(K), np.zeros(K), np.full(K, 1.0 / K)
    level = np.exp(2.0 * rng.normal(size=K))
    for _ in range(rounds):
        g = decision_gradient(p, responses(level * rng.random(K), "weibull", 1.0 / K))
        A = A + K / 4.0 * np.multiply.outer(g, g)
        c = c + g * (K / 4.0 * float((g * p).sum()) - 1.0)
        yield Form(A, c, 0.0, 1.0), p
        p = least_on_simplex(A, c, p)


def milliseconds(call: Callable[..., object], *arguments: object) -> float:
    """Return the shortest of three durations of a call."""
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        call(*arguments)
        durations.append(time.perf_counter() - start)
    return 1e3 * min(durations)


def failures(solver: Solver, family: str, count: int) -> tuple[int, float]:
    """Return how many of `count` forms have no solution within the tolerance, and the worst gap.

    The gap is that of the solutions that were returned.
    """
    failed, worst = 0, 0.0
    for form in common_descents(family, count):
        p = solver(form)
        if p is None:
            failed += 1
            continue
        error = max(form.gap(p), form.violation(p))
        failed += not error <= TOLERANCE
        worst = max(worst, error)
    return failed, worst


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Compare solvers of quadratic forms.")
    parser.add_argument("--count", type=int, default=300, help="forms of each family")
    count = parser.parse_args(argv).count
    found = solvers()
    lines = [f"failures of {count} forms (largest error of the others)"]
    for family in FAMILIES:
        results = {name: failures(solver, family, count) for name, solver in found.items()}
        cells = [f"{name} {failed} ({worst:.0e})" for name, (failed, worst) in results.items()]
        lines.append("  ".join([f"  {family:22}", *cells]))
    lines.append("AAggFF-S, median ms of a round; ours begins at the last weights, the others anew")
    for K in (50, 200):
        forms = list(newton_steps(K, 5))
        times = {"ours": [milliseconds(least_on_simplex, f.A, f.c, p) for f, p in forms]}
        for name, solver in found.items():
            if name != "ours" and (name, K) != ("SLSQP", 200):  # takes minutes
                times[name] = [milliseconds(solver, form) for form, _ in forms]
        cells = [f"{name} {np.median(each):.2f}" for name, each in times.items()]
        lines.append("  ".join([f"  K = {K:3}", *cells]))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
