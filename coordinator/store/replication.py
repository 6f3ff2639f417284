"""A replica of a run's store: pages of rows, read at the run and written where it is watched.

`RowSource` answers a cursor with the rows that were written after it; it keeps no state between
two pages, so a page that is lost is requested again. The first pages are a snapshot of bounded
size: the newest rounds with all rows (`WINDOW_BYTES`), older rounds with their own row, their
metrics and, for each device, the totals of `EarlierRow`. `Replica` writes pages into a store that
a `RunReader` opens as any other. Not replicated: checkpoints, models, contexts of the fleet, the
configured conditions of devices, and which devices are malicious.
"""

import hashlib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from fairbed.coordinator.store.connection import (
    CONFIG,
    DATABASE,
    RunLock,
    open_writable,
    transaction,
    translated,
)
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.reader import CONNECTION, KEPT_EXCHANGES, RunReader
from fairbed.coordinator.store.schema import VERSION, create_schema, table_of
from fairbed.coordinator.store.tables import (
    AlertRow,
    ClientMetricRow,
    CommandRow,
    DeviceLogRow,
    DeviceMetricRow,
    DeviceRow,
    EarlierRow,
    EventRow,
    ExchangeRow,
    LossQueryRow,
    MetricRow,
    PersonalScoreRow,
    Record,
    ReleaseRow,
    RoundRow,
    RunRow,
    SelectionRow,
    TelemetryRow,
    TruthRow,
)

REPLICATED: tuple[type[Record], ...] = (
    RunRow,
    DeviceRow,
    TruthRow,
    RoundRow,
    SelectionRow,
    LossQueryRow,
    ExchangeRow,
    ReleaseRow,
    MetricRow,
    DeviceMetricRow,
    PersonalScoreRow,
    ClientMetricRow,
    TelemetryRow,
    EventRow,
    AlertRow,
    DeviceLogRow,
    CommandRow,
    EarlierRow,
)
"""Tables of a replica that get rows."""

DETAILS: tuple[type[Record], ...] = (
    SelectionRow,
    LossQueryRow,
    ExchangeRow,
    ReleaseRow,
    DeviceMetricRow,
    PersonalScoreRow,
    ClientMetricRow,
)
"""Those of them with rows for each device and round."""

MAX_DEVICES = 5_000
"""Largest fleet that is replicated: a page holds at least one round."""
MAX_ROUNDS = 10_000
"""Rounds of a snapshot; earlier ones are in the totals only."""
WINDOW_BYTES = 8 * 1024 * 1024
"""Details of the newest rounds in a snapshot, before compression; at least one round."""
MAX_DETAIL_BYTES = 4 * WINDOW_BYTES
"""Details in a replica above which the oldest become totals, until `WINDOW_BYTES` are left."""
PAGE_BYTES, PAGE_ROUNDS = 1024 * 1024, 2_000
"""Rows of rounds in one page, before compression, and rounds; at least one round."""
PAGE_EVENTS, PAGE_COMMANDS, PAGE_ALERTS, PAGE_LOG_LINES = 500, 1_000, 100, 2_000
"""Newest events, commands, alerts and log lines of devices in a page."""
MAX_PAGE_BYTES = 64 * 1024 * 1024
"""Largest page, decompressed."""
LATE_ROUNDS, LATE_SCORES = 100, 3
"""Rounds in which an exchange, or a score, is looked for that came after its round."""
SNAPSHOT_TELEMETRY = 50_000
"""Newest contexts in which a snapshot looks for the last one of each device."""
KEPT: dict[type[Record], int] = {TelemetryRow: 100_000, EventRow: 10_000, DeviceLogRow: 20_000}
"""Newest rows of a replica."""
ROUND_BYTES = 300
SELECTION_BYTES, SCORE_BYTES, EXCHANGE_BYTES, METRIC_BYTES = 100, 40, 500, 60
"""Mean sizes of rows, before compression."""
_SIZES: dict[type[Record], int] = {
    SelectionRow: SELECTION_BYTES,
    DeviceMetricRow: SCORE_BYTES,
    ExchangeRow: EXCHANGE_BYTES,
    ClientMetricRow: METRIC_BYTES,
}

HIDDEN = {"malicious": None, "details": "{}"}
"""Columns of `truth` that stay where the run is, and what a replica has instead."""

KEPT_SCORES = (
    "round <= ?1 AND (device, round) IN "
    "(SELECT device, max(round) FROM personal_score GROUP BY device)"
)
KEPT_METRICS = "round <= ?1 AND round = (SELECT max(round) FROM metric)"
_KEPT: dict[type[Record], str] = {
    ExchangeRow: KEPT_EXCHANGES,
    PersonalScoreRow: KEPT_SCORES,
    DeviceMetricRow: KEPT_METRICS,
}
"""Rows of rounds without details that a replica has: the newest of their device."""

_ENDED_LATE = """
WHERE round > ?1 - ?2 AND round <= ?1 AND (
    aggregated_round > ?1 OR dispatched_at_s + queued_s + busy_s
        > 1e-6 + (SELECT closed_at_s FROM round WHERE round = ?1))
"""
"""Exchanges up to a round that ended after it."""

_ALL = (1 << 63) - 1
"""Above every round."""
_Number = Annotated[int, Meta(ge=0, le=1 << 53)]
_CELLS: dict[type, Any] = {
    str: Annotated[str, Meta(max_length=1 << 16)],
    int: Annotated[int, Meta(ge=-(1 << 63), le=_ALL)],
    bool: Annotated[int, Meta(ge=0, le=1)],
    float: float | None,
}
"""Types of cells in a page: booleans are integers in SQLite, and NaN is NULL."""


class Cursor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a replica has read: the last number of each kind that it has."""

    run: Annotated[str, Meta(max_length=256)] = ""
    resumes: Annotated[int, Meta(ge=-1, le=1 << 53)] = -1
    """Resumes of the run; if they change, rows became void, and a snapshot begins."""
    details: _Number = 0
    """Rounds after this one have all rows, earlier ones have totals."""
    round: _Number = 0
    metric: _Number = 0
    event: _Number = 0
    telemetry: _Number = 0
    command: _Number = 0
    log: _Number = 0
    devices: _Number = 0
    """Checksum of all rows of devices."""
    alerts: _Number = 0
    """The same of the newest alerts."""


_METRIC_ROUND = [c.name for c in table_of(MetricRow).columns].index("round")


class Page(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows that follow a cursor."""

    cursor: Cursor
    """After these rows."""
    is_start: bool
    """The replica must be emptied first."""
    has_more: bool
    """Further rows follow at once."""
    is_alive: bool
    """A process owns the run."""
    last_round: _Number
    """Newest closed round of the run."""
    experiment_toml: Annotated[str, Meta(max_length=1 << 20)] = ""
    """With `is_start`."""
    tables: msgspec.Raw
    """Rows by table, in columns of the store; decoded as `_TABLES`."""


def _row_type(record: type[Record]) -> Any:
    """Return the type of a row: its cells in column order, after the hidden `id` if it has one."""
    cells = [_CELLS[c.kind] for c in table_of(record).columns]
    cells = [
        cell | None if column.is_optional else cell
        for cell, column in zip(cells, table_of(record).columns, strict=True)
    ]
    return tuple.__class_getitem__((*([] if record.KEY else [_Number]), *cells))


def _rows_type(record: type[Record]) -> Any:
    return Annotated[list[_row_type(record)], Meta(max_length=200_000)]  # type: ignore[misc]


_TABLES: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    msgspec.defstruct(
        "Tables",
        [(record.TABLE, _rows_type(record), []) for record in REPLICATED],
        forbid_unknown_fields=True,
    )
)
_PAGE, _CURSOR = msgspec.msgpack.Decoder(Page), msgspec.msgpack.Decoder(Cursor)
_ENCODER = msgspec.msgpack.Encoder()

SCHEMA = hashlib.sha256(
    repr((VERSION, [(r.TABLE, table_of(r).create()) for r in REPLICATED])).encode()
).digest()[:16]
"""Hash of the replicated tables: equal hashes understand each other's pages."""


def encode_cursor(cursor: Cursor) -> bytes:
    """Return the bytes of a cursor."""
    return _ENCODER.encode(cursor)


def decode_cursor(data: bytes) -> Cursor:
    """Return the cursor; the empty one for no bytes.

    Raises:
        StoreError: The bytes are not a cursor.
    """
    try:
        return _CURSOR.decode(data) if data else Cursor()
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise StoreError(f"cursor: {exc}") from exc


def encode_page(page: Page) -> bytes:
    """Return the compressed bytes of a page."""
    return zlib.compress(_ENCODER.encode(page), level=1)


def decode_page(data: bytes) -> Page:
    """Return the page; its rows are checked by `Replica.apply`.

    Raises:
        StoreError: The bytes are not a page.
    """
    try:
        stream = zlib.decompressobj()
        plain = stream.decompress(data, MAX_PAGE_BYTES)
        if not stream.eof or stream.unused_data:
            raise StoreError(f"page: must end within {MAX_PAGE_BYTES} bytes, got more or a part")
        return _PAGE.decode(plain)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise StoreError(f"page: {exc}") from exc


Rows: TypeAlias = list[tuple[Any, ...]]


class RowSource:
    """Reads the pages of a live run beside its writer.

    Args:
        reader: Reads the run; the caller closes it.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    def page(self, cursor: Cursor) -> Page:
        """Return the rows after a cursor; those of a snapshot if the cursor is not of this run.

        Raises:
            StoreError: The store cannot be read, or the fleet has more than `MAX_DEVICES`.
        """
        is_alive = self._reader.is_alive()  # before the rows: a run may end in between
        with self._reader.snapshot():
            run = self._rows(RunRow)
            info = self._reader.columns(RunRow, ("run_id", "resumes"))[0]
            is_start = (cursor.run, cursor.resumes) != info
            tables: dict[str, Rows] = {"run": run}
            if is_start:
                cursor = self._begin(Cursor(run=info[0], resumes=info[1]), tables)
            cursor, has_more, last = self._add_rounds(cursor, tables)
            if not has_more:
                cursor = self._add_newest(cursor, tables)
        return Page(
            cursor=cursor,
            is_start=is_start,
            has_more=has_more,
            is_alive=is_alive,
            last_round=last,
            experiment_toml=self._reader.experiment_toml if is_start else "",
            tables=msgspec.Raw(_ENCODER.encode({k: rows for k, rows in tables.items() if rows})),
        )

    def _begin(self, cursor: Cursor, tables: dict[str, Rows]) -> Cursor:
        """Choose the rounds with details, and add what precedes them; return the cursor."""
        reader = self._reader
        devices = self._n_devices()
        if devices > MAX_DEVICES:
            raise StoreError(
                f"{cursor.run}: a fleet of at most {MAX_DEVICES} devices is shown on other "
                f"machines, got {devices}; watch the run where it runs"
            )
        tables["truth"] = self._rows(TruthRow)
        before, oldest = detailed_after(reader, devices)
        if not before:
            return cursor
        tables["earlier"] = [table_of(EarlierRow).encode(row) for row in reader.totals(before)]
        for record, kept in _KEPT.items():
            tables[record.TABLE] = self._rows(record, f"WHERE {kept}", (before,))
        return msgspec.structs.replace(cursor, details=before, round=oldest - 1, metric=oldest - 1)

    def _add_rounds(self, cursor: Cursor, tables: dict[str, Rows]) -> tuple[Cursor, bool, int]:
        """Add rounds after the cursor and their rows, up to `PAGE_BYTES`.

        Returns:
            The cursor after them, whether there are more, and the newest closed round.
        """
        reader, done = self._reader, cursor.round
        found = reader.columns(
            RoundRow,
            ("round", "selected"),
            "WHERE round > ? ORDER BY round LIMIT ?",
            (done, PAGE_ROUNDS),
        )
        devices, size, last = self._n_devices(), 0, done
        metrics = len(reader.client_metric_names())
        for round_id, selected in found:
            is_detailed = round_id > cursor.details
            size += size_of_round(selected, devices if is_detailed else None, metrics)
            if size > PAGE_BYTES and last > done:
                break
            last = round_id
        newest = _newest(reader, RoundRow, "round")
        has_more = last < newest
        until = last if has_more else _ALL
        within = "WHERE round > ? AND round <= ? ORDER BY rowid"
        detailed = (max(done, cursor.details), until)
        add = self._adder(tables)
        add(RoundRow, within, (done, until))
        for record in (SelectionRow, LossQueryRow, ExchangeRow, ReleaseRow):
            add(record, within, detailed)
        if last > done:
            add(ExchangeRow, _ENDED_LATE, (done, LATE_ROUNDS))
        late = max(done - LATE_SCORES, cursor.details), until
        add(PersonalScoreRow, within, late)
        add(ClientMetricRow, within, late if done else (-1, until))
        add(MetricRow, within, (cursor.metric, until))
        add(DeviceMetricRow, within, (max(cursor.metric, cursor.details), until))
        metric = max((row[_METRIC_ROUND] for row in tables["metric"]), default=cursor.metric)
        return msgspec.structs.replace(cursor, round=last, metric=metric), has_more, newest

    def _add_newest(self, cursor: Cursor, tables: dict[str, Rows]) -> Cursor:
        """Add new rows of streams, and changed devices and alerts; return the cursor after them."""
        reader, add = self._reader, self._adder(tables)
        add(EventRow, "WHERE id > ? ORDER BY id DESC LIMIT ?", (cursor.event, PAGE_EVENTS))
        newest = _newest(reader, TelemetryRow, "id")
        since = max(cursor.telemetry, newest - SNAPSHOT_TELEMETRY)
        latest = "WHERE id IN (SELECT max(id) FROM telemetry WHERE id > ? GROUP BY device)"
        add(TelemetryRow, latest, (since,))
        commands = reader.columns(CommandRow, ("rowid",), "WHERE rowid > ?", (cursor.command,))
        tail = "WHERE rowid > ? ORDER BY rowid DESC LIMIT ?"
        add(CommandRow, tail, (cursor.command, PAGE_COMMANDS))
        add(DeviceLogRow, "WHERE id > ? ORDER BY id DESC LIMIT ?", (cursor.log, PAGE_LOG_LINES))
        devices = self._rows(DeviceRow)
        alerts = self._rows(AlertRow, "ORDER BY rowid DESC LIMIT ?", (PAGE_ALERTS,))
        checksums = zlib.crc32(_ENCODER.encode(devices)), zlib.crc32(_ENCODER.encode(alerts))
        if checksums[0] != cursor.devices:
            tables["device"] = devices
        if checksums[1] != cursor.alerts:
            tables["alert"] = alerts
        return msgspec.structs.replace(
            cursor,
            event=max((row[0] for row in tables["event"]), default=cursor.event),
            telemetry=max((row[0] for row in tables["telemetry"]), default=cursor.telemetry),
            command=max((row[0] for row in commands), default=cursor.command),
            log=max((row[0] for row in tables["device_log"]), default=cursor.log),
            devices=checksums[0],
            alerts=checksums[1],
        )

    def _n_devices(self) -> int:
        return len(self._reader.columns(DeviceRow, ("row",)))

    def _adder(self, tables: dict[str, Rows]) -> Callable[..., None]:
        def add(record: type[Record], tail: str, values: Sequence[Any]) -> None:
            tables.setdefault(record.TABLE, []).extend(self._rows(record, tail, values))

        return add

    def _rows(self, record: type[Record], tail: str = "", values: Sequence[Any] = ()) -> Rows:
        """Return rows in column order, after the hidden `id` if they have one."""
        names = [column.name for column in table_of(record).columns]
        rows = self._reader.columns(record, names if record.KEY else ["id", *names], tail, values)
        if record is TruthRow:
            hidden = {names.index(name): value for name, value in HIDDEN.items()}
            rows = [tuple(hidden.get(i, x) for i, x in enumerate(row)) for row in rows]
        return rows


def _newest(reader: RunReader, record: type[Record], column: str) -> int:
    found = reader.columns(record, (column,), f"ORDER BY {column} DESC LIMIT 1")
    return int(found[0][0]) if found else 0


def size_of_round(selected: int, devices: int | None, metrics: int = 0) -> int:
    """Return about how many bytes the rows of a round have before compression.

    Args:
        selected: Devices that were selected.
        devices: Devices of the run; None for a round without details.
        metrics: Names of metrics of a client.
    """
    if devices is None:
        return ROUND_BYTES
    size = ROUND_BYTES + selected * EXCHANGE_BYTES + devices * (SELECTION_BYTES + SCORE_BYTES)
    return size + metrics * METRIC_BYTES * (selected + devices)


def detailed_after(reader: RunReader, devices: int) -> tuple[int, int]:
    """Return the last round without details, 0 if all have them, and the oldest round to keep."""
    newest = reader.columns(
        RoundRow, ("round", "selected"), "ORDER BY round DESC LIMIT ?", (MAX_ROUNDS,)
    )
    size, metrics = 0, len(reader.client_metric_names())
    for i, (round_id, selected) in enumerate(newest):
        size += size_of_round(selected, devices, metrics)
        if size > WINDOW_BYTES and i:
            return round_id, newest[-1][0]
    oldest = newest[-1][0] if newest else 1
    return oldest - 1, oldest


class Replica:
    """Writes the pages of a run into a store of this machine.

    While the run is alive, the replica holds the lock of its folder, as the process of a run does.
    """

    def __init__(self, folder: Path) -> None:
        """Make an empty replica.

        Raises:
            StoreError: The folder is not writable, or holds a run.
        """
        self.folder = folder
        self._path = folder / DATABASE
        self._size = 0
        """About how many bytes the details of rounds have."""
        self._lock: RunLock | None = RunLock(folder)
        self._connection = open_writable(self._path)
        with translated(self._path):
            self._connection.execute("PRAGMA synchronous = OFF")
            with transaction(self._connection):
                create_schema(self._connection)
                self._connection.execute(table_of(EarlierRow).create())

    def apply(self, page: Page) -> None:
        """Write the rows of a page, all or none.

        Raises:
            StoreError: The page is not valid, or the disk failed.
        """
        try:
            tables = _TABLES.decode(page.tables)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise StoreError(f"page: {exc}") from exc
        if page.is_start:
            self._write_config(page.experiment_toml)
        with translated(self._path), transaction(self._connection):
            self._clear_problem()
            if page.is_start:
                self._size = 0
                for record in REPLICATED:
                    self._connection.execute(f"DELETE FROM {table_of(record).name}")
            for record in REPLICATED:
                rows = getattr(tables, record.TABLE)
                if record is RunRow and len(rows) != 1:
                    raise StoreError(f"page: must have one row of the run, got {len(rows)}")
                if rows:
                    self._connection.executemany(_upsert(record), rows)
                self._size += len(rows) * _SIZES.get(record, 0)
            for stream, kept in KEPT.items():
                name = table_of(stream).name
                oldest = f"(SELECT max(id) FROM {name}) - ?"
                self._connection.execute(f"DELETE FROM {name} WHERE id <= {oldest}", (kept,))
        if self._size > MAX_DETAIL_BYTES:
            self._shorten()
        self._set_alive(page.is_alive or page.has_more)

    def set_problem(self, text: str) -> None:
        """Show why no rows come, as an alert, until the next page.

        Raises:
            StoreError: The disk failed.
        """
        table = table_of(AlertRow)
        with translated(self._path), transaction(self._connection):
            at_s = self._connection.execute(
                "SELECT ifnull(max(at_s), 0) FROM (SELECT max(at_s) AS at_s FROM event "
                "UNION ALL SELECT max(closed_at_s) FROM round)"
            ).fetchone()[0]
            self._clear_problem()
            alert = AlertRow(kind=CONNECTION, begin_s=float(at_s), text=text)
            self._connection.execute(table.upsert(), table.encode(alert))

    def _clear_problem(self) -> None:
        self._connection.execute("DELETE FROM alert WHERE kind = ?", (CONNECTION,))

    def set_ended(self) -> None:
        """Note that no further rows come."""
        self._set_alive(False)

    def close(self) -> None:
        """Close the store; a second call does nothing."""
        self._connection.close()
        self._set_alive(False)

    def _set_alive(self, is_alive: bool) -> None:
        if is_alive and self._lock is None:
            self._lock = RunLock(self.folder)
        elif not is_alive and self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write_config(self, experiment_toml: str) -> None:
        try:
            (self.folder / CONFIG).write_text(experiment_toml, encoding="utf-8")
        except OSError as exc:
            raise StoreError(f"{self.folder}: must be a writable folder, got {exc}") from exc

    def _shorten(self) -> None:
        """Replace the oldest details by totals."""
        with RunReader(self.folder) as reader, reader.snapshot():
            before, oldest = detailed_after(reader, reader.counts().devices)
            earlier = reader.totals(before)
        table = table_of(EarlierRow)
        execute = self._connection.execute
        with translated(self._path), transaction(self._connection):
            execute(f"DELETE FROM {table.name}")
            self._connection.executemany(table.upsert(), table.encode_all(earlier))
            for record in DETAILS:
                name = table_of(record).name
                kept = _KEPT.get(record, "FALSE")
                execute(
                    f"DELETE FROM {name} WHERE round <= ?1 AND rowid NOT IN "
                    f"(SELECT rowid FROM {name} WHERE {kept})",
                    (before,),
                )
            for record in (RoundRow, MetricRow):
                execute(f"DELETE FROM {table_of(record).name} WHERE round < ?", (oldest,))
        self._size = WINDOW_BYTES


def _upsert(record: type[Record]) -> str:
    table = table_of(record)
    if record.KEY:
        return table.upsert()
    marks = ", ".join("?" for _ in range(1 + len(table.columns)))
    return f"INSERT OR REPLACE INTO {table.name} (id, {table.names}) VALUES ({marks})"
