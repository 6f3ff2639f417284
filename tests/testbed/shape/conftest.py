"""Fixtures that run `fairbed shape` in a process of its own."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from fairbed.testbed.backends.cgroups.fleet import try_groups
from fairbed.testbed.backends.network.probe import probe
from fairbed.testbed.errors import BackendError

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0

Shape = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


def shape_argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "fairbed.testbed.cli.main", "shape", *words]


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@functools.cache
def problem() -> str | None:
    """Return why networks and control groups do not work on this machine."""
    if sys.platform != "linux":
        return "needs Linux"
    try:
        try_groups()
    except BackendError as exc:
        return str(exc)
    return anyio.run(probe).problem


@pytest.fixture
def shape(tmp_path: Path) -> Shape:
    """Return a function that runs `fairbed shape WORDS` to its end, in an empty folder."""

    def run(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            shape_argv(*words),
            cwd=tmp_path,
            env=environ(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            input=more.get("stdin", ""),
        )

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts `fairbed shape WORDS` with pipes."""
    running: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            shape_argv(*words),
            cwd=tmp_path,
            env=environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)
