"""A small `fairbed run` in its own process, for tests that disturb it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TypeVar

import psutil
import pytest

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.testbed.host.broker_process import find_mosquitto
from tests.processes import end, still_running

T = TypeVar("T")

EXPERIMENT = """
name = "small"
rounds = {rounds}
[model]
name = "softmax"
[training]
epochs = {epochs}
[selection]
per_round = 2
beta = 0.3
[round]
deadline_s = 30.0
[broker]
kind = "mosquitto"
{fleet}
"""

UNTHROTTLED = """
[[fleet]]
name = "pi"
count = 3
"""

EMULATED = """
[emulation]
host_core_speed = {host_core_speed}
[[fleet]]
profile = "raspberry-pi-4b"
[[fleet]]
profile = "raspberry-pi-zero-2w"
"""

LIMIT_S = 90.0
"""Limit of a run that takes a few seconds on an idle machine."""


class Running:
    """A `fairbed run` in its own process."""

    def __init__(
        self,
        folder: Path,
        rounds: int = 6,
        epochs: int = 1,
        fleet: str = UNTHROTTLED,
        *,
        resume: bool = False,
        url: str = "",
        options: Sequence[str] = (),
    ) -> None:
        if find_mosquitto() is None:
            pytest.skip("mosquitto is not installed")
        self.folder = folder / "run"
        self.experiment = folder / "small.toml"
        self.experiment.write_text(
            EXPERIMENT.format(rounds=rounds, epochs=epochs, fleet=fleet), encoding="utf-8"
        )
        what = [str(self.folder)] if resume else [str(self.experiment), "--out", str(self.folder)]
        what += ["--set", f"broker.url={url}"] if url else []
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fairbed.testbed.cli.main",
                "run",
                *what,
                "--headless",
                "--json",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self) -> tuple[int, str, str]:
        """Wait for the end of the run; return exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err

    def family(self) -> list[psutil.Process]:
        """Return all processes that the run has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_round(self, round_id: int) -> None:
        """Wait until a round has closed."""

        def is_closed() -> bool:
            has_ended = self.process.poll() is not None
            if self.rounds() >= round_id:
                return True
            if has_ended:
                out, err = self.process.communicate()
                pytest.fail(f"the run ended before round {round_id}: {err or out}")
            return False

        wait_until(is_closed, f"round {round_id}")

    def rounds(self) -> int:
        """Return the number of closed rounds."""
        try:
            with RunReader(self.folder) as reader:
                return len(reader.rounds())
        except StoreError:
            return 0


def train_s_of(run: Running, device: str) -> float:
    """Return the median time of training of a device, however few its valid exchanges are.

    A test whose device this machine kept waiting in every exchange is skipped. An exchange that is
    invalid for any other reason fails the test.
    """
    with RunReader(run.folder) as reader:
        exchanges = reader.exchanges_of(device)
    assert exchanges
    if valid := [x.train_s for x in exchanges if x.is_valid and x.train_s is not None]:
        return median(valid)
    assert all(x.is_contended for x in exchanges), [x.reason for x in exchanges]
    pytest.skip(f"{device}: {exchanges[0].reason}")


def wait_until(holds: Callable[[], T], what: str | Callable[[], str]) -> T:
    """Wait until something holds, at most `LIMIT_S`; return what it gave."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := holds()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {LIMIT_S:g} s for {what if isinstance(what, str) else what()}")
        time.sleep(0.02)
    return found


def assert_gone(family: list[psutil.Process]) -> None:
    assert still_running(family, 10.0) == []


@contextmanager
def running(
    folder: Path,
    rounds: int = 6,
    epochs: int = 1,
    fleet: str = UNTHROTTLED,
    url: str = "",
    options: Sequence[str] = (),
) -> Iterator[Running]:
    run = Running(folder, rounds, epochs, fleet, url=url, options=options)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
        run.process.communicate()


@contextmanager
def physical_agent(
    url: str, name: str, folder: Path, config: str = "", options: Sequence[str] = ()
) -> Iterator[None]:
    """Run a plain `device-agent` that the testbed does not know."""
    file = folder / f"{name}.toml"
    file.write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "fairbed.device_agent.cli", "--broker", url, "--name", name]
    command += ["--config", str(file), *options]
    folders = ["--cache", str(folder / "cache"), "--state", str(folder / "state")]
    with (folder / f"{name}.log").open("wb") as log:
        agent = subprocess.Popen([*command, *folders], stdout=log, stderr=log)
    try:
        yield
    finally:
        end(agent)
