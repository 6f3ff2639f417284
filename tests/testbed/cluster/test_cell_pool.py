"""Grids on a cluster: equal results, lost hosts, and runs that are whole or absent."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import msgspec
import pytest

from fairbed.testbed.cluster import cell_pool
from fairbed.testbed.cluster.api import ReplayingHosts
from fairbed.testbed.cluster.cell_pool import (
    MAX_TRIES,
    SCRATCH,
    CellPool,
    CellRunner,
    check_files,
    read_files,
    write_files,
)
from fairbed.testbed.cluster.hosts import Host
from fairbed.testbed.compare.cell import CellOutcome, CellResult, state_of
from fairbed.testbed.compare.grid import Grid, make_grid
from fairbed.testbed.compare.measures import MACHINE_TIME
from fairbed.testbed.compare.needed_files import NeededFile
from fairbed.testbed.compare.pool import run_cells, run_cells_here
from fairbed.testbed.compare.worker import CellJob
from fairbed.testbed.errors import ClusterError, HostLostError
from tests.testbed.cluster.fake import FakeCluster

if TYPE_CHECKING:
    from fairbed.testbed.cluster.connection import Cluster

FLEET = [{"model": "linear", "name": "one", "count": 4, "theta": [1.0, 1.0, 0.1]}]


@pytest.fixture(autouse=True)
def hosts_have_a_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))


def grid_of(seeds: int = 3, rounds: int = 5) -> Grid:
    return make_grid(
        {
            "seeds": seeds,
            "axes": {"selection.policy": ["rbcs-f", "uniform"]},
            "experiment": {
                "name": "small",
                "rounds": rounds,
                "selection": {"per_round": 2, "beta": 0.2},
                "fleet": FLEET,
            },
        },
        Path("grid"),
    )


def run_on(
    cluster: FakeCluster,
    grid: Grid,
    out: Path,
    jobs: int | None = None,
    on_line: Callable[[], None] = lambda: None,
) -> tuple[dict[tuple[str, int], CellOutcome], list[str]]:
    """Return the outcomes of a grid by arm and seed, and the lines for the user."""
    results, lines = dict[tuple[str, int], CellOutcome](), list[str]()

    def note(line: str) -> None:
        lines.append(line)
        on_line()

    def report(result: CellResult) -> None:
        assert (result.arm, result.seed) not in results
        results[result.arm, result.seed] = of_the_replay(result.outcome)

    async def main() -> bool:
        return await run_cells(
            grid,
            out,
            jobs,
            report,
            handles_signals=False,
            hosts=ReplayingHosts(cast("Cluster", cluster)),
            note=note,
        )

    assert anyio.run(main)
    return results, lines


def run_here(grid: Grid, out: Path) -> dict[tuple[str, int], CellOutcome]:
    results = list[CellResult]()
    run_cells_here(grid, out, results.append)
    return {(result.arm, result.seed): of_the_replay(result.outcome) for result in results}


def of_the_replay(outcome: CellOutcome) -> CellOutcome:
    """Return an outcome without the time that the machine took."""
    if outcome.measured is None:
        return outcome
    values = {key: x for key, x in outcome.measured.values.items() if key != MACHINE_TIME}
    measured = msgspec.structs.replace(outcome.measured, values=values)
    return msgspec.structs.replace(outcome, measured=measured)


def test_a_cluster_has_the_results_of_one_machine_and_resumes(tmp_path: Path) -> None:
    grid, out = grid_of(), tmp_path / "out"
    truth = run_here(grid, tmp_path / "truth")
    cluster = FakeCluster(2, 1)
    results, lines = run_on(cluster, grid, out)
    assert (results, lines) == (truth, [])
    assert sorted(name for name, _ in cluster.started) == ["host-0", "host-0", "host-1"]
    assert all(state_of(cell.folder(out)) == "done" for cell in grid.cells())
    assert not list(out.rglob("*.new"))
    assert not any(
        made.scratch.exists() for made in (one.made.result() for _, one in cluster.started)
    )
    again, _ = run_on(cluster := FakeCluster(1), grid, out)
    assert all(outcome.was_done_before for outcome in again.values())
    assert cluster.started == []


def test_jobs_limit_the_processes(tmp_path: Path) -> None:
    cluster = FakeCluster(2, 2)
    run_on(cluster, grid_of(), tmp_path, jobs=2)
    assert sorted(name for name, _ in cluster.started) == ["host-0", "host-1"]


def test_cells_of_a_lost_host_are_done_elsewhere(tmp_path: Path) -> None:
    grid, cluster = grid_of(), FakeCluster(1, 1)
    truth = run_here(grid, tmp_path / "truth")

    def lose(host: Host, method: str) -> None:
        if host.name == "host-1" and method == "run":
            cluster.lost.add(host)

    cluster.on_call = lose
    results, lines = run_on(cluster, grid, tmp_path / "out")
    assert results == truth
    [again, lost] = lines
    assert again.endswith("is done again, because host host-1: its process is lost")
    assert lost == "host host-1 is lost; its cells are done elsewhere"


def test_a_lost_process_is_replaced_on_its_host(tmp_path: Path) -> None:
    cluster, kills = FakeCluster(1), [1]

    def kill_once(host: Host, method: str) -> None:
        if method == "run" and kills:
            kills.pop()
            raise HostLostError("host host-0: its process is lost")

    cluster.on_call = kill_once
    results, lines = run_on(cluster, grid_of(), tmp_path)
    assert not [outcome for outcome in results.values() if outcome.problem]
    assert len(lines) == 1
    assert [name for name, _ in cluster.started] == ["host-0", "host-0"]


def test_a_cell_that_kills_its_processes_fails_and_no_other_does(tmp_path: Path) -> None:
    cluster, grid = FakeCluster(1, 1), grid_of()

    def kill(self: CellRunner, job: CellJob, begun: object) -> object:
        if job.run_id.endswith("uniform-1"):
            raise HostLostError("host x: its process is lost")
        return run(self, job, begun)  # type: ignore[arg-type]

    run = CellRunner.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CellRunner, "run", kill)
        results, lines = run_on(cluster, grid, tmp_path)
    failed = {key: outcome.problem for key, outcome in results.items() if outcome.problem}
    assert failed == {
        ("policy-uniform", 1): "host x: its process is lost; it has lost 3 processes; run the same "
        "command again"
    }
    assert len(lines) == MAX_TRIES - 1


def test_without_hosts_the_rest_fails_with_one_line(tmp_path: Path) -> None:
    cluster = FakeCluster(1, 1)
    cluster.lost.update(cluster.hosts)
    results, _ = run_on(cluster, grid_of(), tmp_path)
    assert len(results) == 6
    problem = "all hosts of the cluster are lost; run the same command again"
    assert {outcome.problem for outcome in results.values()} == {problem}


def test_a_failed_cell_names_its_own_folder(tmp_path: Path) -> None:
    [cell, *_] = grid_of().cells()
    folder = tmp_path / "cell"
    job = CellJob(run_id="x", folder=str(folder), experiment=cell.experiment)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            cell_pool, "run_job", lambda job: CellOutcome(problem=f"{job.folder}: is full")
        )
        answer, files = CellRunner().run(job, {})
    assert (answer, files) == (
        b'{"measured":null,"problem":"%s: is full","was_done_before":false}' % bytes(folder),
        {},
    )


def test_a_run_replaces_what_was_there_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "0"
    write_files(folder, {"run.db": b"1", "models/1.bin": b"x"})
    (folder / "lock").touch()
    assert read_files(folder) == {"run.db": b"1", "models/1.bin": b"x"}
    (folder.parent / "0.new").mkdir()
    (folder.parent / "0.new" / "left").touch()
    write_files(folder, {"run.db": b"2"})
    assert read_files(folder) == {"run.db": b"2"}
    assert [path.name for path in folder.parent.iterdir()] == ["0"]


def test_an_interrupted_cell_resumes_on_a_host(tmp_path: Path) -> None:
    """As one of a grid that began on this machine."""
    [cell, *_] = grid_of(rounds=30).cells()
    job = CellJob(run_id="x", folder=str(tmp_path / "here"), experiment=cell.experiment)
    answer, files = CellRunner().run(job, {})
    again, kept = CellRunner().run(job, files)
    assert b'"was_done_before":true' in again
    assert again.replace(b"true", b"false") == answer
    assert kept == files


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / f"{SCRATCH}4194999-abc").mkdir()
    runner = CellRunner()
    assert list(scratch.iterdir()) == [runner.scratch]
    runner.end()
    assert list(scratch.iterdir()) == []


def test_a_host_that_lacks_a_file_is_refused() -> None:
    missing = [NeededFile(path="/no/such.npz", is_data=False, sha256="00")]
    with pytest.raises(ClusterError) as caught:
        check_files(FakeCluster(1), missing)  # type: ignore[arg-type]  # same methods
    assert str(caught.value) == (
        "host host-0: /no/such.npz must be the file of this machine, got none; copy it there"
    )


def test_a_pool_reports_a_host_without_a_free_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_pool, "BUSY_S", 0.0)
    cluster, noted = FakeCluster(1), threading.Event()

    def begin_after_the_line(host: Host, method: str) -> None:
        assert method != "begin" or noted.wait(10.0)

    cluster.on_call = begin_after_the_line
    results, lines = run_on(cluster, grid_of(seeds=1), tmp_path, on_line=noted.set)
    assert lines == ["host host-0: no core has been free for 0 s; cells wait"]
    assert not [outcome for outcome in results.values() if outcome.problem]


def test_a_pool_needs_no_cell() -> None:
    anyio.run(CellPool(FakeCluster(1), [], lambda *_: None, print).run)  # type: ignore[arg-type]
