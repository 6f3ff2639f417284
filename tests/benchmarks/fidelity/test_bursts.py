"""Bursts after a pause: where they end, and the limits that follow from quota and pacing."""

import pytest

from benchmarks._fidelity import limits
from benchmarks._fidelity.bursts import until_stop
from fairbed.testbed.backends.choice import BackendName
from fairbed.testbed.emulation.cpu import MIN_SLEEP_S
from fairbed.testbed.emulation.pace import CONTROL_INTERVAL_S, IDLE_CREDIT_S
from fairbed.testbed.emulation.quota import MIN_PERIOD_US


def test_a_burst_ends_with_the_step_that_contains_a_stop() -> None:
    assert until_stop([1.0e-3, 1.1e-3, 9.0e-3, 1.0e-3], [1e-3] * 4) == pytest.approx(3e-3)
    assert until_stop([1.1e-3] * 4, [1e-3] * 4) == pytest.approx(4e-3)  # none at all


@pytest.mark.parametrize(
    ("backend", "is_paced", "at_33", "at_80"),
    [
        ("namespace", False, 0.0089, 0.044),
        ("namespace", True, 0.0054, 0.044),
        ("process", False, 0.0494, 0.088),
        ("process", True, 0.0542, 0.44),
    ],
)
def test_the_limit_is_the_credit_while_it_grows(
    backend: BackendName, is_paced: bool, at_33: float, at_80: float
) -> None:
    found = [limits.burst(backend, share, is_paced=is_paced) for share in limits.BURST_SHARES]
    assert found == pytest.approx([at_33, at_80], rel=0.01)


def test_the_limits_are_those_of_the_product() -> None:
    assert limits.MIN_SLEEP_S["process"] == MIN_SLEEP_S
    assert limits.MIN_SLEEP_S["namespace"] == MIN_PERIOD_US * 1e-6
    assert (limits.PROCESS_CREDIT_S, limits.CONTROL_S) == (IDLE_CREDIT_S, CONTROL_INTERVAL_S)
