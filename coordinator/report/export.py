"""Writes the tables of a run to files: CSV, Parquet or SQLite, with their data dictionary.

All tables of an export are of one state of the run, also of a live one. The folder appears when it
is complete: the files are written beside it, in a hidden folder that is removed on any failure.
"""

import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

from fairbed.coordinator.report.errors import ExportError, FolderExistsError, TableError
from fairbed.coordinator.report.tables import (
    TABLES,
    ColumnMeaning,
    arrow_schema,
    dictionary,
    needed,
    read_batches,
    record_of,
)
from fairbed.coordinator.store.connection import CONFIG
from fairbed.coordinator.store.reader import RunReader
from fairbed.wire.printable import Printable, csv_cell

Format: TypeAlias = Literal["csv", "parquet", "sqlite"]
FORMATS: tuple[Format, ...] = ("csv", "parquet", "sqlite")

DICTIONARY = "dictionary"
"""Name of the file, and of the table in SQLite, that explains every column."""
SQLITE_FILE = "run.sqlite"

BACKUP_PAGES = 2_048
"""Pages of 4 KiB that are copied between two reports of progress."""
SPARSE = 10
"""A copied database is packed if more than one page in `SPARSE` is empty."""

Progress: TypeAlias = Callable[[int, int], object]
"""Receives the number of rows that are written, and of all rows."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    folder: Path
    rows: Mapping[str, int]
    """Rows of each table."""
    bytes: int
    """Size of all files."""


def export_run(
    reader: RunReader,
    folder: Path,
    form: Format,
    tables: Sequence[str] = TABLES,
    progress: Progress = lambda done, total: None,
) -> Exported:
    """Write tables of a run, `dictionary.csv` and `experiment.toml` to a new folder.

    Args:
        reader: Reads the run.
        folder: Folder that does not exist, or is empty; missing parents are made.
        form: Format of the files. SQLite is one file, `run.sqlite`, with the table `dictionary`.
        tables: Names of tables.
        progress: Called as rows are written.

    Raises:
        FolderExistsError: The folder has files.
        ExportError: A file cannot be written.
        ModuleNotFoundError: pyarrow is not installed, which writes Parquet.
        StoreError: The run cannot be read.
        TableError: There is no such table or format.
    """
    if form not in FORMATS:
        raise TableError(f"format: must be one of {', '.join(FORMATS)}, got {form!r}")
    names = tuple(dict.fromkeys(tables))
    lines = dictionary(names)
    if form == "parquet":
        needed("pyarrow")
    with _new_folder(folder) as scratch:
        with reader.snapshot():
            rows = {name: reader.row_count(record_of(name)) for name in names}
            counted = _Counted(progress, sum(rows.values()))
            if form == "sqlite":
                _copy_database(reader, scratch / SQLITE_FILE, lines, counted)
            else:
                write = _write_csv if form == "csv" else _write_parquet
                for name in names:
                    write(reader, name, scratch / f"{name}.{form}", counted)
        with _text_file(scratch / f"{DICTIONARY}.csv") as file:
            _write_lines(file, ColumnMeaning._fields, list(zip(*lines, strict=True)))
        (scratch / CONFIG).write_text(reader.experiment_toml, encoding="utf-8")
        size = sum(path.stat().st_size for path in scratch.iterdir())
    return Exported(folder, rows, size)


@dataclass(slots=True)
class _Counted:
    """Sums the rows that are written."""

    progress: Progress
    total: int
    done: int = 0

    def add(self, rows: int) -> None:
        self.done += rows
        self.progress(self.done, self.total)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Give a hidden folder that becomes `folder` if the block succeeds, and else is removed.

    Raises:
        FolderExistsError: The folder has files.
        ExportError: The disk failed.
    """
    where = folder.absolute()
    parent = next(path for path in where.parents if path.exists())
    scratch = parent / f".{where.name}.{secrets.token_hex(4)}.part"
    try:
        if where.is_dir() and any(where.iterdir()):
            raise FolderExistsError(
                f"{folder}: must be a new or empty folder, got one with files; choose another "
                "folder, or delete this one"
            )
        scratch.mkdir()
        yield scratch
        where.parent.mkdir(parents=True, exist_ok=True)
        scratch.rename(where)
    except OSError as exc:
        raise ExportError(f"{folder}: {_advice(exc.strerror or str(exc))}") from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _advice(cause: str) -> str:
    """Return what is wrong with the folder of an export, and what to do."""
    is_full = any(word in cause.lower() for word in ("no space", "is full", "quota"))
    advice = "free space, or choose a folder on another disk" if is_full else "choose another one"
    return f"must be a folder that can be written, got: {cause.splitlines()[0]}; {advice}"


def _write_csv(reader: RunReader, name: str, path: Path, counted: _Counted) -> None:
    with _text_file(path) as file:
        for number, part in enumerate(read_batches(reader, name)):
            header = () if number else part.columns
            _write_lines(file, header, [part.values(column) for column in part.columns])
            counted.add(len(part))


def _text_file(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="")


def _write_lines(file: TextIO, header: Sequence[str], columns: Iterable[Sequence[Any]]) -> None:
    """Write rows as CSV (RFC 4180, but lines end in LF)."""
    if header:
        file.write(",".join(header) + "\n")
    texts = [_csv_texts(values) for values in columns]
    file.writelines(",".join(row) + "\n" for row in zip(*texts, strict=True))


def _csv_texts(values: Sequence[Any]) -> Iterable[str]:
    """Return the values of a column, which are of one type or None, as texts.

    Numbers read back as the same numbers. Texts are quoted, so that an empty one differs from None,
    and no spreadsheet evaluates them.
    """
    kinds = {*map(type, values)} - {type(None)}
    write = _CSV_TEXTS[kinds.pop()] if kinds else repr
    return map(write, values) if None not in values else _with_empty(write, values)


def _with_empty(write: Callable[[Any], str], values: Sequence[Any]) -> Iterator[str]:
    return ("" if value is None else write(value) for value in values)


def _text_cell(text: str) -> str:
    return _quoted(csv_cell(text))


def _quoted(cell: Printable) -> str:
    return '"' + cell.replace('"', '""') + '"'


_CSV_TEXTS: dict[type, Callable[[Any], str]] = {
    int: repr,
    float: repr,
    bool: ("false", "true").__getitem__,
    str: _text_cell,
    bytes: bytes.hex,
}


def _write_parquet(reader: RunReader, name: str, path: Path, counted: _Counted) -> None:
    pq = needed("pyarrow.parquet")
    with pq.ParquetWriter(path, arrow_schema(name), compression="zstd") as writer:
        for part in read_batches(reader, name):
            writer.write_table(part.arrow())
            counted.add(len(part))


def _copy_database(
    reader: RunReader, path: Path, lines: Sequence[ColumnMeaning], counted: _Counted
) -> None:
    """Copy the database in the state that the reader sees, and keep the named tables."""

    def report(status: int, left: int, pages: int) -> None:
        counted.add(counted.total * (pages - left) // max(pages, 1) - counted.done)

    kept = {line.table for line in lines}
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as copy:
            reader.backup(copy, BACKUP_PAGES, report)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("PRAGMA synchronous = OFF")
            copy.execute("BEGIN")
            found = copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in found:
                if table not in kept:
                    copy.execute(f'DROP TABLE "{table}"')
            columns = ", ".join(f'"{column}"' for column in ColumnMeaning._fields)
            copy.execute(f"CREATE TABLE {DICTIONARY} ({columns})")
            copy.executemany(f"INSERT INTO {DICTIONARY} VALUES (?, ?, ?, ?, ?, ?)", lines)
            copy.execute("COMMIT")
            empty, pages = (
                copy.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("freelist_count", "page_count")
            )
            if empty * SPARSE > pages:
                copy.execute("VACUUM")
    except sqlite3.OperationalError as exc:  # a damaged source is another error
        raise OSError(str(exc)) from exc
