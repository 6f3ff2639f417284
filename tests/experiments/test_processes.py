"""The child processes of a killed study or benchmark end with it: real processes, real SIGKILL."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import is_gone

ROOT = Path(__file__).parents[2]

BENCHMARK = """
import os, time
from experiments.processes import fresh_processes
with fresh_processes(2) as pool:
    pool.submit(time.sleep, 600)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""
"""One worker is at work, or still on its way up, and one has nothing to do."""


@pytest.fixture
def workers() -> Iterator[list[psutil.Process]]:
    """The child processes of a benchmark at the time it was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", BENCHMARK], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as benchmark:
        assert benchmark.stdout is not None
        benchmark.stdout.readline()
        family = psutil.Process(benchmark.pid).children(recursive=True)
        benchmark.kill()
    yield family
    for process in family:
        if process.is_running():
            process.kill()


def test_a_killed_benchmark_leaves_no_worker(workers: list[psutil.Process]) -> None:
    assert len(workers) >= 2
    assert [process for process in workers if not is_gone(process)] == []


def test_every_pool_of_processes_ends_with_its_parent() -> None:
    makers = {
        path.relative_to(ROOT): path.read_text()
        for package in ("benchmarks", "experiments", "coordinator", "device_agent", "testbed")
        for path in (ROOT / package).rglob("*.py")
        if "ProcessPoolExecutor(" in path.read_text()
    }
    assert set(makers) == {Path("experiments/processes.py")}
    assert all("die_with_parent" in text for text in makers.values())
