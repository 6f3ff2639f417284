"""Print the numbers of docs/theory.md: what each theorem allows, and what was seen."""

import math

import numpy as np

from fairbed.coordinator.algorithms.selection.rbcs_f import solve_p4
from tests.theory import test_aaggff as aaggff
from tests.theory import test_corefed as corefed
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

    print("\nworld of rbcs-f-paper.toml, 300 rounds: sum of Z_T^2, and 2 T (Gamma + V max tau_bar)")
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

    print_aaggff()
    print_corefed()


def print_aaggff() -> None:
    """Print how near its bounds AAggFF comes, and how far beyond others get."""
    print(
        "\nAAggFF, Lemma 4.1: largest |g| / L_inf; slope / L_inf; |g| of responses without a bound"
    )
    for least, most in aaggff.RANGES:
        seen = aaggff.largest_gradient(least, most), aaggff.largest_slope(least, most)
        broken = aaggff.largest_gradient(least, most, bounded=False)
        print(f"{least:>5g} to {most:<5g}{seen[0]:>8.3f}{seen[1]:>8.3f}{broken:>8.2f}")

    print("\nsampled: largest |g| / (2 + C) with responses up to C; up to 1")
    for C in aaggff.SAMPLING:
        seen_c, broken = aaggff.largest_linearised(C, C), aaggff.largest_linearised(C, 1.0)
        print(f"C = {C:<5g}{seen_c:>8.3f}{broken:>8.2f}")

    print("\ndoubly robust, 7 clients: error of the identity; without the mean given back")
    for m in range(2, 8):
        broken = aaggff.identity_error(m, aaggff.without_the_mean)
        print(f"m = {m}{aaggff.identity_error(m):>12.0e}{broken:>8.2f}")

    print(f"\nregret of silos, {aaggff.SILO_ROUNDS} rounds, worst of {len(aaggff.ADVERSARIES)}")
    for K in aaggff.SILOS:
        print(f"K = {K}, bound {aaggff.silo_bound(K):.2f}")
        for name in aaggff.SILO_RULES:
            print(f"  {name:<24}{aaggff.largest_silo_regret(name, K):>8.2f}")

    print(f"\nlinearised regret of {aaggff.DEVICES} devices, worst adversary")
    for m, T in aaggff.SAMPLES:
        print(f"m = {m}, T = {T}, bound {aaggff.device_bound(m, T):.1f}")
        for kind in aaggff.DEVICE_RULES:
            print(f"  {kind:<24}{aaggff.largest_device_regret(m, T, kind):>8.1f}")

    print("\nregret of decision losses, worst adversary: L_inf in the step; 2 + C; equal weights")
    for m, T in aaggff.SAMPLES:
        steps = aaggff.theorem_lipschitz(m), aaggff.rule_lipschitz(m), math.inf
        regrets = [aaggff.largest_decision_regret(m, T, step) for step in steps]
        print(f"m = {m}, T = {T}, bound {aaggff.theorem_bound(m, T):.1f}", end="")
        print("".join(f"{regret:>8.1f}" for regret in regrets))
    m, T = aaggff.SAMPLES[-1]
    print(f"one is high, m = {m}:", end="")
    for step in (aaggff.theorem_lipschitz(m), aaggff.rule_lipschitz(m)):
        print(f"{aaggff.decision_regret('one is high', m, T, step):>8.1f}", end="")
    print()


def print_corefed() -> None:
    """Print the certificates of CoreFed and of other rules."""
    print(f"\nCoreFed, {len(corefed.GAMES)} games: largest certificate; core margin; weighted")
    for kind in ("plain", "weighted", "another M", "fedavg"):
        margin = max(corefed.margin(*corefed.corefed(seed, kind)) for seed in corefed.GAMES)
        certificate = corefed.largest_certificate(kind)
        weighted = corefed.largest_certificate(kind, is_weighted=True)
        print(f"{kind:<12}{certificate:>10.6f}{margin:>8.3f}{weighted:>10.6f}")
    tight = max(corefed.largest_on_simplex(corefed.on_the_simplex(n, n)) for n in (2, 3, 5, 8))
    print(f"u_i = theta_i on the simplex: {tight:.9f}")


if __name__ == "__main__":
    main()
