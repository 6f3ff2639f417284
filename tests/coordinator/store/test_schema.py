"""A column is a field: what goes in comes out."""

import dataclasses
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.store.errors import StoreVersionError
from fairbed.coordinator.store.schema import (
    _ADD_ASKING_AND_AUDIT,
    _ADD_CONDITIONS,
    _ADD_CROWD,
    MIGRATIONS,
    RECORDS,
    Cells,
    Columns,
    check_version,
    create_schema,
    migrate,
    schema_version,
    table_of,
)
from fairbed.coordinator.store.tables import (
    ConditionRow,
    DeviceMetricRow,
    DeviceRow,
    ExchangeRow,
    Record,
    RoundRow,
    SelectionRow,
)

VALUES: dict[object, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(exclude_categories=["Cs"])),
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    bytes: st.binary(),
}


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Yield a row of any table with any values its types allow."""
    record = draw(st.sampled_from(RECORDS))
    hints = get_type_hints(record)
    values = {}
    for field in dataclasses.fields(record):
        kinds = getattr(hints[field.name], "__args__", (hints[field.name],))
        options = [st.none() if kind is type(None) else VALUES[kind] for kind in kinds]
        values[field.name] = draw(st.one_of(options))
    return record(**values)


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_schema(connection)
        yield connection


def write(connection: sqlite3.Connection, record: Record) -> None:
    table = table_of(type(record))
    connection.execute(table.upsert(), table.encode(record))


def read(connection: sqlite3.Connection, record: type[Record]) -> list[Record]:
    table = table_of(record)
    return [table.decode(row) for row in connection.execute(table.select())]


@given(record=records())
def test_any_record_comes_back_as_it_went_in(record: Record) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_schema(connection)
        write(connection, record)
        assert read(connection, type(record)) == [record]


def test_every_record_type_has_a_table(connection: sqlite3.Connection) -> None:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert {name for (name,) in found} == {record.TABLE for record in RECORDS}


def test_nan_is_kept_as_nan(connection: sqlite3.Connection) -> None:
    write(connection, DeviceMetricRow(round=1, device="a", n=1, accuracy=math.nan, loss=math.inf))
    row = read(connection, DeviceMetricRow)[0]
    assert isinstance(row, DeviceMetricRow)
    assert math.isnan(row.accuracy)
    assert row.loss == math.inf


def test_numpy_scalars_are_stored_as_numbers(connection: sqlite3.Connection) -> None:
    row: Any = DeviceMetricRow(
        round=np.int64(3), device="a", n=np.int64(2), accuracy=np.float32(0.5), loss=np.float64(1)
    )
    write(connection, row)
    kinds = connection.execute("SELECT typeof(round), typeof(accuracy) FROM device_metric")
    assert kinds.fetchone() == ("integer", "real")


def test_columns_are_stored_as_their_rows_would_be(connection: sqlite3.Connection) -> None:
    columns = Columns(
        SelectionRow,
        2,
        {
            "round": 7,
            "device": ["a", "b"],
            "is_available": np.array([True, False]),
            "is_selected": np.array([1, 0], dtype=np.int8),
            "is_aggregated": [False, True],
            "tau_hat_s": np.array([0.5, np.nan], dtype=np.float32),
            "width_s": None,
            "queue": np.array([1, 2]),
            "propensity": 0.25,
            "is_audit": False,
        },
    )
    table = table_of(SelectionRow)
    connection.executemany(table.upsert(), table.encode_all(columns))
    common: dict[str, Any] = {"round": 7, "width_s": None, "propensity": 0.25, "is_audit": False}
    rows = [
        SelectionRow(
            device="a",
            is_available=True,
            is_selected=True,
            is_aggregated=False,
            tau_hat_s=0.5,
            queue=1.0,
            **common,
        ),
        SelectionRow(
            device="b",
            is_available=False,
            is_selected=False,
            is_aggregated=True,
            tau_hat_s=None,
            queue=2.0,
            **common,
        ),
    ]
    assert read(connection, SelectionRow) == rows
    kinds_of = "typeof(round), typeof(is_selected), typeof(queue)"
    kinds = connection.execute(f"SELECT {kinds_of} FROM selection")
    assert kinds.fetchall() == [("integer", "integer", "real")] * 2
    of_rows = table.encode_all(rows)
    assert of_rows == [table.encode(row) for row in rows]


def test_columns_must_be_whole_and_of_one_length() -> None:
    table = table_of(DeviceMetricRow)
    cells: dict[str, Cells] = {"round": 1, "device": ["a", "b"], "n": 1, "accuracy": 0.5}
    with pytest.raises(KeyError, match="loss"):
        table.encode_all(Columns(DeviceMetricRow, 2, cells))
    with pytest.raises(ValueError, match="shorter"):
        table.encode_all(Columns(DeviceMetricRow, 2, cells | {"loss": np.zeros(1)}))


def test_a_row_with_the_same_key_replaces_the_other(connection: sqlite3.Connection) -> None:
    row = DeviceRow(name="a", row=0, first_seen_s=0.0, n_k=1, capabilities="{}", has_own_data=False)
    write(connection, row)
    write(connection, dataclasses.replace(row, n_k=2))
    assert read(connection, DeviceRow) == [dataclasses.replace(row, n_k=2)]


def test_migrations_run_in_order_from_the_version_found(connection: sqlite3.Connection) -> None:
    scripts = (
        "ALTER TABLE device ADD COLUMN extra TEXT",
        "UPDATE device SET extra = name || '!'",
    )
    connection.execute("PRAGMA user_version = 1")
    write(
        connection,
        DeviceRow(name="a", row=0, first_seen_s=0, n_k=1, capabilities="", has_own_data=True),
    )
    assert check_version("run.db", schema_version(connection), scripts)
    migrate(connection, scripts)
    assert schema_version(connection) == 3
    assert connection.execute("SELECT extra FROM device").fetchone() == ("a!",)
    migrate(connection, scripts)
    assert schema_version(connection) == 3


def test_a_store_of_before_the_codecs_reads_as_float32(connection: sqlite3.Connection) -> None:
    codecs = ["decode_s", "coordinator_decode_s", "codec_down", "codec_up"]
    settled = [f"settled_{way}_{what}" for way in ("down", "up") for what in ("bytes", "s")]
    added = {
        "exchange": [*codecs, "starved_s", "is_starved", *settled, "staleness", "merged_round"],
        "round": ["coordinator_encode_s", "ask_s", "merged_late", "dropped_late", "cancelled"],
        "selection": ["propensity", "is_audit"],
        "run": ["dilation", "clock", "selections"],
        "telemetry": ["free_cores", "clock_ratio", "throttled"],
    }
    for table, columns in added.items():
        for column in columns:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    for table in ("condition", "fleet", "ask", "crowd"):
        connection.execute(f'DROP TABLE "{table}"')
    connection.execute("PRAGMA user_version = 1")
    names = [c.name for c in table_of(ExchangeRow).columns if c.name not in added["exchange"]]
    values = ", ".join("1" if name != "device" else "'a'" for name in names)
    connection.execute(f"INSERT INTO exchange ({', '.join(names)}) VALUES ({values})")
    migrate(connection)
    row = read(connection, ExchangeRow)[0]
    assert isinstance(row, ExchangeRow)
    assert (row.device, row.tau_s, row.codec_down, row.codec_up) == ("a", 1, "float32", "float32")
    assert row.decode_s is row.coordinator_decode_s is row.starved_s is None
    assert not row.is_starved
    assert read(connection, RoundRow) == []
    assert read(connection, ConditionRow) == []


@pytest.mark.parametrize(
    ("table", "script"),
    [
        ("condition", _ADD_CONDITIONS),
        ("crowd", _ADD_CROWD),
        *((table, _ADD_ASKING_AND_AUDIT) for table in ("fleet", "ask", "selection", "round")),
    ],
)
def test_a_table_that_was_added_or_grew_is_the_one_that_a_new_store_has(
    connection: sqlite3.Connection, table: str, script: str
) -> None:
    def columns() -> set[tuple[object, ...]]:
        """Return name, type, whether it may be NULL, and place in the key of each column."""
        found = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
        return {(name, kind, not_null, key) for _, name, kind, not_null, _, key in found}

    new = columns()
    for statement in script.split(";"):
        words = statement.replace('"', "").split()
        match words[:2]:
            case ["CREATE", "TABLE"]:
                connection.execute(f'DROP TABLE "{words[2]}"')
            case ["ALTER", "TABLE"]:
                connection.execute(f'ALTER TABLE "{words[2]}" DROP COLUMN {words[5]}')
    connection.executescript(script)
    assert columns() == new


@pytest.mark.parametrize(("found", "advice"), [(99, "update Fairbed"), (0, "not a run store")])
def test_a_store_of_an_unknown_version_gives_one_line(found: int, advice: str) -> None:
    with pytest.raises(StoreVersionError, match=advice) as caught:
        check_version("run.db", found)
    assert f"version must be 1 to {len(MIGRATIONS) + 1}, got {found}" in str(caught.value)
