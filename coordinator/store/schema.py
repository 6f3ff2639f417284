"""SQL of the run store, derived from the dataclasses of `coordinator.store.tables`.

A `float` column may hold NULL: SQLite has no NaN, so NaN is written as NULL and read as NaN
(as None where the field may be None). Tables without a key are numbered by `id`, from 1.
`Columns` are many rows of one table as arrays, without an object for each row.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import repeat
from math import nan
from operator import attrgetter
from types import NoneType
from typing import (
    Annotated,
    Any,
    Generic,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.store.errors import EmptyStoreError, OldStoreError, StoreVersionError
from fairbed.coordinator.store.tables import (
    AlertRow,
    CheckpointRow,
    ClientMetricRow,
    Column,
    CommandRow,
    ConditionRow,
    DeviceLogRow,
    DeviceMetricRow,
    DeviceRow,
    EarlierRow,
    EventRow,
    ExchangeRow,
    FleetContextRow,
    FleetStatsRow,
    LossQueryRow,
    MetricRow,
    PersonalScoreRow,
    Record,
    ReleaseRow,
    RoundRow,
    RunRow,
    SelectionRow,
    Source,
    TelemetryRow,
    TruthRow,
)

RowT = TypeVar("RowT")

Cells: TypeAlias = NDArray[Any] | list[Any] | str | float | bool | None
"""An array or a list has a cell for each row; another value applies to every row. NaN is NULL."""


@dataclass(frozen=True, slots=True)
class Columns(Generic[RowT]):
    """`n` rows of one table, column by column."""

    record: type[RowT]
    n: int
    cells: Mapping[str, Cells]
    """The cells of every field of the record, by its name."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.n


R = TypeVar("R", bound=Record)
Values: TypeAlias = tuple[Any, ...]
"""One row as parameters of a SQL statement."""

RECORDS: tuple[type[Record], ...] = (
    RunRow,
    DeviceRow,
    TruthRow,
    RoundRow,
    FleetStatsRow,
    SelectionRow,
    FleetContextRow,
    LossQueryRow,
    ExchangeRow,
    ReleaseRow,
    MetricRow,
    DeviceMetricRow,
    PersonalScoreRow,
    ClientMetricRow,
    TelemetryRow,
    ConditionRow,
    EventRow,
    AlertRow,
    DeviceLogRow,
    CommandRow,
    CheckpointRow,
)
"""All tables of a store; a replica also has that of `EarlierRow`."""

PER_ROUND: tuple[type[Record], ...] = (
    RoundRow,
    FleetStatsRow,
    SelectionRow,
    FleetContextRow,
    LossQueryRow,
    ExchangeRow,
    MetricRow,
    DeviceMetricRow,
    PersonalScoreRow,
    ClientMetricRow,
    CheckpointRow,
)
"""Tables whose rows are void when their round never closed; events, alerts, commands, logs and
releases are kept."""

INDICES: tuple[str, ...] = (
    "CREATE INDEX exchange_device ON exchange (device)",
    "CREATE INDEX exchange_late ON exchange (aggregated_round) WHERE aggregated_round > round",
    "CREATE INDEX selection_device ON selection (device)",
    "CREATE INDEX telemetry_device ON telemetry (device)",
    "CREATE INDEX condition_device ON condition (device)",
    "CREATE INDEX event_device ON event (device)",
    "CREATE INDEX device_log_device ON device_log (device)",
)

APPLICATION_ID = 0x46424544
"""`FBED` in ASCII, in the header of every run store: `PRAGMA application_id`."""
VERSION = 13
"""Version of what the tables mean: `PRAGMA user_version`. Their columns are compared by name, so
that a further column needs no other version."""

_SQL_TYPES = {str: "TEXT", int: "INTEGER", bool: "INTEGER", float: "REAL", bytes: "BLOB"}
_ARRAYS = {int: np.int64, bool: np.int64, float: np.float64}
"""Array types before the conversion to plain numbers: SQLite has no booleans."""
UNITS = {
    "_s": "s",
    "_bps": "bit/s",
    "_bits": "bit",
    "_bytes": "byte",
    "_hz": "Hz",
    "_celsius": "°C",
    "_cores": "core",
    "_j": "J",
    "_w": "W",
}
"""Units by the ending of a name."""
_INSTANTS = frozenset({"at_s", "closed_at_s", "dispatched_at_s", "first_seen_s"})


def unit_of(name: str) -> str:
    """Return the unit of a number by its name; empty if it has none."""
    if name.startswith("bytes_"):
        return "byte"
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A field of a record."""

    name: str
    kind: type
    """str, int, bool, float or bytes."""
    is_optional: bool
    default: Any = None
    """What is stored where nothing was measured."""
    column: Column | None = None
    """Its declaration, if it is a measured column of the exchange."""

    @property
    def unit(self) -> str:
        """Unit of a number; empty if it has none."""
        return unit_of(self.name)

    def definition(self) -> str:
        """Return the column definition for `CREATE TABLE`."""
        may_be_null = self.is_optional or self.kind is float
        return f'"{self.name}" {_SQL_TYPES[self.kind]}{"" if may_be_null else " NOT NULL"}'

    def to_sql(self, value: Any) -> Any:
        """Return a plain Python value: SQLite would store a numpy integer as a blob."""
        return None if value is None and self.is_optional else self.kind(value)

    def all_to_sql(self, cells: Cells, n: int) -> Iterable[Any]:
        """Return a plain Python value for each of `n` rows; a list holds plain values already."""
        if isinstance(cells, np.ndarray):
            plain: list[Any] = cells.astype(_ARRAYS[self.kind], copy=False).tolist()
            return plain
        return cells if isinstance(cells, list) else repeat(self.to_sql(cells), n)

    @property
    def is_converted(self) -> bool:
        """SQLite has no booleans, and stores NaN as NULL."""
        return self.kind is bool or (self.kind is float and not self.is_optional)

    def from_sql(self, value: Any) -> Any:
        """Return the field's value."""
        if value is None:
            return None if self.is_optional else nan
        return bool(value) if self.kind is bool else value


@dataclass(frozen=True, slots=True)
class TableSchema(Generic[R]):
    """The table of one record type."""

    record: type[R]
    columns: tuple[ColumnSpec, ...]
    _upsert: str = field(init=False)
    """Built once, because every row needs it, like those below."""
    _fields: tuple[str, ...] = field(init=False)
    _values: Callable[[R], Values] = field(init=False)
    """Reads the fields of a record."""
    _plain: tuple[tuple[type, ...], ...] = field(init=False)
    """Of each column, the types of values that are stored as they are."""
    _converted: tuple[tuple[int, ColumnSpec], ...] = field(init=False)
    """Columns whose values SQLite may return as another type than their field's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_upsert", self._make_upsert())
        object.__setattr__(self, "_fields", tuple(c.name for c in self.columns))
        object.__setattr__(self, "_values", attrgetter(*self._fields))
        plain = (((c.kind, NoneType) if c.is_optional else (c.kind,)) for c in self.columns)
        object.__setattr__(self, "_plain", tuple(plain))
        converted = ((i, c) for i, c in enumerate(self.columns) if c.is_converted)
        object.__setattr__(self, "_converted", tuple(converted))

    @property
    def name(self) -> str:
        """Name of the table, quoted."""
        return f'"{self.record.TABLE}"'

    @property
    def names(self) -> str:
        """The columns in order, for a SELECT."""
        return ", ".join(f'"{c.name}"' for c in self.columns)

    @property
    def instants(self) -> tuple[str, ...]:
        """Columns that hold an instant on the run's clock."""
        return tuple(c.name for c in self.columns if c.name in _INSTANTS)

    def create(self) -> str:
        """Return the statement that makes the table."""
        parts = [c.definition() for c in self.columns]
        if self.record.KEY:
            parts.append(f"PRIMARY KEY ({', '.join(self.record.KEY)})")
        else:
            parts.insert(0, "id INTEGER PRIMARY KEY")
        return f"CREATE TABLE {self.name} ({', '.join(parts)})"

    def upsert(self) -> str:
        """Return the statement that adds a row or replaces the one with the same key."""
        return self._upsert

    def _make_upsert(self) -> str:
        marks = ", ".join("?" for _ in self.columns)
        insert = f"INSERT INTO {self.name} ({self.names}) VALUES ({marks})"
        rest = [c.name for c in self.columns if c.name not in self.record.KEY]
        if not self.record.KEY:
            return insert
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in rest)
        return f"{insert} ON CONFLICT ({', '.join(self.record.KEY)}) DO UPDATE SET {changes}"

    def select(self, tail: str = "") -> str:
        """Return the query for whole records; `tail` follows the FROM clause."""
        return f"SELECT {self.names} FROM {self.name} {tail}"

    def encode(self, record: R) -> Values:
        """Return the values of a record in column order."""
        cells = zip(self._values(record), self._plain, self.columns, strict=True)
        return tuple([v if type(v) in plain else c.to_sql(v) for v, plain, c in cells])

    def encode_all(self, rows: Columns[R] | Sequence[R]) -> list[Values]:
        """Return the values of each row in column order.

        Raises:
            KeyError: A column is missing.
            ValueError: Columns differ in length.
        """
        if not isinstance(rows, Columns):
            return [self.encode(record) for record in rows]
        cells = [c.all_to_sql(rows.cells[c.name], rows.n) for c in self.columns]
        return list(zip(*cells, strict=True))

    def decode(self, values: Sequence[Any]) -> R:
        """Return the record of a row in column order."""
        cells = list(values)
        for i, column in self._converted:
            cells[i] = column.from_sql(cells[i])
        return self.record(**dict(zip(self._fields, cells, strict=True)))


def _column(name: str, hint: Any, default: Any) -> ColumnSpec:
    declared = None
    if get_origin(hint) is Annotated:
        hint, declared = get_args(hint)
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if len(kinds) != 1 or kinds[0] not in _SQL_TYPES:
        raise TypeError(f"{name}: a column must be one of {list(_SQL_TYPES)}, got {hint}")
    if declared is not None and (kinds[0] not in (int, float) or default is MISSING):
        raise TypeError(f"{name}: a measured column must be a number with a default, got {hint}")
    default = None if default is MISSING else default
    return ColumnSpec(name, kinds[0], type(None) in get_args(hint), default, declared)


def _table(record: type[R]) -> TableSchema[R]:
    hints = get_type_hints(record, include_extras=True)
    columns = tuple(_column(f.name, hints[f.name], f.default) for f in fields(record))
    return TableSchema(record, columns)


_TABLES: dict[type[Any], TableSchema[Any]] = {
    record: _table(record) for record in (*RECORDS, EarlierRow)
}


def table_of(record: type[R]) -> TableSchema[R]:
    """Return the table of a record type."""
    return _TABLES[record]


MEASURED: Mapping[str, ColumnSpec] = {
    c.name: c for c in table_of(ExchangeRow).columns if c.column is not None
}
"""The measured columns of the exchange, by name (`coordinator.store.tables.Column`)."""


def accepted(measured: Mapping[str, float], source: Source) -> dict[str, float]:
    """Return the numbers that a device may report, as their columns have them.

    A name that is not declared comes from a device with a newer agent, and is left out.

    Args:
        measured: What the device reports, finite numbers by name.
        source: `Source.OFFER` or `Source.UPLOAD`.
    """
    return {
        name: spec.kind(value)
        for name, value in measured.items()
        if (spec := MEASURED.get(name)) is not None
        and spec.column is not None
        and spec.column.source is source
    }


def fault_in_measured(measured: Mapping[str, float], source: Source) -> str | None:
    """Return which number of a device's report cannot be true; None if there is none.

    Args:
        measured: What the device reports, finite numbers by name.
        source: As in `accepted`.
    """
    for name, value in measured.items():
        spec = MEASURED.get(name)
        if spec is None or spec.column is None or spec.column.source is not source:
            continue
        least, most = spec.column.least, spec.column.most
        if not least <= value <= most:
            return f"{name} must be from {least:g} to {most:g}, got {value:g}"
        if spec.kind is int and not float(value).is_integer():
            return f"{name} must be a whole number, got {value:g}"
    return None


def create_schema(connection: sqlite3.Connection) -> None:
    """Create all tables of a new store, at the version of this code."""
    for record in RECORDS:
        connection.execute(table_of(record).create())
    for statement in INDICES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def check_format(where: str, connection: sqlite3.Connection) -> None:
    """Refuse a database that is not a run store of this version.

    Raises:
        EmptyStoreError: It has no tables: its writer died before it made them.
        OldStoreError: An older Fairbed wrote it.
        StoreVersionError: A newer Fairbed wrote it, or it is not a run store.
    """
    application, version = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("application_id", "user_version")
    )
    if (application, version) == (APPLICATION_ID, VERSION):
        _check_columns(where, connection)
        return
    rule = (
        f"{where}: a run store must have application id {APPLICATION_ID:#x} and version {VERSION}"
    )
    got = f"got {application:#x} and {version}"
    if (application, version) == (0, 0):
        raise EmptyStoreError(f"{rule}, {got}; no run started in it: delete the folder")
    if application == 0 or (application == APPLICATION_ID and version < VERSION):
        raise OldStoreError(
            f"{rule}, {got}; an older Fairbed wrote it: read it with that version, "
            f"or delete it with fairbed rm"
        )
    advice = (
        "update Fairbed to open it" if application == APPLICATION_ID else "it is not a run store"
    )
    raise StoreVersionError(f"{rule}, {got}; {advice}")


def _check_columns(where: str, connection: sqlite3.Connection) -> None:
    """Refuse a store whose tables have other columns than those of this code.

    Raises:
        OldStoreError: A column is missing.
        StoreVersionError: There is a further one.
    """
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    for table in (table_of(record) for record in RECORDS):
        if found.get(table.record.TABLE) == table.create():
            continue
        info = connection.execute(f"PRAGMA table_info({table.name})").fetchall()
        there, wanted = {row[1] for row in info} - {"id"}, {c.name for c in table.columns}
        if missing := sorted(wanted - there):
            raise OldStoreError(
                f"{where}: the table {table.name} must have the column {missing[0]}, got none; an "
                "older Fairbed wrote it: read it with that version, or delete it with fairbed rm"
            )
        if further := sorted(there - wanted):
            raise StoreVersionError(
                f"{where}: the table {table.name} must have no column {further[0]}, got one; "
                "update Fairbed to open it"
            )
