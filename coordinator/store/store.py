"""The store of a run: creates, writes and reopens it, and resumes at its last checkpoint."""

import dataclasses
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.store.connection import (
    BUSY_TIMEOUT_S,
    CONFIG,
    DATABASE,
    RunLock,
    closed_on_error,
    complete,
    open_readonly,
    open_writable,
    transaction,
    translated,
)
from fairbed.coordinator.store.damage import check_integrity, check_rounds
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.model_files import (
    file_of,
    load_model,
    load_state,
    remove_models,
    save_model,
    save_state,
    set_aside_models,
    state_file_of,
)
from fairbed.coordinator.store.schema import (
    PER_ROUND,
    RECORDS,
    Columns,
    check_format,
    create_schema,
    table_of,
)
from fairbed.coordinator.store.tables import (
    CheckpointRow,
    CommandRow,
    ConditionRow,
    DeviceLogRow,
    DeviceRow,
    EventRow,
    ExchangeRow,
    Record,
    RoundRow,
    RunRow,
    SelectionRow,
    TelemetryRow,
    TruthRow,
)
from fairbed.coordinator.store.writer import MAX_ROWS, Writer
from fairbed.wire.artifact import TaskKind
from fairbed.wire.console import storable

KEEP_LAST = 3
"""Newest models kept: one to resume from, and two in case its file is damaged."""
KEEP_EVERY = 10
"""Fewest rounds between older models that are kept."""
KEEP_OLDER = 100
"""Most older models that are kept, so that the disk of a run without an end is bounded."""
MAX_STATE_BYTES = 1_000_000
"""Larger states are files: SQLite takes longer for them, and at most 10^9 bytes."""
CLOSE_ROUND_TIMEOUT_S = 60.0
"""Longest wait for the closing transaction; a healthy disk takes milliseconds."""
CLOSE_TIMEOUT_S = 15.0
STREAM_MAX_ROWS = 200_000
STREAM_MAX_AGE_S = 24 * 3600.0
RETENTION_EVERY = 2_000
"""Rows of a stream between two deletions of its old rows."""
LOG_LINES = 200
"""Log lines of one device that are kept, some 20 KB."""
LOG_TRIM_EVERY = 50
"""Log lines of one device between two deletions of its oldest ones."""

R = TypeVar("R", bound=Record)


class Calibration(Struct, frozen=True, kw_only=True):
    """The cost of a training step that emulated devices are charged, and how well it is known."""

    batch_size: int
    step_s: float
    """Processor time of a step on a core of the emulating machine, seconds."""
    spread_ratio: float
    """Half the distance of the quartiles of the windows in which it was measured, relative to their
    median."""
    age_s: float
    """Time from the measurement to the start of the run, seconds."""


class Provenance(Struct, frozen=True, kw_only=True):
    """Where a run comes from, at its start; null is unknown or does not apply."""

    git_revision: str | None = None
    """Commit of the checkout of Fairbed, with `-dirty` if tracked files differ from it; null for an
    installed package."""
    experiment_revision: str | None = None
    """The same of the checkout with the experiment file; null outside a checkout."""
    packages: dict[str, str] = {}
    """Versions of python, fairbed, numpy, onnxruntime, msgspec and, where installed, torch."""
    data_sha256: str | None = None
    """Hash of all examples and labels; null if the run uses no data set."""
    partition_sha256: str | None = None
    """Hash of the rows of the data set that each device trains on and holds out."""
    inputs: dict[str, str] = {}
    """Hash of all else that the numbers depend on, by name: Fairbed, source files of the user's
    parts, files of the fleet, the whole data set, and costs of training from a run."""
    data_notes: tuple[str, ...] = ()
    """Columns of a table that were left out, encoded or filled without being named, in lines."""
    machine: dict[str, str] = {}
    """The machine that ran the coordinator: processor, cores, memory, system."""
    origins: dict[str, str] = {}
    """What set each key of the experiment that is not a default, by path: the file, --set, --seed,
    script, or derived from other keys."""
    calibration: Calibration | None = None
    """Null without emulated devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """Identity and configuration of a new run."""

    run_id: str
    """Unique in the folder of all runs."""
    name: str
    """Name of the experiment."""
    experiment_toml: str
    """The resolved configuration."""
    seed: int
    config_hash: str
    version: str
    """Version of Fairbed."""
    provenance: Provenance = field(default_factory=Provenance)
    dilation: float = 1.0
    """Seconds of the machine per second of the run's clock."""
    clock: Literal["real", "virtual"] = "real"
    selection_rows: Literal["all", "selected"] = "all"
    """`selected` writes selection rows of the cohort only, and of all devices in the last round."""
    task: TaskKind = "classification"

    def row(self) -> RunRow:
        """Return the row of the run before its start."""
        return RunRow(
            run_id=storable(self.run_id),
            name=self.name,
            created=_wall(),
            seed=self.seed,
            config_hash=self.config_hash,
            version=self.version,
            provenance=msgspec.json.encode(self.provenance).decode(),
            dilation=self.dilation,
            status="created",
            reason="",
            waiting="",
            resumes=0,
            telemetry_dropped=0,
            clock=self.clock,
            selection_rows=self.selection_rows,
            task=self.task,
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after the last closed round."""

    round: int
    state: bytes
    """The bytes given to `close_round`."""
    model: Vector
    """Shape (n_values,); its sha256 is verified."""
    raw: bytes = b""
    """Its raw part, which only a client reads."""


def spacing(round_id: int) -> int:
    """Return the number of rounds between the older models that are kept after a round.

    It doubles whenever there would be more than `KEEP_OLDER`, so each one that is kept was kept
    before.
    """
    rounds = KEEP_EVERY
    while round_id // rounds > KEEP_OLDER:
        rounds *= 2
    return rounds


def verified_checkpoint(
    folder: Path, connection: sqlite3.Connection
) -> tuple[Checkpoint | None, StoreError | None]:
    """Return the newest checkpoint whose files are intact, and what is wrong with a newer one.

    The first is None if there are no checkpoints, the second if nothing is wrong.

    Raises:
        StoreError: There are checkpoints, but no intact one.
    """
    table = table_of(CheckpointRow)
    problem: StoreError | None = None
    for values in connection.execute(table.select("ORDER BY round DESC")).fetchall():
        row = table.decode(values)
        try:
            model, raw = load_model(folder, row.model_file, row.model_sha256)
            state = row.state
            if row.state_sha256:
                state = load_state(folder, row.round, row.state_sha256)
        except StoreError as exc:
            problem = problem or exc
        else:
            return Checkpoint(row.round, state, model, raw), problem
    if problem:
        raise problem
    return None, None


def stored_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint of a run that no process writes; None without a run.

    Raises:
        StoreError: There are checkpoints, but no intact one.
    """
    path = folder / DATABASE
    if not path.exists():
        return None
    with closing(open_readonly(path)) as connection, translated(path):
        return verified_checkpoint(folder, connection)[0]


def last_instant(connection: sqlite3.Connection) -> float:
    """Return the latest instant in any table, seconds; 0 for a new run."""
    last = 0.0
    for record in RECORDS:
        table = table_of(record)
        for column in table.instants:
            found = connection.execute(f"SELECT max({column}) FROM {table.name}").fetchone()
            last = max(last, found[0] or 0.0)
    return last


def keep_copy(folder: Path, connection: sqlite3.Connection, closed: Checkpoint) -> str:
    """Copy the database, which has closed rounds after a checkpoint; return the file's name.

    Raises:
        StoreError: The disk could not store it.
    """
    path = folder / f"run-before-round-{closed.round + 1}.db"
    partial = path.with_suffix(".partial")
    try:
        partial.unlink(missing_ok=True)
        with closing(sqlite3.connect(partial)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        partial.replace(path)
    except (OSError, sqlite3.Error) as exc:
        raise StoreError(
            f"{path}: a copy of the rounds after {closed.round} must fit on the disk before they "
            f"are repeated, got {exc}; free space"
        ) from exc
    return path.name


def void_rounds_after(
    connection: sqlite3.Connection, *, round_id: int, at_s: float, wall: str, damage: str = ""
) -> None:
    """Delete the rows of rounds after `round_id`, end alerts and count the resumption.

    Args:
        connection: The writing one.
        round_id: The round of the checkpoint at which the run is resumed.
        at_s: Instant of the events about it.
        wall: Likewise, in wall-clock time.
        damage: Why closed rounds are among them, and where their rows are; empty without them.
    """
    with transaction(connection):
        voided = 0
        for record in PER_ROUND:
            statement = f"DELETE FROM {table_of(record).name} WHERE round > ?"
            voided += connection.execute(statement, (round_id,)).rowcount
        connection.execute("UPDATE run SET resumes = resumes + 1, reason = ''")
        connection.execute("UPDATE alert SET end_s = ? WHERE end_s IS NULL", (at_s,))
        if voided:
            text = f"{voided} rows of rounds after {round_id} are void: those rounds never closed"
            events = [("info", "voided", text)]
            if damage:
                events.append(("warning", "damaged", damage))
            table = table_of(EventRow)
            for level, kind, line in events:
                event = EventRow(
                    at_s=at_s,
                    wall=wall,
                    level=level,
                    kind=kind,
                    round=round_id,
                    device=None,
                    text=line,
                )
                connection.execute(table.upsert(), table.encode(event))


def check_not_done(folder: Path) -> None:
    """Refuse the folder of a run that is done; one without a store passes.

    Raises:
        StoreError: The run is done, or its store cannot be read.
    """
    path = folder / DATABASE
    if path.exists():
        with closing(open_readonly(path)) as reading, translated(path):
            check_format(str(path), reading)
            _check_unfinished(folder, reading)


def _check_unfinished(folder: Path, reading: sqlite3.Connection) -> None:
    """Refuse a run that another process finished before this one had the lock."""
    ((status,),) = reading.execute("SELECT status FROM run")
    if status == "done":
        raise StoreError(
            f"{folder}: this run is done, nothing is left to resume; see it with: fairbed show "
            f"{folder}"
        )


class Store:
    """Writes one run; thread-safe.

    `add` never waits for the disk; see `Writer` for a disk that falls behind. Telemetry, conditions
    and log lines of devices are streams: their rows are dropped first. The store retains telemetry
    and conditions of the last 24 h, at most 200,000 rows of each, and the newest `LOG_LINES` lines
    of each device.
    """

    def __init__(self, folder: Path, lock: RunLock, connection: sqlite3.Connection) -> None:
        """Take over the lock and the connection; use `create` or `reopen`."""
        self.folder = folder
        self._lock = lock
        self._path = folder / DATABASE
        self._offset_s = last_instant(connection)
        self._checkpoint, self._damage = verified_checkpoint(folder, connection)
        commands = table_of(CommandRow)
        rows = connection.execute(commands.select("ORDER BY at_s")).fetchall()
        self._commands = [commands.decode(row) for row in rows]
        self._dropped_before = int(
            connection.execute("SELECT telemetry_dropped FROM run").fetchone()[0]
        )
        self._evaluations: list[tuple[int, float | None]] = connection.execute(
            "SELECT round, loss_mean FROM metric ORDER BY round"
        ).fetchall()
        self.metric_names: frozenset[str] = frozenset(
            name for (name,) in connection.execute("SELECT DISTINCT name FROM client_metric")
        )
        """Names of the metrics of a client that earlier processes stored."""
        self.run_id = str(connection.execute("SELECT run_id FROM run").fetchone()[0])
        self.dilation = float(connection.execute("SELECT dilation FROM run").fetchone()[0])
        """Seconds of the machine per second of the run's clock."""
        self.task = str(connection.execute("SELECT task FROM run").fetchone()[0])
        """Kind of the task of the model."""
        self._streamed: Counter[str] = Counter()
        self._lines: Counter[str] = Counter()
        """Log lines of each device since this process began."""
        self._writer = Writer(self._path, connection)

    @classmethod
    def create(
        cls,
        folder: Path,
        run: NewRun,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> "Store":
        """Create the folder of a new run with `run.db` and `experiment.toml`, each whole or not.

        Raises:
            StoreError: The folder holds a run, another process uses it, or it is not writable.
        """
        path = folder / DATABASE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = RunLock(folder)
        except OSError as exc:
            raise StoreError(f"{folder}: must be a writable folder, got {exc}") from exc
        try:
            if path.exists():
                raise StoreError(
                    f"{folder}: must not hold a run yet, got one; resume it or name another folder"
                )
            config = (folder / CONFIG).with_suffix(".partial")
            config.write_text(run.experiment_toml, encoding="utf-8")
            config.replace(folder / CONFIG)
            with translated(path):
                _write_new(path, run)
                connection = open_writable(path, busy_timeout_s)
                with closed_on_error(connection):
                    return cls(folder, lock, connection)
        except OSError as exc:
            lock.release()
            raise StoreError(f"{folder}: must be a writable folder, got {exc}") from exc
        except BaseException:
            lock.release()
            raise

    @classmethod
    def reopen(cls, folder: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> "Store":
        """Open a run to continue it; rows of rounds after the last checkpoint are void.

        Closed rounds among them, because their model is damaged, are kept in a copy of the store.
        Nothing is written before the store is known to be an intact run of this version.

        Raises:
            StoreError: The folder has no run, or a live, done, damaged or unsupported one.
        """
        path = folder / DATABASE
        open_readonly(path).close()
        try:
            lock = RunLock(folder)
        except OSError as exc:
            raise StoreError(f"{folder}: must be a writable folder, got {exc}") from exc
        try:
            with closing(open_readonly(path, busy_timeout_s)) as reading, translated(path):
                check_format(str(path), reading)
                check_integrity(path, reading)
                check_rounds(folder, reading)
                _check_unfinished(folder, reading)
            connection = open_writable(path, busy_timeout_s)
            with closed_on_error(connection), translated(path):
                store = cls(folder, lock, connection)
        except BaseException:
            lock.release()
            raise
        try:
            store._writer.run(store._void, CLOSE_ROUND_TIMEOUT_S)
        except BaseException:
            store.close()
            raise
        return store

    def _void(self, connection: sqlite3.Connection) -> None:
        """Make the rounds after the checkpoint void; the first write of a process that resumes."""
        last, damage = 0, ""
        if self._checkpoint is not None:
            last = self._checkpoint.round
        if self._checkpoint is not None and self._damage is not None:
            copy = keep_copy(self.folder, connection, self._checkpoint)
            damage = f"{self._damage}; repeats from round {last + 1} on; {copy} has what was there"
            set_aside_models(self.folder, last)
        void_rounds_after(
            connection, round_id=last, at_s=self._offset_s, wall=_wall(), damage=damage
        )

    def add(self, record: Record) -> None:
        """Queue a row; it is committed within 250 ms. Rows with the same key replace each other.

        Raises:
            StoreError: The store is closed, the disk failed, or too many rows wait for it.
        """
        table = table_of(type(record))
        is_stream = isinstance(record, TelemetryRow | ConditionRow | DeviceLogRow)
        self._writer.put(table.upsert(), [table.encode(record)], is_droppable=is_stream)
        if isinstance(record, DeviceLogRow):
            self._keep_newest_lines(record.device)
        elif isinstance(record, TelemetryRow | ConditionRow):
            self._streamed[table.name] += 1
            if self._streamed[table.name] % RETENTION_EVERY == 0:
                self._delete_old_rows(table.name, record.at_s)

    def add_all(self, rows: Columns[R] | Sequence[R]) -> None:
        """Queue rows of one table as `add` does, but wait for the disk if many rows are queued.

        Raises:
            StoreError: The store is closed, the disk failed or took longer than a minute.
        """
        if not rows:
            return
        table = table_of(rows.record if isinstance(rows, Columns) else type(rows[0]))
        encoded = table.encode_all(rows)
        for start in range(0, len(rows), MAX_ROWS // 2):
            self.wait_for_disk()
            self._writer.put(table.upsert(), encoded[start : start + MAX_ROWS // 2])

    def close_round(
        self,
        round_row: RoundRow,
        selections: Columns[SelectionRow] | Sequence[SelectionRow],
        exchanges: Columns[ExchangeRow] | Sequence[ExchangeRow],
        checkpoint_state: bytes,
        model: Vector,
        raw: bytes = b"",
    ) -> None:
        """Write a closed round, its checkpoint and model; durable on return. Call off the loop.

        Args:
            round_row: The round.
            selections: One row per device.
            exchanges: One row per selected device; replaces rows added while the round was open.
            checkpoint_state: The other state that a resumed run needs.
            model: The global model after the round, shape (n_values,).
            raw: Its raw part.

        Raises:
            StoreError: The disk failed or took longer than a minute.
        """
        sha256 = save_model(self.folder, round_row.round, model, raw)
        is_large = len(checkpoint_state) > MAX_STATE_BYTES
        checkpoint = CheckpointRow(
            round=round_row.round,
            state=b"" if is_large else checkpoint_state,
            state_sha256=(
                save_state(self.folder, round_row.round, checkpoint_state) if is_large else ""
            ),
            model_file=file_of(round_row.round),
            model_sha256=sha256,
            at_s=round_row.closed_at_s,
        )
        of_rounds, of_checkpoints = table_of(RoundRow), table_of(CheckpointRow)
        of_selections, of_exchanges = table_of(SelectionRow), table_of(ExchangeRow)
        batches = (
            (of_rounds.upsert(), [of_rounds.encode(round_row)]),
            (of_selections.upsert(), of_selections.encode_all(selections)),
            (of_exchanges.upsert(), of_exchanges.encode_all(exchanges)),
            (of_checkpoints.upsert(), [of_checkpoints.encode(checkpoint)]),
        )
        oldest, between = round_row.round - KEEP_LAST, spacing(round_row.round)

        def commit(connection: sqlite3.Connection) -> set[str]:
            connection.execute("PRAGMA synchronous = FULL")
            with transaction(connection):
                for statement, rows in batches:
                    connection.executemany(statement, rows)
                connection.execute(
                    "DELETE FROM checkpoint WHERE round <= ? AND round % ?", (oldest, between)
                )
            connection.execute("PRAGMA synchronous = NORMAL")
            kept = connection.execute("SELECT round, model_file FROM checkpoint").fetchall()
            newest = {state_file_of(round_id) for round_id, _ in kept if round_id > oldest}
            return newest | {file for _, file in kept}

        keep = self._writer.run(commit, CLOSE_ROUND_TIMEOUT_S)
        remove_models(self.folder, keep)

    def set_status(self, status: str, reason: str = "") -> None:
        """Queue the run's status: created, running, paused, done, failed, stopped."""
        self._writer.put("UPDATE run SET status = ?, reason = ?, waiting = ''", [(status, reason)])

    def set_waiting(self, waiting: str) -> None:
        """Queue what the run waits for, in a few words; empty: it goes on."""
        self._writer.put("UPDATE run SET waiting = ?", [(waiting,)])

    def rename_device(self, old: str, new: str) -> None:
        """Queue another name of a device in all rows; rows of the new name are replaced."""
        for record in RECORDS:
            column = "name" if record in (DeviceRow, TruthRow) else "device"
            if column in {field.name for field in dataclasses.fields(record)}:
                self._writer.put(
                    f"UPDATE OR REPLACE {record.TABLE} SET {column} = ? WHERE {column} = ?",
                    [(new, old)],
                )

    def set_dilation(self, dilation: float) -> None:
        """Queue the seconds of the machine per second of the run's clock."""
        self._writer.put("UPDATE run SET dilation = ?", [(dilation,)])

    def last_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint at which the store was reopened; None for a run without one."""
        return self._checkpoint

    def evaluated_round(self) -> int:
        """Return the last round whose model an earlier process evaluated; 0 if none."""
        return self._evaluations[-1][0] if self._evaluations else 0

    def earlier_losses(self) -> list[tuple[int, float | None]]:
        """Return round and mean loss of the evaluations up to the checkpoint, in their order."""
        last = 0 if self._checkpoint is None else self._checkpoint.round
        return [pair for pair in self._evaluations if pair[0] <= last]

    def earlier_commands(self) -> list[CommandRow]:
        """Return the operator commands of earlier processes of the run, oldest first."""
        return self._commands

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Turn decoding errors of a block that restores the last checkpoint into a `StoreError`.

        Raises:
            StoreError: Another version of Fairbed wrote the checkpoint.
        """
        try:
            yield
        except (KeyError, msgspec.DecodeError) as exc:
            got = f"one without {exc}" if isinstance(exc, KeyError) else str(exc)
            raise StoreError(
                f"{self.folder}: its checkpoint must be of this version of Fairbed, got {got}; "
                "continue with the version that wrote it, or start a new run"
            ) from exc

    def resume_offset_s(self) -> float:
        """Return the last instant recorded before this process, where the run clock continues."""
        return self._offset_s

    def wait_for_disk(self) -> None:
        """Wait if many rows are queued: for callers that add rows without a pause.

        Raises:
            StoreError: The disk failed or took longer than a minute.
        """
        if self._writer.backlog > MAX_ROWS // 2:
            self.flush(CLOSE_ROUND_TIMEOUT_S)

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until all rows added so far are committed. Call off the event loop."""
        self._writer.run(lambda _: None, timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write all queued rows and release the run; a second call does nothing.

        Raises:
            StoreError: A write failed and no call has raised that yet.
        """
        dropped = self._dropped_before + self._writer.dropped

        def finish(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE run SET telemetry_dropped = ?", (dropped,))
            complete(connection)

        try:
            if self._writer.is_open:
                self._writer.run(finish, timeout_s)
        finally:
            try:
                self._writer.close(timeout_s)
            finally:
                self._lock.release()

    def _keep_newest_lines(self, device: str) -> None:
        self._lines[device] += 1
        if self._lines[device] % LOG_TRIM_EVERY == 0:
            self._writer.put(
                "DELETE FROM device_log WHERE device = ?1 AND id <= (SELECT id FROM device_log "
                "WHERE device = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                [(device, LOG_LINES)],
                is_droppable=True,  # in order with the lines; a later one does it, too
            )

    def _delete_old_rows(self, stream: str, now_s: float) -> None:
        self._writer.put(
            f"DELETE FROM {stream} WHERE at_s < ? OR id <= (SELECT max(id) FROM {stream}) - ?",
            [(now_s - STREAM_MAX_AGE_S, STREAM_MAX_ROWS)],
        )


def _write_new(path: Path, run: NewRun) -> None:
    """Write the database of a new run under another name, and rename it.

    Raises:
        OSError: The folder is not writable.
        sqlite3.Error: Likewise, or the disk is full.
    """
    partial = path.with_suffix(".partial")
    for left in (partial, partial.with_name(f"{partial.name}-journal")):  # by a killed start
        left.unlink(missing_ok=True)
    table = table_of(RunRow)
    with closing(sqlite3.connect(partial, isolation_level=None)) as new, transaction(new):
        create_schema(new)
        new.execute(table.upsert(), table.encode(run.row()))
    partial.replace(path)


def _wall() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
