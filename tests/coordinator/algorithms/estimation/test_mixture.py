"""The mixture follows a changed link at once, and the better of its two predictors otherwise."""

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.estimation.base import Estimator, Measured
from fairbed.coordinator.algorithms.estimation.mixture import FLEET_MEMORY, MixtureEstimator
from fairbed.coordinator.algorithms.estimation.phases import PhaseEstimator
from fairbed.coordinator.algorithms.estimation.ridge import RidgeEstimator

DEVICES = 8
BITS = 4e6


def exchanges(
    estimator: Estimator, rates_bps: Floats, rng: np.random.Generator, noise: float = 0.01
) -> Floats:
    """Return the relative error of each prediction, shape (rounds, devices).

    Args:
        estimator: Predicts and learns.
        rates_bps: Rate of each device in each round, shape (rounds, devices), both directions.
        rng: Draws the noise of each phase, and the work of each device.
        noise: Deviation of the logarithm of a phase.
    """
    rows, work_s = np.arange(DEVICES), rng.uniform(0.5, 4.0, DEVICES)
    reported, errors = rates_bps[0].copy(), []
    for rates in rates_bps:
        nominal_s = BITS / reported
        context = np.stack([np.ones(DEVICES), np.zeros(DEVICES), nominal_s, nominal_s], axis=1)
        predicted_s = estimator.predict(context).tau_hat_s
        factors = np.exp(noise * rng.standard_normal((4, DEVICES)))
        way_s, nothing = BITS / rates, np.zeros(DEVICES)
        phases_s = np.stack(
            [
                way_s * factors[0],
                nothing,
                work_s * factors[1],
                way_s * factors[2],
                0.05 * factors[3],
            ],
            axis=1,
        )
        tau_s = phases_s.sum(axis=1)
        errors.append(np.abs(predicted_s / tau_s - 1.0))
        estimator.observe(rows, context, Measured(tau_s, phases_s))
        reported = 0.5 * reported + 0.5 * rates
    return np.array(errors)


def second_after_change(estimator_of: type[Estimator]) -> float:
    """Return the median error of the second exchange after links fell to a tenth; n = 200."""
    found = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        rates = np.repeat(10.0 ** rng.uniform(5.7, 7.3, (1, DEVICES)), 12, axis=0)
        rates[10:] *= 0.1
        found.append(exchanges(estimator_of(), rates, rng)[11])
    return float(np.median(found))


def test_the_second_exchange_after_a_link_fell_to_a_tenth_is_predicted() -> None:
    assert second_after_change(MixtureEstimator) <= 0.12


@pytest.mark.parametrize("rho", [0.0, 0.95])
def test_is_about_as_good_as_the_better_of_both(rho: float) -> None:
    mixed, phases, last = [], [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        scores = np.zeros((60, DEVICES))
        scores[0] = rng.standard_normal(DEVICES)
        for at in range(1, 60):
            shock = rng.standard_normal(DEVICES)
            scores[at] = rho * scores[at - 1] + np.sqrt(1.0 - rho**2) * shock
        rates = 3e6 * np.exp(0.7 * scores)
        mixed.append(exchanges(MixtureEstimator(), rates, np.random.default_rng(seed))[20:])
        phases.append(exchanges(PhaseEstimator(), rates, np.random.default_rng(seed))[20:])
        last.append(np.abs(rates[20:] / rates[19:-1] - 1.0))
    assert np.median(mixed) <= 1.05 * min(np.median(phases), np.median(last))


def test_an_exchange_that_did_not_end_is_left_to_the_phases() -> None:
    mixture, phases = MixtureEstimator(), PhaseEstimator()
    rates = np.full((5, DEVICES), 2e6)
    for estimator in (mixture, phases):
        exchanges(estimator, rates, np.random.default_rng(1))
    context = np.tile([1.0, 0.0, 2.0, 2.0], (DEVICES, 1))
    lost = Measured(np.full(2, 500.0), np.full((2, 5), np.nan), np.ones(2, dtype=np.bool_))
    for estimator in (mixture, phases):
        estimator.observe(np.array([0, 3]), context[:2], lost)
    made, of_phases = (each.predict(context).tau_hat_s for each in (mixture, phases))
    assert made[[0, 3]] == pytest.approx(of_phases[[0, 3]])


def test_goes_on_from_its_state() -> None:
    rates = 2e6 * np.exp(np.random.default_rng(2).standard_normal((12, DEVICES)))
    whole = MixtureEstimator()
    exchanges(whole, rates, np.random.default_rng(3))
    again = MixtureEstimator()
    again.load_state(whole.to_state())
    after = [exchanges(each, rates, np.random.default_rng(4)) for each in (whole, again)]
    assert np.array_equal(after[0], after[1])


def test_two_exchanges_of_a_device_in_one_update_both_count() -> None:
    estimator = MixtureEstimator()
    context = np.tile([1.0, 0.0, 2.0, 2.0], (2, 1))
    tau_s = np.array([4.0, 6.0])
    phases_s = np.stack([np.full(2, 1.0)] * 4 + [tau_s - 4.0], axis=1)
    first, both = np.array([0, 1]), np.array([0, 0])
    estimator.observe(first, context, Measured(tau_s, phases_s))
    estimator.observe(both, context, Measured(tau_s, phases_s))
    assert [sums[0] for sums in estimator.to_state()["sums"]] == [2.0, 0.0]


def test_a_link_that_changed_is_followed_until_the_phases_have_learned_it() -> None:
    rates = np.full((16, DEVICES), 4e6)
    rates[10:, 0] *= 0.1  # of one device: others teach the fleet nothing about a change
    mixed, phases = (
        exchanges(made, rates, np.random.default_rng(5), noise=0.05)[:, 0]
        for made in (MixtureEstimator(), PhaseEstimator())
    )
    assert phases[12] > 0.3, "the third exchange is still one that phases takes for an outlier"
    assert (mixed[11:] < 0.2).all()


def test_errors_of_a_fleet_are_forgotten() -> None:
    estimator, rng, usual = MixtureEstimator(), np.random.default_rng(6), []
    for level in (1.0, 0.03):  # links that vary, then others that hardly do
        rates = 2e6 * np.exp(level * rng.standard_normal((150, DEVICES)))
        exchanges(estimator, rates, rng)
        count, of_phases, *_ = estimator.to_state()["fleet"][0]
        usual.append(of_phases / count)
    assert count == FLEET_MEMORY
    assert usual[1] < 0.5 * usual[0]


def test_ridge_is_that_of_the_paper_by_its_name() -> None:
    from fairbed.coordinator.policy.config import SelectionConfig
    from fairbed.coordinator.policy.factories import make_estimator

    assert isinstance(make_estimator(SelectionConfig(estimator="ridge")), RidgeEstimator)
    assert isinstance(make_estimator(SelectionConfig()), MixtureEstimator)
