"""The reader: short and incremental, and it never blocks the writer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunNotFoundError, RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from tests.coordinator.store.fake_run import FakeRun, fake_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    run = FakeRun(tmp_path / "run")
    run.play(3)
    run.store.flush()
    yield run
    run.store.close()


@pytest.fixture
def reader(run: FakeRun) -> Iterator[RunReader]:
    with RunReader(run.folder) as reader:
        yield reader


def test_since_is_exclusive(reader: RunReader) -> None:
    assert [row.round for row in reader.rounds(1)] == [2, 3]
    assert {row.round for row in reader.exchanges(2)} == {3}
    assert [row.round for row in reader.metrics(3)] == []
    assert sum(row.selected for row in reader.selection_counts(2)) == 4


def test_the_newest_events_come_oldest_first(reader: RunReader) -> None:
    everything = reader.events()
    ids = [number for number, _ in everything]
    assert ids == sorted(ids)
    assert reader.events(limit=4) == everything[-4:]
    assert reader.events(since_id=ids[-3]) == everything[-2:]


def test_the_latest_context_of_each_device_is_read(run: FakeRun, reader: RunReader) -> None:
    latest = reader.telemetry_latest()
    assert sorted(row.device for _, row in latest) == sorted(run.names)
    newest = max(number for number, _ in latest)
    assert reader.telemetry_latest(newest) == []
    run.telemetry(4, "training")
    run.store.flush()
    assert [(row.device, row.phase) for _, row in reader.telemetry_latest(newest)] == [
        (run.names[4], "training")
    ]


def test_exchanges_of_a_device_are_its_newest(run: FakeRun, reader: RunReader) -> None:
    name = reader.exchanges(2)[0].device
    rows = reader.exchanges_of(name, limit=1)
    assert [(row.round, row.device) for row in rows] == [(3, name)]


def test_measured_times_are_those_of_the_newest_exchanges(run: FakeRun, reader: RunReader) -> None:
    """With a round, only of exchanges that had ended when it closed."""
    expected: dict[str, float] = {}
    for round_id in (1, 2, 3):
        rows = reader.exchanges(round_id - 1, round_id)
        expected |= {row.device: row.tau_s for row in rows if row.tau_s is not None}
        assert reader.measured_times(round_id) == expected
    assert reader.measured_times() == expected
    late = replace(run.exchange(0), round=2, attempt=9, dispatched_at_s=run.now_s, tau_s=77.0)
    run.store.add(late)
    run.store.flush()
    assert reader.measured_times()[late.device] == 77.0
    assert 77.0 not in reader.measured_times(2).values()


def test_totals_of_parts_add_up(run: FakeRun, reader: RunReader) -> None:
    """One exchange of round 1 is merged in round 3."""
    late = replace(run.exchange(0), round=1, attempt=9, energy_j=7.0, aggregated_round=3)
    run.store.add(late)
    run.store.flush()
    assert reader.quality(0, 2) + reader.quality(2, 3) == reader.quality()
    assert reader.quality() - reader.quality(2) == reader.quality(0, 2)
    assert reader.quality(2, 3).done == reader.quality(1, 2).done + 1
    assert reader.energy_j(0, 2) == {}
    assert reader.energy_j(2, 3) == {late.device: 7.0}
    first, rest = reader.selection_counts(0, 1), reader.selection_counts(1)
    assert [x.selected + y.selected for x, y in zip(first, rest, strict=True)] == [
        x.selected for x in reader.selection_counts()
    ]


def test_rows_until_an_instant(run: FakeRun, reader: RunReader) -> None:
    closed_s = [row.closed_at_s for row in reader.rounds()]
    everything = reader.events(limit=10_000)
    for until_s in (-1.0, 0.0, *closed_s, 1e9):
        expected = [(number, row) for number, row in everything if row.at_s <= until_s]
        assert reader.events(until_s=until_s, limit=10_000) == expected
        assert reader.events(until_s=until_s, limit=2) == expected[-2:]
        contexts = reader.telemetry_at(until_s)
        assert {row.device for _, row in contexts} == set(run.names if until_s >= 0.0 else [])
        assert all(row.at_s <= until_s for _, row in contexts)
    assert reader.telemetry_at(1e9) == reader.telemetry_latest()


def test_only_the_requested_columns_are_read(reader: RunReader) -> None:
    rows = reader.columns(ExchangeRow, ("device", "tau_s"), "WHERE round = ?", (1,))
    assert rows == [(row.device, row.tau_s) for row in reader.exchanges() if row.round == 1]


def test_a_snapshot_reads_one_state_and_does_not_block_the_writer(
    run: FakeRun, reader: RunReader
) -> None:
    with reader.snapshot():
        before = reader.counts()
        run.play(1)
        run.store.flush()
        assert reader.counts() == before
    assert reader.counts().rounds == before.rounds + 1


def test_the_data_version_changes_with_each_commit(run: FakeRun, reader: RunReader) -> None:
    before = reader.data_version()
    assert reader.data_version() == before
    run.event("note", "something new")
    run.store.flush()
    assert reader.data_version() != before


def test_a_finished_run_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", rounds=2)
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with RunReader(folder) as reader:
            assert reader.run().status == "done"
            assert len(reader.rounds()) == 2
    finally:
        folder.chmod(0o755)
        (folder / "models").chmod(0o755)


def test_a_folder_without_a_run_is_one_line(tmp_path: Path) -> None:
    rule = r"must be the folder of a run, got one without run\.db; `fairbed runs` lists the runs"
    with pytest.raises(RunNotFoundError, match=rule):
        RunReader(tmp_path)


@pytest.mark.parametrize("text", ["", "rounds = 'many'", "not toml ["])
def test_a_damaged_experiment_file_does_not_prevent_reading(run: FakeRun, text: str) -> None:
    (run.folder / "experiment.toml").write_text(text)
    with RunReader(run.folder) as reader:
        assert reader.plan.rounds is None
        assert reader.plan.beta is None
        assert reader.run().rounds_completed == 3
