"""The benchmarks that watch whole runs, small enough to be quick."""

import json
import sys
from collections.abc import Sequence

import pytest

from benchmarks import idle_fleet, kills, metrics, round_time, soak, tls_cost
from tests import needs

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def numbers(output: str) -> dict[str, float]:
    values: dict[str, float] = json.loads(output)
    return values


@pytest.mark.parametrize("options", [[], ["--echo", "--client", "aiomqtt"]])
def test_round_time_tells_how_long_a_round_takes(
    options: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert round_time.main(["--agents", "3", "--rounds", "4", "--json", *options]) == 0
    result = numbers(capsys.readouterr().out)
    assert (result["agents"], result["rounds"], result["merged"]) == (3, 4, 3)
    assert 0.0 < result["round_median_s"] < result["first_round_done_s"]
    kinds = ("coordinator", "broker", "fork server", "agents")
    assert all(result[f"first_round_cpu_ms_{kind}"] > 0.0 for kind in kinds)


def test_round_time_takes_turns_with_flower(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def run(name: str, s: float) -> round_time.Result:
        order.append(name)
        cpu_ms = {"cpu_ms_x": 2.0, "first_round_cpu_ms_x": 3.0}
        return {"round_median_s": s * len(order), "first_round_done_s": 1.0, **cpu_ms}

    found = round_time.in_turns(lambda: run("ours", 1.0), lambda: run("flower", 2.0), turns=2)
    assert order == ["flower", "ours", "ours", "flower"]
    assert (found["ours_round_median_s"], found["flower_round_median_s"]) == (2.5, 5.0)
    assert found["ratio_round_median_s"] == (2 / 2 + 3 / 8) / 2
    with pytest.raises(SystemExit, match="Flower failed with exit code 1"):
        round_time.main(
            ["--agents", "2", "--rounds", "3", "--turns", "1", "--flower", "/bin/false"]
        )


@pytest.mark.skipif(sys.platform != "linux", reason="proportional memory is known on Linux only")
def test_idle_fleet_tells_what_agents_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert idle_fleet.main(["--agents", "2", "--seconds", "1", "--json"]) == 0
    result = numbers(capsys.readouterr().out)
    assert result["agents"] == 2
    assert 1.0 < result["pss_median_mib"] <= result["pss_max_mib"]
    assert 0.0 < result["idle_cores_agents"] < 1.0


def test_a_run_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"the run failed: fairbed: .*model\.name"):
        soak.main(["--rounds", "20", "--agents", "1", "--model", "resnet"])


@needs.mosquitto
@pytest.mark.skipif(sys.platform != "linux", reason="needs the processor time of threads")
@pytest.mark.timeout(300)  # its waits take 34 s
def test_tls_cost_compares_the_two_listeners_of_a_lab(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--agents", "2", "--size", "0.2", "--repeats", "1", "--rounds", "3"]
    assert tls_cost.main([*options, "--seconds", "2.5", "--json"]) == 0
    result = numbers(capsys.readouterr().out)
    for way in ("down", "up"):
        expected = result[f"{way}_tls_mb_s"] / result[f"{way}_plain_mb_s"]
        assert result[f"{way}_ratio"] == pytest.approx(expected)
    assert result["round_ratio"] == pytest.approx(result["round_tls_s"] / result["round_plain_s"])
    assert 10.0 < result["tls_waiting_mib"] < 500.0
    for state in ("waiting", "in_run"):
        expected = result[f"tls_{state}_cores"] * result["core_here_over_pi4"]
        assert result[f"pi4_{state}_share"] == pytest.approx(expected)
        assert 0.0 <= result[f"pi4_{state}_share"] < 1.0  # a waiting agent may do nothing
    assert result["pi4_in_run_share"] > 0.0  # it sends two contexts in this time


@pytest.mark.skipif(sys.platform != "linux", reason="needs the processor time of threads")
def test_metrics_measures_scrapes_and_what_they_cost_a_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "WARM_S", 2.0)
    assert metrics.main(["--devices", "20", "--seconds", "3", "--scrapes", "5", "--json"]) == 0
    result = numbers(capsys.readouterr().out)
    assert (result["devices"], result["scrapes"]) == (20, 5)
    assert 0.0 < result["scrape_median_ms"] <= result["scrape_p95_ms"] <= result["scrape_max_ms"]
    assert result["series"] > 20 * 8
    options = ["--rounds", "6", "--agents", "2", "--repeats", "1", "--json"]
    assert metrics.main(options) == 0
    result = numbers(capsys.readouterr().out)
    expected = result["coordinator_exported_ms"] / result["coordinator_plain_ms"] - 1.0
    assert result["change_coordinator"] == pytest.approx(expected)
    assert 0.0 <= result["exporter_of_all"] < 0.5


@needs.mosquitto
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", [part for part in kills.PARTS if part not in kills.STARTS])
def test_kills_tells_what_survives(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kills.main(["--kills", "2", "--devices", "2", "--parts", part, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["parts"]
    assert (result["kills"], result["survived"]) == (2, 2)
    assert result["repeated_max"] <= 1
    assert result["equal_models"] in (None, result["rounds"])


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("part", "broker", "times"),
    [
        ("start", "mosquitto", 12),
        ("start", "nats", 3),  # only the start of the broker differs
        ("start", "amqtt", 3),
        ("home", "mosquitto", 6),
    ],
)
def test_a_start_that_is_killed_at_each_step_goes_on(
    part: str, broker: str, times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--parts", part, "--kills", str(times), "--broker", broker, "--json"]
    assert kills.main(options) == 0
    (result,) = json.loads(capsys.readouterr().out)["parts"]
    assert (result["kills"], result["survived"]) == (times, times)
    assert result["points"] == (times if part == "start" else 0)
