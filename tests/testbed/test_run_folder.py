"""Files of a run that was killed before its store existed (issue #20, M1)."""

from pathlib import Path

import pytest

from fairbed.coordinator.store import Store
from fairbed.coordinator.store import store as store_module
from fairbed.testbed.run_folder import LOG, clear, foreign_files
from tests.coordinator.store.fake_run import make_store

LEFT = [
    "broker-40123/mosquitto.conf",
    "broker.log",
    "broker-subscriptions",
    "cache/pi-1/shard",
    "state/pi-1/personal-model",
    "endpoint.tmp",
    "endpoint.json",
    "gauges",
    "lock",
    "logs/fork-server.log",
    "run.partial",
    "run.partial-journal",
    "shards.json",
    "shards.tmp",
    "work.json",
]


def leave(folder: Path, names: list[str]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_what_a_killed_start_leaves_is_not_foreign(tmp_path: Path) -> None:
    leave(tmp_path, LEFT)
    assert foreign_files(tmp_path) == []
    leave(tmp_path, ["broker-notes.txt", "broker-1883.bak", "data.csv"])
    assert foreign_files(tmp_path) == ["broker-1883.bak", "broker-notes.txt", "data.csv"]


def test_a_run_that_did_not_begin_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    leave(folder, [*LEFT, LOG])
    clear(folder)
    assert [path.name for path in folder.iterdir()] == [LOG]
    clear(folder, with_log=True)
    assert not folder.exists()


def test_a_store_exists_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def killed(connection: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "create_schema", killed)
        with pytest.raises(KeyboardInterrupt):
            make_store(folder)
    assert not (folder / "run.db").exists()
    assert foreign_files(folder) == []
    (folder / "run.partial").write_bytes(b"half a page")
    store = make_store(folder)
    store.close()
    Store.reopen(folder).close()
    assert {path.name for path in folder.iterdir()} == {"experiment.toml", "lock", "run.db"}
