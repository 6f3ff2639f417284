"""Luck depends on what it is asked for and on nothing else."""

import numpy as np
from scipy import stats

from fairbed.testbed.replay.chance import normals, uniforms


def test_a_device_has_the_same_luck_in_any_company() -> None:
    everybody = normals(7, 3, np.arange(1000), 4)
    np.testing.assert_array_equal(normals(7, 3, np.array([17, 900]), 4), everybody[[17, 900]])


def test_seed_round_row_and_purpose_are_all_different_luck() -> None:
    row = np.array([5])
    asked = [(7, 3, row, 4), (8, 3, row, 4), (7, 4, row, 4), (7, 3, row + 1, 4), (7, 3, row, 6)]
    assert len({float(uniforms(*one)[0]) for one in asked}) == len(asked)


def test_numbers_are_uniform_and_normal_and_independent() -> None:
    rows = np.arange(20_000)
    uniform, normal = uniforms(1, 1, rows, 0), normals(1, 1, rows, 2)
    assert stats.kstest(uniform, "uniform").pvalue > 0.01
    assert stats.kstest(normal, "norm").pvalue > 0.01
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(uniform, uniforms(1, 2, rows, 0))[0, 1]) < 0.02
    assert 0.0 < uniform.min() < uniform.max() < 1.0
