"""The same agents serve several runs in turn, whatever ends meanwhile: no hand touches a device."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.lab.folder import ENVIRONMENT, Lab
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.lab.service import running_pid
from tests import needs
from tests.processes import end
from tests.testbed.lab.labs import make_lab, task_key_line

AGENTS, RUNS, ROUNDS = 6, 5, 3

KILLED_BETWEEN = 2
"""The broker is killed before this run."""
KILLED_WITHIN = 3
"""It is killed in a round of this run."""
HOST_KILLED = 4
"""All processes of the lab and of the coordinator are killed in this run, and started again."""

LIMIT_S = 120.0
"""Of a run, and of everything else; seconds."""

EXPERIMENT = f"""
name = "many"
rounds = {ROUNDS}
[data]
dataset = "digits"
[model]
name = "softmax"
[selection]
policy = "uniform"
per_round = {AGENTS}
[round]
min_devices = {AGENTS}
join_timeout_s = {LIMIT_S}
[broker]
url = "lab"
"""


class Host:
    """The host of the lab and of its coordinators."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._folder = lab, folder
        self._lab_process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def up(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            assert self._lab_process is not None
            end(self._lab_process)

    def start(self) -> None:
        with (self._folder / "lab.log").open("ab") as log:
            self._lab_process = subprocess.Popen(
                guarded(_command("lab", "up", "--lab", str(self._lab.folder))),
                stdout=log,
                stderr=log,
            )
        _wait_until(lambda: running_pid(self._lab) is not None)

    def broker(self) -> psutil.Process:
        assert self._lab_process is not None
        (found,) = (
            process
            for process in psutil.Process(self._lab_process.pid).children(recursive=True)
            if process.name() == "mosquitto"
        )
        return found

    def kill(self) -> None:
        """Kill the lab as a power failure does: its broker, too."""
        assert self._lab_process is not None
        self.broker().kill()
        self._lab_process.kill()
        self._lab_process.wait(LIMIT_S)

    def coordinator(self, target: Path, *options: str) -> "subprocess.Popen[bytes]":
        with (self._folder / "coordinator.log").open("ab") as log:
            return subprocess.Popen(
                guarded(_command("coordinator", str(target), "--headless", *options)),
                stdout=log,
                stderr=log,
                env={**os.environ, ENVIRONMENT: str(self._lab.folder)},
            )


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fairbed.testbed.cli.main", *words]


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, "it must happen in time"
        time.sleep(0.05)


def _closed_rounds(run: Path) -> int:
    if not (run / "run.db").exists():
        return 0
    try:
        with RunReader(run) as reader:
            return len(reader.rounds())
    except Exception:  # the run is just being made
        return 0


@pytest.mark.broker
@pytest.mark.full
@needs.mosquitto
@pytest.mark.timeout(600)
def test_the_same_agents_serve_all_runs_without_a_hand_on_them(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    experiment = tmp_path / "many.toml"
    experiment.write_text(EXPERIMENT, encoding="utf-8")
    host = Host(lab, tmp_path)
    with host.up(), ExitStack() as stack:
        agents = [_start_agent(stack, tmp_path, lab, number) for number in range(AGENTS)]
        for number in range(1, RUNS + 1):
            run = tmp_path / f"run-{number}"
            if number == KILLED_BETWEEN:
                host.broker().kill()
            process = host.coordinator(experiment, "--out", str(run))
            stack.callback(end, process)
            if number == KILLED_WITHIN:
                _wait_until(lambda run=run: _closed_rounds(run) >= 1)  # type: ignore[misc]
                host.broker().kill()
            if number == HOST_KILLED:
                _wait_until(lambda run=run: _closed_rounds(run) >= 1)  # type: ignore[misc]
                process.kill()
                process.wait(LIMIT_S)
                host.kill()
                host.start()
                process = host.coordinator(run)
                stack.callback(end, process)
            assert process.wait(LIMIT_S) == 0, (tmp_path / "coordinator.log").read_text()[-3000:]
            _assert_all_took_part(run, is_disturbed=number in (KILLED_WITHIN, HOST_KILLED))
        for agent in agents:
            assert agent.poll() is None, "no agent may end"
            agent.send_signal(signal.SIGTERM)
        for number, agent in enumerate(agents):
            assert agent.wait(LIMIT_S) == 0
            warnings = [
                line for line in _log(tmp_path, number).read_text().splitlines() if "WARN" in line
            ]
            assert len(warnings) < 40, "one line when the reason changes, none for each attempt"


def _start_agent(
    stack: ExitStack, folder: Path, lab: Lab, number: int
) -> "subprocess.Popen[bytes]":
    name = f"pi-{number}"
    with Identities(lab.database) as identities:
        password = identities.create(name)
    config = folder / f"{name}.toml"
    url = f"mqtts://{name}:{password}@127.0.0.1:{lab.settings.port}?cafile={lab.ca}"
    config.write_text(
        f"broker_url = {json.dumps(url)}\nname = {json.dumps(name)}\n"
        f"cache_folder = {json.dumps(str(folder / name / 'cache'))}\n"
        f"state_folder = {json.dumps(str(folder / name / 'state'))}\n{task_key_line(lab, name)}"
    )
    config.chmod(0o600)
    with _log(folder, number).open("wb") as log:
        agent = subprocess.Popen(
            guarded([sys.executable, "-m", "fairbed.device_agent.cli", "--config", str(config)]),
            stdout=log,
            stderr=log,
        )
    stack.callback(end, agent)
    return agent


def _log(folder: Path, number: int) -> Path:
    return folder / f"pi-{number}.log"


def _assert_all_took_part(run: Path, *, is_disturbed: bool) -> None:
    with RunReader(run) as reader:
        assert reader.run().status == "done"
        rounds = reader.rounds()
        exchanges = reader.exchanges(0)
    assert len(rounds) >= ROUNDS
    merged = {x.device for x in exchanges if x.outcome == "done"}
    assert len(merged) == AGENTS
    if not is_disturbed:
        assert [row.aggregated for row in rounds] == [AGENTS] * ROUNDS
