"""Which windows count, and what they come to."""

import math
from dataclasses import replace

import pytest

from benchmarks._fidelity.rows import QuantitySpec, row_of, unknown
from benchmarks._fidelity.windows import Evidence, Window, failed, find, why_invalid

QUIET = Evidence(
    wall_s=2.0,
    stolen_s=0.01,
    waited_s=0.05,
    contended_s=0.01,
    carried_ratio=5.0,
    drift_ratio=0.01,
    max_drift=0.015,
    lateness_s=1e-4,
    max_lateness_s=1e-3,
)

ASKED = QuantitySpec(backend="process", quantity="goodput", target=10.0, unit="bit/s", limit=0.03)


def test_a_quiet_machine_makes_a_valid_window() -> None:
    assert why_invalid(QUIET) is None
    assert why_invalid(Evidence(wall_s=1.0)) is None


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (replace(QUIET, stolen_s=0.03), "1.5% of the time was stolen by the host"),
        (replace(QUIET, contended_s=0.03), "the device was contended for 1.5% of the time"),
        (replace(QUIET, waited_s=0.11), "a process on the path waited for 5.5% of the time"),
        (replace(QUIET, max_waited=0.01), "a process on the path waited for 2.5% of the time"),
        (replace(QUIET, carried_ratio=1.1), "without limits the path carries only 1.10 of it"),
        (replace(QUIET, drift_ratio=0.02), "the control differs by 2.0% between before and after"),
        (replace(QUIET, lateness_s=2e-3), "without delays the path is 2.0 ms late"),
        (Evidence(wall_s=0.0, failure="it broke"), "it broke"),
    ],
)
def test_what_the_machine_did_not_give_makes_a_window_invalid(
    evidence: Evidence, reason: str
) -> None:
    assert why_invalid(evidence) == reason


def test_only_valid_windows_count() -> None:
    busy = replace(QUIET, stolen_s=1.0)
    found = find([Window(9.0, busy), Window(10.0, QUIET), Window(12.0, QUIET), Window(11.0, QUIET)])
    assert (found.value, found.low, found.high) == (11.0, 10.0, 12.0)
    assert (found.valid, found.attempts) == (3, 4)
    assert found.reason == "50.0% of the time was stolen by the host"


def test_without_a_valid_window_nothing_is_known() -> None:
    row = row_of(ASKED, find([failed("no end answered")]))
    assert (row.achieved, row.error, row.ok) == (None, None, None)
    assert (row.valid, row.attempts, row.reason) == (0, 1, "no end answered")


@pytest.mark.parametrize(("value", "ok"), [(10.2, True), (9.8, True), (10.4, False), (9.6, False)])
def test_an_error_is_held_against_its_limit(value: float, ok: bool) -> None:
    row = row_of(ASKED, find([Window(value, QUIET)]))
    assert row.error == pytest.approx(value / 10.0 - 1.0)
    assert row.ok is ok


def test_an_absolute_error_is_in_the_unit() -> None:
    spec = QuantitySpec(
        backend="process", quantity="d", target=0.02, unit="s", limit=2e-3, is_relative=False
    )
    row = row_of(spec, find([Window(0.023, QUIET)]))
    assert row.error == pytest.approx(0.003)
    assert row.ok is False


def test_a_bound_has_no_error_and_less_is_fine() -> None:
    spec = QuantitySpec(
        backend="process", quantity="b", target=None, unit="s", limit=3.0, is_bound=True
    )
    assert row_of(spec, find([Window(0.1, QUIET)])).ok is True
    row = row_of(spec, find([Window(3.1, QUIET)]))
    assert (row.error, row.ok) == (None, False)


def test_what_was_not_promised_is_neither_kept_nor_missed() -> None:
    spec = QuantitySpec(backend="process", quantity="j", target=1.0, unit="s")
    row = row_of(spec, find([Window(2.0, QUIET)]))
    assert (row.error, row.ok) == (1.0, None)
    assert unknown(spec, "not emulated").ok is None


def test_a_window_that_failed_has_no_value() -> None:
    assert math.isnan(failed("gone").value)
