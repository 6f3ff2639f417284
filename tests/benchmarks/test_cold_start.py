"""The benchmark of cold starts runs on the smallest network."""

import json

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

from benchmarks import cold_start


def test_all_ways_compute_the_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert cold_start.main(["--repeats", "1", "--models", "cnn", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["has_same_bits"]
    assert 0.0 < row["kept_s"] < 1.0
