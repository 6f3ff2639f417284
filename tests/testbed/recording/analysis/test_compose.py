"""From findings to the files of a profile."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fairbed import profiles
from fairbed.profiles import Profile
from fairbed.profiles.quantities import Steps, Varying
from fairbed.profiles.schema import UNKNOWN_DELAY, UNKNOWN_LOAD, UNKNOWN_RATE, UNKNOWN_STORAGE
from fairbed.profiles.series import Series
from fairbed.profiles.traces import TraceReader
from fairbed.testbed.recording.analysis.compose import (
    Identity,
    IncompleteProfile,
    Recorded,
    compose,
    trace_name,
)
from fairbed.testbed.recording.analysis.findings import Finding, Findings

IDENTITY = Identity("pi-7", 'A "Pi" \\ with ü', "board", "recorded on a bench")


def _findings() -> Findings:
    found = Findings()
    for key, value in (
        ("cores", 4.0),
        ("core_speed", 0.123456789),
        ("memory_bytes", 4.0 * 2**30),
        ("storage_read_bytes_per_s", 43.7e6),
        ("background_load", 0.05),
        ("engine_threads", 1.0),
        ("link.down_bps", 16e6),
        ("link.up_bps", 8e6),
        ("link.delay_s", 0.02),
    ):
        found.add(key, value, f"how {key} was found")
    return found


def _written(folder: Path, recorded: Recorded) -> Profile:
    path = folder / f"{IDENTITY.name}.toml"
    path.write_text(recorded.profile, encoding="utf-8")
    if recorded.trace is not None:
        (folder / trace_name(IDENTITY.name)).write_text(recorded.trace, encoding="utf-8")
    assert profiles.check(path, {}) == []
    return profiles.load(path)


def test_every_number_has_its_method_and_machine_as_source(tmp_path: Path) -> None:
    profile = _written(tmp_path, compose(IDENTITY, _findings(), None))
    assert profile.title == IDENTITY.title
    assert (profile.cores, profile.memory_bytes, profile.core_speed) == (4, 4 << 30, 0.123457)
    for number in (profile.core_count, profile.one_core, profile.link.down, profile.storage_read):
        assert number.tag == "measured"
        assert number.source.startswith("how ")
        assert number.source.endswith("; recorded on a bench")


def test_varying_numbers_share_one_trace_beside_the_profile(tmp_path: Path) -> None:
    found = _findings()
    down = Series((0.0, 10.0, 25.0), (16e6, 0.0, 4e6), 60.0)
    available = Series((0.0, 30.0), (1.0, 0.0), 60.0)
    found.found["link.down_bps"] = Finding(down.mean, "many", down)
    found.found["availability.available"] = Finding(available.mean, "samples", available)
    profile = _written(tmp_path, compose(IDENTITY, found, None))
    assert profile.availability is not None
    read = TraceReader({})
    for number, column, wanted in (
        (profile.link.down, "down_bps", down),
        (profile.availability.share, "available", available),
    ):
        assert number.trace == str(tmp_path / "pi-7.csv")
        again = read(number.trace, column)
        assert again.period_s == 60.0
        for t in (0.0, 9.0, 11.0, 26.0, 31.0, 59.0):
            assert again.at(t) == wanted.at(t)


def test_missing_numbers_come_from_the_base_profile(tmp_path: Path) -> None:
    found = _findings()
    del found.found["storage_read_bytes_per_s"], found.found["link.up_bps"]
    base = profiles.load("raspberry-pi-4b")
    profile = _written(tmp_path, compose(IDENTITY, found, base))
    assert profile.storage_read.value == base.storage_read.value
    assert profile.storage_read.source == f"raspberry-pi-4b: {base.storage_read.source}"
    assert profile.link.up.tag == base.link.up.tag
    assert profile.link.down_bps == 16e6
    assert profile.energy is not None
    assert base.energy is not None
    assert profile.energy.idle_w is not None
    assert base.energy.idle_w is not None
    assert profile.energy.idle_w.value == base.energy.idle_w.value


def test_without_a_base_profile_an_unknown_number_is_left_out_and_named(tmp_path: Path) -> None:
    found = _findings()
    for key in ("storage_read_bytes_per_s", "background_load", "link.up_bps", "link.delay_s"):
        del found.found[key]
    found.missing["link.up_bps"] = "needs 3 updates, got 1"
    recorded = compose(IDENTITY, found, None)
    assert "# Unknown: link.up_bps: needs 3 updates, got 1\n" in recorded.profile
    assert "# Unknown: storage_read_bytes_per_s: it was not measured\n" in recorded.profile
    assert "\nstorage_read_bytes_per_s" not in recorded.profile
    profile = _written(tmp_path, recorded)
    assert profile.storage_read == UNKNOWN_STORAGE
    assert profile.busy == UNKNOWN_LOAD
    assert (profile.link.up, profile.link.delay) == (UNKNOWN_RATE, UNKNOWN_DELAY)
    assert profile.link.down_bps == 16e6


def test_an_unknown_number_of_the_base_stays_unknown(tmp_path: Path) -> None:
    base = msgspec.structs.replace(profiles.load("raspberry-pi-4b"), storage_read=UNKNOWN_STORAGE)
    found = _findings()
    del found.found["storage_read_bytes_per_s"]
    assert _written(tmp_path, compose(IDENTITY, found, base)).storage_read == UNKNOWN_STORAGE


def test_without_a_base_profile_the_error_has_reason_and_advice() -> None:
    found = _findings()
    del found.found["core_speed"]
    found.missing["core_speed"] = "needs 3 rounds of training, got 1"
    with pytest.raises(
        IncompleteProfile, match=r"pi-7: core_speed must .* got 1\); add --like PROFILE"
    ):
        compose(IDENTITY, found, None)


def test_an_examined_section_without_findings_is_not_taken_from_the_base(tmp_path: Path) -> None:
    base = profiles.load("raspberry-pi-3b")
    assert base.thermal is not None
    assert _written(tmp_path, compose(IDENTITY, _findings(), base)).thermal is not None
    found = _findings()
    found.examined.add("thermal")
    assert _written(tmp_path, compose(IDENTITY, found, base)).thermal is None


def test_a_section_comes_from_one_source(tmp_path: Path) -> None:
    found = _findings()
    for key, value in (("sustained_clock_ratio", 0.5), ("onset_s", 9.0), ("time_constant_s", 7.0)):
        found.add(f"thermal.{key}", value, "seen")
    profile = _written(tmp_path, compose(IDENTITY, found, profiles.load("raspberry-pi-3b")))
    assert profile.thermal is not None
    assert profile.thermal.onset_s == 9.0
    assert profile.thermal.limit_celsius is None, "the base has one"


@pytest.mark.parametrize("name", profiles.names())
def test_any_profile_can_be_the_base(name: str, tmp_path: Path) -> None:
    base = profiles.load(name)
    profile = _written(tmp_path, compose(IDENTITY, Findings(), base))
    assert profile.core_speed == base.core_speed
    assert profile.link.down.spread == base.link.down.spread
    assert profile.link.down.trace == base.link.down.trace


def test_remarks_become_comments_of_one_line_each() -> None:
    found = _findings()
    found.remarks.append("two\nlines")
    text = compose(replace(IDENTITY, name="a"), found, None).profile
    assert "# two lines\n" in text


def test_an_impossible_number_is_one_line() -> None:
    found = _findings()
    found.add("core_speed", 5000.0, "a clock that stood still")
    with pytest.raises(
        IncompleteProfile, match=r"pi-7: the measured numbers must be a valid profile: .*core_speed"
    ):
        compose(IDENTITY, found, None)


def test_the_series_of_a_base_is_taken_over(tmp_path: Path) -> None:
    steps: Steps[float] = Steps(t_s=(0.0, 60.0), values=(0.0, 0.5), period_s=120.0)
    base = profiles.load("raspberry-pi-4b")
    busy = Varying(value=0.2, tag="measured", source="made up", series=steps)
    base = msgspec.structs.replace(base, busy=busy)
    found = _findings()
    del found.found["background_load"]
    assert _written(tmp_path, compose(IDENTITY, found, base)).busy.series == steps


def test_both_rates_of_matrix_products_come_from_one_source(tmp_path: Path) -> None:
    base = profiles.load("raspberry-pi-5")
    assert _written(tmp_path, compose(IDENTITY, _findings(), base)).core_matrix is not None
    found = _findings()
    found.add("matrix_flops", 5e9, "seen")
    slow = _written(tmp_path, compose(IDENTITY, found, base))
    assert slow.matrix is not None
    assert (slow.matrix.value, slow.core_matrix) == (5e9, None)
