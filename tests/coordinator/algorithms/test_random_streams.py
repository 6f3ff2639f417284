"""Keyed random numbers depend on their key only."""

import numpy as np
from scipy import stats

from fairbed.coordinator.algorithms.random_streams import normals, seeds, uniforms

ROWS = np.arange(20_000)


def test_a_device_has_the_same_numbers_in_any_cohort() -> None:
    all_rows = normals(7, 3, np.arange(1000), 4)
    np.testing.assert_array_equal(normals(7, 3, np.array([17, 900]), 4), all_rows[[17, 900]])


def test_seed_round_row_and_purpose_each_change_the_number() -> None:
    row = np.array([5])
    keys = [(7, 3, row, 4), (8, 3, row, 4), (7, 4, row, 4), (7, 3, row + 1, 4), (7, 3, row, 6)]
    assert len({float(uniforms(*key)[0]) for key in keys}) == len(keys)
    assert len({int(seeds(*key)[0]) for key in keys}) == len(keys)


def test_numbers_are_uniform_and_normal_and_independent() -> None:
    uniform, normal = uniforms(1, 1, ROWS, 0), normals(1, 1, ROWS, 2)
    assert stats.kstest(uniform, "uniform").pvalue > 0.01
    assert stats.kstest(normal, "norm").pvalue > 0.01
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(uniform, uniforms(1, 2, ROWS, 0))[0, 1]) < 0.02
    assert 0.0 < uniform.min() < uniform.max() < 1.0


def test_seeds_fit_a_message_and_are_distinct_over_rounds_and_devices() -> None:
    drawn = np.concatenate([seeds(1, round_id, ROWS[:1000], 0) for round_id in range(20)])
    assert drawn.dtype == np.int64
    assert 0 <= drawn.min() < drawn.max() < 1 << 40
    assert len(np.unique(drawn)) == len(drawn)


def test_every_bit_of_a_seed_is_fair_and_independent_of_neighbours() -> None:
    drawn = seeds(1, 1, ROWS, 0)
    bits = (drawn[:, np.newaxis] >> np.arange(40)) & 1
    limit = 4.5 / np.sqrt(len(ROWS))  # standard errors of a correlation and of twice a share
    assert np.abs(2.0 * bits.mean(axis=0) - 1.0).max() < limit
    for other in (bits[1:], (seeds(1, 2, ROWS[:-1], 0)[:, np.newaxis] >> np.arange(40)) & 1):
        signs = (2.0 * bits[:-1] - 1.0) * (2.0 * other - 1.0)
        assert np.abs(signs.mean(axis=0)).max() < limit
