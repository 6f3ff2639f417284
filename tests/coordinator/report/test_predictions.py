"""Errors of predictions: by round, phase and device."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairbed.coordinator.report.predictions import (
    LIMIT,
    MEASURED_PHASES,
    PREDICTION,
    RECENT_ROUNDS,
    REST,
    Predictions,
    drift,
    errors_by_device,
    errors_by_round,
    errors_of,
    intervals_of,
    parts_of_residual,
    read_predictions,
)
from fairbed.coordinator.report.quantities import SampleCount
from fairbed.coordinator.store import RunReader
from tests.coordinator.store.fake_run import LATE_ROUND, fake_run


def exchanges(
    tau_s: list[float],
    tau_hat_s: list[float],
    *,
    device: str = "",
    train_s: list[float] | None = None,
    half_s: float = 0.2,
) -> Predictions:
    """Return one exchange per round; a letter of `device` is the device of each."""
    tau = np.array(tau_s)
    train = np.zeros(len(tau)) if train_s is None else np.array(train_s)
    return Predictions(
        round=np.arange(1, len(tau) + 1),
        device=tuple(device or "a" * len(tau)),
        tau_s=tau,
        tau_hat_s=np.array(tau_hat_s),
        low_s=np.array(tau_hat_s) - half_s,
        high_s=np.array(tau_hat_s) + half_s,
        phases_s={"train": train, REST: tau - train},
        every_round=np.arange(1, len(tau) + 1),
        every_device=tuple(device or "a" * len(tau)),
    )


def test_errors_are_relative_to_the_measured_time() -> None:
    found = errors_of(exchanges([1.0, 2.0, 4.0] * 2, [1.1, 1.8, 6.0] * 2))
    assert (found.sample, found.bounded) == (SampleCount(6, 6), SampleCount(6, 6))
    assert found.median_ape == pytest.approx(0.1)
    assert found.bias == pytest.approx((0.1 - 0.1 + 0.5) / 3)
    assert found.coverage == pytest.approx(
        2 / 3
    )  # 0.1, 0.2 and 2.0 s off, intervals of 0.2 s each way
    assert found.width == pytest.approx(0.4 / 1.8)


def test_predictions_before_enough_errors_have_no_interval() -> None:
    found = errors_of(exchanges([1.0, 2.0] * 3, [1.0, 2.0] * 3, half_s=float("inf")))
    assert (found.median_ape, found.coverage, found.width) == (0.0, None, None)
    assert found.bounded == SampleCount(0, 6)


def test_errors_of_too_few_exchanges_are_unknown() -> None:
    few = errors_of(exchanges([1.0] * 4, [1.1] * 4))
    assert (few.sample, few.median_ape, few.bias, few.coverage) == (
        SampleCount(4, 4),
        None,
        None,
        None,
    )
    found = exchanges([1.0] * 6, [1.1] * 6)
    most_are_untimed = replace(found, every_round=np.arange(1, 14), every_device=("a",) * 13)
    half = errors_of(most_are_untimed)
    assert (half.sample, half.median_ape) == (SampleCount(6, 13), None)
    assert parts_of_residual(most_are_untimed) == []
    assert errors_by_device(most_are_untimed)[0].errors.median_ape is None
    assert drift(most_are_untimed)[0].sample == SampleCount(3, 10)


def test_intervals_come_from_the_errors_of_earlier_rounds() -> None:
    rng = np.random.default_rng(8)
    rounds, tau_s = np.repeat(np.arange(1, 201), 2), np.exp(0.2 * rng.standard_normal(400))
    low_s, high_s = intervals_of(rounds, ("a", "b") * 200, tau_s, np.ones(400))
    assert np.isinf(high_s[:10]).all(), "nine errors are needed, and each round has two"
    assert np.isfinite(high_s[10:]).all()
    inside = (low_s <= tau_s) & (tau_s <= high_s)
    assert inside[40:].mean() == pytest.approx(0.8, abs=0.04)
    shorter = intervals_of(rounds[:100], ("a", "b") * 50, tau_s[:100], np.ones(100))
    assert shorter[0].tolist() == low_s[:100].tolist(), "later rounds have no effect"
    nothing = np.zeros(0)
    assert intervals_of(rounds[:0], (), nothing, nothing)[1].tolist() == []


def test_without_exchanges_nothing_is_known() -> None:
    nothing = exchanges([], [])
    assert errors_of(nothing).median_ape is None
    assert drift(nothing)[0].sample == SampleCount(0, 0)
    assert errors_by_round(nothing) == []
    assert parts_of_residual(nothing) == []
    assert errors_by_device(nothing) == []


def test_the_newest_rounds_are_compared_with_those_before() -> None:
    rounds = 3 * RECENT_ROUNDS
    tau_hat_s = [3.0] * RECENT_ROUNDS + [1.5] * RECENT_ROUNDS + [1.1] * RECENT_ROUNDS
    recent, before = drift(exchanges([1.0] * rounds, tau_hat_s))
    assert recent.sample == before.sample == SampleCount(RECENT_ROUNDS, RECENT_ROUNDS)
    assert recent.median_ape == pytest.approx(0.1)
    assert before.median_ape == pytest.approx(0.5)


def test_the_error_of_a_round_is_that_of_its_exchanges() -> None:
    found = exchanges([1.0, 1.0, 2.0], [1.1, 1.3, 1.0])
    found = replace(found, round=np.array([4, 4, 9]))
    numbers = np.array(errors_by_round(found))
    assert numbers == pytest.approx(np.array([[4.0, 0.2, 0.2], [9.0, 0.5, -0.5]]))


def test_the_phase_that_varies_causes_the_residuals() -> None:
    train_s = [1.0, 2.0, 1.0, 2.0] * 2
    tau_s = [x + 0.5 for x in train_s]
    first, *others = parts_of_residual(exchanges(tau_s, [2.0] * 8, train_s=train_s))
    assert first.name == "train"
    assert first.mean_s == pytest.approx(1.5)
    assert first.spread_s == pytest.approx(0.5)
    assert first.share == pytest.approx(1.0)
    assert {part.name for part in others} == {REST, PREDICTION}
    assert [part.share for part in others] == [pytest.approx(0.0), pytest.approx(0.0)]


def test_a_prediction_that_follows_a_phase_leaves_nothing_of_it() -> None:
    train_s = np.array([1.0, 2.0, 3.0, 1.0] * 2)
    rest_s = np.array([0.1, 0.4, 0.2, 0.3] * 2)
    found = exchanges(list(train_s + rest_s), list(train_s + 0.2), train_s=list(train_s))
    shares = {part.name: part.share for part in parts_of_residual(found)}
    assert sum(share or 0.0 for share in shares.values()) == pytest.approx(1.0)
    assert (shares["train"] or 0.0) + (shares[PREDICTION] or 0.0) == pytest.approx(0.0)
    assert shares[REST] == pytest.approx(1.0)


def test_phases_with_the_same_share_keep_their_order() -> None:
    """Shares near 0 have other last digits on other processors."""
    train_s = [1.0, 2.0, 1.0, 2.0] * 2
    found = exchanges([x + 0.5 for x in train_s], [2.0] * 8, train_s=train_s)
    near_0 = {
        name: np.array([0.1, 0.1 + more, 0.1, 0.1 + more] * 2)
        for name, more in (("decode", -1e-12), ("load", 1e-12), ("encode", 1e-11))
    }
    parts = parts_of_residual(replace(found, phases_s={**near_0, **found.phases_s}))
    assert [part.name for part in parts] == ["train", "decode", "load", "encode", REST, PREDICTION]


def test_a_constant_error_of_a_device_is_no_spread() -> None:
    found = exchanges([1.0] * 5 + [5.0] * 5, [2.0] * 5 + [4.0] * 5, device="aaaaabbbbb")
    assert {part.share for part in parts_of_residual(found)} == {None}
    assert [x.errors.bias for x in errors_by_device(found)] == [
        pytest.approx(1.0),
        pytest.approx(-0.2),
    ]


def test_devices_stand_in_the_order_of_their_errors() -> None:
    tau_s, tau_hat_s = [1.0, 1.0, 2.0, 1.0] * 5, [1.1, 1.5, 2.2, 1.4] * 5
    found = exchanges([*tau_s, 1.0], [*tau_hat_s, 9.0], device="abca" * 5 + "0")
    devices = errors_by_device(found)
    assert [device.device for device in devices] == ["b", "a", "c", "0"], "too few are last"
    newest = devices[1]
    assert (newest.tau_s, newest.tau_hat_s, newest.errors.sample) == (1.0, 1.4, SampleCount(10, 10))


def test_exchanges_are_read_from_the_store(tmp_path: Path) -> None:
    with RunReader(fake_run(tmp_path / "run")) as reader:
        rows = [x for x in reader.exchanges() if x.outcome == "done" and x.is_valid and x.tau_hat_s]
        found = read_predictions(reader, until_round=30)
        assert found.round.tolist() == [x.round for x in rows]
        assert sorted(found.device) == sorted(x.device for x in rows)
        assert LATE_ROUND in found.round
        for at, name in enumerate(found.device):
            (row,) = [x for x in rows if (x.round, x.device) == (found.round[at], name)]
            assert found.tau_s[at] == row.tau_s
            assert found.tau_hat_s[at] == row.tau_hat_s
            assert found.phases_s["train"][at] == row.train_s
            assert sum(x[at] for x in found.phases_s.values()) == pytest.approx(row.tau_s)
        assert set(found.phases_s) == {*MEASURED_PHASES, REST}
        assert len(rows) < LIMIT
        every = reader.exchanges()
        assert errors_of(found).sample == SampleCount(len(rows), len(every))
        early = read_predictions(reader, until_round=5, limit=7)
        assert early.every_round.tolist() == [x.round for x in every if x.round <= 5][-7:]
        assert early.round.tolist() == [x.round for x in rows if x.round <= 5][-7:]
