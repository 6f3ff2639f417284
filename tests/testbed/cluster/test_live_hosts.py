"""Live runs on two real Ray nodes of this machine, with a real broker and real devices."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio
import psutil
import pytest
from anyio.from_thread import start_blocking_portal

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.backends.network.network import open_network
from fairbed.testbed.backends.network.probe import probe
from fairbed.testbed.cluster.host_supervisor import FOLDER
from fairbed.testbed.emulation.conditions import Conditions, Shape
from tests.processes import end
from tests.testbed.cluster.nodes import Nodes, ray_nodes
from tests.testbed.small_run import LIMIT_S, assert_gone, wait_until

pytestmark = [
    pytest.mark.full,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

pytest.importorskip("ray")

DEVICES = {f"raspberry-pi-4b-{number}" for number in range(1, 5)}

EXPERIMENT = """
name = "hosts"
rounds = {rounds}
[model]
name = "softmax"
[selection]
policy = "uniform"
per_round = 2
[round]
deadline_s = 30.0
[broker]
kind = "mosquitto"
[emulation]
host_core_speed = 6.0
[[fleet]]
profile = "raspberry-pi-4b"
count = 4
"""

FAIRBED = (sys.executable, "-m", "fairbed.testbed.cli.main", "run", "--json")

BACK_S = 30.0
"""Devices of a lost host must be back within so long."""

OF_RAY = "ray::_Shell"
"""In the title of a process in which Ray runs an object."""

DAY_S = 86_400

DAY_AHEAD = ("unshare", "--time", f"--monotonic={DAY_S}", f"--boottime={DAY_S}")
"""Starts a command whose monotonic clocks are a day ahead, where the kernel can do that."""


@contextmanager
def running(
    nodes: Nodes, folder: Path, rounds: int, *options: str
) -> Iterator["subprocess.Popen[str]"]:
    experiment = folder / "hosts.toml"
    experiment.write_text(EXPERIMENT.format(rounds=rounds))
    where = ["--out", str(folder / "run"), "--cluster", nodes.address]
    process = subprocess.Popen(
        [*FAIRBED, str(experiment), *where, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **nodes.environ},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end(process)


def closed_rounds(folder: Path) -> int:
    try:
        with RunReader(folder) as reader:
            return len(reader.rounds())
    except StoreError:
        return 0


def events(folder: Path, *kinds: str) -> list[tuple[float, str]]:
    """Return the time on the clock of the run, and the text, of events of some kinds."""
    with RunReader(folder) as reader:
        return [(one.at_s, one.text) for _, one in reader.events() if one.kind in kinds]


def devices_of_the_second(folder: Path) -> set[str]:
    """Return the devices that a run placed on the second node."""
    (text,) = (text for _, text in events(folder, "host") if "#2" in text)
    return set(text.rpartition("devices: ")[2].split(", "))


def processes_of_hosts() -> list[psutil.Process]:
    """Return the supervisors of devices that are children of this test, and what they started."""
    found = list[psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            if OF_RAY in command or "fairbed.testbed.backends" in command:
                found.append(process)
    return found


def is_ahead() -> bool:
    """Return whether `DAY_AHEAD` gives a command a clock of its own here."""
    clock = [sys.executable, "-c", "import time; print(time.monotonic())"]
    try:
        shown = subprocess.run([*DAY_AHEAD, *clock], capture_output=True, check=True, timeout=60.0)
    except (OSError, subprocess.CalledProcessError):
        return False
    return float(shown.stdout) > time.monotonic() + DAY_S / 2.0


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nodes, Path]]:
    """Two nodes, the second a day ahead where that is possible, and their temporary folder."""
    folder = tmp_path_factory.mktemp("hosts")
    with ray_nodes() as nodes:
        nodes.add(environ={"TMPDIR": str(folder)})
        nodes.add(environ={"TMPDIR": str(folder)}, inside=DAY_AHEAD if is_ahead() else ())
        yield nodes, folder


def test_a_fleet_runs_on_two_hosts_and_leaves_nothing(
    two_hosts: tuple[Nodes, Path], tmp_path: Path
) -> None:
    nodes, folder = two_hosts
    with running(nodes, tmp_path, rounds=6) as run:
        wait_until(lambda: closed_rounds(tmp_path / "run") >= 1, "round 1")
        started = processes_of_hosts()
        assert len(started) >= len(DEVICES) + 2
        out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert_gone(started)
    assert not list(folder.glob(f"{FOLDER}*"))
    summary = json.loads(out)
    assert (summary["status"], summary["rounds_completed"]) == ("done", 6)
    assert summary["selected"].keys() == DEVICES
    hosts = [text for _, text in events(tmp_path / "run", "host")]
    assert len(hosts) == 2
    assert all("reference step" in text and "round trip" in text for text in hosts)
    placed = [set(text.rpartition("devices: ")[2].split(", ")) for text in hosts]
    assert [len(one) for one in placed] == [2, 2]
    assert set.union(*placed) == DEVICES
    assert {f"{name}.log" for name in DEVICES} <= {
        path.name for path in (tmp_path / "run" / "logs").iterdir()
    }
    with RunReader(tmp_path / "run") as reader:
        exchanges = [row for name in DEVICES for row in reader.exchanges_of(name)]
    assert all(0.0 < row.tau_s < LIMIT_S for row in exchanges if row.tau_s is not None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda one: one.name)
def test_an_interrupted_run_leaves_nothing_on_any_host(
    number: signal.Signals, two_hosts: tuple[Nodes, Path], tmp_path: Path
) -> None:
    nodes, folder = two_hosts
    with running(nodes, tmp_path, rounds=10_000) as run:
        wait_until(lambda: closed_rounds(tmp_path / "run") >= 1, "round 1")
        started = processes_of_hosts() + psutil.Process(run.pid).children(recursive=True)
        if number is signal.SIGINT:
            os.killpg(run.pid, number)  # as Ctrl-C in a terminal
        else:
            run.kill()
        out, err = run.communicate(timeout=60)
        assert_gone(started)
    if number is signal.SIGINT:
        assert (run.returncode, json.loads(out)["status"]) == (0, "stopped"), err
        assert not list(folder.glob(f"{FOLDER}*"))


def test_devices_of_a_killed_node_are_back_within_30_s(tmp_path: Path) -> None:
    with ray_nodes() as nodes:
        nodes.add()
        second = nodes.add()
        with running(nodes, tmp_path, rounds=10_000) as run:
            folder = tmp_path / "run"
            wait_until(lambda: closed_rounds(folder) >= 3, "round 3")
            lost = devices_of_the_second(folder)
            second.kill()

            def joined_again() -> set[str]:
                with RunReader(folder) as reader:
                    found = [one for _, one in reader.events()]
                moved = [one.at_s for one in found if one.kind == "host-lost"]
                return {
                    one.device or ""
                    for one in found
                    if moved and one.kind == "rejoined" and one.at_s > moved[0]
                }

            wait_until(lambda: joined_again() >= lost, "the devices of the lost host")
            run.terminate()
            _, err = run.communicate(timeout=60)
        assert run.returncode == 0, err
    (left_s, _), *_ = events(folder, "left")
    with RunReader(folder) as reader:
        back = [e for _, e in reader.events() if e.kind == "rejoined" and e.at_s > left_s]
    assert {one.device for one in back} == lost
    assert max(one.at_s for one in back) - left_s < BACK_S
    (_, why), *_ = events(folder, "host-lost")
    assert "gave no sign for" in why
    assert all(name in why for name in lost)
    assert len(events(folder, "moved")) == 1


LARGE = ("--plain", "--set", "model.name=cnn", "--set", "selection.per_round=4")
"""All devices exchange 345 kB in each round."""

SLOW = Shape(down_bps=4e6, up_bps=4e6, down_queue_bytes=400_000, up_queue_bytes=400_000)


def is_held_up(row: ExchangeRow) -> bool:
    return row.reason.startswith("the network to the host of the device was too slow")


def test_a_slow_network_to_a_host_marks_the_exchanges_that_it_held_up(tmp_path: Path) -> None:
    """The second host is beyond a link whose rate falls in mid-run, and rises again."""
    support = anyio.run(probe)
    if support.problem is not None:
        pytest.skip(support.problem)
    folder = tmp_path / "run"

    def exchanges(devices: set[str], since_s: float) -> list[ExchangeRow]:
        """Return the exchanges with updates that were dispatched after an instant."""
        with RunReader(folder) as reader:
            rows = [row for name in devices for row in reader.exchanges_of(name)]
        return [row for row in rows if row.dispatched_at_s > since_s and row.outcome == "done"]

    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        network = stack.enter_context(
            portal.wrap_async_context_manager(open_network("hosts", {"far": None}))
        )
        inside = ("nsenter", f"--net={network.namespace('far')}")
        shown = subprocess.check_output([*inside, "ip", "-j", "-4", "addr", "show", "eth0"])
        nodes = stack.enter_context(ray_nodes(network.hub_address))
        nodes.add()
        nodes.add(host=json.loads(shown)[0]["addr_info"][0]["local"], inside=inside)
        run = stack.enter_context(running(nodes, tmp_path, 10_000, *LARGE))

        def change(shape: Shape) -> float:
            """Change the link; return the end of the open round, which saw both."""
            portal.call(network.apply, {"far": Conditions(speed_ratio=None, shape=shape)})
            end = closed_rounds(folder) + 1
            wait_until(lambda: closed_rounds(folder) >= end, f"round {end}")
            with RunReader(folder) as reader:
                return reader.rounds()[-1].closed_at_s

        wait_until(lambda: closed_rounds(folder) >= 1, "round 1")
        far = devices_of_the_second(folder)
        slow_s = change(SLOW)
        wait_until(lambda: len(exchanges(far, slow_s)) >= 2, "exchanges over the slow network")
        recovering_s = exchanges(far, slow_s)[-1].dispatched_at_s
        quick_s = change(Shape())
        wait_until(
            lambda: any(row.is_valid for row in exchanges(far, quick_s)), "a valid one after it"
        )
        run.terminate()
        _, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    slowed = [row for row in exchanges(far, slow_s) if row.dispatched_at_s <= recovering_s]
    assert all(not row.is_valid and is_held_up(row) for row in slowed), slowed
    assert not all(map(is_held_up, exchanges(DEVICES - far, 0.0)))


def test_a_dead_address_is_one_line(tmp_path: Path) -> None:
    experiment = tmp_path / "hosts.toml"
    experiment.write_text(EXPERIMENT.format(rounds=1))
    done = subprocess.run(
        [*FAIRBED, str(experiment), "--out", str(tmp_path / "run"), "--cluster", "127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fairbed: --cluster 127.0.0.1:9: a Ray cluster must answer")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
