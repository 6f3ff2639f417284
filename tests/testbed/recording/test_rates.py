"""A device knows how fast it multiplies matrices and moves memory, on all cores together."""

import sys

import pytest

from fairbed.testbed.recording import rates
from fairbed.testbed.recording.analysis.findings import NotMeasured
from fairbed.testbed.recording.rates import measured_rates


@pytest.mark.full
def test_all_cores_are_measured_together() -> None:
    flops, moved = measured_rates(2)
    assert isinstance(flops.value, float)
    assert isinstance(moved.value, float)
    assert 1e8 < flops.value < 1e14
    assert 1e7 < moved.value < 1e13
    assert flops.how == "products of float32 matrices of 512 x 512, 1.5 s on 2 cores at once"


def test_one_process_counts_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MEASURE_S", 0.01)
    one = rates.rates()
    assert one.flops > 2.0 * 512**3
    assert one.bytes_per_s > 64 << 20


def test_a_machine_that_cannot_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NotMeasured, match="matrix products must run on all cores here") as caught:
        measured_rates(1)
    assert "\n" not in str(caught.value)
