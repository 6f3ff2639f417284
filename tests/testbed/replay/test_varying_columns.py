"""Varying columns: the values of all devices at once equal those of each series."""

from dataclasses import fields

import numpy as np
import pytest

from fairbed.profiles.series import Series
from fairbed.testbed.emulation.schedule import (
    ROUNDING_S,
    OutageWindow,
    Schedule,
    UnavailableAs,
)
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.replay.world.columns import (
    FleetConditions,
    MeanConditions,
    Outages,
    VaryingColumn,
    VaryingConditions,
    columns_of,
)
from tests.testbed.replay.fleets import experiment


def test_columns_agree_with_the_series() -> None:
    rng = np.random.default_rng(3)
    series = {
        row: Series.sampled(rng.random(int(n)).tolist(), float(step))
        for row, n, step in zip((1, 2, 4), (7, 1, 30), (0.5, 3.0, 0.1), strict=True)
    }
    varying = VaryingColumn(np.arange(6.0), series)
    for t in rng.uniform(0.0, 100.0, 200).tolist():
        at = varying.at(t)
        for row in range(6):
            expected = series[row].at(t + ROUNDING_S) if row in series else float(row)
            assert at[row] == expected
    moments = rng.uniform(0.0, 50.0, 6)
    own = varying.at(moments)
    assert [own[row] for row in series] == [
        one.at(float(moments[row]) + ROUNDING_S) for row, one in series.items()
    ]


def test_a_change_takes_effect_at_its_time() -> None:
    varying = VaryingColumn(np.zeros(2), {1: Series((0.0, 0.3), (1.0, 2.0), 0.9)})
    assert varying.at(0.3).tolist() == [0.0, 2.0]
    assert varying.at(0.9 * 7 + 0.3).tolist() == [0.0, 2.0]


def test_a_column_without_series_is_constant() -> None:
    column = np.arange(3.0)
    varying = VaryingColumn(column, {})
    assert not varying.varies
    assert varying.at(5.0) is column


def test_outages_agree_with_the_timeline() -> None:
    windows = {
        0: (OutageWindow(1.0, 2.0, "coverage"), OutageWindow(5.0, 6.0, "unplugged")),
        2: (OutageWindow(1.5, 5.5, "frozen"),),
    }
    outages, timelines = (
        Outages(windows, 3),
        [Schedule(outages=windows.get(i, ())) for i in (0, 1, 2)],
    )
    for t in np.arange(0.0, 7.0, 0.25):
        now = [schedule.conditions(float(t)).outage for schedule in timelines]
        assert outages.at(np.full(3, t)).tolist() == [kind is not None for kind in now]
        unplugged = outages.at(np.full(3, t), unplugged_only=True).tolist()
        assert unplugged == [kind == "unplugged" for kind in now]


@pytest.mark.parametrize("unavailable_as", ["unwilling", "unplugged"])
def test_a_device_that_is_not_available_is_unwilling_or_unplugged(
    unavailable_as: UnavailableAs,
) -> None:
    numbers = np.ones(2)
    means = MeanConditions(
        **{field.name: numbers for field in fields(MeanConditions)}  # no number matters here
    )
    hours = Series((0.0, 8.0), (0.0, 1.0), 24.0)
    now = FleetConditions(
        means, VaryingConditions(available={1: hours}, unavailable_as=unavailable_as)
    )
    is_unplugged = unavailable_as == "unplugged"
    assert now.has_link_outages == is_unplugged
    for t, is_available in ((4.0, False), (9.0, True)):
        at = np.full(2, t)
        is_away = [False, is_unplugged and not is_available]
        assert now.is_willing(at).tolist() == [True, is_unplugged or is_available]
        assert now.is_unplugged(at).tolist() == now.is_link_down(at).tolist() == is_away


def test_a_fleet_to_replay_needs_profiles() -> None:
    planned = plan_fleet(experiment({"count": 2}), {})
    with pytest.raises(ValueError, match="must have a profile to be replayed"):
        columns_of(planned)
