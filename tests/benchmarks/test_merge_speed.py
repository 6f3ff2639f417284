"""The benchmark of the merge runs on a small scale, and its weights are linear in the clients."""

import json

import pytest

from benchmarks import merge_speed

FEW, MANY, MARGIN = 20_000, 320_000, 3.0


def test_a_small_benchmark_prints_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--devices", "3", "--values", "20000", "--clients", "2000", "--silos", "5"]
    assert merge_speed.main([*sizes, "--repeats", "1", "--json"]) == 0
    speeds = json.loads(capsys.readouterr().out)
    of_defences = speeds.pop("defence_s")
    assert sorted(of_defences) == sorted(merge_speed.DEFENCES)
    assert all(spent_s > 0.0 for spent_s in of_defences.values())
    assert min(speed for name, speed in speeds.items() if name.endswith("_file_s")) > 0.0
    assert all(speed >= 0.0 for speed in speeds.values())
    assert speeds["moments_bytes"] == pytest.approx(2 * 4 * 20_000, rel=0.01)
    assert merge_speed.main([*sizes, "--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    assert "aaggff-d, sum of stored models" in printed
    assert "weights of afl, 2,000 clients" in printed
    assert "multi-krum" in printed


@pytest.mark.parametrize("rule", ["aaggff-d", "afl"])
def test_the_weights_are_linear_in_the_clients(rule: str) -> None:
    few, many = (
        min(merge_speed.weights_s(rule, clients, 1_000) for _ in range(3))
        for clients in (FEW, MANY)
    )
    assert many / few < MARGIN * MANY / FEW
