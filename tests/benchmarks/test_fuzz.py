"""The command that feeds the decoders."""

from pathlib import Path

import msgspec
import pytest

from benchmarks import fuzz


def test_it_divides_the_inputs_and_reports_each_decoder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = "--inputs 600 --engine outcomes --only chunks,texts,transfers --json --keep"
    assert fuzz.main([*line.split(), str(tmp_path)]) == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    assert result["crashes"] == 0
    assert result["findings"] == []
    assert 0.0 < result["slowest_ms"] < result["limit_ms"] == 50.0
    assert {name: x["inputs"] for name, x in result["decoders"].items()} == {
        "chunks": 240,
        "texts": 240,
        "transfers": 120,
    }
    assert list(tmp_path.glob("chunks/rare-0"))
    assert sorted(path.name for path in tmp_path.glob("*/slowest")) == ["slowest"] * 3


def test_an_unknown_decoder_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fuzz.main(["--only", "chunks,nothing"])
    assert "no decoder 'nothing'; there are: messages, chunks" in capsys.readouterr().err
