"""Selecting costs no worse than N log N, whatever the policy; ratios only, never seconds."""

import json
import math
import time
from collections.abc import Callable

import pytest

from benchmarks import selection
from benchmarks._decision_cost import DecisionBench

FEW, MANY, PER_ROUND = 4_000, 64_000, 50
MARGIN = 3.0
"""What caches and other programs may add to the ratio of two times; N^2 would add 12."""


def allowed(small: int, large: int) -> float:
    """Return how much more time so many more may take: N log N, with the margin."""
    return MARGIN * (large * math.log(large)) / (small * math.log(small))


def least_s(work: Callable[[], float]) -> float:
    """Return the least of some processor times, which other programs disturb least."""
    return min(work() for _ in range(4))


@pytest.mark.parametrize("name", list(selection.arms(MANY, PER_ROUND)))
def test_a_round_grows_no_worse_than_n_log_n(name: str) -> None:
    times = []
    for devices in (FEW, MANY):
        bench = DecisionBench(selection.arms(devices, PER_ROUND)[name], devices)
        bench.warm_up()
        times.append(least_s(bench.round_s))
    assert times[1] / times[0] < allowed(FEW, MANY)


def test_the_ratio_finds_a_quadratic_selection() -> None:
    """The published Algorithm 1 of RBCS-F looks at all devices once for each device."""

    def looks(devices: int) -> Callable[[], float]:
        def work() -> float:
            used = time.process_time()
            sum(one <= other for one in range(devices) for other in range(devices))
            return time.process_time() - used

        return work

    assert least_s(looks(1600)) / least_s(looks(100)) > allowed(100, 1600)


def test_the_command_tells_times_memory_and_growth(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--devices", "20000", "--per-round", "20", "--rounds", "2", "--arm", "rbcs-f, ridge"]
    assert selection.main([*small, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [cost["devices"] for cost in said["costs"]] == [200, 2000, 20_000]
    for cost in said["costs"]:
        assert min(cost["first_s"], cost["later_s"]) > 0.0
    assert said["costs"][2]["peak_mib"] > said["costs"][0]["peak_mib"]
    assert 0.0 < said["paper_decisions_s"] < said["paper_replay_s"]


def test_an_unknown_arm_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        selection.main(["--arm", "best"])
    assert "--arm: must be one of rbcs-f, ridge; " in capsys.readouterr().err
