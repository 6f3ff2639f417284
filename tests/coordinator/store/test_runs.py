"""References to runs."""

from pathlib import Path

import pytest

from fairbed.coordinator.store import RunNotFoundError, find_runs, list_runs, resolve_run
from tests.coordinator.store.fake_run import as_older, make_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("20260101-a", "20260101-b", "20260202-c"):
        make_store(tmp_path / name).close()
    return tmp_path


def test_runs_are_listed_newest_first(root: Path) -> None:
    assert [info.run_id for info in list_runs(root)] == ["20260202-c", "20260101-b", "20260101-a"]


def test_a_live_status_without_a_process_is_interrupted(root: Path) -> None:
    assert {info.status for info in list_runs(root)} == {"interrupted"}


def test_latest_is_the_newest(root: Path) -> None:
    assert resolve_run(root, "latest") == root / "20260202-c"


@pytest.mark.parametrize("ref", ["20260202-c", "202602", "2026020"])
def test_an_id_or_a_beginning_that_only_one_run_has_is_enough(root: Path, ref: str) -> None:
    assert resolve_run(root, ref) == root / "20260202-c"


def test_a_path_names_a_run_anywhere(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("empty")
    assert resolve_run(elsewhere, str(root / "20260101-a")) == root / "20260101-a"


def test_a_beginning_of_two_runs_names_both(root: Path) -> None:
    with pytest.raises(RunNotFoundError, match="got '20260101'; there are: 20260101-b, 20260101-a"):
        resolve_run(root, "20260101")


@pytest.mark.parametrize("ref", ["nope", ""])
def test_an_unknown_run_lists_what_exists(root: Path, ref: str) -> None:
    with pytest.raises(RunNotFoundError, match="there are: 20260202-c, 20260101-b, 20260101-a"):
        resolve_run(root, ref)


@pytest.mark.parametrize("ref", ["latest", "nope"])
def test_a_root_without_runs_is_an_error(tmp_path: Path, ref: str) -> None:
    with pytest.raises(RunNotFoundError, match="none yet"):
        resolve_run(tmp_path / "runs", ref)


def test_unreadable_stores_are_listed_beside_the_others(root: Path) -> None:
    (root / "20260101-a" / "run.db").write_bytes(b"rubbish" * 1000)
    as_older(root / "20260101-b")
    runs = find_runs(root)
    assert [info.run_id for info in runs.readable] == ["20260202-c"]
    assert [(one.folder.name, one.status) for one in runs.unreadable] == [
        ("20260101-a", "unreadable"),
        ("20260101-b", "older format"),
    ]
    assert all(str(one.folder) in one.problem for one in runs.unreadable)
