"""Where a run that was interrupted goes on, and what of it must be forgotten."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from coordinator.algorithms.arrays import Vector
from coordinator.store.connection import transaction
from coordinator.store.errors import StoreError
from coordinator.store.models import load_model
from coordinator.store.records import CheckpointRow, EventRow
from coordinator.store.schema import PER_ROUND, RECORDS, table_of


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after the last closed round."""

    round: int
    state: bytes
    """As given to `close_round`."""
    model: Vector
    """Shape (n_values,), its sha256 verified."""


def verified_checkpoint(folder: Path, connection: sqlite3.Connection) -> Checkpoint | None:
    """Return the newest checkpoint whose model file is intact.

    Raises:
        StoreError: There are checkpoints, and none is intact.
    """
    table = table_of(CheckpointRow)
    problem: StoreError | None = None
    for values in connection.execute(table.select("ORDER BY round DESC")).fetchall():
        row = table.decode(values)
        try:
            model = load_model(folder, row.model_file, row.model_sha256)
        except StoreError as exc:
            problem = problem or exc
        else:
            return Checkpoint(row.round, row.state, model)
    if problem:
        raise problem
    return None


def last_instant(connection: sqlite3.Connection) -> float:
    """Return the latest instant in any table, seconds; 0 for a new run."""
    last = 0.0
    for record in RECORDS:
        table = table_of(record)
        for column in table.instants:
            found = connection.execute(f"SELECT max({column}) FROM {table.name}").fetchone()
            last = max(last, found[0] or 0.0)
    return last


def void_rounds_after(
    connection: sqlite3.Connection, *, round_id: int, at_s: float, wall: str
) -> None:
    """Delete the rows of rounds after `round_id`, count the resumption, leave an event."""
    with transaction(connection):
        voided = 0
        for record in PER_ROUND:
            statement = f"DELETE FROM {table_of(record).name} WHERE round > ?"
            voided += connection.execute(statement, (round_id,)).rowcount
        connection.execute("UPDATE run SET resumes = resumes + 1, why = ''")
        if voided:
            text = f"{voided} rows of rounds after {round_id} are void: those rounds never closed"
            event = EventRow(
                at_s=at_s,
                wall=wall,
                level="info",
                kind="voided",
                round=round_id,
                device=None,
                text=text,
            )
            table = table_of(EventRow)
            connection.execute(table.upsert(), table.encode(event))
