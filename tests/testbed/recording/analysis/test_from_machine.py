"""Findings from readings of a machine, and from training on it."""

from dataclasses import replace

import numpy as np
import pytest

from fairbed.testbed.recording.analysis.findings import Finding, NotMeasured
from fairbed.testbed.recording.analysis.from_machine import (
    MachineRecording,
    ProbeResult,
    TrainingSpeed,
    findings_of_machine,
)
from fairbed.testbed.recording.analysis.rates import Transfer
from fairbed.testbed.recording.analysis.readings import Reading


def _reading(t_s: float, **changes: object) -> Reading:
    reading = Reading(
        t_s=t_s,
        busy_s=0.3 * t_s,
        own_s=0.1 * t_s,
        clock_ratio=None,
        celsius=None,
        throttled=None,
        down=None,
        up=None,
        is_linked=True,
        free_bytes=1 << 30,
    )
    return replace(reading, **changes)  # type: ignore[arg-type]  # a test names its fields


def _recording(**changes: object) -> MachineRecording:
    recording = MachineRecording(
        cores=4,
        memory_bytes=1 << 30,
        idle=[_reading(float(t)) for t in range(30)],
        single_core=[TrainingSpeed(30.0 + i, reference_s=0.05, cpu_s=0.2) for i in range(12)],
        storage=Finding(20e6, "64 MB on ext4"),
    )
    return replace(recording, **changes)  # type: ignore[arg-type]  # a test names its fields


def _load(onset_s: float, *, has_clock: bool, has_heat: bool) -> dict[str, object]:
    times = np.arange(40.0, 240.0, 1.0).tolist()
    speeds = [1.0 if t - 40.0 < onset_s else 0.6 for t in times]
    celsius = [45.0 + 35.0 * float(1.0 - np.exp(-(t - 40.0) / 30.0)) for t in times]
    return {
        "load": [
            _reading(
                t,
                clock_ratio=0.9 * p if has_clock else None,
                celsius=c if has_heat else None,
            )
            for t, p, c in zip(times, speeds, celsius, strict=True)
        ],
        "all_cores": [
            TrainingSpeed(t, reference_s=0.05, cpu_s=0.2 / p)
            for t, p in zip(times, speeds, strict=True)
        ],
    }


def test_an_idle_machine_gives_speed_storage_and_background_load() -> None:
    found = findings_of_machine(_recording())
    assert found.found["core_speed"].value == pytest.approx(0.25)
    assert found.found["background_load"].value == pytest.approx(0.2)
    assert found.found["storage_read_bytes_per_s"].value == 20e6
    assert set(found.missing) == {"link.down_bps", "link.up_bps", "link.delay_s"}


def test_a_probe_gives_rates_and_delay_of_the_link() -> None:
    down = [Transfer(i, i + 0.5, 1_000_000) for i in range(5)]
    up = [Transfer(i, i + 1.0, 1_000_000) for i in range(5)]
    probe = ProbeResult(peer="desk:5202", round_trips_s=[0.01] * 10, down=down, up=up)
    found = findings_of_machine(_recording(probe=probe)).found
    assert found["link.down_bps"].value == pytest.approx(16e6)
    assert found["link.up_bps"].value == pytest.approx(8e6)
    assert found["link.delay_s"].value == pytest.approx(0.005)
    assert "probe of desk:5202" in found["link.up_bps"].how


@pytest.mark.parametrize("has_clock", [True, False])
def test_heat_shows_in_the_clock_or_in_the_speed_of_training(has_clock: bool) -> None:
    found = findings_of_machine(_recording(**_load(90.0, has_clock=has_clock, has_heat=True))).found
    assert found["thermal.sustained_clock_ratio"].value == pytest.approx(0.6)
    assert found["thermal.onset_s"].value == pytest.approx(90.0)
    assert found["thermal.time_constant_s"].value == pytest.approx(30.0, rel=0.05)
    assert ("clock" in found["thermal.onset_s"].how) == has_clock


def test_heat_without_a_thermometer_is_a_remark_only() -> None:
    found = findings_of_machine(_recording(**_load(90.0, has_clock=True, has_heat=False)))
    assert not any(key.startswith("thermal") for key in found.found)
    assert "dropped to 0.60 after 90 s" in found.missing["thermal"]


def test_a_clock_that_holds_is_remarked() -> None:
    found = findings_of_machine(_recording(**_load(1e9, has_clock=True, has_heat=True)))
    assert any("The clock held for 199 s" in remark for remark in found.remarks)


def test_a_missing_number_has_its_reason() -> None:
    recording = _recording(
        single_core=NotMeasured("no onnxruntime"), storage=NotMeasured("is in memory")
    )
    missing = findings_of_machine(recording).missing
    assert missing["core_speed"] == "no onnxruntime"
    assert missing["storage_read_bytes_per_s"] == "is in memory"


def test_without_a_link_the_device_is_unavailable() -> None:
    idle = [_reading(float(t), is_linked=not 10 <= t < 20) for t in range(31)]
    found = findings_of_machine(_recording(idle=idle)).found
    assert found["availability.available"].value == pytest.approx(2 / 3, abs=0.02)


def test_throttling_and_temperature_are_remarked() -> None:
    idle = [
        _reading(float(t), throttled=("throttled",) if t < 15 else (), celsius=40.0 + t)
        for t in range(30)
    ]
    remarks = findings_of_machine(_recording(idle=idle)).remarks
    assert any("throttled in 50 % of 30 readings" in remark for remark in remarks)
    assert any("40.0 to 69.0 C" in remark for remark in remarks)


def test_after_a_short_load_heat_is_missing_with_a_reason() -> None:
    recording = _recording(**_load(90.0, has_clock=True, has_heat=True))
    recording.load, recording.all_cores = recording.load[:5], recording.all_cores[:5]
    assert "needs 10 samples under load" in findings_of_machine(recording).missing["thermal"]


def test_a_temperature_that_is_missing_at_first_leaves_the_idle_one_out() -> None:
    recording = _recording(**_load(90.0, has_clock=True, has_heat=True))
    recording.load = [replace(recording.load[0], celsius=None), *recording.load[1:]]
    found = findings_of_machine(recording).found
    assert "thermal.idle_celsius" not in found
    assert found["thermal.limit_celsius"].value > 70.0


@pytest.mark.parametrize(
    "idle", [[_reading(0.0)], [_reading(float(t), is_linked=None) for t in range(30)]]
)
def test_without_a_link_state_over_time_availability_is_unknown(idle: list[Reading]) -> None:
    found = findings_of_machine(_recording(idle=idle))
    assert "availability.available" not in found.found
    assert not any("had a link" in remark for remark in found.remarks)


def test_without_a_reading_of_free_memory_there_is_no_remark_on_it() -> None:
    idle = [_reading(float(t), free_bytes=None) for t in range(30)]
    assert not any(
        "Memory" in remark for remark in findings_of_machine(_recording(idle=idle)).remarks
    )
    assert any("Memory" in remark for remark in findings_of_machine(_recording()).remarks)


def test_a_machine_has_its_rates_or_the_reason_why_not() -> None:
    rates = Finding(24e9, "products"), Finding(5e9, "copies")
    found = findings_of_machine(_recording(rates=rates)).found
    assert (found["matrix_flops"].value, found["memory_bytes_per_s"].value) == (24e9, 5e9)
    reason = NotMeasured("matrix products must run on all cores here: no memory")
    missing = findings_of_machine(_recording(rates=reason)).missing
    assert missing["matrix_flops"] == missing["memory_bytes_per_s"] == str(reason)
