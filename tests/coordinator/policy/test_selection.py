"""Several selections of a round, joined into one."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, Prediction
from fairbed.coordinator.policy.selection import Selection, SelectionBuilder


def random_selection(rng: np.random.Generator, n: int, rows: list[int], known: bool) -> Selection:
    """Return a selection of some of `n` devices with random columns."""
    return Selection(
        round=3,
        rows=np.array(rows, dtype=np.int64),
        is_available=rng.random(n) < 0.5,
        context=rng.random((n, CONTEXT)),
        prediction=Prediction(rng.random(n), rng.random(n), rng.random(n)),
        n_k=rng.integers(1, 99, n),
        propensity=rng.random(n),
        audit_row=int(rng.integers(n)),
        true_tau_s=rng.random(n) if known else None,
    )


def joined(earlier: Selection, later: Selection) -> Selection:
    """Return two selections joined column by column: the oracle of `SelectionBuilder`."""

    def keep(before: Floats, now: Floats) -> Floats:
        kept: Floats = now.copy()
        kept[earlier.rows] = before[earlier.rows]
        return kept

    before, after = earlier.prediction, later.prediction
    is_available = later.is_available.copy()
    is_available[: len(earlier.is_available)] |= earlier.is_available
    known = None
    if earlier.true_tau_s is not None and later.true_tau_s is not None:
        known = keep(earlier.true_tau_s, later.true_tau_s)
    return replace(
        later,
        rows=np.concatenate([earlier.rows, later.rows]),
        is_available=is_available,
        context=keep(earlier.context, later.context),
        propensity=keep(earlier.propensity, later.propensity),
        audit_row=earlier.audit_row,
        true_tau_s=known,
        prediction=Prediction(
            keep(before.tau_hat_s, after.tau_hat_s),
            keep(before.width_s, after.width_s),
            keep(before.transfer_hat_s, after.transfer_hat_s),
        ),
    )


@given(st.integers(0, 2**32), st.lists(st.integers(0, 3), min_size=1, max_size=6), st.booleans())
def test_the_builder_joins_selections_one_by_one(seed: int, sizes: list[int], known: bool) -> None:
    rng, n, taken = np.random.default_rng(seed), sum(sizes) + 2, 0
    order = rng.permutation(n).tolist()
    builder, expected = None, None
    for size in sizes:
        one = random_selection(rng, n, order[taken : taken + size], known)
        taken += size
        if builder is None or expected is None:
            builder, expected = SelectionBuilder(one), one
        else:
            builder.add(one)
            expected = joined(expected, one)
    assert builder is not None
    assert expected is not None
    assert_same(builder.build(), expected)


def test_devices_may_join_between_two_selections() -> None:
    rng = np.random.default_rng(1)
    first, later = random_selection(rng, 3, [2], True), random_selection(rng, 5, [4, 0], True)
    builder = SelectionBuilder(first)
    builder.add(later)
    assert_same(builder.build(), joined(first, later))


def test_a_selection_is_not_changed_by_a_later_one() -> None:
    rng = np.random.default_rng(1)
    first, later = random_selection(rng, 4, [1], True), random_selection(rng, 4, [3], True)
    before, after = (copied(one) for one in (first, later))
    builder = SelectionBuilder(first)
    builder.add(later)
    builder.build()
    assert_same(first, before)
    assert_same(later, after)


def copied(one: Selection) -> Selection:
    """Return a deep copy."""
    p = one.prediction
    return replace(
        one,
        is_available=one.is_available.copy(),
        context=one.context.copy(),
        propensity=one.propensity.copy(),
        true_tau_s=None if one.true_tau_s is None else one.true_tau_s.copy(),
        prediction=Prediction(p.tau_hat_s.copy(), p.width_s.copy(), p.transfer_hat_s.copy()),
    )


def assert_same(one: Selection, other: Selection) -> None:
    assert (one.round, one.audit_row) == (other.round, other.audit_row)
    for name in ("rows", "is_available", "context", "n_k", "propensity", "true_tau_s"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("tau_hat_s", "width_s", "transfer_hat_s"):
        np.testing.assert_array_equal(
            getattr(one.prediction, name), getattr(other.prediction, name), err_msg=name
        )
