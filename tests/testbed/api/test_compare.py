"""Grids and comparisons from a program."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import fairbed
from fairbed import UsageError
from fairbed.wire import plugins
from tests.processes import own_children

GRID: dict[str, Any] = {
    "name": "policies",
    "seeds": 2,
    "axes": {"selection.policy": ["rbcs-f", "uniform"]},
    "experiment": {
        "name": "small",
        "rounds": 20,
        "selection": {"per_round": 2, "beta": 0.2},
        "fleet": [
            {"model": "linear", "name": "fast", "count": 3, "theta": [1.0, 1.0, 0.1]},
            {"model": "linear", "name": "slow", "count": 3, "theta": [3.0, 1.0, 0.4]},
        ],
    },
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plugins._registered.clear()


def test_a_grid_becomes_a_table_a_frame_and_figures() -> None:
    """Also where an event loop runs, as in a notebook."""
    calls: list[tuple[int, int]] = []

    async def cell() -> fairbed.ComparedRuns:
        return fairbed.compare(GRID, progress=lambda *n: calls.append(n))

    found = anyio.run(cell)
    assert calls[-1] == (4, 4)
    assert found.folder == Path("comparisons", "policies")
    assert (found.folder / "compare.json").exists()
    frame = found.pandas()
    assert frame["arm"].tolist() == ["policy-rbcs-f", "policy-uniform"] * 2
    assert frame["seed"].tolist() == [0, 0, 1, 1]
    assert frame["virtual_s"].min() > 0
    assert repr(found) == "ComparedRuns('policies', 2 arms, 4 runs)"
    assert "policy-uniform" in str(found)
    assert found._repr_html_().count("<tr>") == 3
    assert {"front", "time"} <= set(found.figures)
    labels = [text.get_text() for text in found.figure("time").axes[0].get_yticklabels()]
    assert labels == ["policy-uniform", "policy-rbcs-f"]
    with pytest.raises(UsageError, match=r"figure: must be one of front, time, .*, got 'tim'"):
        found.figure("tim")
    again = fairbed.compare(GRID, progress=False)
    assert again.summary == found.summary


def test_runs_that_exist_are_compared() -> None:
    runs = [
        fairbed.replay(GRID["experiment"], set={"selection.policy": policy}, seed=seed)
        for policy in ("rbcs-f", "uniform")
        for seed in (0, 1)
    ]
    found = fairbed.compare(runs)
    assert found.folder is None
    columns = ["arm", "seed", "virtual_s", "queue_mean_total"]
    assert found.pandas()[columns].equals(fairbed.compare(GRID).pandas()[columns])
    with pytest.raises(UsageError, match="compare: set, out, seeds, jobs and cluster are for"):
        fairbed.compare(runs, seeds=3)


def test_an_arm_may_name_a_registered_part() -> None:
    from examples.longest_waiting import LongestWaiting

    fairbed.register("selector", "mine", LongestWaiting)
    grid = {**GRID, "axes": {"selection.policy": ["uniform", "mine"]}}
    found = fairbed.compare(grid, seeds=1, set={"rounds": 30})
    assert found.pandas()["problem"].tolist() == ["", ""]
    assert [arm.name for arm in found.summary.arms] == ["policy-uniform", "policy-mine"]
    pis = {**GRID["experiment"], "fleet": [{"profile": "raspberry-pi-4b", "count": 2}]}
    with pytest.raises(UsageError, match=r'selection.policy = "mine": must be importable by other'):
        fairbed.compare({**grid, "fleet": "run", "experiment": pis}, out="live")
    assert not Path("live").exists()


@pytest.mark.full
def test_an_interrupt_ends_all_processes_and_the_same_call_continues() -> None:
    def report(done: int, total: int) -> None:
        if done == 1:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    grid = {**GRID, "seeds": 3, "experiment": {**GRID["experiment"], "rounds": 300}}
    with pytest.raises(KeyboardInterrupt):
        fairbed.compare(grid, jobs=2, progress=report)
    assert not own_children()
    done = list(Path("comparisons/policies/runs").glob("*/*/run.db"))
    assert 0 < len(done) < 6
    counted: list[int] = []
    fairbed.compare(grid, seeds=None, jobs=2, progress=lambda n, total: counted.append(n))
    assert counted[-1] == 6
    assert len(counted) < 6, "those of the first call were not run again"


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("nowhere.toml", "nowhere.toml: there is no such file"),
        ({**GRID, "seedz": 3}, "grid: seedz: unknown key"),
        ({**GRID, "experiment": {"name": "x"}}, "grid: arm 'policy-rbcs-f': fleet: a grid needs"),
        ([], "compare: must have a grid file, the same as a dict, or a list of runs, got []"),
        (3, "compare: must have a grid file, the same as a dict, or a list of runs, got 3"),
    ],
)
def test_a_wrong_grid_is_one_line(grid: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        fairbed.compare(grid)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
