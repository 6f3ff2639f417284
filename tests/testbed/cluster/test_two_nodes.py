"""Grids and replays on two real Ray nodes of this machine, and what can go wrong there."""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.testbed.cluster.cell_pool import SCRATCH
from tests.processes import end
from tests.testbed.cluster.nodes import Node, Nodes, ray_nodes

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(240)]

pytest.importorskip("ray")

ROOT = Path(__file__).parents[3]
FAIRBED = (sys.executable, "-m", "fairbed.testbed.cli.main")
QUICKSTART = ROOT / "examples" / "quickstart.toml"
LIMIT_S = 150.0

OF_THIS_MACHINE = frozenset(
    {"created", "wall", "dilation", "evaluate_s", "provenance", "run_id", "state"}
)
"""Columns that two replays on one machine do not share: times, and the revision of the checkout.
The state of a checkpoint has the time of its machine; its model is compared."""

GRID = f"""
experiment = "{QUICKSTART}"
seeds = {{seeds}}
set = {{{{ rounds = {{rounds}}, "model.name" = "softmax" }}}}
[[arm]]
name = "uniform"
set = {{{{ "selection.policy" = "uniform" }}}}
[[arm]]
name = "rbcs-f"
set = {{{{ "selection.policy" = "rbcs-f" }}}}
"""


COSTS = """
[replay.task_costs]
step_s = 1e-4
example_s = 1e-6
evaluation_step_s = 1e-5
evaluation_example_s = 1e-7
load_s = 1e-3
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the data of the first node; that of the second has none."""
    data = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    np.savez(data / "own.npz", x=rng.normal(size=(400, 4)), y=rng.integers(0, 10, 400))
    return data


@pytest.fixture(scope="module")
def nodes(data: Path) -> Iterator[Nodes]:
    """Two nodes with a core each."""
    with ray_nodes() as nodes:
        nodes.add(environ={"FAIRBED_DATA": str(data)})
        nodes.add(environ={"FAIRBED_DATA": str(data / "elsewhere")})
        yield nodes


def fairbed(*arguments: object, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*FAIRBED, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **environ},
        check=False,
    )


def grid_file(folder: Path, seeds: int = 2, rounds: int = 3) -> Path:
    path = folder / "grid.toml"
    path.write_text(GRID.format(seeds=seeds, rounds=rounds))
    return path


def compare(path: Path, out: Path, *more: object) -> "subprocess.CompletedProcess[str]":
    return fairbed("compare", path, "--out", out, "--no-figures", *more)


def files_of(out: Path) -> dict[str, bytes]:
    """Return all files of a grid or a run, databases aside."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in ("run.db", "lock")
    }


def rows_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of a run, without columns that have a time of the machine."""
    connection = sqlite3.connect(folder / "run.db")
    connection.row_factory = sqlite3.Row
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    found = {
        name: [
            {key: row[key] for key in row.keys() if key not in OF_THIS_MACHINE}  # noqa: SIM118
            for row in connection.execute(f"SELECT * FROM {name}")
        ]
        for (name,) in map(tuple, names)
    }
    connection.close()
    return found


def assert_equal_rows(theirs: Path, ours: Path) -> None:
    expected = rows_of(ours)
    for table, rows in rows_of(theirs).items():
        for row, truth in zip(rows, expected[table], strict=True):
            assert row == truth, table


def test_a_grid_has_the_bytes_of_one_machine(nodes: Nodes, tmp_path: Path) -> None:
    path, here, there = grid_file(tmp_path), tmp_path / "here", tmp_path / "there"
    assert compare(path, here).returncode == 0
    done = compare(path, there, "--cluster", nodes.address, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["name"] == "grid"
    assert files_of(there) == files_of(here)
    for run in sorted(path.parent for path in here.rglob("run.db")):
        assert_equal_rows(there / run.relative_to(here), run)
    again = compare(path, there, "--cluster", nodes.address)
    assert again.returncode == 0, again.stderr
    assert files_of(there) == files_of(here)


def test_a_replay_that_is_split_has_the_same_bits(nodes: Nodes, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    options = ("--set", "model.name=cnn", "--set", "rounds=5", "--seed", "3", "--json")
    for out, more in ((here, ()), (there, ("--cluster", nodes.address))):
        done = fairbed(
            "replay", ROOT / "examples" / "quickstart.toml", "--out", out, *options, *more
        )
        assert done.returncode == 0, done.stderr
    assert files_of(there) == files_of(here)
    assert_equal_rows(there, here)


def stopped_in_a_cell(node: Node) -> bool:
    """Stop a process of a node that replays a cell, if there is one; the cell cannot end then."""
    for process in node.processes():
        of_cell = f"{SCRATCH}{process.pid}-*/cell/run.db"
        folder = Path(tempfile.gettempdir())
        if any(folder.glob(of_cell)):
            process.suspend()
            if any(folder.glob(of_cell)):
                return True
            process.resume()
    return False


def test_cells_of_a_killed_node_are_done_again(tmp_path: Path) -> None:
    path, here, there = grid_file(tmp_path, 2, 40), tmp_path / "here", tmp_path / "there"
    with ray_nodes() as nodes:
        nodes.add()
        second = nodes.add()
        process = subprocess.Popen(
            [*FAIRBED, "compare", path, "--out", there, "--no-figures", "--cluster", nodes.address],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until = time.monotonic() + LIMIT_S
            while not stopped_in_a_cell(second):
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
            second.kill()
            _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            end(process)
    assert process.returncode == 0, errors
    assert "is lost; its cells are done elsewhere" in errors
    assert "is done again, because host" in errors
    assert compare(path, here).returncode == 0
    assert files_of(there) == files_of(here)


def test_a_file_that_a_host_lacks_is_one_line(nodes: Nodes, data: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        QUICKSTART.read_text().replace('dataset = "digits"', f'source = "{data / "own.npz"}"')
        + COSTS
    )
    grid = grid_file(tmp_path)
    grid.write_text(grid.read_text().replace(str(QUICKSTART), str(own)))
    done = fairbed(
        *("compare", grid, "--out", tmp_path / "out", "--cluster", nodes.address),
        FAIRBED_DATA=str(data),
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()[-1:]
    assert line.startswith("fairbed: host ")
    assert line.endswith(
        f"#2: {data}/elsewhere/own.npz must be the file of this machine, got none; copy it there"
    )
    assert not list((tmp_path / "out").rglob("run.db"))


def test_a_host_with_another_version_is_one_line(tmp_path: Path) -> None:
    info = tmp_path / "other" / "fairbed-0.0.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fairbed\nVersion: 0.0.9\n")
    with ray_nodes() as nodes:
        nodes.add(environ={"PYTHONPATH": str(info.parent)})
        done = compare(grid_file(tmp_path), tmp_path / "out", "--cluster", nodes.address)
    assert done.returncode == 1
    assert ": Fairbed must be 0.1.0 as on this machine, got 0.0.9; install" in done.stderr


def test_an_address_where_no_ray_answers_is_one_line(tmp_path: Path) -> None:
    begin = time.monotonic()
    done = compare(grid_file(tmp_path), tmp_path / "out", "--cluster", "127.0.0.1:9")
    assert done.returncode == 1
    assert "a Ray cluster must answer there, got: Connection refused" in done.stderr
    assert time.monotonic() - begin < 60.0  # Ray itself waits longer
