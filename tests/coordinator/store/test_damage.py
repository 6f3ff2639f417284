"""A damaged store: nothing is deleted before a line states what is wrong (issue #20)."""

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunReader, Store, StoreError
from tests.coordinator.store.fake_run import FakeRun


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run-1"


def killed(folder: Path, rounds: int) -> Path:
    """Return a copy of a live run, as `kill -9` leaves it."""
    run = FakeRun(folder.with_name("live"))
    run.play(rounds)
    shutil.copytree(run.folder, folder)
    run.store.close()
    return folder


def flip(path: Path, at: int) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def killed_while_it_changes_the_journal(folder: Path, rounds: int) -> Path:
    """Return a run as `kill -9` leaves it while its database goes to WAL mode or leaves it."""
    run = FakeRun(folder.with_name("live"))
    run.play(rounds)
    run.finish("running")
    with closing(sqlite3.connect(run.folder / "run.db", isolation_level=None)) as changing:
        changing.execute("BEGIN IMMEDIATE")
        changing.execute("UPDATE exchange SET device = device || '-changed'")
        changing.execute("PRAGMA cache_size = 1")  # what does not fit is written at once
        changing.execute("CREATE TABLE large (content)")
        changing.execute("INSERT INTO large VALUES (zeroblob(1000000))")
        shutil.copytree(run.folder, folder)
    assert (folder / "run.db-journal").stat().st_size > 0
    return folder


def rounds_in(database: Path) -> list[int]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute("SELECT round FROM round ORDER BY round")]


def test_a_closed_round_whose_model_is_damaged_is_kept_in_a_copy(folder: Path) -> None:
    killed(folder, 4)
    flip(folder / "models/round-00004.safetensors", -1)
    store = Store.reopen(folder)
    store.close()
    assert rounds_in(folder / "run.db") == [1, 2, 3]
    assert rounds_in(folder / "run-before-round-4.db") == [1, 2, 3, 4]
    with RunReader(folder) as reader:
        warnings = [event.text for _, event in reader.events() if event.level == "warning"]
    (damage,) = [text for text in warnings if "round-00004" in text]
    assert damage.endswith("repeats from round 4 on; run-before-round-4.db has what was there")
    Store.reopen(folder).close()
    assert len(list(folder.glob("run-before-*"))) == 1, "the second resumption has lost nothing"


def test_a_run_killed_while_it_changes_the_journal_is_read(folder: Path) -> None:
    killed_while_it_changes_the_journal(folder, 4)
    with RunReader(folder) as reader:
        assert [row.round for row in reader.rounds()] == [1, 2, 3, 4]
        assert not any("changed" in row.device for row in reader.exchanges())
    assert [path.name for path in folder.glob("run.db*")] == ["run.db"]


def test_a_run_killed_while_it_changes_the_journal_is_resumed(folder: Path) -> None:
    store = Store.reopen(killed_while_it_changes_the_journal(folder, 4))
    checkpoint = store.last_checkpoint()
    store.close()
    assert checkpoint is not None
    assert checkpoint.round == 4


def test_two_damaged_models_are_no_lost_rounds_at_the_next_resumption(folder: Path) -> None:
    killed(folder, 4)
    for round_id in (3, 4):
        flip(folder / f"models/round-{round_id:05d}.safetensors", -1)
    Store.reopen(folder).close()
    assert rounds_in(folder / "run.db") == [1, 2]
    Store.reopen(folder).close()


@pytest.mark.parametrize("lost", [1, 2, 12])
def test_closed_rounds_that_a_damaged_log_lacks_are_one_line(folder: Path, lost: int) -> None:
    shutil.copytree(damaged_from(folder, 25 - lost), folder)
    log = folder / "run.db-wal"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(StoreError, match="restore a copy") as caught:
        Store.reopen(folder)
    assert f"got rounds up to {25 - lost}" in str(caught.value)
    with RunReader(folder) as reader:
        assert len(reader.rounds()) == 25 - lost
    assert log.read_bytes() == before["run.db-wal"], "a reader has not removed the log"


def damaged_from(folder: Path, last: int) -> Path:
    """Return a killed run of 25 rounds whose log is damaged after round `last`."""
    live = folder.with_name(f"live-{last}")
    run = FakeRun(live)
    run.play(last)
    run.store.flush()
    end = (live / "run.db-wal").stat().st_size
    run.play(25 - last)
    copy = folder.with_name(f"killed-{last}")
    shutil.copytree(live, copy)
    run.store.close()
    flip(copy / "run.db-wal", end + 100)
    return copy


def test_a_malformed_database_is_not_resumed(folder: Path) -> None:
    run = FakeRun(folder)
    run.play(20)
    run.store.close()
    database = folder / "run.db"
    with closing(sqlite3.connect(database)) as connection:
        root = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'exchange'"
        ).fetchone()[0]
    flip(database, (root - 1) * 4096 + 3)  # the number of cells in a page of rows
    before = database.read_bytes()
    with pytest.raises(StoreError, match="restore a copy of the run folder"):
        Store.reopen(folder)
    assert database.read_bytes() == before
    assert not (folder / "run.db-wal").exists()


def test_a_foreign_database_stays_as_it_is(folder: Path) -> None:
    folder.mkdir()
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.execute("CREATE TABLE other (x)")
        connection.execute("PRAGMA user_version = 3")
    before = (folder / "run.db").read_bytes()
    with pytest.raises(StoreError, match="run store must have application id"):
        Store.reopen(folder)
    assert (folder / "run.db").read_bytes() == before


def test_a_folder_that_is_deleted_under_a_run_is_named(folder: Path) -> None:
    run = FakeRun(folder)
    run.play(1)
    shutil.rmtree(folder)
    with pytest.raises(StoreError, match="the folder of the run must exist"):
        run.play(1)


def test_a_disk_that_has_become_read_only_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system with errors is mounted read-only while the run goes on."""

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    run = FakeRun(folder)
    run.play(1)
    monkeypatch.setattr("fairbed.coordinator.store.model_files.save_file", refuse)
    with pytest.raises(StoreError, match=r"must be writable, got .*; make the folder writable"):
        run.play(1)
    run.store.close()
    assert rounds_in(folder / "run.db") == [1]


def test_old_models_are_thinned_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbed.coordinator.store.store.KEEP_EVERY", 2)
    monkeypatch.setattr("fairbed.coordinator.store.store.KEEP_OLDER", 4)
    run = FakeRun(folder)
    run.play(31)
    run.store.close()
    kept = sorted(int(path.stem.split("-")[1]) for path in folder.glob("models/*"))
    assert kept == [8, 16, 24, 29, 30, 31]
