"""A device takes part only when the rules of its owner allow it."""

from types import SimpleNamespace

import psutil
import pytest

from fairbed.device_agent.availability import DAY_S, Hours, OwnerSchedule, is_charging, parse_hours
from fairbed.device_agent.config import AgentConfig
from fairbed.device_agent.errors import ConfigError
from fairbed.device_agent.sensors import real_host

HOUR_S = 3600


@pytest.mark.parametrize(
    ("text", "within", "without"),
    [
        ("08:00-17:30", [8, 12, 17.49], [7.99, 17.5, 0, 23]),
        ("22:00-06:00", [22, 23.9, 0, 5.99], [6, 12, 21.99]),
        ("00:00-24:00", [0, 12, 23.99], []),
        ("20:00-00:00", [20, 23.99], [0, 19.99]),
    ],
)
def test_hours_contain_their_begin_but_not_their_end(
    text: str, within: list[float], without: list[float]
) -> None:
    hours = parse_hours(text)
    assert all(hours.contains(hour * HOUR_S) for hour in within)
    assert not any(hours.contains(hour * HOUR_S) for hour in without)


@pytest.mark.parametrize(
    "text", ["", "22:00", "22-06", "22:60-06:00", "25:00-06:00", "a-b", "1:00-2:00", "24:00-06:00"]
)
def test_malformed_hours_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"got '.*'; write hours such as 22:00-06:00"):
        parse_hours(text)


def test_hours_of_no_length_are_refused() -> None:
    with pytest.raises(ValueError, match="must not begin and end at the same time"):
        parse_hours("06:00-06:00")
    with pytest.raises(ValueError, match="must be from 00:00 to 24:00"):
        Hours(0, DAY_S + 1)


@pytest.mark.parametrize(
    ("charges", "hour", "willing"), [(True, 23, True), (True, 12, False), (False, 23, False)]
)
def test_hours_and_charger_must_both_allow_it(charges: bool, hour: int, willing: bool) -> None:
    owner = OwnerSchedule(
        (parse_hours("22:00-06:00"), parse_hours("08:00-09:00")),
        only_charging=True,
        second_of_day=lambda: hour * HOUR_S,
        charger=lambda: charges,
    )
    assert owner() is willing


def test_without_rules_the_device_always_takes_part() -> None:
    assert (
        OwnerSchedule(second_of_day=lambda: pytest.fail("without hours the time is not read"))()
        is True
    )


@pytest.mark.parametrize(("plugged", "charges"), [(True, True), (False, False), (None, True)])
def test_a_charger_is_assumed_unless_the_machine_reports_none(
    plugged: bool | None, charges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    battery = SimpleNamespace(power_plugged=plugged)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert is_charging() is charges


def test_a_machine_without_battery_always_charges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert is_charging()
    monkeypatch.delattr(psutil, "sensors_battery")
    assert is_charging()


def test_the_sensors_report_the_rules_of_the_owner() -> None:
    is_willing = [False]
    host = real_host(lambda: is_willing[0])
    assert not host.sensors.is_willing()
    is_willing[0] = True
    assert host.sensors.is_willing()


def test_bad_hours_in_the_configuration_are_one_line() -> None:
    config = AgentConfig(
        broker_url="mqtt://host", name="a", available_hours=("22:00-06:00", "late")
    )
    with pytest.raises(
        ConfigError, match=r"^available_hours: must have two times of day, got 'late'; write"
    ):
        config.owner()
