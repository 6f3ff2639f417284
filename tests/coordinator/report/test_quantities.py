"""Texts of quantities: short, with a unit, and with a mark for unknown values."""

from math import nan

import pytest

from fairbed.coordinator.report.quantities import (
    MISSING,
    bandwidth,
    clock,
    energy,
    percent,
    ratio,
    seconds,
    size,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, MISSING),
        (nan, MISSING),
        (0.0, "0.000"),
        (0.0421, "0.042"),
        (0.0999, "0.10"),
        (1.374, "1.37"),
        (9.996, "10.0"),
        (12.44, "12.4"),
        (99.96, "1:39"),
        (187.2, "3:07"),
    ],
)
def test_an_exchange_time_has_three_digits(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0:00"), (7.9, "0:07"), (750.0, "12:30"), (3723.0, "1:02:03")]
)
def test_a_long_duration_is_a_clock(value: float, text: str) -> None:
    assert clock(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, MISSING),
        (12.0, "12"),
        (999.6, "1.0k"),
        (9.5e6, "9.5M"),
        (48.4e6, "48M"),
        (1e9, "1.0G"),
    ],
)
def test_a_rate_has_a_prefix(value: float | None, text: str) -> None:
    assert bandwidth(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, MISSING), (12, "12 B"), (4_800_000, "4.8 MB"), (912_000, "912 kB")]
)
def test_bytes_have_a_prefix(value: float | None, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, MISSING), (0.0, "0 J"), (0.344, "0.34 J"), (12.4, "12 J"), (4_800.0, "4.8 kJ")],
)
def test_energy_has_a_prefix(value: float | None, text: str) -> None:
    assert energy(value) == text


def test_unknown_ratios_and_percents_are_marked() -> None:
    assert [ratio(0.8714), ratio(nan), ratio(None), ratio(0.5, 2)] == [
        "0.871",
        MISSING,
        MISSING,
        "0.50",
    ]
    assert [percent(0.123), percent(0.012, is_signed=True), percent(None)] == [
        "12.3 %",
        "+1.2 %",
        MISSING,
    ]
