"""Findings about a device from the rows of a run."""

from dataclasses import replace
from itertools import cycle

import msgspec
import pytest

from fairbed.testbed.emulation.work import LengthCosts, StepCost
from fairbed.testbed.recording.analysis.from_run import findings_of_run
from tests.testbed.recording.rows import COSTS, N_K, STEPS, TRAINING, World, with_exchanges


def test_findings_equal_the_numbers_of_the_device() -> None:
    found = findings_of_run(World().device(), TRAINING).found
    values = {key: finding.value for key, finding in found.items()}
    assert values == pytest.approx(
        {
            "cores": 4,
            "engine_threads": 1,
            "memory_bytes": 4 << 30,
            "background_load": 0.1,
            "clock_ratio": 1.0,
            "core_speed": 0.4,
            "link.down_bps": 16e6,
            "link.up_bps": 8e6,
            "link.delay_s": 0.02,
            "cold_start_s": 1.5,
        }
    )
    assert all(finding.series is None for finding in found.values())


def test_a_core_is_as_fast_as_at_its_nominal_clock() -> None:
    found = findings_of_run(World(clock_ratio=0.6).device(), TRAINING).found
    assert found["core_speed"].value == pytest.approx(0.4)
    assert found["clock_ratio"].value == pytest.approx(0.6)


def test_contended_invalid_and_repeated_transfers_do_not_count() -> None:
    good = World().device()
    bad = World(core_speed=0.01, down_bps=[1e3], up_bps=[1e3], delay_s=3.0, cold_s=99.0)
    row = bad.exchange(0)
    contended = replace(row, is_valid=False, is_contended=True)
    late = replace(row, outcome="late")
    spoiled = with_exchanges(good, *[contended] * 30, *[late] * 30)
    assert findings_of_run(spoiled, TRAINING).found == findings_of_run(good, TRAINING).found
    again = replace(good.exchanges[1], rerequests_down=1, resent_up=1, download_s=9e9, upload_s=9e9)
    found = findings_of_run(with_exchanges(good, *[again] * 30), TRAINING).found
    assert found["link.down_bps"].value == pytest.approx(16e6)
    assert found["link.up_bps"].value == pytest.approx(8e6)


def test_a_varying_link_has_a_series_through_its_transfers() -> None:
    rates = [16e6, 4e6, 8e6, 2e6]
    device = World(down_bps=rates, rounds=16).device()
    series = findings_of_run(device, TRAINING).found["link.down_bps"].series
    assert series is not None
    for x, rate in zip(device.exchanges, cycle(rates), strict=False):
        assert x.download_s is not None
        assert x.signal_s is not None
        middle_s = x.dispatched_at_s + x.signal_s / 2 + x.download_s - 0.1
        assert series.at(middle_s) == pytest.approx(rate)


def test_a_rate_is_that_of_the_part_after_the_first_chunk() -> None:
    device = World().device()
    hesitating = [
        replace(
            x,
            download_s=(x.download_s or 0.0) + 0.1,
            upload_s=(x.upload_s or 0.0) + 0.3,
            steady_down_bytes=500_000,
            steady_down_s=8 * 500_000 / 16e6,
            steady_up_bytes=200_000,
            steady_up_s=8 * 200_000 / 8e6,
        )
        for x in device.exchanges
    ]
    found = findings_of_run(replace(device, exchanges=hesitating), TRAINING).found
    assert found["link.down_bps"].value == pytest.approx(16e6)
    assert found["link.up_bps"].value == pytest.approx(8e6)


@pytest.mark.parametrize(
    ("n_bytes", "lasted_s"), [(10_000, 0.005), (2_000_000, 0.5), (500_000, 0.0)]
)
def test_without_a_valid_part_the_whole_transfer_counts(n_bytes: int, lasted_s: float) -> None:
    device = World().device()
    odd = [replace(x, steady_down_bytes=n_bytes, steady_down_s=lasted_s) for x in device.exchanges]
    found = findings_of_run(replace(device, exchanges=odd), TRAINING).found
    assert found["link.down_bps"].value == pytest.approx(16e6)


def test_training_that_was_cut_short_is_charged_for_the_steps_it_took() -> None:
    whole = TRAINING.reference_s(N_K, STEPS)
    half = TRAINING.reference_s(N_K, STEPS // 2)
    assert whole is not None
    assert half == pytest.approx(whole / 2)
    assert TRAINING.reference_s(N_K, STEPS + 1) is None
    assert TRAINING.reference_s(N_K, 0) is None


SHORT = LengthCosts(
    length=4,
    train=StepCost(fixed_s=5e-4, per_example_s=5e-5),
    evaluate=StepCost(fixed_s=0.0, per_example_s=1e-6),
)
OF_LENGTHS = replace(
    TRAINING, costs=msgspec.structs.replace(COSTS, shorter=(SHORT,)), counts=(50, 60)
)


@pytest.mark.parametrize("counts", [(50, 60), (5, 6)])
def test_short_sequences_are_charged_for_their_length(counts: tuple[int, ...]) -> None:
    """Of six mini-batches the first two have short sequences alone."""
    epoch_s = 2 * 5e-4 + 40 * 5e-5 + 4 * 1e-3 + 70 * 1e-4
    training = replace(OF_LENGTHS, counts=counts)
    assert training.reference_s(N_K, STEPS) == pytest.approx(2.0 * 2.0 * epoch_s)
    assert training.reference_s(N_K, STEPS // 4) == pytest.approx(2.0 * epoch_s / 2.0)


def test_a_device_has_its_own_lengths_or_those_of_all_data_with_a_remark() -> None:
    device = World().device()
    known = replace(OF_LENGTHS, counts_of={"pi-1": (N_K, 0)})
    short_s, mixed_s = (
        each.of_device(device.row).reference_s(N_K, STEPS) for each in (known, OF_LENGTHS)
    )
    assert short_s == pytest.approx(2.0 * 2.0 * (6 * 5e-4 + N_K * 5e-5))
    assert mixed_s == OF_LENGTHS.reference_s(N_K, STEPS)
    remark = "Lengths of its sequences are unknown: those of all data are taken."
    assert remark in findings_of_run(device, OF_LENGTHS).remarks
    assert remark not in findings_of_run(device, known).remarks


def test_a_short_run_has_missing_numbers() -> None:
    found = findings_of_run(World(rounds=1).device(), TRAINING)
    assert set(found.missing) >= {"core_speed", "link.down_bps", "link.up_bps", "cold_start_s"}
    assert "got 1" in found.missing["link.up_bps"]


def test_contexts_without_clock_and_free_cores_leave_them_out() -> None:
    found = findings_of_run(World(free_cores=None, clock_ratio=None).device(), TRAINING)
    assert found.found["core_speed"].value == pytest.approx(0.4)
    assert set(found.missing) == {"background_load", "clock_ratio", "storage_read_bytes_per_s"}
    assert "thermal" not in found.examined


def test_availability_is_examined_and_recorded_if_the_device_was_away() -> None:
    device = World().device()
    always = findings_of_run(device, TRAINING)
    assert "availability.available" not in always.found
    assert "availability" in always.examined
    away = [row for row in device.telemetry if not 60.0 < row.at_s < 100.0]
    rounds = [x for x in device.exchanges if not 40.0 < x.dispatched_at_s < 110.0]
    partly = findings_of_run(replace(device, telemetry=away, exchanges=rounds), TRAINING)
    assert partly.found["availability.available"].value == pytest.approx(1 - 39 / 205, abs=0.01)


def test_throttling_is_remarked() -> None:
    remarks = findings_of_run(World(throttled="under-voltage").device(), TRAINING).remarks
    assert any("under-voltage in 100 %" in remark for remark in remarks)
    remarks = findings_of_run(World(throttled="").device(), TRAINING).remarks
    assert any("throttled: never" in remark for remark in remarks)


def test_the_temperature_is_remarked() -> None:
    assert "Temperature: 50.0 to 50.0 C." in findings_of_run(World().device(), TRAINING).remarks


def test_an_exchange_without_a_training_time_does_not_count() -> None:
    good = World().device()
    untimed = replace(World(core_speed=0.01).device().exchanges[0], train_s=None)
    spoiled = with_exchanges(good, *[untimed] * 30)
    assert findings_of_run(spoiled, TRAINING).found["core_speed"].value == pytest.approx(0.4)


def test_the_power_of_a_device_is_the_energy_of_its_phases_over_their_time() -> None:
    found = findings_of_run(World(compute_w=3.5, transfer_w=2.1).device(), TRAINING).found
    assert found["energy.compute_w"].value == pytest.approx(3.5)
    assert found["energy.transmit_w"].value == pytest.approx(2.1)
    assert found["energy.compute_w"].how.endswith("s of computing, whole device, 20 exchanges")


def test_a_device_without_a_sensor_has_no_power_and_no_line_about_it() -> None:
    findings = findings_of_run(World().device(), TRAINING)
    assert not [key for key in (*findings.found, *findings.missing) if key.startswith("energy")]


def test_two_exchanges_with_energy_are_too_few_for_a_power() -> None:
    missing = findings_of_run(World(compute_w=3.5, rounds=2).device(), TRAINING).missing
    assert missing["energy.compute_w"] == (
        "needs 3 exchanges with a known energy, got 2; record more rounds"
    )


def test_phases_without_a_duration_have_no_power() -> None:
    device = World(compute_w=3.5, transfer_w=2.1).device()
    exchanges = [replace(x, download_s=0.0, upload_s=0.0) for x in device.exchanges]
    findings = findings_of_run(replace(device, exchanges=exchanges), TRAINING)
    assert findings.missing["energy.transmit_w"] == (
        "no exchange has a duration of its transfers; record more rounds"
    )
    assert findings.found["energy.compute_w"].value == pytest.approx(3.5)
