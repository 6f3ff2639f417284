"""Limits on what a device reports: wide enough for honest devices, and checked before a merge."""

import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.plausibility import (
    fault_in_hello,
    fault_in_report,
    fault_in_update,
)
from fairbed.coordinator.policy.config import LimitsConfig
from fairbed.wire.messages import Privacy
from tests.coordinator.builders import hello, offer

LIMITS = LimitsConfig()
OFF = LimitsConfig(check="off")
HUGE = float(np.finfo(np.float32).max)


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def test_a_device_with_two_to_the_forty_examples_may_not_join() -> None:
    claim = structs.replace(hello(), n_k=1 << 40)
    assert fault_in_hello(claim, LIMITS) == (
        "its own data must hold at most 10000000 examples, got 1099511627776; raise "
        "limits.examples if it has them"
    )
    assert fault_in_hello(claim, OFF) is None
    assert fault_in_hello(structs.replace(hello(), n_k=10_000_000), LIMITS) is None
    assert fault_in_hello(structs.replace(hello(), n_k=None), LIMITS) is None


@pytest.mark.parametrize("name", ["loss_before", "loss_train"])
def test_a_loss_beyond_the_limit_is_named(name: str) -> None:
    claim = structs.replace(offer(), **{name: 2e6})
    assert fault_in_report(claim, 9.0, LIMITS) == (
        f"offer: {name} must be at most 1e+06 (limits.loss), got 2e+06; if most devices "
        "report such a loss, lower training.learning_rate or scale the data"
    )
    assert fault_in_report(claim, 9.0, OFF) is None
    assert fault_in_report(structs.replace(offer(), **{name: 1e6}), 9.0, LIMITS) is None


def test_phases_must_fit_into_the_measured_time() -> None:
    assert fault_in_report(offer(train_s=10.0), 10.4, LIMITS) is None
    assert fault_in_report(offer(train_s=10.0), 4.0, LIMITS) == (
        "offer: the phases must last at most 8 s (limits.time_ratio), got 10.3 s, with 5 s of "
        "processor time"
    )
    assert fault_in_report(offer(train_s=10.0), 4.0, OFF) is None
    wide = LimitsConfig(time_ratio=3.0)
    assert fault_in_report(offer(train_s=10.0), 4.0, wide) is None


@pytest.mark.parametrize("value", [HUGE, -HUGE, 1e4])
@pytest.mark.parametrize("at", [0, 2])
def test_one_huge_value_is_refused(value: float, at: int) -> None:
    sent = vector(1.0, -2.0, 0.5)
    update = sent.copy()
    update[at] = value
    fault = fault_in_update(update, sent, 3, LIMITS, None)
    assert fault is not None
    assert fault.startswith("update: its norm must be at most 329.1 (limits.update_norm), got ")
    assert fault_in_update(update, sent, 3, OFF, None) is None


def test_buffers_may_change_more_and_not_without_limit() -> None:
    sent = vector(1.0, 0.0, 1.0)
    assert fault_in_update(vector(1.0, 127.5, 1e5), sent, 1, LIMITS, None) is None
    fault = fault_in_update(vector(1.0, 127.5, HUGE), sent, 1, LIMITS, None)
    assert fault is not None
    assert "buffers and vectors of the local rule" in fault
    with_vectors = vector(1.0, 0.0, 1.0, 5.0)
    assert fault_in_update(with_vectors, sent, 1, LIMITS, None) is None
    with_vectors[-1] = -HUGE
    assert fault_in_update(with_vectors, sent, 1, LIMITS, None) is not None


@pytest.mark.parametrize("limit", [1e-18, 1.0, 100.0, 1e25])
@pytest.mark.parametrize("part", [0.5, 0.8999, 0.9001, 0.9999, 1.0001, 2.0])
@pytest.mark.parametrize("n_params", [0, 20_000])
def test_the_rough_check_decides_as_the_exact_one(
    limit: float, part: float, n_params: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = np.random.default_rng(3).standard_normal(20_000)
    change *= part * limit / np.linalg.norm(change)
    update, sent = change.astype(np.float32), np.zeros(20_000, np.float32)
    limits = LimitsConfig(update_norm=limit)
    found = fault_in_update(update, sent, n_params, limits, None)
    monkeypatch.setattr("fairbed.coordinator.fleet.plausibility.CERTAIN", 0.0)
    assert found == fault_in_update(update, sent, n_params, limits, None)
    assert (found is None) == (part < 1.0 or n_params == 0)


def test_an_honest_update_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbed.coordinator.fleet.plausibility.squared_distance", None)
    sent = np.linspace(-1.0, 1.0, 50_000, dtype=np.float32)
    update = np.append(sent + np.float32(0.01), sent)
    assert fault_in_update(update, sent, 40_000, LIMITS, None) is None


def test_the_noise_that_the_run_asked_for_is_no_fault() -> None:
    rng = np.random.default_rng(0)
    sent = np.zeros(1_000, np.float32)
    noise = Privacy(clip=10.0, noise_multiplier=5.0)
    update = rng.normal(0.0, 50.0, 1_000).astype(np.float32)
    assert fault_in_update(update, sent, 1_000, LIMITS, noise) is None
    assert fault_in_update(update, sent, 1_000, LIMITS, None) is not None
