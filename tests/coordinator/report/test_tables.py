"""Tables as numpy arrays, Arrow, pandas and polars, with a data dictionary."""

import re
from collections.abc import Iterator
from dataclasses import fields
from math import inf, isnan, nan
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fairbed.coordinator.report.errors import TableError
from fairbed.coordinator.report.tables import (
    TABLES,
    Table,
    dictionary,
    meanings,
    needed,
    read_batches,
    read_table,
)
from fairbed.coordinator.store import RunReader, Store
from fairbed.coordinator.store.schema import RECORDS
from fairbed.coordinator.store.tables import (
    FleetContextRow,
    FleetStatsRow,
    LossQueryRow,
    TelemetryRow,
)
from tests.coordinator.store.fake_run import FakeRun, make_store

ROUNDS, DEVICES = 12, 5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with a void round, late updates and telemetry."""
    run = FakeRun(tmp_path_factory.mktemp("runs") / "a", devices=DEVICES, rounds=ROUNDS)
    run.play(ROUNDS)
    run.finish()
    return run.folder


@pytest.fixture
def reader(run: Path) -> Iterator[RunReader]:
    with RunReader(run) as reader:
        yield reader


def query(round_id: int, device: str, **cells: object) -> LossQueryRow:
    unknown = {f.name: None for f in fields(LossQueryRow)}
    known = {"round": round_id, "device": device, "outcome": "late", "reason": "", "bytes_down": 7}
    return LossQueryRow(**(unknown | known | cells))  # type: ignore[arg-type]


def with_rows(folder: Path, *rows: LossQueryRow | TelemetryRow | FleetStatsRow) -> Store:
    store = make_store(folder)
    for row in rows:
        store.add(row)
    store.flush()
    return store


def test_a_table_of_every_record_is_read_with_all_its_columns(reader: RunReader) -> None:
    assert {*TABLES} == {record.TABLE for record in RECORDS} - {"checkpoint"}
    for name in TABLES:
        table = read_table(reader, name)
        assert table.columns == tuple(line.column for line in dictionary([name]))
        assert len(table) == table.arrow().num_rows == len(list(table.rows()))


def test_columns_are_those_of_the_records_in_order_of_writing(reader: RunReader) -> None:
    table = read_table(reader, "exchange")
    records = sorted(reader.exchanges(), key=lambda x: (x.round, x.dispatched_at_s))
    assert len(table) == len(records) > 30
    by_key = {(row["round"], row["device"]): row for row in table.rows()}
    for record in records:
        row = by_key[record.round, record.device]
        assert row == {f.name: getattr(record, f.name) for f in fields(record)}
    assert table.column("round").tolist() == sorted(table.column("round").tolist())


def test_types_of_arrays_depend_on_the_column_and_not_on_the_rows(tmp_path: Path) -> None:
    rows = query(1, "a", was_cold=True, loss=1.5), query(1, "b")
    for folder, chosen in (("some", rows), ("none", ())):
        with_rows(tmp_path / folder, *chosen).close()
        with RunReader(tmp_path / folder) as reader:
            table = read_table(reader, "loss_query")
        kinds = {name: table.column(name).dtype for name in table.columns}
        assert kinds["round"] == np.int64
        assert kinds["device"] is np.dtype(object)
        assert kinds["was_cold"] == kinds["loss"] == np.float64
        assert table.arrow().schema.field("was_cold").type == pa.bool_()
        assert len(table) == len(chosen)


def test_unknown_cells_are_nan_none_and_null(tmp_path: Path) -> None:
    with_rows(tmp_path / "r", query(1, "a", was_cold=True, loss=inf), query(1, "b")).close()
    with RunReader(tmp_path / "r") as reader:
        table = read_table(reader, "loss_query")
    cold, loss = table.column("was_cold"), table.column("loss")
    assert (cold[0], loss[0]) == (1.0, inf)
    assert isnan(cold[1])
    assert isnan(loss[1])
    assert [row["was_cold"] for row in table.rows()] == [True, None]
    assert table.arrow().column("was_cold").to_pylist() == [True, None]
    assert table.pandas()["was_cold"].tolist() == [True, pd.NA]
    assert table.polars()["loss"].to_list() == [inf, None]


def test_a_number_that_is_not_one_is_null(tmp_path: Path) -> None:
    row = FleetStatsRow(
        round=1,
        devices=2,
        selected=0,
        min_selection_rate=nan,
        min_aggregation_rate=0.5,
        jain=None,
        slack=0.0,
    )
    with_rows(tmp_path / "r", row).close()
    with RunReader(tmp_path / "r") as reader:
        table = read_table(reader, "fleet_stats")
    assert isnan(table.column("min_selection_rate")[0])
    assert table.arrow().column("min_selection_rate").null_count == 1
    assert table.polars()["min_selection_rate"].to_list() == [None]


def test_an_empty_text_is_not_an_unknown_one(tmp_path: Path) -> None:
    cells = {f.name: None for f in fields(TelemetryRow)} | {
        "at_s": 0.0,
        "phase": "idle",
        "is_available": True,
        "mu_cores": 1.0,
    }
    rows = [
        TelemetryRow(**(cells | {"device": "a", "throttled": text}))  # type: ignore[arg-type]
        for text in ("", None, 'hot, "slow"')
    ]
    with_rows(tmp_path / "r", *rows).close()
    with RunReader(tmp_path / "r") as reader:
        table = read_table(reader, "telemetry")
    assert table.column("throttled").tolist() == ["", None, 'hot, "slow"']
    assert table.arrow().column("throttled").to_pylist() == ["", None, 'hot, "slow"']
    assert table.polars()["throttled"].to_list() == ["", None, 'hot, "slow"']


def test_contexts_of_the_fleet_are_bytes(tmp_path: Path) -> None:
    contexts = np.arange(8.0).reshape(2, 4)
    store = make_store(tmp_path / "r")
    store.add(FleetContextRow(round=1, context=contexts.tobytes(), expected_tau_s=None))
    store.flush()
    with RunReader(tmp_path / "r") as reader:
        table = read_table(reader, "fleet_context")
    store.close()
    found = np.frombuffer(table.column("context")[0], "<f8").reshape(-1, 4)
    np.testing.assert_array_equal(found, contexts)
    assert table.arrow().column("expected_tau_s").to_pylist() == [None]


def test_frames_agree_with_each_other(reader: RunReader) -> None:
    for name in ("selection", "exchange", "round", "event"):
        table = read_table(reader, name)
        rows = list(table.rows())
        assert table.arrow().to_pylist() == rows
        assert table.polars().to_dicts() == rows
        frame = table.pandas()
        assert list(frame.columns) == list(table.columns)
        assert len(frame) == len(rows)
    staleness = read_table(reader, "exchange").pandas()["staleness"]
    assert str(staleness.dtype) == "Int64"


def test_arrow_fields_carry_unit_and_meaning(reader: RunReader) -> None:
    schema = read_table(reader, "exchange").arrow().schema
    assert schema.field("tau_s").metadata == {
        b"unit": b"s",
        b"meaning": b"Model exchange time: tau_wall_s - queued_s; None unless an update arrived.",
    }
    assert not schema.field("round").nullable
    assert schema.field("tau_s").nullable


def test_a_part_of_a_table(reader: RunReader) -> None:
    late = read_table(reader, "selection", since_round=ROUNDS - 2, columns=["queue", "round"])
    assert late.columns == ("queue", "round")
    assert sorted({*late.column("round").tolist()}) == [ROUNDS - 1, ROUNDS]
    assert len(late) == 2 * DEVICES


def test_batches_are_the_table_in_parts(reader: RunReader) -> None:
    whole = read_table(reader, "selection")
    parts = list(read_batches(reader, "selection", size=7))
    assert {len(part) for part in parts[:-1]} == {7}
    assert [row for part in parts for row in part.rows()] == list(whole.rows())


def test_a_live_run_gives_one_state_while_it_goes_on(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "r", devices=DEVICES, rounds=ROUNDS)
    run.play(1)
    with RunReader(run.folder) as reader:
        parts = read_batches(reader, "selection", size=2)
        first = next(parts)
        run.play(1)
        rest = [row["round"] for part in parts for row in part.rows()]
        assert [row["round"] for row in first.rows()] + rest == [1] * DEVICES
        assert len(read_table(reader, "selection")) == 2 * DEVICES
    run.finish()


def test_bad_names_are_refused_in_one_line(reader: RunReader) -> None:
    with pytest.raises(TableError, match=r"^table: must be one of run, .*, got 'checkpoint'$"):
        read_table(reader, "checkpoint")
    with pytest.raises(TableError, match=r"^round: must have a column 'tau'; it has: round, att"):
        read_table(reader, "round", columns=["tau"])
    with pytest.raises(TableError, match=r"^device: must have a round in each row"):
        read_table(reader, "device", since_round=1)
    with pytest.raises(TableError, match=r"^event: must have a round in each row"):
        read_table(reader, "event", since_round=1)
    with pytest.raises(TableError, match=r"^round: must have a column 'tau'"):
        read_table(reader, "round").column("tau")
    with pytest.raises(TableError, match="at least one column"):
        read_table(reader, "round", columns=[])


def test_a_missing_package_is_named_with_its_installation() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fairbed\[analysis\]'") as caught:
        needed("no_such_module")
    assert caught.value.name == "no_such_module"


def test_the_dictionary_explains_every_column() -> None:
    lines = dictionary()
    assert {line.table for line in lines} == {*TABLES}
    assert all(line.meaning for line in lines)
    units = {(line.table, line.column): line.unit for line in lines}
    assert units["exchange", "tau_s"] == "s"
    assert units["exchange", "bytes_up"] == units["telemetry", "rss_bytes"] == "byte"
    assert units["exchange", "train_j"] == "J"
    assert units["telemetry", "temperature_celsius"] == "°C"
    assert units["round", "selected"] == ""
    assert {line.type for line in lines} == {"str", "int", "float", "bool", "bytes"}


def test_every_line_of_the_dictionary_can_be_read_alone() -> None:
    """It names what an empty cell means, and refers to no other line by its place."""
    lines = dictionary()
    silent = [line[:2] for line in lines if line.is_optional and "None" not in line.meaning]
    assert silent == []
    place = re.compile(
        r"\b(the \w+ below|likewise|like the|the next[.;]|of them|that time)\b", re.I
    )
    assert [line[:2] for line in lines if place.search(line.meaning)] == []


def test_a_meaning_is_the_docstring_below_its_field() -> None:
    class Section(msgspec.Struct):
        """A section."""

        rate_bps: float = 1.0
        """Rate
        of the link."""
        silent: int = 0

    assert meanings(Section) == {"rate_bps": "Rate of the link."}


def test_a_table_is_made_of_arrays_too() -> None:
    table = Table("round", {"round": np.arange(3), "tau_max_s": np.array([1.0, nan, 2.0])})
    assert [row["tau_max_s"] for row in table.rows()] == [1.0, None, 2.0]
    assert isinstance(table.polars(), pl.DataFrame)
