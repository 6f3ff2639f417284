"""The quota rule: legal for the kernel, and accurate by measurement."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.quota import (
    MAX_PERIOD_US,
    MIN_PERIOD_US,
    MIN_QUOTA_US,
    MIN_SHARE,
    WHOLE_MARGIN,
    cfs_period_us,
    cfs_quota,
    threads_for,
)

shares = st.floats(MIN_SHARE, 64.0)


@pytest.mark.parametrize(
    ("share", "period_us", "quota_us"),
    [
        (0.01, 100_000, 1_000),
        (0.05, 20_000, 1_000),
        (0.1, 10_000, 1_000),
        (0.25, 10_000, 2_500),
        (0.5, 10_000, 5_000),
        (0.89, 10_000, 8_900),
        (0.9, 100_000, 90_000),
        (1.0, 100_000, 100_000),
        (1.05, 100_000, 105_000),
        (1.5, 10_000, 15_000),
        (2.0, 100_000, 200_000),
    ],
)
def test_follows_the_measured_rule(share: float, period_us: int, quota_us: int) -> None:
    quota = cfs_quota(share, cfs_period_us(share))
    assert (quota.period_us, quota.quota_us) == (period_us, quota_us)


@given(shares, shares)
def test_a_share_is_met_within_a_thousandth_in_any_kept_period(first: float, then: float) -> None:
    quota = cfs_quota(then, cfs_period_us(first))
    assert quota.share == pytest.approx(then, rel=1e-3)


@given(shares, shares)
def test_every_quota_is_legal_for_the_kernel(first: float, then: float) -> None:
    quota = cfs_quota(then, cfs_period_us(first))
    assert quota.quota_us is not None
    assert quota.quota_us >= MIN_QUOTA_US
    assert MIN_PERIOD_US <= quota.period_us <= MAX_PERIOD_US


@given(shares, shares)
def test_a_period_is_kept_unless_the_share_is_too_small_for_it(first: float, then: float) -> None:
    period_us = cfs_period_us(first)
    quota = cfs_quota(then, period_us)
    assert quota.period_us == period_us or then * period_us < MIN_QUOTA_US


@given(shares)
def test_only_shares_near_a_whole_number_or_very_small_have_long_periods(share: float) -> None:
    is_near_whole = share >= 0.5 and abs(share - round(share)) <= WHOLE_MARGIN
    if not is_near_whole:
        assert cfs_period_us(share) <= max(MIN_PERIOD_US, math.ceil(MIN_QUOTA_US / share))


def test_no_share_is_no_limit() -> None:
    quota = cfs_quota(None, MIN_PERIOD_US)
    assert quota.quota_us is None
    assert quota.share is None


@pytest.mark.parametrize("share", [0.0, -1.0, 0.0099, math.nan, math.inf])
def test_refuses_shares_below_the_minimum_of_the_kernel(share: float) -> None:
    with pytest.raises(ValueError, match=r"at least 0\.01 of a core, got .*smaller dilation"):
        cfs_period_us(share)
    with pytest.raises(ValueError, match="at least"):
        cfs_quota(share, MAX_PERIOD_US)


@given(shares)
def test_an_engine_has_one_thread_per_started_core(share: float) -> None:
    threads = threads_for(share)
    assert threads - 1 < share <= threads
