"""Hours of the day become a series on the clock of the run."""

import pytest

from fairbed.testbed.experiment.file import ExperimentError, parse_experiment
from fairbed.testbed.experiment.fleet import hours_series, plan_fleet

HOUR_S = 3600.0


def test_hours_are_counted_from_the_time_of_day_at_which_the_run_begins() -> None:
    series = hours_series(["22:00-06:00"], "21:00")
    there = [series.at(hour * HOUR_S) for hour in (0.0, 0.99, 1.0, 8.99, 9.0, 24.5, 25.0, 33.5)]
    assert there == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert series.mean == pytest.approx(8 / 24)


def test_several_ranges_of_hours_are_combined() -> None:
    series = hours_series(["08:00-10:00", "09:00-12:00", "23:00-24:00"], "00:00")
    assert [hour for hour in range(24) if series.at(hour * HOUR_S)] == [8, 9, 10, 11, 23]


def experiment(**fleet: object) -> dict[str, object]:
    return {
        "name": "hours",
        "selection": {"per_round": 1},
        "emulation": {"start_time": "21:00"},
        "fleet": [{"profile": "raspberry-pi-4b", "count": 2, **fleet}],
    }


def test_a_group_with_hours_is_unavailable_outside_them() -> None:
    planned = plan_fleet(
        parse_experiment(experiment(available_hours=["22:00-06:00"]), "x.toml"), {}
    )
    for device in planned:
        assert device.spec.is_driven
        assert not device.schedule.conditions(0.5 * HOUR_S).is_willing
        assert device.schedule.conditions(1.5 * HOUR_S).is_willing
        assert device.schedule.next_change(0.0) == HOUR_S


def test_a_group_without_hours_follows_its_profile() -> None:
    planned = plan_fleet(parse_experiment(experiment(), "x.toml"), {})
    assert all(device.tracks.available.is_constant for device in planned)


def test_bad_hours_are_one_line() -> None:
    with pytest.raises(
        ExperimentError, match=r"available_hours must have two times of day, got 'noon'"
    ) as exc:
        parse_experiment(experiment(available_hours=["noon"]), "x.toml")
    assert len(str(exc.value).splitlines()) == 1
