"""The benchmark of the codecs runs them all the way, on a small scale."""

import msgspec
import pytest

from benchmarks import codecs
from fairbed.testbed.run.broker import find_broker

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(find_broker("mosquitto") is None, reason="mosquitto is not installed"),
]


def test_it_shows_what_a_codec_saves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "SPEED_VALUES", 50_000)
    options = ["--seeds", "1", "--rounds", "2", "--devices", "2", "--per-round", "2", "--json"]
    options += ["--link", "wifi-board", "--only", "float32/float32,int8/delta"]
    assert codecs.main(options) == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    raw, coded = result["float32/float32"], result["int8/delta"]
    assert raw["exchanges"] == coded["exchanges"] == 4
    assert coded["up_kb"] < raw["up_kb"] / 3.9
    assert coded["down_kb"] < raw["down_kb"] * 0.63  # the first version comes whole
    assert coded["coordinator_decode_ms"] > 0.0
    assert raw["coordinator_decode_ms"] is None
    assert 0.0 < result["lossless changes"]["ratio"] < 1.0
