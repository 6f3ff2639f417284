"""The benchmark of the way to a client and back, small enough to be quick."""

import json

import pytest

from benchmarks import client_hop


def test_the_way_to_a_client_and_back_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--agents", "2", "--rounds", "4", "--values", "1000", "--json"]
    assert client_hop.main(options) == 0
    found = json.loads(capsys.readouterr().out)
    for key in ("hop_s", "slowest_s", "alone_hop_s"):
        assert found[key] > found[f"{'alone_' if 'alone' in key else ''}split_s"] > 0.0
    assert found["slowest_s"] >= found["hop_s"]


def test_a_wrong_option_is_one_line() -> None:
    with pytest.raises(SystemExit, match="at least 3 rounds, one agent and one value"):
        client_hop.main(["--rounds", "2"])
