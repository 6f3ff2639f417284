"""Prequential errors: each exchange is predicted before it is learned from."""

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.estimation import Measured
from fairbed.coordinator.algorithms.estimation.base import Learner
from fairbed.coordinator.algorithms.estimation.baselines import DeviceMean, GlobalMean, LastValue
from fairbed.coordinator.algorithms.estimation.prequential import EstimatorTrial, prequential
from fairbed.coordinator.algorithms.estimation.ridge import RidgeEstimator


def trial(times_s: dict[int, float]) -> EstimatorTrial:
    rows = np.array(list(times_s), dtype=np.int64)
    tau_s = np.array(list(times_s.values()))
    context: Floats = np.ones((len(rows), 4))
    return EstimatorTrial(rows, context, Measured.whole(tau_s))


TRIALS = [trial({0: 2.0, 1: 8.0}), trial({0: 4.0}), trial({0: 3.0, 1: 8.0})]


def simple(trials: list[EstimatorTrial]) -> dict[str, list[float]]:
    learners: dict[str, Learner] = {
        "last": LastValue(),
        "device": DeviceMean(),
        "all": GlobalMean(),
    }
    found = prequential(learners, trials)
    return {name: [e.mape or 0.0, e.bias or 0.0, e.count] for name, e in found.items()}


def test_the_baselines_by_hand() -> None:
    found = simple(TRIALS)
    # known before: device 0 at 4 s and 3 s, device 1 at the second 8 s
    assert found["last"] == pytest.approx([(0.5 + 1 / 3 + 0.0) / 3, (-0.5 + 1 / 3) / 3, 3])
    assert found["device"] == pytest.approx([(0.5 + 0.0 + 0.0) / 3, -0.5 / 3, 3])
    means = [5.0, 14 / 3, 14 / 3]
    errors = [means[0] / 4 - 1, means[1] / 3 - 1, means[2] / 8 - 1]
    assert found["all"] == pytest.approx([np.mean(np.abs(errors)), np.mean(errors), 3])


def test_the_first_exchange_of_a_device_has_no_error() -> None:
    found = simple([trial({0: 1.0, 1: 2.0, 2: 3.0})])
    assert [counts[2] for counts in found.values()] == [0, 0, 0]


def test_errors_are_grouped_by_known_exchanges() -> None:
    steady = [trial({0: 2.0}) for _ in range(12)]
    (errors,) = prequential({"ridge": RidgeEstimator(1.0)}, steady).values()
    assert list(errors.median_ape_from) == ["1", "2", "5", "10"]
    medians = list(errors.median_ape_from.values())
    assert medians == sorted(medians, reverse=True), "it learns"


def test_coverage_is_that_of_intervals_from_earlier_errors() -> None:
    """Whatever the estimator: the intervals are learned from its errors."""
    rng = np.random.default_rng(5)
    trials = [trial(dict(enumerate(np.exp(0.3 * rng.standard_normal(4))))) for _ in range(200)]
    learners: dict[str, Learner] = {"last": LastValue(), "ridge": RidgeEstimator(1.0)}
    for errors in prequential(learners, trials).values():
        assert errors.coverage == pytest.approx(0.8, abs=0.03)
        assert errors.interval is not None
        assert 1.5 < errors.interval < 4.0
    (few,) = prequential({"last": LastValue()}, trials[:2]).values()
    assert (few.coverage, few.interval) == (None, None), "too few errors for a quantile"


def test_no_exchange_at_all_is_no_error() -> None:
    (errors,) = prequential({"last": LastValue()}, []).values()
    assert (errors.count, errors.mape, errors.median_ape_from) == (0, None, {})


@pytest.mark.parametrize("kind", [LastValue, DeviceMean, GlobalMean])
def test_a_round_without_exchanges_teaches_nothing(kind: type[Learner]) -> None:
    learner, nothing = kind(), trial({})
    learner.observe(nothing.rows, nothing.context, nothing.measured)
    assert learner.predict(np.ones((2, 4))).tau_hat_s.tolist() == [0.0, 0.0]
