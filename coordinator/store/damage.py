"""Finds damage of a store before anything is written to it.

SQLite ignores the rest of a write-ahead log from the first damaged byte on, without an error: the
run would silently be an earlier one. The model of each closed round is a file, which shows it.
"""

import os
import re
import sqlite3
from pathlib import Path

from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.model_files import FOLDER

_MODEL = re.compile(r"round-(\d+)\.safetensors")

_ADVICE = "the file is damaged; restore a copy of the run folder"


def check_integrity(path: Path, connection: sqlite3.Connection) -> None:
    """Check the structure of a database, its write-ahead log included.

    It takes some 2 s of processor time per GB.

    Raises:
        StoreError: It is damaged.
    """
    found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    if found != "ok":
        text = " ".join(found.split())
        raise StoreError(f"{path}: the store must be intact, got {text!r}; {_ADVICE}")


def check_rounds(folder: Path, connection: sqlite3.Connection) -> None:
    """Check that the database has each closed round whose model is a file.

    The model is written before its round: one newer model alone is that of a round which was open.
    But once a round has closed, a model that is not kept any more is deleted.

    Raises:
        StoreError: The database lacks closed rounds.
    """
    found = dict(connection.execute("SELECT round, model_file FROM checkpoint").fetchall())
    last = max(found, default=0)
    models = {name: int(m[1]) for name in _names(folder / FOLDER) if (m := _MODEL.fullmatch(name))}
    newer = sorted(round_id for round_id in models.values() if round_id > last)
    is_deleted = any(Path(file).name not in models for file in found.values())
    if len(newer) > 1 or (newer and is_deleted):
        got = f"rounds up to {last}" if last else "no round"
        raise StoreError(
            f"{folder}/run.db: the store must have each round whose model is in {FOLDER}/, got "
            f"{got} and the model of round {newer[-1]}: its write-ahead log is damaged; restore a "
            f"copy of the run folder, or delete the models after round {last} to repeat those "
            "rounds"
        )


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
