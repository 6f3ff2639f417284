"""The benchmark of signatures, small enough to be quick."""

import json

import pytest

from benchmarks import signatures


def test_it_counts_what_signatures_add_to_an_exchange(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--repeats", "20", "--devices", "10", "--round-s", "0.5", "--json"]
    assert signatures.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["to_device_messages"] == found["from_device_messages"] == 8
    assert 62.0 <= found["to_device_bytes"] <= 63.0
    assert 62.0 <= found["from_device_bytes"] <= 63.0
    assert found["share"] == pytest.approx(10 * 1e-6 * found["coordinator_us"] / 0.5)
    assert found["coordinator_us"] > found["from_device_check_us"] > 0.0
