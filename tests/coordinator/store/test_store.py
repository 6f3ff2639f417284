"""The store: closed rounds are never lost, and a bad disk is one line."""

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest

from fairbed.coordinator.store import RunInUseError, RunReader, Store, StoreError, StoreVersionError
from fairbed.coordinator.store import connection as connection_module
from fairbed.coordinator.store import store as store_module
from fairbed.coordinator.store import writer as writer_module
from fairbed.coordinator.store.tables import ConditionRow, EventRow, TelemetryRow
from tests.coordinator.store.fake_run import FakeRun, fake_run, make_store

REPOSITORY = Path(__file__).parents[3]


def until(is_true: Callable[[], bool]) -> None:
    """Wait for another thread; pytest's timeout is the limit."""
    while not is_true():
        time.sleep(0.001)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run-1"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    store = make_store(folder)
    yield store
    store.close()


def event(text: str = "hello", at_s: float = 1.0) -> EventRow:
    return EventRow(
        at_s=at_s, wall="", level="info", kind="note", round=None, device=None, text=text
    )


def telemetry(at_s: float) -> TelemetryRow:
    return TelemetryRow(
        at_s=at_s,
        device="a",
        phase="idle",
        is_available=True,
        mu_cores=1.0,
        downlink_bps=None,
        uplink_bps=None,
        cpu_ratio=None,
        rss_bytes=None,
        temperature_celsius=None,
        free_cores=None,
        clock_ratio=None,
        throttled=None,
    )


def test_a_new_run_is_described_by_its_row(store: Store, folder: Path) -> None:
    with RunReader(folder) as reader:
        info = reader.run()
    assert (info.run_id, info.row.name, info.row.seed) == ("run-1", "digits-12", 7)
    assert (info.status, info.is_alive, info.rounds_completed) == ("created", True, 0)
    assert info.plan.rounds == 30
    assert info.plan.beta == 0.15


def test_rows_are_readable_once_flushed_in_the_order_added(store: Store, folder: Path) -> None:
    for i in range(100):
        store.add(event(str(i)))
    store.flush()
    with RunReader(folder) as reader:
        assert [row.text for _, row in reader.events()] == [str(i) for i in range(100)]


def test_rows_are_committed_without_a_flush(store: Store, folder: Path) -> None:
    with RunReader(folder) as reader:
        store.add(event())
        until(lambda: reader.counts().events == 1)


def test_a_second_coordinator_is_refused_while_the_first_lives(store: Store, folder: Path) -> None:
    with pytest.raises(RunInUseError, match="must have one coordinator"):
        Store.reopen(folder)


def test_a_run_that_another_process_finished_is_not_opened_again(folder: Path) -> None:
    fake_run(folder, rounds=2)
    with pytest.raises(StoreError, match="this run is done, nothing is left to resume; see it"):
        Store.reopen(folder)
    with RunReader(folder) as reader:
        assert reader.run().status == "done"
        assert reader.run().row.resumes == 0


def test_a_folder_that_holds_a_run_is_not_taken_over(folder: Path) -> None:
    make_store(folder).close()
    with pytest.raises(StoreError, match="must not hold a run yet"):
        make_store(folder)
    Store.reopen(folder).close()


def test_a_finished_run_is_one_file_with_its_status(folder: Path) -> None:
    fake_run(folder, rounds=2)
    assert not list(folder.glob("run.db-*"))
    with RunReader(folder) as reader:
        info = reader.run()
    assert (info.status, info.is_alive, info.rounds_completed) == ("done", False, 2)


def test_a_closed_round_is_resumed_from(folder: Path) -> None:
    run = FakeRun(folder)
    run.play(3)
    run.store.close()
    store = Store.reopen(folder)
    checkpoint = store.last_checkpoint()
    store.close()
    assert checkpoint is not None
    assert (checkpoint.round, checkpoint.state) == (3, b"after 3")
    np.testing.assert_array_equal(checkpoint.model, np.full(10, 3, np.float32))
    assert checkpoint.model.dtype == np.float32


def test_the_raw_part_of_a_model_is_stored_and_checked_with_it(folder: Path) -> None:
    run = FakeRun(folder)
    for raw in (b"", b"trees", b"new trees"):
        run.raw = raw
        run.play(1)
    run.store.close()
    with RunReader(folder) as reader:
        assert reader.final_raw() == b"new trees"
    newest = folder / "models/round-00003.safetensors"
    newest.write_bytes(newest.read_bytes().replace(b"new trees", b"old trees"))
    store = Store.reopen(folder)
    checkpoint = store.last_checkpoint()
    store.close()
    assert checkpoint is not None
    assert (checkpoint.round, checkpoint.raw) == (2, b"trees")


def test_the_run_clock_continues_where_it_stopped(folder: Path) -> None:
    store = make_store(folder)
    assert store.resume_offset_s() == 0.0
    store.add(event(at_s=41.5))
    store.close()
    store = Store.reopen(folder)
    assert store.resume_offset_s() == 41.5
    store.close()


def test_reopening_voids_the_open_round_and_nothing_else(folder: Path) -> None:
    run = FakeRun(folder)
    run.play(2)
    row = run.begin_round()[0]
    run.store.add(run.exchange(row))
    run.store.close()
    with RunReader(folder) as reader:
        closed = [e for e in reader.exchanges() if e.round <= 2]
        assert len(reader.exchanges()) == len(closed) + 1
    Store.reopen(folder).close()
    with RunReader(folder) as reader:
        assert reader.exchanges() == closed
        assert len(reader.metrics()) == 2
        assert reader.run().row.resumes == 1
        last = reader.events()[-1][1]
        assert (last.kind, last.text[:34]) == ("voided", "1 rows of rounds after 2 are void:")


def test_a_damaged_newest_model_falls_back_one_round(folder: Path) -> None:
    run = FakeRun(folder)
    run.play(3)
    run.store.close()
    newest = folder / "models/round-00003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\xff")
    store = Store.reopen(folder)
    checkpoint = store.last_checkpoint()
    store.close()
    assert checkpoint is not None
    assert checkpoint.round == 2
    with RunReader(folder) as reader:
        assert [row.round for row in reader.rounds()] == [1, 2]


def test_a_run_without_an_intact_model_names_the_file(folder: Path) -> None:
    run = FakeRun(folder)
    run.play(1)
    run.store.close()
    (folder / "models/round-00001.safetensors").unlink()
    with pytest.raises(StoreError, match=r"round-00001.safetensors: must be a readable model"):
        Store.reopen(folder)


def test_the_last_models_and_every_tenth_are_kept(folder: Path) -> None:
    fake_run(folder, rounds=24)
    kept = sorted(int(path.stem.split("-")[1]) for path in folder.glob("models/*"))
    assert kept == [10, 20, 22, 23, 24]


def test_a_large_state_is_a_file_beside_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_STATE_BYTES", 4)
    fake_run(folder, rounds=12, status="stopped")
    states = sorted(path.name for path in folder.glob("models/*.state"))
    assert states == ["round-00010.state", "round-00011.state", "round-00012.state"]
    (folder / "models/round-00011.safetensors").unlink()
    newest = folder / "models/round-00012.state"
    assert newest.read_bytes() == b"after 12"
    newest.write_bytes(b"after 13")
    store = Store.reopen(folder)
    checkpoint = store.last_checkpoint()
    store.close()
    assert checkpoint is not None
    assert (checkpoint.round, checkpoint.state) == (10, b"after 10")


def test_a_run_without_an_intact_state_names_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_STATE_BYTES", 4)
    fake_run(folder, rounds=1, status="stopped")
    (folder / "models/round-00001.state").unlink()
    with pytest.raises(StoreError, match=r"round-00001.state: must be a readable state file"):
        Store.reopen(folder)


CRASHING_COORDINATOR = """
import sys
from pathlib import Path
from tests.coordinator.store.fake_run import FakeRun

run = FakeRun(Path(sys.argv[1]))
run.play(4)
run.store.add(run.exchange(run.begin_round()[0]))
print("closed", flush=True)
sys.stdin.read()
"""


def test_a_killed_coordinator_loses_at_most_the_open_round(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CRASHING_COORDINATOR, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"closed\n"
        with RunReader(folder) as reader:
            assert reader.run().status == "running"
            process.send_signal(signal.SIGKILL)
            process.wait(20)
            assert reader.run().status == "interrupted"
    store = Store.reopen(folder)
    checkpoint = store.last_checkpoint()
    store.close()
    assert checkpoint is not None
    assert checkpoint.round == 4
    with RunReader(folder) as reader:
        assert [row.round for row in reader.rounds()] == [1, 2, 3, 4]
        assert {row.round for row in reader.exchanges()} == {1, 2, 3, 4}


def rounds_of_the_file_alone(folder: Path) -> int:
    """Return the rounds in `run.db`, copied without the files beside it."""
    copy = folder.parent / "copy"
    copy.mkdir(exist_ok=True)
    for name in ("run.db", "experiment.toml"):
        shutil.copy(folder / name, copy / name)
    with RunReader(copy) as reader:
        return reader.run().rounds_completed


WATCHER = """
import sys
from pathlib import Path
from fairbed.coordinator.store import RunReader

with RunReader(Path(sys.argv[1])) as reader:
    print(reader.run().rounds_completed, flush=True)
    sys.stdin.read()
    print(reader.run().rounds_completed, flush=True)
"""


def test_the_database_of_a_watched_run_is_whole_at_its_end(folder: Path) -> None:
    run = FakeRun(folder)
    run.play(4)
    with subprocess.Popen(
        [sys.executable, "-c", WATCHER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    ) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == b"4\n"
        run.play(1)
        run.finish()
        assert rounds_of_the_file_alone(folder) == 5
        watcher.stdin.close()
        assert watcher.stdout.readline() == b"5\n"
    assert [path.name for path in folder.glob("run.db*")] == ["run.db"]


def test_the_last_reader_of_a_killed_run_leaves_one_file(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CRASHING_COORDINATOR, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"closed\n"
        with RunReader(folder) as live:
            live.run()
        assert (folder / "run.db-wal").stat().st_size > 0
        process.kill()
        process.wait(20)
    with RunReader(folder) as first:
        with RunReader(folder) as second:
            assert second.run().status == first.run().status == "interrupted"
        assert rounds_of_the_file_alone(folder) == 4
    assert [path.name for path in folder.glob("run.db*")] == ["run.db"]


def test_a_reader_in_a_snapshot_at_the_end_of_a_run_completes_the_file_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "END_WAIT_S", 0.01)
    run = FakeRun(folder)
    run.play(2)
    with RunReader(folder) as reader:
        with reader.snapshot():
            reader.run()
            run.play(1)
            run.finish()
        assert reader.run().rounds_completed == 3
    assert rounds_of_the_file_alone(folder) == 3
    assert [path.name for path in folder.glob("run.db*")] == ["run.db"]


def test_a_reader_without_write_permission_leaves_the_files_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
        raise StoreError(f"{path}: read only")

    monkeypatch.setattr(connection_module, "open_writable", refuse)
    run = FakeRun(folder)
    run.play(1)
    run.store.flush()
    run.store._lock.release()  # as after a kill
    with RunReader(folder) as reader:
        assert reader.run().rounds_completed == 1
    assert (folder / "run.db-wal").stat().st_size > 0
    run.store.close()


def test_a_full_disk_is_one_line_and_never_a_hang(folder: Path) -> None:
    run = FakeRun(folder)
    run.play(1)

    def shrink(connection: sqlite3.Connection) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    run.store._writer.run(shrink, 5.0)
    with pytest.raises(StoreError, match="disk is full'; free space and resume") as caught:
        run.play(100)
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreError, match="disk is full"):
        run.store.add(event())
    run.store.close()
    reopened = Store.reopen(folder)
    assert reopened.last_checkpoint() is not None
    reopened.close()


def test_a_lost_row_is_an_error_when_closing(folder: Path) -> None:
    store = make_store(folder)
    store._writer.run(lambda c: c.execute("DROP TABLE event"), 5.0)
    store.add(event())
    with pytest.raises(StoreError, match="no such table: event"):
        store.close()
    store.close()


def test_the_memory_of_a_writer_does_not_grow_with_its_database(tmp_path: Path) -> None:
    """A week of replayed rounds would take 24 MB more at its end: 3.8 kB a round."""
    with closing(connection_module.open_writable(tmp_path / "run.db")) as connection:
        connection.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, text TEXT)")
        rss_bytes = []
        for start in range(0, 30_000, 1_000):
            with connection_module.transaction(connection):
                rows = [(number, "x" * 1_000) for number in range(start, start + 1_000)]
                connection.executemany("INSERT INTO row VALUES (?, ?)", rows)
            rss_bytes.append(psutil.Process().memory_info().rss)
    assert rss_bytes[-1] - rss_bytes[4] < 8e6


def test_a_locked_database_is_one_line(folder: Path) -> None:
    make_store(folder).close()
    store = Store.reopen(folder, busy_timeout_s=0.05)
    with closing(sqlite3.connect(folder / "run.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.add(event())
        with pytest.raises(StoreError, match="locked'; close the program that holds it"):
            store.flush()
    store.close()


def test_adding_after_close_is_refused_and_closing_twice_is_not(folder: Path) -> None:
    store = make_store(folder)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="write after close"):
        store.add(event())


def test_a_slow_disk_drops_the_oldest_telemetry_and_counts_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_DROPPABLE", 10)
    make_store(folder).close()
    store = Store.reopen(folder, busy_timeout_s=20.0)
    with closing(sqlite3.connect(folder / "run.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.add(event("before"))
        until(lambda: store._writer.backlog == 0)
        for i in range(25):
            store.add(telemetry(float(i)))
            store.add(event(str(i)))
        other.execute("ROLLBACK")
        store.close()
    with RunReader(folder) as reader:
        assert reader.run().row.telemetry_dropped == 15
        assert reader.counts().telemetry == 10
        assert [row.at_s for _, row in reader.telemetry_latest()] == [24.0]
        assert [row.text for _, row in reader.events()][1:] == [str(i) for i in range(25)]


def test_other_rows_are_never_dropped_but_refused_when_the_disk_is_dead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_ROWS", 3)
    make_store(folder).close()
    store = Store.reopen(folder, busy_timeout_s=20.0)
    with closing(sqlite3.connect(folder / "run.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.add(event("taken"))
        until(lambda: store._writer.backlog == 0)
        for i in range(3):
            store.add(event(str(i)))
        with pytest.raises(StoreError, match="at most 3 rows may wait for the disk"):
            store.add(event("one too many"))
        other.execute("ROLLBACK")
    store.close()
    with RunReader(folder) as reader:
        assert [row.text for _, row in reader.events()] == ["taken", "0", "1", "2"]


def condition(at_s: float, speed_ratio: float | None = 0.5) -> ConditionRow:
    return ConditionRow(
        at_s=at_s,
        duration_s=1.0,
        device="a",
        speed_ratio=speed_ratio,
        clock_ratio=1.0,
        temperature_celsius=None,
        down_bps=1e6,
        up_bps=None,
        delay_s=0.02,
        jitter_s=0.0,
        loss_ratio=0.0,
        outage_s=0.25,
        unwilling_s=0.0,
    )


def test_old_rows_of_a_stream_are_deleted(store: Store, folder: Path) -> None:
    for i in range(10):
        store.add(telemetry(float(i)))
        store.add(condition(float(i)))
    store.flush()
    for stream in ("telemetry", "condition"):
        store._delete_old_rows(stream, 24 * 3600.0 + 5.0)
    store.flush()
    with RunReader(folder) as reader:
        assert reader.counts().telemetry == 5
        assert reader.conditions("a") == [condition(float(i)) for i in range(5, 10)]


def test_conditions_of_a_device_are_read_in_order(store: Store, folder: Path) -> None:
    rows = [condition(1.0), condition(2.0, speed_ratio=None)]
    for row in rows:
        store.add(row)
    store.flush()
    with RunReader(folder) as reader:
        assert reader.conditions("a") == rows
        assert reader.conditions("b") == []


@pytest.mark.parametrize(
    ("pragma", "advice"),
    [("user_version = 99", "update Fairbed"), ("application_id = 0", "an older Fairbed wrote it")],
)
def test_a_store_of_another_version_is_one_line(pragma: str, advice: str, folder: Path) -> None:
    make_store(folder).close()
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.execute(f"PRAGMA {pragma}")
    for opened in (RunReader, Store.reopen):
        with pytest.raises(StoreVersionError, match=advice):
            opened(folder)


def test_a_damaged_file_is_one_line(folder: Path) -> None:
    make_store(folder).close()
    (folder / "run.db").write_bytes(b"not a database at all" * 100)
    for opened in (RunReader, Store.reopen):
        with pytest.raises(StoreError, match="damaged"):
            opened(folder)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="must be a writable folder"):
        make_store(tmp_path / "file" / "run")
