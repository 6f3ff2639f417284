"""Looking up all devices at once gives what each one's own series says."""

import numpy as np

from fairbed.profiles.series import Series
from fairbed.testbed.emulation.schedule import ROUNDING_S, OutageWindow, Schedule
from fairbed.testbed.replay.world.columns import Outages, VaryingColumn


def test_columns_agree_with_the_series() -> None:
    rng = np.random.default_rng(3)
    series = {
        row: Series.sampled(rng.random(int(n)).tolist(), float(step))
        for row, n, step in zip((1, 2, 4), (7, 1, 30), (0.5, 3.0, 0.1), strict=True)
    }
    courses = VaryingColumn(np.arange(6.0), series)
    for t in rng.uniform(0.0, 100.0, 200).tolist():
        at = courses.at(t)
        for row in range(6):
            expected = series[row].at(t + ROUNDING_S) if row in series else float(row)
            assert at[row] == expected
    moments = rng.uniform(0.0, 50.0, 6)
    own = courses.at(moments)
    assert [own[row] for row in series] == [
        one.at(float(moments[row]) + ROUNDING_S) for row, one in series.items()
    ]


def test_a_change_is_in_force_at_its_moment() -> None:
    courses = VaryingColumn(np.zeros(2), {1: Series((0.0, 0.3), (1.0, 2.0), 0.9)})
    assert courses.at(0.3).tolist() == [0.0, 2.0]
    assert courses.at(0.9 * 7 + 0.3).tolist() == [0.0, 2.0]


def test_nothing_moves_where_nothing_is_said() -> None:
    column = np.arange(3.0)
    courses = VaryingColumn(column, {})
    assert not courses.varies
    assert courses.at(5.0) is column


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
