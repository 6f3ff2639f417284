"""The benchmark of rounds with a client, small enough to be quick."""

import json

import pytest

from benchmarks import client_rounds


def test_rounds_of_a_client_are_timed_beside_native_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--agents", "2", "--rounds", "4", "--turns", "1", "--echo", "--json"]
    assert client_rounds.main(options) == 0
    found = json.loads(capsys.readouterr().out)
    for key in ("round_s", "cpu_s"):
        ratio = found[f"client_{key}"] / found[f"native_{key}"]
        assert found[f"client/native_{key}"] == pytest.approx(ratio)
        assert found[f"client_{key}"] > 0.0


def test_a_wrong_option_is_one_line() -> None:
    with pytest.raises(SystemExit, match="at least 3 rounds, one turn and one agent"):
        client_rounds.main(["--rounds", "2"])
