"""The ratios of a quick measurement, and their history."""

import shutil
from pathlib import Path

import msgspec
import pytest

from benchmarks import quick, round_time
from benchmarks._floor import floor_of_round
from benchmarks.quick import Entry

MACHINE = {"processor": "one", "cores": "2"}


def entry(at: str, ratio: float, python: str = "3.11.2", revision: str = "a" * 40) -> Entry:
    return Entry(at, revision, MACHINE, python, 0.5, {"merge": ratio, "exchange up": 0.5})


def test_it_measures_and_appends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "AGENTS", 4)
    monkeypatch.setattr(quick, "EXCHANGE", ("--agents", "3", "--size", "4", "--repeats", "1"))
    monkeypatch.setattr(quick, "MERGE", ("--devices", "4", "--values", "200000"))
    history = tmp_path / "history.jsonl"
    assert quick.main(["--rounds", "3", "--history", str(history)]) == 0
    [found] = quick.read_history(history)
    ratios = found.ratios
    assert min(ratios.values()) > 0.0
    assert ratios["round, processor"] > 1.0, "more than its floor"
    assert ratios["replay, CNN"] > 1.0, "more than its products"
    assert ratios["exchange down"] < 1.0, "less than a copy"
    parts = ratios["round, processor of the coordinator"], ratios["round, processor of the agents"]
    assert sum(parts) < ratios["round, processor"], "the broker takes some"
    text = capsys.readouterr().out
    assert "no earlier measurement of this machine with this Python" in text
    assert f"{ratios['merge']:.2f}" in text


def test_it_prints_the_last_measurements_of_the_same_machine(tmp_path: Path) -> None:
    before = [
        entry("2026-01-01T10:00Z", 1.0),
        entry("2026-01-02T10:00Z", 2.0, revision="b" * 40 + "-dirty"),
        entry("2026-01-03T10:00Z", 3.0, python="3.12.1"),
        entry("2026-01-04T10:00Z", 4.0),
        entry("2026-01-05T10:00Z", 5.0),
    ]
    path = tmp_path / "history.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, before)) + b"\n")
    lines = quick.table(entry("2026-01-06T10:00Z", 6.0), quick.read_history(path)).splitlines()
    assert lines[0].split() == ["aaaaaaaaa", "aaaaaaaaa", "aaaaaaaaa", "bbbbbbbbb+"]
    assert lines[3].split() == ["merge", "6.00", "5.00", "4.00", "2.00"]
    assert lines[4].endswith("(more is better)")


def test_a_line_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("{}\n")
    with pytest.raises(SystemExit, match=r"history.jsonl:1: must be a measurement of .*; remove"):
        quick.read_history(path)


def test_the_floor_grows_with_the_devices() -> None:
    few, many = (
        {line.name: line.times for line in floor_of_round(devices, repeats=1)} for devices in (2, 4)
    )
    assert few["a hop of a vector by TCP"] == 8
    assert few["sha256, once for a promise"] == 7
    assert many["a step of SGD"] == 2 * few["a step of SGD"]


@pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf (linux-perf)")
def test_where_the_time_of_a_round_is_spent(capsys: pytest.CaptureFixture[str]) -> None:
    assert round_time.main(["--where", "--agents", "3", "--rounds", "12"]) == 0
    text = capsys.readouterr().out
    rows = {
        row[1].strip(): row[2:-1] for row in (line.split("|") for line in text.splitlines()[11:])
    }
    assert {"Python", "training step in onnxruntime", "sha256", "crc32"} <= set(rows)
    coordinator, _broker, agents, whole = map(float, rows["all"])
    assert coordinator + agents <= whole + 1.0
    assert float(rows["training step in onnxruntime"][0]) == 0.0, "the coordinator trains nothing"
