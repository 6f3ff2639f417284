"""Exports read back by pandas, polars, pyarrow and sqlite3."""

import csv
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import fields
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from fairbed.coordinator.report import export
from fairbed.coordinator.report.errors import ExportError, FolderExistsError, TableError
from fairbed.coordinator.report.export import (
    FORMATS,
    Format,
    export_run,
)
from fairbed.coordinator.report.tables import (
    TABLES,
    dictionary,
    read_batches,
    read_table,
)
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.schema import VERSION
from fairbed.coordinator.store.tables import FleetContextRow, TelemetryRow
from tests.coordinator.store.fake_run import FakeRun, make_store

TEXTS = ("", None, 'hot, "slow"', "two\nlines", "=1+1", "äöü €", "None")
NUMBERS = (0.1 + 0.2, 1e-300, inf, None, 5.0, -0.0, 2.0**60)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with cells that are difficult to write."""
    run = FakeRun(tmp_path_factory.mktemp("runs") / "a", devices=5, rounds=12)
    run.play(12)
    for text, number in zip(TEXTS, NUMBERS, strict=True):
        cells = {f.name: None for f in fields(TelemetryRow)} | {
            "at_s": 1e9,
            "device": "odd",
            "phase": "idle",
            "is_available": text is None,
            "mu_cores": 1.0,
            "rss_bytes": None if number is None else 2**52 + 1,
            "temperature_celsius": number,
            "throttled": text,
        }
        run.store.add(TelemetryRow(**cells))  # type: ignore[arg-type]
    contexts = np.arange(20.0).tobytes()
    run.store.add(FleetContextRow(round=1, context=contexts, expected_tau_s=None))
    return run.finish()


def exported(run: Path, out: Path, form: Format, *tables: str) -> Path:
    with RunReader(run) as reader:
        return export_run(reader, out, form, tables or TABLES).folder


def odd_rows(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the difficult cells."""
    names = ("throttled", "temperature_celsius", "rss_bytes", "is_available")
    return [tuple(row[name] for name in names) for row in rows if row["device"] == "odd"]


SHOWN = ("", None, 'hot, "slow"', "two lines", "=1+1", "äöü €", "None")
"""The texts as a reader of a run gives them: each is one line."""

ODD = [
    (text, number, None if number is None else 2**52 + 1, text is None)
    for text, number in zip(SHOWN, NUMBERS, strict=True)
]


def test_parquet_reads_back_as_the_same_tables(run: Path, tmp_path: Path) -> None:
    out = exported(run, tmp_path / "out", "parquet")
    assert {path.name for path in out.iterdir()} == {
        *(f"{name}.parquet" for name in TABLES),
        "dictionary.csv",
        "experiment.toml",
    }
    with RunReader(run) as reader:
        for name in TABLES:
            table = read_table(reader, name)
            path = out / f"{name}.parquet"
            stored = pq.read_table(path)
            assert stored.schema.equals(table.arrow().schema, check_metadata=False)
            assert stored.to_pylist() == list(table.rows())
            assert pl.read_parquet(path).to_dicts() == list(table.rows())
            by_pandas = pd.read_parquet(path, dtype_backend="pyarrow")
            assert pa.Table.from_pandas(by_pandas).to_pylist() == list(table.rows())
    assert odd_rows(pq.read_table(out / "telemetry.parquet").to_pylist()) == ODD


def test_parquet_fields_carry_unit_and_meaning(run: Path, tmp_path: Path) -> None:
    out = exported(run, tmp_path / "out", "parquet", "round")
    assert pq.read_schema(out / "round.parquet").field("tau_max_s").metadata[b"unit"] == b"s"


def test_csv_reads_back_as_the_same_cells(run: Path, tmp_path: Path) -> None:
    out = exported(run, tmp_path / "out", "csv")
    with RunReader(run) as reader:
        tables = {name: read_table(reader, name) for name in TABLES}
    for name, table in tables.items():
        path = out / f"{name}.csv"
        if len(table):
            by_polars = pl.read_csv(path, schema=table.polars().schema | as_text(name))
            assert by_polars.to_dicts() == as_in_csv(table.rows()), name
        by_pandas = pd.read_csv(path)
        assert list(by_pandas.columns) == list(table.columns)
        assert len(by_pandas) == len(table)
    options = pa_csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    parse = pa_csv.ParseOptions(newlines_in_values=True)
    by_arrow = pa_csv.read_csv(
        out / "telemetry.csv", convert_options=options, parse_options=parse
    ).to_pylist()
    assert odd_rows(by_arrow) == [
        ("'=1+1" if row[0] == "=1+1" else row[0], *row[1:]) for row in ODD
    ]
    by_pandas = pd.read_csv(out / "exchange.csv")
    assert by_pandas["is_valid"].dtype == bool
    tau_s = tables["exchange"].column("tau_s")
    np.testing.assert_allclose(by_pandas["tau_s"], tau_s, rtol=1e-14)


def as_text(name: str) -> dict[str, Any]:
    """Return the type of columns with bytes, which CSV has as hexadecimal digits."""
    return {line.column: pl.String for line in dictionary([name]) if line.type == "bytes"}


def as_in_csv(rows: Any) -> list[dict[str, Any]]:
    """Return rows as CSV has them: bytes are hexadecimal digits, no text is a formula."""
    return [{key: _as_in_csv(value) for key, value in row.items()} for row in rows]


def _as_in_csv(value: Any) -> Any:
    match value:
        case bytes():
            return value.hex()
        case "=1+1":
            return "'=1+1"
    return value


def test_sqlite_is_the_store_with_a_dictionary(run: Path, tmp_path: Path) -> None:
    out = exported(run, tmp_path / "out", "sqlite")
    assert sorted(path.name for path in out.iterdir()) == [
        "dictionary.csv",
        "experiment.toml",
        "run.sqlite",
    ]
    with (
        closing(sqlite3.connect(out / "run.sqlite")) as copy,
        closing(sqlite3.connect(run / "run.db")) as store,
    ):
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert copy.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        found = copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        assert {name for (name,) in found} == {*TABLES, "dictionary"}
        for name in TABLES:
            rows = f'SELECT * FROM "{name}" ORDER BY rowid'
            assert copy.execute(rows).fetchall() == store.execute(rows).fetchall()
        meaning = copy.execute(
            "SELECT unit FROM dictionary WHERE \"table\" = 'round' AND \"column\" = 'close_s'"
        )
        assert meaning.fetchall() == [("s",)]


@pytest.mark.parametrize("form", FORMATS)
def test_some_tables(run: Path, tmp_path: Path, form: Format) -> None:
    calls: list[tuple[int, int]] = []
    with RunReader(run) as reader:
        done = export_run(
            reader,
            tmp_path / "new" / "out",
            form,
            ["round", "metric", "round"],
            lambda done, total: calls.append((done, total)),
        )
        assert done.rows == {"round": 12, "metric": len(read_table(reader, "metric"))}
    total = sum(done.rows.values())
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)
    assert done.bytes == sum(path.stat().st_size for path in done.folder.iterdir())
    with (done.folder / "dictionary.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert {line["table"] for line in lines} == {"round", "metric"}
    assert lines[0] == {
        "table": "round",
        "column": "round",
        "type": "int",
        "unit": "",
        "meaning": "Round, counted from 1.",
        "is_optional": "false",
    }
    if form == "sqlite":
        with closing(sqlite3.connect(done.folder / "run.sqlite")) as copy:
            names = copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            assert {name for (name,) in names} == {"round", "metric", "dictionary"}


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_without_rounds_gives_files_without_rows(tmp_path: Path, form: Format) -> None:
    make_store(tmp_path / "r").close()
    out = exported(tmp_path / "r", tmp_path / "out", form)
    if form == "csv":
        assert pd.read_csv(out / "exchange.csv").empty
    elif form == "parquet":
        assert pl.read_parquet(out / "exchange.parquet").height == 0
    else:
        with closing(sqlite3.connect(out / "run.sqlite")) as copy:
            assert copy.execute("SELECT count(*) FROM exchange").fetchone() == (0,)


@pytest.mark.parametrize("form", FORMATS)
def test_all_tables_of_a_live_run_are_of_one_state(
    tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that close during the export are in no table of it."""
    monkeypatch.setattr(export, "BACKUP_PAGES", 4)
    run = FakeRun(tmp_path / "r", devices=6, rounds=40)
    run.play(8)

    def go_on(done: int, total: int) -> None:
        if run.round < 30:
            run.play(1)

    with RunReader(run.folder) as reader:
        out = export_run(reader, tmp_path / "out", form, progress=go_on).folder
        assert len(read_table(reader, "round")) == run.round > 12
    run.finish()
    found = {name: last_round(out, form, name) for name in ("round", "selection", "device_metric")}
    assert found["round"] == found["selection"] == 8
    assert found["device_metric"] <= 8


def last_round(out: Path, form: Format, name: str) -> int:
    if form == "sqlite":
        with closing(sqlite3.connect(out / "run.sqlite")) as copy:
            return int(copy.execute(f"SELECT max(round) FROM {name}").fetchone()[0])
    path = out / f"{name}.{form}"
    frame = pd.read_csv(path) if form == "csv" else pd.read_parquet(path)
    return int(frame["round"].max())


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_larger_than_a_batch_is_whole(
    run: Path, tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "read_batches", partial(read_batches, size=7))
    path = exported(run, tmp_path / "out", form, "selection") / f"selection.{form}"
    frame = pd.read_csv(path) if form == "csv" else pd.read_parquet(path)
    with RunReader(run) as reader:
        whole = read_table(reader, "selection").pandas()
    assert frame["round"].tolist() == whole["round"].tolist()
    assert frame["device"].tolist() == whole["device"].tolist()


@pytest.mark.parametrize("form", FORMATS)
def test_an_interrupted_export_leaves_nothing(run: Path, tmp_path: Path, form: Format) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with RunReader(run) as reader, pytest.raises(KeyboardInterrupt):
        export_run(reader, tmp_path / "new" / "out", form, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_refused_and_stays(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FolderExistsError, match=r": must be a new or empty folder, got one with"):
        exported(run, tmp_path, "csv")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_used(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert (exported(run, tmp_path / "out", "csv", "round") / "round.csv").is_file()


def test_a_file_in_the_way_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ExportError, match=r"out: must be a folder that can be written, got: "):
        exported(run, tmp_path / "out", "csv", "round")
    with pytest.raises(ExportError, match=r"got: Not a directory; choose another one$"):
        exported(run, tmp_path / "out" / "below", "csv", "round")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


EXPORT = """
import resource, sys
from pathlib import Path
from fairbed.coordinator.report.errors import ExportError
from fairbed.coordinator.report.export import export_run
from fairbed.coordinator.store import RunReader
with RunReader(Path(sys.argv[1])) as reader:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        export_run(reader, Path(sys.argv[2]), sys.argv[3])
    except ExportError as exc:
        print(exc)
"""


@pytest.mark.parametrize("form", FORMATS)
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_nothing(
    run: Path, tmp_path: Path, form: Format
) -> None:
    """The kernel limits the size of files, as a full disk would."""
    arguments = [sys.executable, "-c", EXPORT, str(run), str(tmp_path / "out"), form]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.startswith(f"{tmp_path / 'out'}: must be a folder that can be written, got:")
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left"),
        sqlite3.OperationalError("database or disk is full"),
    ],
)
def test_a_full_disk_has_its_own_advice(
    error: Exception, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(RunReader, "backup", fail)
    with pytest.raises(ExportError, match=r"free space, or choose a folder on another disk$"):
        exported(run, tmp_path / "out", "sqlite")
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"package pyarrow must be installed, got none"):
        exported(run, tmp_path / "out", "parquet")
    assert exported(run, tmp_path / "out", "csv", "round").is_dir()


def test_a_damaged_store_is_an_error_of_the_store(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "r")
    path = tmp_path / "r" / "run.db"
    content = bytearray(path.read_bytes())
    content[8_192:] = b"\xff" * (len(content) - 8_192)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"run.db: the store must be usable, got "):
        exported(tmp_path / "r", tmp_path / "out", "csv")
    assert not (tmp_path / "out").exists()


def test_names_are_checked_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"^table: must be one of run, "):
        exported(run, tmp_path / "out", "csv", "rounds")
    with pytest.raises(TableError, match=r"^format: must be one of csv, parquet, sqlite, got 'x'"):
        exported(run, tmp_path / "out", "x")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
