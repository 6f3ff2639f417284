"""The benchmark of the codecs runs them all the way, on a small scale."""

import subprocess
import sys

import msgspec
import pytest

from fairbed.testbed.run.broker import find_broker

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(find_broker("mosquitto") is None, reason="mosquitto is not installed"),
]


def test_it_shows_what_a_codec_saves() -> None:
    command = [
        sys.executable,
        "-m",
        "fairbed.testbed.cli.main",
        "bench",
        "codecs",
        "--json",
        "--seeds",
        "1",
    ]
    command += ["--rounds", "2", "--devices", "2", "--per-round", "2", "--link", "wifi-board"]
    command += ["--only", "float32/float32,int8/delta"]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    result = msgspec.json.decode(done.stdout)
    raw, coded = result["float32/float32"], result["int8/delta"]
    assert raw["exchanges"] == coded["exchanges"] == 4
    assert coded["up_kb"] < raw["up_kb"] / 3.9
    assert coded["down_kb"] < raw["down_kb"] * 0.63  # the first version comes whole
    assert coded["coordinator_decode_ms"] > 0.0
    assert raw["coordinator_decode_ms"] is None
    assert 0.0 < result["lossless changes"]["ratio"] < 1.0
