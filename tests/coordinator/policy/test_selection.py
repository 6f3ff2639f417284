"""Several choices of a round, kept as one."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, Prediction
from fairbed.coordinator.policy.selection import Selection, SelectionBuilder


def chosen(rng: np.random.Generator, n: int, rows: list[int], known: bool) -> Selection:
    """Return a choice of some of `n` devices, of which all that is known is random."""
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
    """Return two choices as one, column by column: what `SelectionBuilder` has to come to."""

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
def test_picks_are_the_choices_joined_one_by_one(seed: int, sizes: list[int], known: bool) -> None:
    rng, n, taken = np.random.default_rng(seed), sum(sizes) + 2, 0
    order = rng.permutation(n).tolist()
    picks, expected = None, None
    for size in sizes:
        one = chosen(rng, n, order[taken : taken + size], known)
        taken += size
        if picks is None or expected is None:
            picks, expected = SelectionBuilder(one), one
        else:
            picks.add(one)
            expected = joined(expected, one)
    assert picks is not None
    assert expected is not None
    assert_same(picks.build(), expected)


def test_devices_may_join_between_two_choices() -> None:
    rng = np.random.default_rng(1)
    first, later = chosen(rng, 3, [2], True), chosen(rng, 5, [4, 0], True)
    picks = SelectionBuilder(first)
    picks.add(later)
    assert_same(picks.build(), joined(first, later))


def test_a_selection_is_not_changed_by_a_later_one() -> None:
    rng = np.random.default_rng(1)
    first, later = chosen(rng, 4, [1], True), chosen(rng, 4, [3], True)
    before, after = (chosen_again(one) for one in (first, later))
    picks = SelectionBuilder(first)
    picks.add(later)
    picks.build()
    assert_same(first, before)
    assert_same(later, after)


def chosen_again(one: Selection) -> Selection:
    """Return a copy that shares nothing."""
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
