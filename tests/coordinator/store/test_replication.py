"""A replica shows what the run shows, after every page, and stays bounded."""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader, Store, StoreError, replication
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.reader import SelectionCounts
from fairbed.coordinator.store.replication import (
    Cursor,
    Page,
    Replica,
    RowSource,
    decode_cursor,
    decode_page,
    encode_cursor,
    encode_page,
)
from fairbed.coordinator.store.schema import table_of
from fairbed.coordinator.store.tables import (
    ClientMetricRow,
    DeviceMetricRow,
    ExchangeRow,
    MetricRow,
    RoundRow,
    SelectionRow,
)
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.view import RunView
from tests.coordinator.store.fake_run import FakeRun


class Pair:
    """A run and its replica."""

    def __init__(self, tmp_path: Path, **changes: Any) -> None:
        self.run = FakeRun(tmp_path / "run", **changes)
        self.run.store.flush()
        self.reader = RunReader(self.run.folder)
        self.source = RowSource(self.reader)
        self.replica = Replica(_made(tmp_path / "replica"))
        self.cursor = Cursor()

    def pull(self) -> list[Page]:
        """Write all pages of the run into the replica, over the bytes that travel."""
        self.run.store.flush()
        pages = []
        while True:
            page = decode_page(encode_page(self.source.page(self.cursor)))
            pages.append(page)
            self.replica.apply(page)
            self.cursor = decode_cursor(encode_cursor(page.cursor))
            if not page.has_more:
                return pages

    def close(self) -> None:
        self.reader.close()
        self.replica.close()
        self.run.store.close()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, watts=3.0, malicious={1: "label-flip"})
    yield made
    made.close()


def view_of(folder: Path) -> RunView:
    """Return what a control room shows, without the folder and what a replica hides."""
    with RunReader(folder) as reader:
        view = ViewReader(reader).refresh(RunView())
    assert view is not None
    assert view.info is not None
    return replace(
        view,
        info=replace(view.info, folder=Path(), is_alive=True, is_replica=False, oldest_round=1),
    )


def same_view(pair: Pair) -> None:
    theirs, ours = view_of(pair.run.folder), view_of(pair.replica.folder)
    assert ours == theirs


def counts_of(folder: Path) -> list[SelectionCounts]:
    with RunReader(folder) as reader:
        return sorted(reader.selection_counts(), key=lambda row: row.device)


def test_a_replica_shows_the_run_after_every_page(pair: Pair) -> None:
    pair.pull()
    same_view(pair)
    for _ in range(12):
        pair.run.begin_round()
        pair.pull()
        same_view(pair)
        pair.run.close_round()
        pair.pull()
        same_view(pair)


def test_an_open_view_follows_a_replica(pair: Pair) -> None:
    pair.run.play(3)
    pair.pull()
    with RunReader(pair.replica.folder) as reader:
        followed = ViewReader(reader)
        view = followed.refresh(RunView())
        assert view is not None
        for _ in range(3):
            pair.run.play(1)
            pair.pull()
            view = followed.refresh(view) or view
    assert view.info is not None
    assert view.info.rounds_completed == 6
    for mine, other in zip(view.devices, view_of(pair.run.folder).devices, strict=True):
        assert (mine.selected, mine.rounds) == (other.selected, other.rounds)
        assert mine.energy_j == pytest.approx(other.energy_j)


def test_totals_stand_for_the_rounds_outside_the_window(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "WINDOW_BYTES", 5 * replication.size_of_round(4, 12))
    monkeypatch.setattr(replication, "PAGE_BYTES", 3 * replication.size_of_round(4, 12))
    pair.run.play(30)
    pages = pair.pull()
    assert [page.has_more for page in pages] == [True, True, False]
    with RunReader(pair.replica.folder) as reader:
        assert {row[0] for row in reader.columns(SelectionRow, ("round",))} == set(range(26, 31))
        assert len(reader.rounds()) == len(reader.metrics()) == 30
        assert reader.run().oldest_round == 26
    compare(pair)


def test_the_past_of_a_replica_begins_with_the_first_round_that_has_all_rows(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "WINDOW_BYTES", 5 * replication.size_of_round(4, 12))
    pair.run.play(12)
    pair.pull()
    with RunReader(pair.run.folder) as theirs, RunReader(pair.replica.folder) as ours:
        found, expected = ViewReader(ours), ViewReader(theirs)
        now, then = found.refresh(RunView()), expected.refresh(RunView())
        assert now is not None
        assert then is not None
        for round_id in (8, 12, 9):
            mine, other = found.at(round_id, now), expected.at(round_id, then)
            assert [(x.selected, x.rounds, x.queue) for x in mine.devices] == [
                (x.selected, x.rounds, x.queue) for x in other.devices
            ]
            assert mine.quality == other.quality
        with pytest.raises(ValueError, match="from 8 to 12"):
            found.at(7, now)


def compare(pair: Pair) -> None:
    """Compare what a control room shows in totals of all rounds."""
    theirs, ours = view_of(pair.run.folder), view_of(pair.replica.folder)
    assert counts_of(pair.replica.folder) == counts_of(pair.run.folder)
    assert ours.info == theirs.info
    assert ours.quality == theirs.quality
    assert ours.device_s == pytest.approx(theirs.device_s)
    assert ours.energy_j == pytest.approx(theirs.energy_j)
    assert (ours.metrics, ours.queues, ours.stragglers) == (
        theirs.metrics,
        theirs.queues,
        theirs.stragglers,
    )
    for mine, other in zip(ours.devices, theirs.devices, strict=True):
        changed = msgspec.structs.replace(mine, energy_j=other.energy_j)
        assert changed == other
        assert mine.energy_j == pytest.approx(other.energy_j)


def test_a_replica_that_grows_turns_its_oldest_rounds_into_totals(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_bytes = replication.size_of_round(4, 12)
    monkeypatch.setattr(replication, "WINDOW_BYTES", 4 * round_bytes)
    monkeypatch.setattr(replication, "MAX_DETAIL_BYTES", 8 * round_bytes)
    kept = set()
    for _ in range(10):
        pair.run.play(3)
        pair.pull()
        compare(pair)
        with RunReader(pair.replica.folder) as reader:
            kept.add(len(reader.columns(SelectionRow, ("round",))) // 12)
    assert max(kept) <= 12
    with RunReader(pair.run.folder) as theirs, RunReader(pair.replica.folder) as ours:
        assert theirs.totals(20) != []
        assert ours.device_s(0, 30) == pytest.approx(theirs.device_s(0, 30))


def test_an_update_that_arrives_later_replaces_its_row(pair: Pair) -> None:
    pair.run.play(4)
    pair.pull()
    pair.run.begin_round()
    late = replace(pair.run.exchange(0), round=3, device=pair.run.names[0], aggregated_round=5)
    pair.run.store.add(late)
    pair.run.close_round()
    pair.pull()
    with RunReader(pair.replica.folder) as reader:
        assert [
            row for row in reader.exchanges() if row.round == 3 and row.device == late.device
        ] == [late]


def test_a_resumed_run_begins_anew(pair: Pair) -> None:
    pair.run.play(3)
    pair.run.begin_round()
    pair.pull()
    pair.run.store.close()
    pair.run.store = Store.reopen(pair.run.folder)
    assert pair.pull()[0].is_start
    same_view(pair)


def test_a_changed_device_is_sent_again(pair: Pair) -> None:
    pair.pull()
    first = pair.reader.devices()[0]
    pair.run.store.add(replace(first, n_k=7))
    pair.pull()
    with RunReader(pair.replica.folder) as reader:
        assert reader.devices()[0].n_k == 7
    assert "device" not in tables_of(pair.source.page(pair.cursor))


def tables_of(page: Page) -> dict[str, Any]:
    return msgspec.msgpack.decode(page.tables)  # type: ignore[no-any-return]


def test_malicious_devices_checkpoints_and_models_stay_where_the_run_is(pair: Pair) -> None:
    pair.run.play(2)
    pair.pull()
    with RunReader(pair.run.folder) as theirs, RunReader(pair.replica.folder) as ours:
        assert theirs.malicious()
        assert ours.malicious() == {}
        assert {row.details for row in ours.truths()} == {"{}"}
        assert theirs.final_model() is not None
        assert ours.final_model() is None


def test_a_replica_is_alive_until_the_run_has_ended(pair: Pair) -> None:
    pair.run.play(1)
    pair.pull()
    with RunReader(pair.replica.folder) as reader:
        assert reader.run().status == "running"
        pair.run.finish()
        pair.replica.apply(pair.source.page(pair.cursor))
        assert reader.run().status == "done"
        assert not reader.is_alive()


def test_the_summary_of_a_finished_replica_is_that_of_the_run(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.run.play(8)
    pair.run.finish()
    pair.replica.apply(pair.source.page(pair.cursor))
    with RunReader(pair.run.folder) as theirs, RunReader(pair.replica.folder) as ours:
        assert summarise_run(ours) == summarise_run(theirs)
    pair.close()


def test_a_replica_has_what_clients_measure(pair: Pair) -> None:
    pair.run.measures = True
    first = ClientMetricRow(round=0, device="", phase="central", name="loss", value=2.0, n=0)
    pair.run.store.add(first)
    for _ in range(5):
        pair.run.play(1)
        pair.pull()
    with RunReader(pair.run.folder) as theirs, RunReader(pair.replica.folder) as ours:
        assert len(ours.client_metrics()) > 10
        assert ours.client_metrics()[0] == first
        assert ours.client_metrics() == theirs.client_metrics()
        assert summarise_run(ours).client_metrics == summarise_run(theirs).client_metrics


@pytest.mark.full
def test_a_snapshot_of_a_huge_run_is_bounded(tmp_path: Path) -> None:
    """1,000 devices, more rounds than a window has: random predictions and queues."""
    pair = Pair(tmp_path, devices=1_000)
    pair.run.play(1)
    pair.run.store.flush()
    with closing(sqlite3.connect(pair.run.folder / DATABASE)) as connection:
        for table in (RoundRow, MetricRow, SelectionRow, ExchangeRow, DeviceMetricRow):
            columns = [c.name for c in table_of(table).columns]
            cells = ", ".join(
                {"round": "k", "queue": "random() / 1e19", "tau_hat_s": "random() / 1e19"}.get(c, c)
                for c in columns
            )
            connection.execute(
                "WITH RECURSIVE numbers(k) AS (SELECT 2 UNION ALL SELECT k + 1 FROM numbers "
                f"WHERE k < 80) INSERT INTO {table.TABLE} ({', '.join(columns)}) "
                f"SELECT {cells} FROM {table.TABLE}, numbers WHERE round = 1"
            )
        connection.commit()
    sizes = []
    while True:
        page = pair.source.page(pair.cursor)
        sizes.append(len(encode_page(page)))
        pair.replica.apply(page)
        pair.cursor = page.cursor
        if not page.has_more:
            break
    with RunReader(pair.replica.folder) as reader:
        assert reader.run().rounds_completed == 80
        assert {row.rounds for row in reader.selection_counts()} == {80}
    assert max(sizes) < replication.PAGE_BYTES
    assert sum(sizes) < replication.WINDOW_BYTES
    pair.close()


def edited(page: Page, **tables: Any) -> Page:
    """Return a page with other rows."""
    changed = tables_of(page) | tables
    return msgspec.structs.replace(page, tables=msgspec.Raw(msgspec.msgpack.encode(changed)))


@pytest.mark.parametrize(
    "tables",
    [
        {"checkpoint": [[1, b"state", "", "model", "", 0.0]]},
        {"event": [[1, 0.0, "wall", "info", "done", None, None]]},
        {"event": [["1", 0.0, "wall", "info", "done", None, None, "text"]]},
        {"event": [[-1, 0.0, "wall", "info", "done", None, None, "text"]]},
        {"event": [[1, 0.0, "wall", "info", "done", 1 << 63, None, "text"]]},
        {"event": [[1, 0.0, "wall", "info", "done", None, None, "x" * 70_000]]},
        {"run": []},
    ],
    ids=["unknown table", "few cells", "type", "negative id", "huge", "long", "no run"],
)
def test_a_page_that_is_not_valid_changes_nothing(pair: Pair, tables: dict[str, Any]) -> None:
    pair.pull()
    pair.run.play(1)
    pair.run.store.flush()
    before = view_of(pair.replica.folder)
    with pytest.raises(StoreError, match="page: "):
        pair.replica.apply(edited(pair.source.page(pair.cursor), **tables))
    assert view_of(pair.replica.folder) == before


def test_texts_of_a_page_cannot_control_a_terminal(pair: Pair) -> None:
    event = [1, 0.0, "wall", "info", "done", None, None, "\x1b[2J\nclear"]
    pair.replica.apply(edited(pair.source.page(Cursor()), event=[event]))
    with RunReader(pair.replica.folder) as reader:
        assert [row.text for _, row in reader.events()] == ["?[2J clear"]


@pytest.mark.parametrize(
    "data", [b"", b"no zlib", zlib.compress(b"no page"), zlib.compress(bytes(70 << 20))]
)
def test_bytes_that_are_no_page_are_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="page: "):
        decode_page(data)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_cursor_or_are_refused(data: bytes) -> None:
    with suppress(StoreError):
        assert decode_cursor(encode_cursor(decode_cursor(data))) == decode_cursor(data)


def test_a_cursor_beyond_the_run_gives_no_rows_and_no_error(pair: Pair) -> None:
    pair.run.play(2)
    pair.pull()
    beyond = msgspec.structs.replace(pair.cursor, round=1 << 53, metric=1 << 53, event=1 << 53)
    page = pair.source.page(beyond)
    assert not page.has_more
    assert set(tables_of(page)) == {"run"}


def test_a_fleet_too_large_for_a_page_is_refused_in_one_line(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "MAX_DEVICES", 11)
    with pytest.raises(StoreError, match=r"at most 11 devices .* got 12; watch the run where"):
        pair.source.page(Cursor())
