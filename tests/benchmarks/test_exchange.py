"""The exchange benchmark measures what it says, on a small scale."""

import subprocess
import sys
from typing import Any, get_args

import msgspec
import pytest

from benchmarks._meter import percentile
from fairbed.testbed.run.broker import find_broker
from fairbed.wire.transport.address import Client

KEYS = {
    "broker",
    "agents",
    "processes",
    "size_mb",
    "tcp_down_mb_s",
    "tcp_up_mb_s",
    "down_mb_s",
    "up_mb_s",
    "down_ratio",
    "up_ratio",
    "cpu_ms_per_mb",
    "peak_rss_mb",
    "device_s",
    "verified",
}

LIMIT_S = 280.0
"""Of a benchmark that takes a few seconds on an idle machine."""

pytestmark = [
    pytest.mark.broker,
    pytest.mark.timeout(LIMIT_S + 20.0),
    pytest.mark.skipif(find_broker("mosquitto") is None, reason="mosquitto is not installed"),
]


def bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "bench", "exchange", "--json"]
    command += ["--broker", "mosquitto", "--size", "0.3", "--repeats", "1", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    result: dict[str, Any] = msgspec.json.decode(done.stdout)
    return result


@pytest.mark.parametrize("client", get_args(Client))
def test_it_prints_every_key_and_verifies_every_vector(client: Client) -> None:
    result = bench("--agents", "3", "--processes", "2", "--client", client)
    assert result["client"] == client
    assert result.keys() >= KEYS
    assert (result["agents"], result["processes"], result["verified"]) == (3, 2, True)
    assert result["cpu_ms_per_mb"].keys() >= {
        "coordinator_down",
        "coordinator_up",
        "broker",
        "agents",
    }
    assert all(value > 0 for value in result["peak_rss_mb"].values())
    assert 0 < result["device_s"]["p50"] <= result["device_s"]["p95"]
    assert result["down_ratio"] == pytest.approx(result["down_mb_s"] / result["tcp_down_mb_s"])
    assert result["up_ratio"] == pytest.approx(result["up_mb_s"] / result["tcp_down_mb_s"])


def test_chunks_that_are_lost_are_sent_again() -> None:
    result = bench("--agents", "2", "--drop", "0.05", "--chunk", "32")
    assert result["dropped"] > 0
    assert result["repeats"] >= 1
    assert result["verified"]


def test_a_broker_that_is_killed_in_the_middle_costs_time_but_no_byte() -> None:
    result = bench("--agents", "2", "--kill-broker-at", "50%")
    assert result["kill"]["down"]["wall_s"] > 0
    assert result["kill"]["up"]["wall_s"] > 0
    assert result["verified"]


def test_a_slow_device_is_held_against_its_own_link() -> None:
    result = bench("--agents", "2", "--slow", "2mbit:1")
    assert result["slow"]["limit_s"] == pytest.approx(1.2)
    assert result["slow"]["down"]["slow_over_limit"] >= 0.9
    assert result["verified"]


def test_devices_that_never_read_cost_the_others_nothing() -> None:
    result = bench("--agents", "2", "--deaf", "2", "--chunk", "32")
    assert (result["deaf"], result["verified"]) == (2, True)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(list(range(1, 101)), 95) == 95
