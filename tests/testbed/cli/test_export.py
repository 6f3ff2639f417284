"""`fairbed export`: its files, its messages and its end by a signal."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from fairbed.coordinator.report.export import FORMATS
from fairbed.coordinator.report.tables import TABLES
from fairbed.testbed.cli.main import main, make_parser
from tests.coordinator.store.fake_run import FakeRun, as_older, fake_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one finished run, beside the working directory."""
    fake_run(tmp_path / "runs" / "demo-1", rounds=4, devices=3)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "runs"


def exports(runs: Path, *arguments: str) -> int:
    return main(["export", "--runs", str(runs), *arguments])


def test_the_default_is_csv_in_a_folder_of_the_working_directory(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exports(runs) == 0
    printed = capsys.readouterr()
    assert re.fullmatch(rf"demo-1-csv: {len(TABLES)} tables, \d+ rows, 0.0 MB\n", printed.out)
    assert printed.err == ""
    assert pl.read_csv("demo-1-csv/round.csv")["round"].to_list() == [1, 2, 3, 4]
    assert 'name = "digits-12"' in Path("demo-1-csv/experiment.toml").read_text()


def test_some_tables_and_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--table", "round", "--table", "device", "--format", "parquet", "--out", "a/b")
    assert exports(runs, "demo", *arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("bytes") > 1000
    assert found == {
        "run": "demo-1",
        "format": "parquet",
        "folder": "a/b",
        "tables": {"round": 4, "device": 3},
    }
    assert pl.read_parquet("a/b/device.parquet").height == 3


def test_formats_of_the_command_are_those_that_are_written() -> None:
    for form in FORMATS:
        assert make_parser().parse_args(["export", "--format", form]).format == form


def test_what_cannot_be_exported_is_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(code: int, *arguments: str) -> str:
        assert exports(runs, *arguments) == code
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        return printed.err

    assert "must name a run, got 'gone'" in fails(2, "gone")
    assert "table: must be one of run, device" in fails(2, "--table", "rounds")
    assert exports(runs) == 0
    capsys.readouterr()
    assert "demo-1-csv: must be a new or empty folder, got one with files" in fails(2)
    as_older(runs / "demo-1")
    assert "an older Fairbed wrote it" in fails(1, str(runs / "demo-1"), "--out", "old")
    (runs / "demo-1" / "run.db").write_bytes(b"")
    assert "no run started in it" in fails(1, str(runs / "demo-1"), "--out", "old")
    assert [path.name for path in Path().iterdir()] == ["demo-1-csv"]


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert exports(runs, "--format", "parquet") == 2
    assert "export: the package pyarrow must be installed, got none" in (
        error := capsys.readouterr().err
    )
    assert "fairbed[analysis]" in error


def test_the_export_of_a_live_run_gives_way_to_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered: list[str] = []

    @contextmanager
    def low_priority() -> Iterator[None]:
        lowered.append("lowered")
        yield

    monkeypatch.setattr("fairbed.testbed.cli.export.low_priority", low_priority)
    assert exports(runs, "demo", "--out", "finished") == 0
    assert lowered == []
    live = FakeRun(runs / "live", devices=2, rounds=3)
    live.play(1)
    assert exports(runs, "live", "--out", "live") == 0
    assert lowered == ["lowered"]
    live.finish()


KILLED = """
import os, signal, sys
from fairbed.testbed.api import run
from fairbed.testbed.cli.main import main

def export_run(reader, out, form, tables, show):
    def end(done, total):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return original(reader, out, form, tables, end)

original, run.export_run = run.export_run, export_run
sys.exit(main(["export", "--runs", sys.argv[2], "--out", "out"]))
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_a_signal_leaves_no_files(runs: Path, name: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, name, str(runs)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert list(Path().iterdir()) == []
