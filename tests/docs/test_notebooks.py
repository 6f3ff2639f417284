"""The notebooks of examples/notebooks/: stored without outputs, and executed as a user does."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ipykernel", reason="notebooks need the group analysis")

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import fairbed
from tests.coordinator.task.test_catalogue import needs_torch

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
LIMIT_S = 300
"""Longest cell on a busy machine; the longest one takes some 15 s on an idle one."""
PICTURE = "image/png"
V4: Any = nbformat.v4

# Of the libraries that talk to the kernel; the kernel itself is another process.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def read(path: Path) -> Any:
    """Return a notebook."""
    return V4.reads(path.read_text(encoding="utf-8"))


def client_of(notebook: Any, folder: Path) -> Any:
    """Return what executes a notebook in a folder; nbclient types what it has after a start."""
    return NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(folder)}})


def executed(name: str, folder: Path, changed: Mapping[str, str]) -> Any:
    """Return a notebook of the examples after all its cells were executed in a folder.

    Args:
        name: File of the notebook.
        folder: Current folder of its cells.
        changed: Texts of a cell and what takes their place, so that less is computed.
    """
    notebook = read(NOTEBOOKS / name)
    for old, new in changed.items():
        (cell,) = (cell for cell in notebook.cells if old in cell.source)
        cell.source = cell.source.replace(old, new)
    return client_of(notebook, folder).execute()


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_is_stored_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert outputs_of(notebook) == []
    assert all(cell.get("execution_count") is None for cell in notebook.cells)


@pytest.mark.full
@pytest.mark.timeout(3 * LIMIT_S)
def test_from_nothing_to_a_figure_of_policies_against_time(tmp_path: Path) -> None:
    less = {'"rounds": 60': '"rounds": 12', '"seeds": 3': '"seeds": 2'}
    done = executed("policies.ipynb", tmp_path, less)
    outputs = outputs_of(done)
    assert sum(PICTURE in output.get("data", {}) for output in outputs) == 4
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert (tmp_path / "policies.pdf").read_bytes().startswith(b"%PDF")
    assert "digits-12" in (tmp_path / "digits-12.html").read_text(encoding="utf-8")
    runs = fairbed.runs(tmp_path / "comparisons/policies/runs/policy-uniform")
    assert sorted(run.experiment.seed for run in runs) == [0, 1]


@pytest.mark.broker
@pytest.mark.full
@pytest.mark.timeout(3 * LIMIT_S)
@needs_torch
def test_a_torch_module_and_own_data_in_a_replay_and_in_a_live_run(tmp_path: Path) -> None:
    less = {'"rounds": 30': '"rounds": 15', '"rounds": 3,': '"rounds": 2,'}
    outputs = outputs_of(executed("own-torch.ipynb", tmp_path, less))
    lines = [o["text"] for o in outputs if o.get("name") == "stderr"]
    known = ("alert: host busy: ", "start: waits for ")  # of a busy machine
    expected = (
        "delayed most often",
        "some speeds are estimated",  # of this fleet
        "will likely be untimed",  # beside other programs
    )
    assert all(
        text.startswith(known) or any(part in text for part in expected) for text in lines
    ), lines
    live, replayed = fairbed.runs(tmp_path / "runs")
    assert (live.status, replayed.status) == ("done", "done")
    assert replayed.summary.accuracy.mean is not None
    assert replayed.summary.accuracy.mean > 0.9


def test_an_error_in_a_cell_is_one_line_and_the_place_in_the_code_of_the_user(
    tmp_path: Path,
) -> None:
    cells = [
        V4.new_code_cell(
            "import fairbed\n"
            "@fairbed.register('selector', 'broken')\n"
            "def broken():\n"
            "    return 1 / 0\n"
        ),
        V4.new_code_cell("fairbed.replay({'name': 'x', 'selection': {'policy': 'broken'}})"),
    ]
    with pytest.raises(CellExecutionError):
        client_of(V4.new_notebook(cells=cells), tmp_path).execute()
    (error,) = cells[1].outputs
    message, place = error["traceback"]
    assert message.startswith("UsageError: selector broken: must be made from selection.options {}")
    assert place.endswith("line 4: return 1 / 0")


INTERRUPTED = """
import fairbed

fairbed.run(
    {
        "name": "long",
        "rounds": 400,
        "model": {"name": "softmax"},
        "selection": {"per_round": 2, "beta": 0.1},
        "fleet": [{"profile": "raspberry-pi-4b", "count": 3}],
        "emulation": {"backend": "process"},
    },
    out="long",
)
"""


@pytest.mark.broker
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.full
def test_an_interrupted_cell_ends_its_run_and_all_processes(tmp_path: Path) -> None:
    cells = [V4.new_code_cell(INTERRUPTED), V4.new_code_cell("fairbed.runs('.')")]
    client = client_of(V4.new_notebook(cells=cells), tmp_path)

    def rounds() -> int:
        try:
            return fairbed.Run.open(tmp_path / "long").summary.rounds_completed
        except (fairbed.UsageError, fairbed.RunError):
            return 0

    async def interrupt() -> list[psutil.Process]:
        async with client.async_setup_kernel():
            first = asyncio.create_task(client.async_execute_cell(cells[0], 0))
            while rounds() < 2:  # noqa: ASYNC110 - another process writes them
                await asyncio.sleep(0.2)
            kernel = psutil.Process(client.km.provisioner.pid)
            assert kernel.children(recursive=True)
            await client.km.interrupt_kernel()
            with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
                await first
            left = kernel.children(recursive=True)
            await client.async_execute_cell(cells[1], 1)
            return left

    assert asyncio.run(interrupt()) == []
    assert fairbed.Run.open(tmp_path / "long").status == "stopped"
    assert "Run.open('long')" in cells[1].outputs[0]["data"]["text/plain"]
