"""A column is a field: records are read as they were written."""

import dataclasses
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from math import isfinite
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.base import Merge
from fairbed.coordinator.store.errors import EmptyStoreError, OldStoreError, StoreVersionError
from fairbed.coordinator.store.schema import (
    APPLICATION_ID,
    MEASURED,
    RECORDS,
    Cells,
    Columns,
    accepted,
    check_format,
    create_schema,
    fault_in_measured,
    table_of,
)
from fairbed.coordinator.store.tables import (
    DeviceMetricRow,
    DeviceRow,
    MetricRow,
    Record,
    SelectionRow,
    Source,
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
def test_any_record_is_read_as_it_was_written(record: Record) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_schema(connection)
        write(connection, record)
        assert read(connection, type(record)) == [record]


def test_every_record_type_has_a_table(connection: sqlite3.Connection) -> None:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert {name for (name,) in found} == {record.TABLE for record in RECORDS}


OPTIONAL = [
    field.name
    for field in dataclasses.fields(MetricRow)
    if field.name not in ("round", "at_s", "evaluate_s")
]


def test_nan_is_kept_as_nan(connection: sqlite3.Connection) -> None:
    write(connection, DeviceMetricRow(round=1, device="a", n=1, accuracy=math.nan, loss=math.inf))
    row = read(connection, DeviceMetricRow)[0]
    assert isinstance(row, DeviceMetricRow)
    assert (row.accuracy, row.loss) == (None, math.inf), "an optional number that is NaN is unknown"
    times = MetricRow(round=1, at_s=math.nan, evaluate_s=0.5, **dict.fromkeys(OPTIONAL))
    write(connection, times)
    metric = read(connection, MetricRow)[0]
    assert isinstance(metric, MetricRow)
    assert math.isnan(metric.at_s)


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
            "reason": "drawn",
            "score": None,
            "margin": np.array([0.5, 0.25]),
        },
    )
    table = table_of(SelectionRow)
    connection.executemany(table.upsert(), table.encode_all(columns))
    common: dict[str, Any] = {
        "round": 7,
        "width_s": None,
        "propensity": 0.25,
        "is_audit": False,
        "reason": "drawn",
        "score": None,
    }
    rows = [
        SelectionRow(
            device="a",
            is_available=True,
            is_selected=True,
            is_aggregated=False,
            tau_hat_s=0.5,
            queue=1.0,
            margin=0.5,
            **common,
        ),
        SelectionRow(
            device="b",
            is_available=False,
            is_selected=False,
            is_aggregated=True,
            tau_hat_s=None,
            queue=2.0,
            margin=0.25,
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
    cells |= dict.fromkeys(("bytes_down", "auroc", "rmse", "mae", "r2", "positions", "exact_match"))
    cells |= dict.fromkeys(("iou", "class_accuracy"))
    with pytest.raises(KeyError, match="loss"):
        table.encode_all(Columns(DeviceMetricRow, 2, cells))
    with pytest.raises(ValueError, match="shorter"):
        table.encode_all(Columns(DeviceMetricRow, 2, cells | {"loss": np.zeros(1)}))


def test_a_row_with_the_same_key_replaces_the_other(connection: sqlite3.Connection) -> None:
    row = DeviceRow(
        name="a",
        row=0,
        first_seen_s=0.0,
        n_k=1,
        capabilities="{}",
        has_own_data=False,
        kind="physical",
    )
    write(connection, row)
    write(connection, dataclasses.replace(row, n_k=2))
    assert read(connection, DeviceRow) == [dataclasses.replace(row, n_k=2)]


def test_a_new_store_has_its_application_id_and_version(connection: sqlite3.Connection) -> None:
    assert connection.execute("PRAGMA application_id").fetchone()[0].to_bytes(4, "big") == b"FBED"
    assert connection.execute("PRAGMA user_version").fetchone() == (13,)
    check_format("run.db", connection)


@pytest.mark.parametrize(
    ("application", "version", "error", "advice"),
    [
        (0, 0, EmptyStoreError, "no run started in it"),
        (0, 11, OldStoreError, "an older Fairbed wrote it"),
        (APPLICATION_ID, 1, OldStoreError, "an older Fairbed wrote it"),
        (APPLICATION_ID, 99, StoreVersionError, "update Fairbed to open it"),
        (0x1234, 1, StoreVersionError, "it is not a run store"),
    ],
)
def test_a_store_of_another_format_gives_one_line(
    application: int, version: int, error: type[StoreVersionError], advice: str
) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA application_id = {application}")
        connection.execute(f"PRAGMA user_version = {version}")
        with pytest.raises(StoreVersionError, match=advice) as caught:
            check_format("run.db", connection)
    assert type(caught.value) is error
    assert f"got {application:#x} and {version}; " in str(caught.value)
    assert "\n" not in str(caught.value)


def a_store(change: str) -> sqlite3.Connection:
    """Return a new store after a change of its tables."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    create_schema(connection)
    connection.execute(change)
    return connection


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ('ALTER TABLE exchange DROP COLUMN "cell_wait_s"', OldStoreError, "column cell_wait_s"),
        ('ALTER TABLE exchange ADD COLUMN "new_s" REAL', StoreVersionError, "no column new_s"),
    ],
)
def test_a_store_with_other_columns_needs_no_other_version_to_be_refused(
    change: str, error: type[StoreVersionError], problem: str
) -> None:
    with (
        closing(a_store(change)) as connection,
        pytest.raises(StoreVersionError, match=problem) as caught,
    ):
        check_format("run.db", connection)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (3.0, None),
        (0.0, None),
        (-1.0, "rerequests_down must be from 0 to 1e+09, got -1"),
        (2e9, "rerequests_down must be from 0 to 1e+09, got 2e+09"),
        (1.5, "rerequests_down must be a whole number, got 1.5"),
    ],
)
def test_a_reported_number_is_checked_by_its_declaration(value: float, problem: str | None) -> None:
    assert fault_in_measured({"rerequests_down": value}, Source.OFFER) == problem


def test_a_device_reports_its_own_columns_only() -> None:
    reported = {"rerequests_down": 3.0, "weight_share": -1.0, "of_a_newer_agent": -1.0}
    assert fault_in_measured(reported, Source.OFFER) is None
    assert accepted(reported, Source.OFFER) == {"rerequests_down": 3}
    assert accepted(reported, Source.UPLOAD) == {}


def test_a_column_that_a_device_reports_has_a_largest_value() -> None:
    declared = [spec.column for spec in MEASURED.values() if spec.column is not None]
    assert all(isfinite(column.most) for column in declared if column.source.is_reported)


def test_a_merge_gives_each_column_that_is_declared_as_its_own() -> None:
    merge = Merge(np.zeros(1, np.float32), np.ones(2), np.ones(2, np.int64), np.ones(2))
    declared = {k for k, spec in MEASURED.items() if spec.column and spec.column.source == "merge"}
    assert set(merge.columns) == declared
