"""Runs with `broker.url = "lab"`: agents that are enrolled once serve run after run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.tables import SelectionRow
from fairbed.testbed.experiment.shards import StoredShards
from fairbed.testbed.lab.audit import Audit
from fairbed.testbed.lab.folder import Lab, LabBroker
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.lab.service import running_pid
from fairbed.testbed.run_folder import ENDPOINT_FILE
from tests.brokers import PRODUCTION_BROKERS
from tests.processes import end, is_gone
from tests.testbed.lab.labs import FAIRBED, lab_up, make_lab, task_key_line
from tests.testbed.small_run import LIMIT_S, wait_until

pytestmark = [pytest.mark.slow]

NAMES = ("pi-kitchen", "pi-hall")

FULL_SIGNALS = [
    pytest.param(number, marks=pytest.mark.full) for number in (signal.SIGINT, signal.SIGHUP)
]

EXPERIMENT = """
name = "lab"
rounds = {rounds}
[model]
name = "softmax"
[selection]
per_round = 2
beta = 0.6
[round]
min_devices = 2
[broker]
url = "lab"
"""


@pytest.fixture(params=PRODUCTION_BROKERS)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    kind: LabBroker = request.param
    return make_lab(tmp_path, kind)


class Coordinator(NamedTuple):
    """A `fairbed coordinator` in its own process."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    """Of its run."""
    out: Path
    """What it has printed."""

    def end(self) -> int:
        """Wait for the end of the run; return the exit code."""
        return self.process.wait(LIMIT_S)

    def rounds(self) -> int:
        """Return the number of closed rounds."""
        try:
            with RunReader(self.folder) as reader:
                return len(reader.rounds())
        except StoreError:
            return 0

    def wait_round(self, round_id: int, what: str) -> None:
        """Wait until a round has closed."""
        wait_until(lambda: self.rounds() >= round_id, what)


@contextmanager
def agent(lab: Lab, name: str, password: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the agent of an enrolled device, which takes signed messages only and knows its lab."""
    config = folder / f"{name}.toml"
    url = f"mqtts://{name}:{password}@127.0.0.1:{lab.settings.port}?cafile={lab.ca}"
    config.write_text(
        f'name = "{name}"\nbroker_url = "{url}"\ncache_folder = "{folder / name}"\n'
        f'state_folder = "{folder / name}"\n{task_key_line(lab, name)}'
        f'lab_url = "https://127.0.0.1:{lab.settings.enrol_port}"\n'
    )
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fairbed.device_agent.cli", "--config", str(config)], stderr=log
        )
    try:
        yield process
        assert process.poll() is None, (folder / f"{name}.log").read_text()
    finally:
        end(process)


def fairbed(lab: Lab, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*FAIRBED, *arguments],
        env=os.environ | {"FAIRBED_LAB": str(lab.folder)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


@contextmanager
def coordinator(
    lab: Lab, folder: Path, run: str, rounds: int, *, more: str = "", resume: bool = False
) -> Iterator[Coordinator]:
    """Run `fairbed coordinator` for the duration of a block; `more` is of its experiment."""
    experiment = folder / "lab.toml"
    experiment.write_text(EXPERIMENT.format(rounds=rounds) + more)
    out = folder / f"{run}.out"
    what = [str(folder / run)] if resume else [str(experiment), "--out", str(folder / run)]
    with out.open("wb") as file:  # a pipe that is not read would stop a long run
        process = subprocess.Popen(
            [*FAIRBED, "coordinator", *what, "--headless"],
            env=os.environ | {"FAIRBED_LAB": str(lab.folder)},
            stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield Coordinator(process, folder / run, out)
    finally:
        process.kill()
        process.wait(LIMIT_S)


def refusals(folder: Path) -> list[str | None]:
    """Return the devices that left a run because the broker refuses them, once there is one."""
    found = list[str | None]()

    def is_there() -> bool:
        with RunReader(folder) as reader:
            found[:] = [event.device for _, event in reader.events() if event.kind == "revoked"]
        return bool(found)

    wait_until(is_there, "the end of a revoked device in its run")
    return found


@pytest.mark.full
def test_agents_that_are_enrolled_once_serve_two_runs(lab: Lab, tmp_path: Path) -> None:
    with ExitStack() as stack:
        up = stack.enter_context(lab_up(lab))
        with Identities(lab.database) as identities:
            passwords = {name: identities.create(name) for name in NAMES}
        for name, password in passwords.items():
            stack.enter_context(agent(lab, name, password, tmp_path))
        with coordinator(lab, tmp_path, "first", rounds=2) as first:
            assert first.end() == 0, first.out.read_text()
        assert "to add a device, run: fairbed enroll NAME\n" in first.out.read_text()
        assert first.rounds() == 2

        second = stack.enter_context(coordinator(lab, tmp_path, "second", rounds=10_000))
        second.wait_round(2, "round 2 of the second run")
        for broker in psutil.Process(up.pid).children():
            broker.kill()
        second.wait_round(second.rounds() + 2, "a round after the fault")  # one may be open
        endpoint = (second.folder / ENDPOINT_FILE).read_text()
        assert "***" in endpoint
        revoked = fairbed(lab, "devices", "revoke", NAMES[0])
        assert revoked.returncode == 0, revoked.stderr
        assert refusals(second.folder) == [NAMES[0]]
        after = second.rounds() + 2
        second.wait_round(after, "a round without the device")
        stopped = fairbed(lab, "stop", str(second.folder))
        assert stopped.returncode == 0, stopped.stderr
        second.end()
        with RunReader(second.folder) as reader:
            assert {row.device for row in reader.exchanges()} == set(NAMES)
            assert {x.device for x in reader.exchanges() if x.round >= after} == {NAMES[1]}
            (command,) = reader.commands()
            assert (command.action, command.operator) == ("stop", "local")
        (row,) = [row for row in Audit(lab.audit).rows() if row.action == "command"]
        assert (row.by, row.detail) == ("operator_local", "stop second")


FLEET = ("pi-1", "pi-2", "pi-3")


def selections(folder: Path, name: str) -> dict[int, SelectionRow]:
    """Return the rows of a device in the selections of a run, by round."""
    with RunReader(folder) as reader:
        rows = [row for x in reader.rounds() for row in reader.selections(x.round)]
    return {row.round: row for row in rows if row.device == name}


@pytest.mark.full
def test_a_device_renamed_in_the_lab_keeps_row_data_and_queue_of_a_live_run(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    more = f"[[fleet]]\nphysical = {json.dumps(FLEET)}\n"
    with ExitStack() as stack:
        stack.enter_context(lab_up(lab))
        with Identities(lab.database) as identities:
            passwords = {name: identities.create(name) for name in FLEET}
        for name, password in passwords.items():
            stack.enter_context(agent(lab, name, password, tmp_path))

        def is_renamed(run: Coordinator, after: int) -> bool:
            return any(row.is_selected for x, row in selections(run.folder, "board-9").items()
                       if x > after)  # fmt: skip

        with coordinator(lab, tmp_path, "run", rounds=100_000, more=more) as run:
            run.wait_round(3, "round 3")
            # All shards have names: the new name of the board finds none that is free.
            renamed = fairbed(lab, "devices", "rename", "pi-3", "board-9")
            assert renamed.returncode == 0, renamed.stderr
            closed = run.rounds()
            wait_until(lambda: is_renamed(run, closed), "an exchange under the new name")
            assert fairbed(lab, "stop", str(run.folder)).returncode == 0
            run.end()
        closed = run.rounds()
        with coordinator(lab, tmp_path, "run", rounds=100_000, more=more, resume=True) as run:
            wait_until(lambda: is_renamed(run, closed), "an exchange after the resume")
            assert fairbed(lab, "stop", str(run.folder)).returncode == 0
            run.end()
    with RunReader(run.folder) as reader:
        rows = {row.name: row.row for row in reader.devices()}
        events = [event for _, event in reader.events()]
        exchanges = {row.device for row in reader.exchanges()}
    assert rows == {"pi-1": 0, "pi-2": 1, "board-9": 2}
    assert exchanges == set(rows)
    assert StoredShards.read(run.folder) == rows
    assert [x.device for x in events if x.kind == "renamed"] == ["board-9"]
    assert "refused" not in {event.kind for event in events}
    queue = selections(run.folder, "board-9")
    assert {1, 2, 3} < set(queue)
    for one, two in pairwise(sorted(queue)):
        step = 0.6 - queue[two].is_selected
        assert queue[two].queue == pytest.approx(max(queue[one].queue + step, 0.0)), (one, two)


def test_a_lab_that_is_down_is_named(lab: Lab, tmp_path: Path) -> None:
    with coordinator(lab, tmp_path, "run", rounds=1) as run:
        assert run.end() == 2
    assert run.out.read_text().splitlines()[-1] == (
        f"fairbed: broker.url: the lab {lab.folder} must be up, got one that is down; start it "
        "with: fairbed lab up"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, *FULL_SIGNALS])
def test_a_signal_ends_the_lab_and_its_broker(lab: Lab, number: signal.Signals) -> None:
    with lab_up(lab) as process:
        (broker,) = psutil.Process(process.pid).children()
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err
        assert is_gone(broker)
        assert running_pid(lab) is None


def test_a_lab_that_is_killed_leaves_no_broker(lab: Lab) -> None:
    with lab_up(lab) as process:
        (broker,) = psutil.Process(process.pid).children()
        process.kill()
        assert is_gone(broker)
    with lab_up(lab):
        assert running_pid(lab) is not None
