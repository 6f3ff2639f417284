"""RBCS-F against the same policy told the true times (P3): what learning costs dies away."""

from functools import cache

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import Learner, Measured, Prediction
from fairbed.coordinator.algorithms.estimation.phases import PhaseEstimator
from fairbed.coordinator.algorithms.estimation.ridge import RidgeEstimator
from fairbed.coordinator.algorithms.selection.oracle import OracleTimes
from fairbed.coordinator.algorithms.selection.rbcs_f import RbcsF
from tests.theory.rounds import World, live

ROUNDS, SEEDS = 1200, 2
WORLD = World(devices=20, per_round=4)
BETA, V = 0.1, 20.0


class Belated:
    """A ridge that files every measured time under the context of the next round."""

    def __init__(self) -> None:
        self._ridge, self._last = RidgeEstimator(), dict[int, float]()

    def predict(self, context: Floats) -> Prediction:
        """Predict as the ridge does."""
        return self._ridge.predict(context)

    def observe(self, rows: Ints, context: Floats, measured: Measured) -> None:
        """Learn the time that the device took when it was last asked, not now."""
        before = [self._last.get(row, 1.0) for row in np.roll(rows, 1).tolist()]
        self._last |= dict(zip(rows.tolist(), measured.tau_s.tolist(), strict=True))
        self._ridge.observe(rows, context, Measured.whole(np.array(before)))


@cache
def known_s(seed: int) -> Floats:
    """Return the expected round times of who knows the true times, seconds, shape (T,)."""
    return live(
        OracleTimes(selector()), RidgeEstimator(), WORLD, seed=seed, rounds=ROUNDS
    ).expected_s


@cache
def regret_s(kind: str) -> Floats:
    """Return R_t = sum over rounds of f(S) - f(S*), seconds, mean over the seeds, shape (T,)."""
    gaps = []
    for seed in range(SEEDS):
        estimator: Learner = {
            "ridge": RidgeEstimator,
            "phases": PhaseEstimator,
            "belated": Belated,
        }[kind]()
        learned = live(selector(), estimator, WORLD, seed=seed, rounds=ROUNDS)
        gaps.append(np.cumsum(learned.expected_s - known_s(seed)))
    mean: Floats = np.mean(gaps, axis=0)
    return mean


def selector() -> RbcsF:
    return RbcsF(beta=BETA, V=V)


def exponent(regret: Floats) -> float:
    """Return e of R_t ~ t^e over the last nine tenths of the rounds."""
    t = np.arange(1, len(regret) + 1)[len(regret) // 10 :]
    return float(np.polyfit(np.log(t), np.log(regret[len(regret) // 10 :]), 1)[0])


@pytest.mark.parametrize("estimator", ["ridge", "phases"])
def test_regret_is_sublinear(estimator: str) -> None:
    regret = regret_s(estimator)
    assert regret[-1] > 0.0, "learning costs something"
    assert exponent(regret) < 0.8
    assert regret[-1] / ROUNDS < 0.5 * regret[ROUNDS // 8] / (ROUNDS // 8)


def test_regret_of_who_learns_the_wrong_time_is_linear() -> None:
    regret = regret_s("belated")
    assert exponent(regret) > 0.85, "with the rounds in which it learns"
    assert regret[-1] > 3.0 * regret_s("ridge")[-1]
