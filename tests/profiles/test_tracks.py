"""Schedules: read from series and traces, drawn from distributions."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed import profiles
from fairbed.profiles.quantities import Quantity, Spread, Steps, Varying
from fairbed.profiles.schema import Availability
from fairbed.profiles.series import Series
from fairbed.profiles.traces import TraceReader
from fairbed.profiles.tracks import (
    DAY_S,
    DeviceTracks,
    ReadTrace,
    device_tracks,
    draw_sessions,
    draw_spread,
)

PI = profiles.load("raspberry-pi-4b")
RATES = ((0.0, 0.0), (0.05, 1e6), (0.5, 4e6), (0.95, 20e6), (1.0, 60e6))
SPREAD: Spread[float] = Spread(quantiles=RATES, step_s=1.0, correlation=0.8)


def number(value: float, **schedule: object) -> Varying[float, float]:
    return Varying(value=value, tag="measured", source="made up 1 time", **schedule)  # type: ignore[arg-type]


def tracks(
    seed: int = 0, start: float = 0.0, read: ReadTrace | None = None, **changes: object
) -> DeviceTracks:
    rng = np.random.Generator(np.random.PCG64(seed))
    link = msgspec.structs.replace(PI.link, **changes)
    return device_tracks(PI, link, read or TraceReader({}), rng, start)


def test_a_constant_profile_never_changes() -> None:
    found = tracks()
    assert found.link is not None
    assert found.link.down_bps == Series.constant(108e6)
    assert found.link.loss_ratio == found.link.jitter_s == Series.constant(0.0)
    assert found.clock_ratio == found.available == Series.constant(1.0)
    assert found.thermal is None


def test_this_machine_is_always_available() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    found = device_tracks(None, None, TraceReader({}), rng)
    assert (found.link, found.available) == (None, Series.constant(1.0))


def test_a_series_is_followed_from_its_beginning_wherever_traces_start() -> None:
    steps: Steps[float] = Steps(t_s=(0.0, 5.0), values=(1e6, 2e6), period_s=8.0)
    found = tracks(start=0.5, down=number(1e6, series=steps))
    assert found.link is not None
    assert found.link.down_bps == Series((0.0, 5.0), (1e6, 2e6), 8.0)


def test_both_directions_of_a_trace_start_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "walk.csv"
    path.write_text("t_s,down_bps,up_bps\n0,1,10\n1,2,20\n2,3,30\n3,4,40\n")
    found = tracks(start=0.5, down=number(1.0, trace=str(path)), up=number(10.0, trace=str(path)))
    assert found.link is not None
    assert found.link.down_bps.values == (3.0, 4.0, 1.0, 2.0)
    assert found.link.up_bps.values == (30.0, 40.0, 10.0, 20.0)


def test_a_missing_trace_is_an_error() -> None:
    with pytest.raises(profiles.TraceError, match=r"FAIRBED_DATA must name"):
        tracks(down=number(1e6, trace="data:mahimahi/a"))


def test_a_start_outside_the_trace_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^start must be from 0 to 1, got 1\.5"):
        tracks(start=1.5)


def test_drawing_one_number_changes_no_other() -> None:
    drawn = number(4e6, spread=SPREAD)
    one, both = tracks(up=drawn), tracks(up=drawn, down=drawn)
    assert one.link is not None
    assert both.link is not None
    assert one.link.up_bps == both.link.up_bps
    assert both.link.down_bps != both.link.up_bps


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    drawn = number(4e6, spread=SPREAD)
    assert tracks(3, down=drawn) == tracks(3, down=drawn)
    assert tracks(3, down=drawn) != tracks(4, down=drawn)


def test_drawn_schedules_have_the_given_quantiles_and_correlation() -> None:
    rng = np.random.Generator(np.random.PCG64(5))
    schedules = np.array([draw_spread(SPREAD, rng).values for _ in range(200)])
    for share, value in RATES[1:-1]:
        assert np.mean(schedules <= value) == pytest.approx(share, abs=0.01)
    ranks = schedules.ravel().argsort().argsort().reshape(schedules.shape)
    found = np.corrcoef(ranks[:, :-1].ravel(), ranks[:, 1:].ravel())[0, 1]
    pearson_of_normal = 2 * np.sin(np.pi / 6 * found)  # rank correlation -> normal scores
    assert pearson_of_normal == pytest.approx(0.8, abs=0.02)


@given(st.floats(0.01, 0.99), st.one_of(st.none(), st.floats(1.0, 1e5)), st.integers(0, 1 << 32))
def test_sessions_add_up_to_the_share_of_the_time(
    share: float, session_s: float | None, seed: int
) -> None:
    series = draw_sessions(share, session_s, np.random.Generator(np.random.PCG64(seed)))
    assert series.mean == pytest.approx(share, abs=2e-3)
    assert set(series.values) == {0.0, 1.0}
    assert series.period_s >= DAY_S * 0.99 or len(series.t_s) >= 60


def test_sessions_have_the_given_mean_length() -> None:
    series = draw_sessions(0.3, 600.0, np.random.Generator(np.random.PCG64(1)))
    stays = sum(a != b for a, b in zip(series.values, series.values[1:], strict=False)) / 2
    assert series.mean * series.period_s / stays == pytest.approx(600.0, rel=0.05)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_never_and_always_are_constant(share: float) -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    assert draw_sessions(share, 60.0, rng) == Series.constant(share)


def test_each_device_has_its_own_share_if_shares_are_distributed() -> None:
    spread: Spread[float] = Spread(
        quantiles=((0.25, 0.02), (0.5, 0.07), (0.95, 0.42)), step_s=DAY_S, correlation=0.0
    )
    pi = msgspec.structs.replace(
        PI,
        availability=Availability(
            share=number(0.07, spread=spread),
            session=Quantity(value=900.0, tag="literature", source="made up"),
        ),
    )
    means = []
    for seed in range(300):
        rng = np.random.Generator(np.random.PCG64(seed))
        means.append(device_tracks(pi, None, TraceReader({}), rng).available.mean)
    assert np.median(means) == pytest.approx(0.07, abs=0.02)
    assert np.quantile(means, 0.95) == pytest.approx(0.42, abs=0.06)


def test_a_series_of_availability_is_the_same_for_all_devices() -> None:
    hours: Steps[float] = Steps(t_s=(0.0, 8.0), values=(0.0, 1.0), period_s=24.0)
    pi = msgspec.structs.replace(PI, availability=Availability(share=number(0.5, series=hours)))
    for seed in (1, 2):
        rng = np.random.Generator(np.random.PCG64(seed))
        found = device_tracks(pi, None, TraceReader({}), rng, start=0.7)
        assert found.available == hours.series()
