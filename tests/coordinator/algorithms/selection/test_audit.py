"""The audit sample: frequencies of the draw, and no other effect."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.selection.audit import audit

AVAILABLE = np.array([True, True, False, True, True, True])
PICKED = np.array([0, 3])
DRAWS = 15_000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_without_an_audit_nothing_is_drawn_and_nothing_changes() -> None:
    stream = rng(5)
    audited = audit(PICKED, AVAILABLE, 0.0, stream)
    assert audited.rows is PICKED
    assert audited.audit_row is None
    assert audited.propensity.tolist() == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert stream.random() == rng(5).random()


def test_a_void_round_has_no_audit() -> None:
    none_available = np.zeros(3, dtype=np.bool_)
    audited = audit(np.zeros(0, dtype=np.int64), none_available, 1.0, rng())
    assert (audited.rows.size, audited.audit_row) == (0, None)
    assert audited.propensity.tolist() == [0.0] * 3


def test_propensities_by_hand() -> None:
    """A = 5, m = 2: each other is drawn with p / 5, and takes one of two places."""
    audited = audit(PICKED, AVAILABLE, 0.5, rng())
    expected = [1.0 - 0.5 * 0.6 / 2, 0.1, 0.0, 1.0 - 0.5 * 0.6 / 2, 0.1, 0.1]
    assert audited.propensity == pytest.approx(expected)


@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_frequencies_are_the_propensities(probability: float) -> None:
    stream, counts, drawn = rng(), np.zeros(6), np.zeros(6)
    propensity = audit(PICKED, AVAILABLE, probability, rng()).propensity
    for _ in range(DRAWS):
        audited = audit(PICKED, AVAILABLE, probability, stream)
        counts[audited.rows] += 1.0
        if audited.audit_row is not None:
            drawn[audited.audit_row] += 1.0
    slack = 4.0 * np.sqrt(0.25 / DRAWS)
    np.testing.assert_allclose(counts / DRAWS, propensity, atol=slack)
    np.testing.assert_allclose(drawn / DRAWS, AVAILABLE * probability / 5.0, atol=slack)


@given(
    is_available=st.lists(st.booleans(), min_size=1, max_size=12),
    m=st.integers(0, 12),
    probability=st.floats(0.0, 1.0),
    seed=st.integers(0, 99),
)
def test_the_cohort_keeps_its_size_and_is_available(
    is_available: list[bool], m: int, probability: float, seed: int
) -> None:
    there = np.array(is_available)
    picked = np.flatnonzero(there)[:m].astype(np.int64)
    before = picked.copy()
    audited = audit(picked, there, probability, rng(seed))
    assert picked.tolist() == before.tolist()
    assert audited.rows.tolist() == sorted(set(audited.rows.tolist()))
    assert len(audited.rows) == len(picked)
    assert there[audited.rows].all()
    assert audited.propensity.sum() == pytest.approx(len(picked))
    assert ((audited.propensity >= 0.0) & (audited.propensity <= 1.0 + 1e-12)).all()
    assert audited.audit_row is None or audited.audit_row in audited.rows


def test_an_absent_device_changes_the_draw_only_if_it_was_drawn() -> None:
    for seed in range(30):
        drawn = audit(PICKED, AVAILABLE, 1.0, rng(seed)).audit_row
        for absent in set(np.flatnonzero(AVAILABLE)) - {drawn, *PICKED.tolist()}:
            fewer = AVAILABLE.copy()
            fewer[absent] = False
            assert audit(PICKED, fewer, 1.0, rng(seed)).audit_row == drawn
