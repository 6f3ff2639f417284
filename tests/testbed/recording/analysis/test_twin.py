"""Phases that no number of a profile explains."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fairbed import profiles
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.profiles import Profile
from fairbed.profiles.series import Series
from fairbed.testbed.recording.analysis.findings import Finding, Findings
from fairbed.testbed.recording.analysis.twin import (
    PHASES,
    PhaseTimes,
    PhaseTwin,
    compare_phases,
    number_of,
    with_number,
)
from tests.testbed.recording.rows import World

EXCHANGES = [World().exchange(index) for index in range(4)]


def _train(profile: Profile, core_s: float, *, depends: bool = True) -> PhaseTwin:
    """Compare with a twin that trains for `core_s` on a core of speed 1."""

    def predict(changed: Profile) -> PhaseTimes:
        times = {phase: np.array([getattr(x, phase) for x in EXCHANGES]) for phase in PHASES}
        train_s = core_s / changed.core_speed if depends else core_s
        return {**times, "train_s": np.full(len(EXCHANGES), train_s)}

    rows = compare_phases(EXCHANGES, profile, Findings(), predict)
    assert [row.phase for row in rows if row.is_off] == ["train_s"]
    return next(row for row in rows if row.is_off)


def test_a_twin_that_no_number_changes_has_no_number_that_is_off() -> None:
    row = _train(profiles.load("raspberry-pi-4b"), 60.0, depends=False)
    assert (row.key, row.fits, row.twin_then_s) == (None, None, None)
    assert row.reason == "no number of the profile explains it"


@pytest.mark.parametrize(("core_s", "speed"), [(10.0, 0.5), (160.0, 20.0), (100.0, 900.0)])
def test_a_value_that_fits_makes_the_twin_as_slow_as_the_device(
    core_s: float, speed: float
) -> None:
    pi = with_number(profiles.load("raspberry-pi-4b"), "core_speed", Finding(speed, "made up"))
    row = _train(pi, core_s)
    assert row.key == "core_speed"
    assert row.fits == pytest.approx(core_s / row.device_s, rel=1e-6)
    assert row.twin_then_s == pytest.approx(row.device_s, rel=1e-6)


def test_a_value_that_a_profile_cannot_have_does_not_fit() -> None:
    pi = profiles.load("raspberry-pi-4b")
    assert _train(pi, 300.0).reason == "no number of the profile explains it", "needs 1765 cores"


def test_a_phase_without_time_is_left_out() -> None:
    rows = compare_phases(
        EXCHANGES,
        profiles.load("raspberry-pi-4b"),
        Findings(),
        lambda _: {phase: np.array([getattr(x, phase) for x in EXCHANGES]) for phase in PHASES},
    )
    assert {row.phase for row in rows} == {
        "signal_s",
        "download_s",
        "load_s",
        "train_s",
        "upload_s",
    }
    assert all(row.difference == 0.0 and not row.is_off for row in rows)


def _compare(
    found: dict[str, Finding], exchanges: Sequence[ExchangeRow] = EXCHANGES
) -> dict[str, PhaseTwin]:
    """Compare with a Raspberry Pi 4B that trains for 60 s at its own speed, and has findings."""
    pi = profiles.load("raspberry-pi-4b")

    def predict(changed: Profile) -> PhaseTimes:
        times = {phase: np.array([getattr(x, phase) for x in exchanges]) for phase in PHASES}
        slower = float(pi.core_speed) / float(changed.core_speed)
        return {**times, "train_s": np.full(len(exchanges), 60.0 * slower)}

    rows = compare_phases(exchanges, pi, Findings(found=found), predict)
    return {row.phase: row for row in rows}


def test_a_measured_value_that_explains_the_phase_is_named() -> None:
    pi = profiles.load("raspberry-pi-4b")
    device_s = _compare({})["train_s"].device_s
    right = float(pi.core_speed) * 60.0 / device_s
    row = _compare({"core_speed": Finding(right, "the training of 4 exchanges")})["train_s"]
    assert (row.key, row.value, row.fits) == ("core_speed", float(pi.core_speed), right)
    assert row.twin_then_s == pytest.approx(device_s)
    assert row.reason == "the training of 4 exchanges"
    half_way = Finding(float(pi.core_speed) * 1.01, "a poor measurement")
    assert _compare({"core_speed": half_way})["train_s"].reason.startswith("found with the twin")


def test_a_measured_value_that_a_profile_cannot_have_explains_nothing() -> None:
    row = _compare({"engine_threads": Finding(1e6, "made up")})["train_s"]
    assert row.key != "engine_threads"


def test_a_measured_number_over_time_is_taken_with_its_mean_in_its_range() -> None:
    pi = profiles.load("raspberry-pi-4b")
    series = Series((0.0, 10.0), (0.5, 0.75), 20.0)
    changed = with_number(pi, "clock_ratio", Finding(0.8, "made up", series))
    assert number_of(changed, "clock_ratio") == 0.75


def _two_phases(evaluate_ratio: float) -> list[PhaseTwin]:
    """Compare a device that trains half as fast as its twin, and evaluates so many times slower."""
    pi = profiles.load("raspberry-pi-4b")
    exchanges = [replace(x, evaluate_s=evaluate_ratio * 20.0, train_s=40.0) for x in EXCHANGES]

    def predict(changed: Profile) -> PhaseTimes:
        times = {phase: np.array([getattr(x, phase) or 0.0 for x in exchanges]) for phase in PHASES}
        slower = float(pi.core_speed) / float(changed.core_speed)
        own = np.full(len(exchanges), 20.0 * slower)
        return {**times, "train_s": own, "evaluate_s": own}

    rows = compare_phases(exchanges, pi, Findings(), predict)
    return [row for row in rows if row.is_off]


def test_phases_that_correct_one_number_alike_get_one_value() -> None:
    rows = _two_phases(2.1)
    assert {row.phase for row in rows} == {"evaluate_s", "train_s"}
    (fits,) = {row.fits for row in rows}
    assert fits is not None
    speed = float(profiles.load("raspberry-pi-4b").core_speed)
    assert speed / 2.1 < fits < speed / 2.0
    assert all(row.reason.startswith("one value for ") for row in rows)


def test_phases_that_correct_one_number_in_two_directions_name_the_conflict() -> None:
    rows = _two_phases(0.5)
    assert {(row.key, row.fits, row.twin_then_s) for row in rows} == {(None, None, None)}
    (reason,) = {row.reason for row in rows}
    assert "no one value fits: evaluate fits with" in reason
    assert "do not correct it" in reason


def test_loading_counts_for_cold_devices_alone() -> None:
    warm = [replace(x, was_cold=False) for x in EXCHANGES]
    assert "load_s" in _compare({})
    assert "load_s" not in _compare({}, warm)
