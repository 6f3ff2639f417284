"""The tables of a run as columns: numpy arrays, Arrow, pandas, polars; and their data dictionary.

`read_table` reads one table of a live or finished run, `dictionary` describes every column. Both
follow from the dataclasses of `coordinator.store.tables`: a field is a column, its docstring the
meaning, its ending the unit. `coordinator.report.export` writes the same tables to files.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from math import isnan
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.report.errors import TableError
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.store.schema import RECORDS, ColumnSpec, table_of, unit_of
from fairbed.coordinator.store.tables import CheckpointRow, Record

Array: TypeAlias = NDArray[Any]

_RECORDS: dict[str, type[Record]] = {
    record.TABLE: record for record in RECORDS if record is not CheckpointRow
}
TABLES: tuple[str, ...] = tuple(_RECORDS)
"""Names of the tables that a user may read: all but the state from which a run resumes."""

BATCH_CELLS = 1_000_000
"""Cells that are read at once, some 50 MB as Python objects."""

_ARRAYS: dict[type, type] = {
    int: np.int64,
    bool: np.bool_,
    float: np.float64,
    str: object,
    bytes: object,
}


class ColumnMeaning(NamedTuple):
    """One line of the data dictionary."""

    table: str
    column: str
    type: str
    """str, int, float, bool or bytes."""
    unit: str
    """Empty for texts, counts and plain numbers."""
    meaning: str
    is_optional: bool
    """The cell may be empty: unknown, or for the reason in the meaning."""


def dictionary(names: Sequence[str] = TABLES) -> list[ColumnMeaning]:
    """Return the data dictionary of some tables: every column, in the order of the store.

    Raises:
        TableError: There is no such table.
    """
    return [line for name in names for line in _lines(name)]


@cache
def _lines(name: str) -> tuple[ColumnMeaning, ...]:
    return columns_of(record_of(name))


def columns_of(record: type[Record]) -> tuple[ColumnMeaning, ...]:
    """Return the lines of the data dictionary about one table of the store."""
    known = meanings(record)
    return tuple(
        ColumnMeaning(
            record.TABLE, c.name, c.kind.__name__, unit_of(c.name), known[c.name], c.is_optional
        )
        for c in table_of(record).columns
    )


def meanings(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a struct or dataclass that has one, as one line.

    A field whose name is a word of Python ends in `_`, its key does not.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is not cls and not base.__module__.startswith("fairbed."):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id.removesuffix("_")] = " ".join(str(text.value.value).split())
    return found


class Table:
    """Rows of one table of a run, column by column, in the order in which they were written.

    Args:
        name: Name of the table.
        cells: The array of each column, all of one length.
    """

    def __init__(self, name: str, cells: Mapping[str, Array]) -> None:
        specs = {c.name: c for c in table_of(record_of(name)).columns}
        self.name = name
        self._cells = dict(cells)
        self._specs = {column: specs[column] for column in cells}

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._cells)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self._cells.values())))

    def column(self, name: str) -> Array:
        """Return one column, shape (rows,).

        A column that is never empty is int64, bool, float64 or objects (str, bytes). In one that
        may be empty, numbers and booleans are float64 with NaN, texts and bytes objects with None.

        Raises:
            TableError: The table has no such column.
        """
        if name not in self._cells:
            raise TableError(
                f"{self.name}: must have a column {name!r}; it has: {', '.join(self._cells)}"
            )
        return self._cells[name]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as plain Python values by column; None for an empty cell, and for NaN."""
        columns = [self.values(name) for name in self._cells]
        for row in zip(*columns, strict=True):
            yield dict(zip(self._cells, row, strict=True))

    def arrow(self) -> Any:
        """Return a `pyarrow.Table` with exact types; fields carry `unit` and `meaning`.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
        """
        pa = needed("pyarrow")
        schema = arrow_schema(self.name, self.columns)
        arrays = [self._arrow_array(pa, field.name, field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def pandas(self) -> Any:
        """Return a `pandas.DataFrame`.

        Whole numbers and booleans that may be empty have the types `Int64` and `boolean`, with NA.

        Raises:
            ModuleNotFoundError: pandas or pyarrow is not installed.
        """
        pd, pa = needed("pandas"), needed("pyarrow")
        nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}.get
        arrow = self.arrow()
        series = {
            field.name: column.to_pandas(types_mapper=nullable if field.nullable else None)
            for field, column in zip(arrow.schema, arrow.columns, strict=True)
        }
        return pd.DataFrame(series, copy=False)

    def polars(self) -> Any:
        """Return a `polars.DataFrame`.

        Raises:
            ModuleNotFoundError: polars or pyarrow is not installed.
        """
        return needed("polars").from_arrow(self.arrow())

    def values(self, name: str) -> list[Any]:
        """Return one column as plain Python values; None for an empty cell, and for NaN.

        Raises:
            TableError: The table has no such column.
        """
        cells = self.column(name)
        plain: list[Any] = cells.tolist()
        if cells.dtype != np.float64:
            return plain
        kind = self._specs[name].kind
        return [None if isnan(cell) else kind(cell) for cell in plain]

    def _arrow_array(self, pa: ModuleType, name: str, kind: Any) -> Any:
        cells = self._cells[name]
        if cells.dtype != np.float64:
            return pa.array(cells, kind)
        empty = np.isnan(cells)
        if self._specs[name].kind is not float:  # a whole number or a boolean that may be empty
            cells = np.where(empty, 0.0, cells).astype(_ARRAYS[self._specs[name].kind])
        return pa.array(cells, kind, mask=empty)


def read_table(
    reader: RunReader, name: str, *, since_round: int = 0, columns: Sequence[str] | None = None
) -> Table:
    """Read a table; a live run gives one consistent state of it.

    Args:
        reader: Reads the run.
        name: One of `TABLES`.
        since_round: Only rows of rounds after this one; for tables with a round in each row.
        columns: Only these columns, in this order; None: all.

    Raises:
        TableError: There is no such table or column, or its rows have no round.
        StoreError: The store cannot be read.
    """
    parts = list(read_batches(reader, name, since_round=since_round, columns=columns))
    if len(parts) == 1:
        return parts[0]
    return Table(
        name, {c: np.concatenate([part.column(c) for part in parts]) for c in parts[0].columns}
    )


def read_batches(
    reader: RunReader,
    name: str,
    *,
    since_round: int = 0,
    columns: Sequence[str] | None = None,
    size: int | None = None,
) -> Iterator[Table]:
    """Yield a table in parts of at most `size` rows, all of one state of the run.

    At least one part comes, which may be empty. Without `size` a part has up to `BATCH_CELLS`.
    Other arguments and errors are those of `read_table`.
    """
    specs, tail, values = _query(name, since_round, columns)
    size = size or max(BATCH_CELLS // len(specs), 1)
    chunks = reader.chunks(record_of(name), [c.name for c in specs], tail, values, size)
    rows: list[tuple[Any, ...]] = next(chunks, [])
    while True:
        following = next(chunks, None)
        yield Table(name, _arrays(specs, rows))
        if following is None:
            return
        rows = following


def arrow_schema(name: str, columns: Sequence[str] | None = None) -> Any:
    """Return the `pyarrow.Schema` of a table, or of some columns, with units and meanings.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
    """
    pa = needed("pyarrow")
    types = {
        "int": pa.int64(),
        "bool": pa.bool_(),
        "float": pa.float64(),
        "str": pa.string(),
        "bytes": pa.binary(),
    }
    lines = {line.column: line for line in _lines(name)}
    fields = [
        pa.field(
            line.column,
            types[line.type],
            nullable=line.is_optional or line.type == "float",  # NaN is stored as NULL
            metadata={"unit": line.unit, "meaning": line.meaning},
        )
        for line in (lines[column] for column in columns or lines)
    ]
    return pa.schema(fields, metadata={"table": name})


def needed(module: str) -> ModuleType:
    """Import a module of the extra `analysis`, or polars.

    Raises:
        ModuleNotFoundError: It is not installed; the message names what to install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        what = "polars" if module == "polars" else "'fairbed[analysis]'"
        raise ModuleNotFoundError(
            f"the package {module} must be installed, got none; run: pip install {what}",
            name=module,
        ) from exc


def record_of(name: str) -> type[Record]:
    """Return the record type of one of `TABLES`.

    Raises:
        TableError: There is no such table.
    """
    if name not in _RECORDS:
        raise TableError(f"table: must be one of {', '.join(TABLES)}, got {name!r}")
    return _RECORDS[name]


def _query(
    name: str, since_round: int, columns: Sequence[str] | None
) -> tuple[list[ColumnSpec], str, tuple[int, ...]]:
    """Return the columns, the end of the query and its values."""
    specs = {c.name: c for c in table_of(record_of(name)).columns}
    for column in columns or ():
        if column not in specs:
            raise TableError(f"{name}: must have a column {column!r}; it has: {', '.join(specs)}")
    chosen = [specs[column] for column in specs if columns is None] or [
        specs[column] for column in columns or ()
    ]
    if not chosen:
        raise TableError(f"{name}: must be read with at least one column, got none")
    if not since_round:
        return chosen, "ORDER BY rowid", ()
    if "round" not in specs or specs["round"].is_optional:
        raise TableError(f"{name}: must have a round in each row to be read since a round")
    return chosen, "WHERE round > ? ORDER BY rowid", (since_round,)


def _arrays(specs: Sequence[ColumnSpec], rows: Sequence[tuple[Any, ...]]) -> dict[str, Array]:
    """Return the columns of rows; None becomes NaN in an array of numbers."""
    cells: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(specs)
    return {
        c.name: np.array(column, dtype=_array_type(c))
        for c, column in zip(specs, cells, strict=True)
    }


def _array_type(column: ColumnSpec) -> type:
    """Return the type of a column's array."""
    is_number = column.kind not in (str, bytes)
    return np.float64 if column.is_optional and is_number else _ARRAYS[column.kind]
