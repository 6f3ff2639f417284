"""Runs `fairbed shape` as a person does: as a process of its own."""

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
    """Return why devices with networks and control groups cannot be had here."""
    if sys.platform != "linux":
        return "needs Linux"
    try:
        try_groups()
    except BackendError as exc:
        return str(exc)
    return anyio.run(probe).problem


@pytest.fixture
def shape(tmp_path: Path) -> Shape:
    """Return what runs `fairbed shape WORDS` to its end, in an empty folder."""

    def run(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            shape_argv(*words),
            cwd=tmp_path,
            env=environ(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            input=more.get("told", ""),
        )

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return what starts `fairbed shape WORDS`, its input and output being ours."""
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
