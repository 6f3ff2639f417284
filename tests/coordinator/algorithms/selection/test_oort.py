"""Oort: worked examples, the pacer, and the shares of exploration and exploitation."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fairbed.coordinator.algorithms.selection.oort import Oort, OortSettings
from tests.coordinator.algorithms.selection.fleet import fleet, outcomes


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def taught(
    loss: Sequence[float],
    tau_s: Sequence[float] | None = None,
    settings: OortSettings | None = None,
) -> Oort:
    """Return a selector after one round in which all devices took part."""
    policy, n = Oort(settings), len(loss)
    policy.observe(outcomes(n, range(n), loss=loss, tau_s=tau_s or [1.0] * n))
    return policy


def test_a_missed_deadline_is_a_lower_bound_of_the_duration() -> None:
    policy, nan = Oort(OortSettings(threshold=50.0)), float("nan")
    observed = outcomes(3, range(3), loss=[1.0, 1.0, 1.0], tau_s=[1.0, 1.0, nan])
    policy.observe(observed)
    first, _, late = policy.score(np.arange(3), 2)
    assert late == first, "without a bound it counts as not slower than the others"
    policy.observe(replace(observed, at_least_s=np.array([nan, nan, 10.0])))
    known, _, late = policy.score(np.arange(3), 2)
    assert late == pytest.approx(0.01 * known)


def test_the_utility_is_the_loss_of_all_examples() -> None:
    observed = outcomes(2, [0, 1], loss=[2.0, 3.0])
    policy = Oort()
    policy.observe(
        type(observed)(
            round=1,
            is_selected=observed.is_selected,
            is_aggregated=observed.is_aggregated,
            n_k=np.array([4, 2]),
            tau_s=observed.tau_s,
            loss=observed.loss,
        )
    )
    assert policy.to_state()["utility"] == [8.0, 6.0]


def test_worked_example_of_the_speed_penalty() -> None:
    """Twice as slow as preferred and penalty 2: a factor of 1/4."""
    settings = OortSettings(threshold=50.0)
    policy = taught([1.0, 1.0, 1.0], [10.0, 10.0, 20.0], settings)
    score = policy.score(np.arange(3), round_id=2)
    assert score[2] == pytest.approx(score[0] / 4.0)
    assert score[0] == score[1], "no bonus for being faster than preferred"


def test_without_a_preference_no_device_is_too_slow() -> None:
    policy = taught([1.0, 1.0], [1.0, 99.0], OortSettings(threshold=100.0))
    assert len(set(policy.score(np.arange(2), 2).tolist())) == 1


def test_the_score_is_the_clipped_utility_in_its_range_and_a_bonus() -> None:
    policy = taught([1.0, 3.0, 2.0], settings=OortSettings(clip_quantile=0.5, threshold=100.0))
    lowest, clip = 0.999, 2.0
    bonus = np.sqrt(0.1 * np.log(5))
    expected = (np.array([1.0, 2.0, 2.0]) - lowest) / (clip - lowest) + bonus
    np.testing.assert_allclose(policy.score(np.arange(3), 5), expected)


def test_a_device_not_selected_for_long_has_a_bonus() -> None:
    policy = taught([1.0, 1.0])
    policy.observe(outcomes(2, [0], round_id=8, loss=[1.0, 1.0], tau_s=[1.0, 1.0]))
    score = policy.score(np.arange(2), 9)
    assert score[1] > score[0]


def test_at_first_new_devices_are_tried_and_later_useful_ones() -> None:
    settings = OortSettings(exploration=0.9, exploration_decay=0.8, exploration_min=0.2)
    policy = taught([1.0, 1.0, 9.0, 9.0, 9.0], settings=settings)
    shares = []
    for round_id in (1, 60):
        rows = policy.select(fleet([0.0] * 30, round_id=round_id), 5, rng())
        shares.append(int(np.isin(rows, [0, 1, 2, 3, 4]).sum()))
    assert shares == [1, 4]


def test_among_the_tried_those_with_high_loss_are_preferred() -> None:
    settings = OortSettings(exploration=0.0, exploration_min=0.0)
    policy = taught([0.1, 0.1, 0.1, 5.0, 5.0, 5.0], settings=settings)
    for seed in range(20):
        rows = policy.select(fleet([0.0] * 6, round_id=2), 2, rng(seed))
        assert set(rows.tolist()) <= {3, 4, 5}


def test_when_all_are_tried_the_cut_off_is_the_last_score() -> None:
    settings = OortSettings(exploration=0.0, exploration_min=0.0)
    policy = taught([1.0, 2.0, 3.0], settings=settings)
    rows = policy.select(fleet([0.0] * 4, absent=[0], round_id=2), 2, rng())
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("now", "moved"), [(10.0, 5.0), (10.9, 5.0), (12.0, 0.0), (5.0, 0.0), (61.0, -5.0)]
)
def test_the_pacer_moves_by_how_utility_changes_between_windows(now: float, moved: float) -> None:
    policy = Oort(OortSettings(pacer_step=3, threshold=30.0))
    policy.load_state(
        {
            "threshold": 30.0,
            "utility": [now],
            "duration_s": [1.0],
            "last": [5],
            "exploited": [10.0, 10.0, 10.0, now, now],
        }
    )
    policy.observe(outcomes(1, [0], round_id=6, loss=[1.0], tau_s=[1.0]))
    assert policy.to_state()["threshold"] == 30.0 + moved


def test_the_threshold_stays_a_percentile() -> None:
    settings = OortSettings(pacer_step=1, threshold=98.0)
    policy = taught([1.0], settings=settings)
    for round_id in range(2, 9):
        policy.observe(outcomes(1, [0], round_id=round_id, loss=[1.0], tau_s=[1.0]))
    assert policy.to_state()["threshold"] == 100.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (OortSettings(exploration=1.5), "exploration must be in"),
        (OortSettings(clip_quantile=-0.1), "clip_quantile must be in"),
        (OortSettings(threshold=0.0), "threshold must be in"),
        (OortSettings(pacer_step=0), "pacer_step >= 1"),
    ],
)
def test_refuses_settings_out_of_range(settings: OortSettings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Oort(settings)


def test_a_round_without_measurements_changes_no_utility() -> None:
    policy = taught([2.0, 3.0], [4.0, 5.0])
    before = policy.to_state()
    unmeasured = replace(outcomes(2, [0], round_id=2), tau_s=None, loss=None)
    policy.observe(unmeasured)
    after = policy.to_state()
    assert (after["utility"], after["duration_s"]) == (before["utility"], before["duration_s"])
    assert after["last"] == [2, 1]
