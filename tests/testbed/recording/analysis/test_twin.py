"""Phases that no number of a profile explains."""

import numpy as np
import pytest

from fairbed import profiles
from fairbed.profiles import Profile
from fairbed.testbed.recording.analysis.findings import Finding, Findings
from fairbed.testbed.recording.analysis.twin import (
    PHASES,
    PhaseTimes,
    PhaseTwin,
    compare_phases,
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
