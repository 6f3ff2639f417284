"""A device that fills the memory of the broker, for a short time."""

import json

import pytest

from benchmarks import broker_memory
from tests import needs


@pytest.mark.broker
@pytest.mark.slow
@needs.mosquitto
def test_the_attack_fills_memory_and_the_others_lose_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--broker", "mosquitto", "--agents", "2", "--rounds", "24", "--json"]
    assert broker_memory.main(options) == 0
    results = json.loads(capsys.readouterr().out)
    assert [one["attack"] for one in results] == ["subscriptions", "sessions"]
    for one in results:
        assert one["subscriptions"] > 1_000
        assert one["peak_mib"] > one["before_mib"] + 1.0
        assert (one["exchanges"], one["lost"]) == (48, 0)
