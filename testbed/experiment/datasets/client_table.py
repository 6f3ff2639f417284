"""Data in a folder with a table of clients: `clients.csv`, and the files that it names.

    client,file,label
    speaker-1,audio/1.wav,yes

Pictures, recordings and texts, as in folders of classes, but in any folders.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fairbed.device_agent.folders import SUFFIXES, Kind
from fairbed.testbed.experiment.data import AudioConfig, DataConfig, TextConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.folders import pixels_of, samples_of, texts_of
from fairbed.testbed.experiment.datasets.own import own_dataset
from fairbed.testbed.experiment.datasets.text import dataset_of_texts

TABLE = "clients.csv"
COLUMNS = ("client", "file", "label")
MAX_ROWS = 10_000_000
_FIX = f"correct {TABLE}"


class Row(NamedTuple):
    """A line of the table."""

    client: str
    file: Path
    label: str


def load_client_table(folder: Path, config: DataConfig) -> Dataset:
    """Return the examples that the table of a folder names; users are in the order of names.

    Args:
        folder: Has `clients.csv`; the files are at paths relative to it.
        config: `text` and `audio`.

    Raises:
        DatasetError: The table or a file cannot be read, or breaks a rule.
    """
    rows = list(_rows(folder))
    where = str(folder / TABLE)
    kind = _kind(where, rows)
    files = [row.file for row in rows]
    arrays = {
        "y": np.array([row.label for row in rows]),
        "device": np.array([row.client for row in rows]),
    }
    if kind == "text":
        texts = texts_of(str(folder), files)
        text = config.text or TextConfig()
        places = [str(file) for file in files]
        return dataset_of_texts(
            where, texts, arrays, text, "label", name=folder.name, places=places
        )
    if kind == "pictures":
        arrays["x"] = pixels_of(str(folder), files)
        return own_dataset(where, arrays, name=folder.name, fix=_FIX)
    found = samples_of(str(folder), files, config.audio or AudioConfig())
    arrays["x"] = found.x
    dataset = own_dataset(where, arrays, name=folder.name, fix=_FIX)
    return replace(dataset, notes=(*dataset.notes, *found.notes), preparation=found.preparation)


def _kind(where: str, rows: Sequence[Row]) -> Kind:
    """Return what all files are, by their suffixes."""
    kinds = {suffix: kind for kind, suffixes in SUFFIXES.items() for suffix in suffixes}
    first = kinds.get(rows[0].file.suffix.lower())
    for number, row in enumerate(rows, start=1):
        kind = kinds.get(row.file.suffix.lower())
        if kind is None or kind != first:
            rule = (
                f"files must be {', '.join(kinds)}"
                if kind is None
                else f"all files must be {first}"
            )
            raise DatasetError(where, f"{rule}, got {row.file.name} in row {number}", _FIX)
    assert first is not None, "each row was checked"
    return first


def _rows(folder: Path) -> Iterator[Row]:
    """Yield the rows of the table."""
    path, root, seen = folder / TABLE, folder.resolve(), set[Path]()
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DatasetError(
                    str(path),
                    f"must have the columns {', '.join(COLUMNS)}, got no {missing[0]}",
                    "name the columns in line 1",
                )
            for number, line in enumerate(reader, start=1):
                row = _row(path, root, number, [line[name] for name in COLUMNS])
                if row.file in seen:
                    raise DatasetError(
                        str(path),
                        f"a file must be in one row, got {row.file.name} again in row {number}",
                        _FIX,
                    )
                seen.add(row.file)
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise DatasetError(str(path), f"must be a readable table, got: {reason}", _FIX) from exc
    if not number:
        raise DatasetError(str(path), "must have a row, got none", _FIX)


def _row(path: Path, root: Path, number: int, values: Sequence[str | None]) -> Row:
    client, file, label = ((value or "").strip() for value in values)
    for name, value in zip(COLUMNS, (client, file, label), strict=True):
        if not value:
            raise DatasetError(
                str(path), f"a row must have a {name}, got none in row {number}", _FIX
            )
    if number > MAX_ROWS:
        raise DatasetError(str(path), f"must have at most {MAX_ROWS:,} rows, got more", _FIX)
    pure = PurePosixPath(file)
    found = root / pure
    if pure.is_absolute() or not found.resolve().is_relative_to(root):
        raise DatasetError(
            str(path), f"files must be in the folder, got {file!r} in row {number}", _FIX
        )
    if not found.is_file():
        raise DatasetError(
            str(path), f"files must exist, got none for {file!r} in row {number}", _FIX
        )
    return Row(client, found, label)
