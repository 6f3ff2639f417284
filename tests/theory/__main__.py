"""Print the numbers of docs/theory.md: what each theorem allows, and what was seen."""

import numpy as np

from coordinator.algorithms.selection.p4 import solve_p4
from tests.theory import test_drift as drift
from tests.theory import test_p4 as p4
from tests.theory import test_q_ffl as q_ffl
from tests.theory import test_regret as regret
from tests.theory.optimum import least_time_s, most_slack


def main() -> None:
    """Print one section a theorem."""
    best_s = least_time_s(drift.WORLD, drift.WORLD.beta)
    print(
        f"small world: best mean round {best_s:.3f} s, Gamma {drift.WORLD.gamma:.2f}, "
        f"slack of the rates {most_slack(drift.WORLD):.3f}, {drift.ROUNDS} rounds"
    )
    print(f"{'V':>6}{'round':>10}{'bound':>10}{'backlog':>10}{'bound':>10}{'backlog/V':>11}")
    for V in drift.WEIGHTS:
        mean_s, backlog, _ = drift.means("rbcs-f", V)
        time_bound, backlog_bound = drift.time_bound_s(V), drift.backlog_bound(V, mean_s)
        print(
            f"{V:>6g}{mean_s:>8.3f} s{time_bound:>8.3f} s{backlog:>10.1f}{backlog_bound:>10.1f}"
            f"{backlog / V:>11.2f}"
        )
    mean_s, backlog, _ = drift.means("wrong sign", 1.0)
    bound = drift.backlog_bound(1.0, mean_s)
    print(f"queues of the wrong sign, V = 1: backlog {backlog:.0f}, bound {bound:.1f}")
    print(f"uniform: round {drift.means('uniform', 1.0)[0]:.3f} s")

    print("\npaper's world, 300 rounds: sum of Z_T^2, and 2 T (Gamma + V max tau_bar)")
    for V in (5.0, 20.0, 50.0):
        seen, allowed = drift.squares_and_bound(V)
        print(f"{V:>6g}{seen:>12.0f}{allowed:>12.0f}")

    print(f"\nregret against known times, {regret.ROUNDS} rounds, V = {regret.V:g}")
    for kind in ("ridge", "phases", "belated"):
        r = regret.regret_s(kind)
        at = [len(r) // 16, len(r) // 4, len(r)]
        seen_s = "  ".join(f"R_{t} = {r[t - 1]:.0f} s" for t in at)
        print(f"{kind:<10}{seen_s}  R_t ~ t^{regret.exponent(r):.2f}")

    print(f"\nP4, {p4.INSTANCES} instances: how often each is worse than brute force")
    for solver in (solve_p4, p4.by_debt_then_time, p4.first_improvement):
        print(f"{solver.__name__:<20}{p4.mismatches(solver):>6}")

    print("\nq-FFL: largest curvature / bound; the same without the gradient")
    for kind in ("quadratic", "logistic", "wavy"):
        worst = max(float(q_ffl.tightness(kind, q).max()) for q in q_ffl.POWERS)
        broken = float(np.max(q_ffl.tightness(kind, 2.0, q_ffl.without_the_gradient)))
        print(f"{kind:<12}{worst:>8.3f}{broken:>8.2f}")


if __name__ == "__main__":
    main()
