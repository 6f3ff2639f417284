"""Runs of Flower apps on emulated devices: the real broker, agents, ServerApp and ClientApps."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import psutil
import pytest

import fairbed
from fairbed import RunError, UsageError
from fairbed.coordinator.report.result import next_commands, result_of
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.store import stored_checkpoint
from fairbed.coordinator.tui.screens.round import read_round
from fairbed.testbed.host.broker_process import find_mosquitto
from fairbed.testbed.run.broker import start_broker
from fairbed.wire.records import decode_records
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport
from tests.testbed.small_run import physical_agent

DEVICES = 3
ODD = Path(__file__).with_name("odd_app")

RunApp = Callable[..., fairbed.Run]


def experiment(python: str, app: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": "app",
        "broker": {"kind": "mosquitto"},
        "emulation": {"backend": "process"},
        "selection": {"policy": "app"},
        "round": {"deadline_s": 60.0},
        "fleet": [{"name": "pi", "count": settings.get("devices", DEVICES)}],
        "flower": {"app": str(app), "python": python, "config": {}, "timeout_s": 60.0},
    }
    for key, value in settings.items():
        if key == "devices":
            continue
        table, _, name = key.partition(".")
        if name.startswith("config."):
            found[table]["config"][name.removeprefix("config.")] = value
        else:
            found.setdefault(table, {})[name] = value
    return found


@pytest.fixture
def run_app(tmp_path: Path, flower_python: str) -> RunApp:
    """Return what runs an app to its end."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")

    def run(settings: Mapping[str, Any] | None = None, app: Path = ODD) -> fairbed.Run:
        given = experiment(flower_python, app, settings or {})
        return fairbed.run(given, out=tmp_path / "run")

    return run


def rows(run: fairbed.Run | Path, query: str) -> list[tuple[Any, ...]]:
    folder = run if isinstance(run, Path) else run.folder
    with closing(sqlite3.connect(f"file:{folder / 'run.db'}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def arrays(folder: Path) -> list[Any]:
    """Return the global arrays after the last round."""
    checkpoint = stored_checkpoint(folder)
    assert checkpoint is not None
    (record,) = decode_records(checkpoint.raw).values()
    return list(record.items.values())


def test_an_app_runs_as_it_is(run_app: RunApp, examples: Path) -> None:
    run = run_app({"flower.config.num-server-rounds": 2}, examples / "flower-numpy")
    assert run.status == "done"
    exchanges = rows(run, "SELECT round, device, outcome, bytes_down, train_s FROM exchange")
    assert [(x[0], x[2]) for x in exchanges] == [(1, "done")] * 3 + [(2, "done")] * 3
    assert all(x[4] > 0.0 for x in exchanges)
    accuracy = rows(run, "SELECT round, accuracy_mean FROM metric ORDER BY round")
    assert [x[0] for x in accuracy] == [1, 2]
    assert accuracy[1][1] > accuracy[0][1] > 0.5
    named = {x[0] for x in rows(run, "SELECT DISTINCT name FROM client_metric")}
    assert {"loss", "loss-before", "num-examples", "accuracy"} <= named
    query = "SELECT phase, name, round, n FROM client_metric WHERE device = '' ORDER BY 1, 2, 3"
    assert [x for x in rows(run, query) if x[1] in ("accuracy", "loss")] == [
        *(("central", "accuracy", number, 0) for number in (0, 1, 2)),
        *(("central", "loss", number, 0) for number in (0, 1, 2)),
        *(("merged evaluate", "accuracy", number, 0) for number in (1, 2)),
        *(("merged evaluate", "loss", number, 0) for number in (1, 2)),
        *(("merged fit", "loss", number, 0) for number in (1, 2)),
    ]
    of_app = {(x.phase, x.name): x for x in run.summary.client_metrics or [] if not x.devices}
    merged = rows(run, "SELECT accuracy_mean FROM metric WHERE round = 2")[0][0]
    assert of_app["merged evaluate", "accuracy"].mean == pytest.approx(merged)
    assert "(central)" in summary_table(run.summary)
    with RunReader(run.folder) as reader:
        shown = read_round(2, reader)
    assert shown is not None
    assert "accuracy (central) 0." in shown.app
    assert "(fit)" not in shown.app
    assert run.summary.aggregation.rule == "app"
    assert run.experiment.rounds == 2


def test_a_guarantee_counts_with_a_policy_of_ours(run_app: RunApp) -> None:
    run = run_app(
        {
            "selection.policy": "rbcs-f",
            "selection.per_round": 2,
            "flower.config.num-server-rounds": 4,
        }
    )
    cohorts = rows(run, "SELECT round, count(*) FROM exchange GROUP BY round")
    assert cohorts == [(1, 2), (2, 2), (3, 2), (4, 2)]
    fairness = run.summary.fairness
    assert fairness.invariant_holds is True
    # Each round adds 1, whichever devices train; the strategy weights them.
    assert np.allclose(arrays(run.folder)[0], 4.0)
    scored = rows(run, "SELECT round, count(*) FROM device_metric GROUP BY round")
    assert scored == [(1, 3), (2, 3), (3, 3), (4, 3)]


def test_a_client_that_ends_fails_its_exchange_alone(run_app: RunApp) -> None:
    run = run_app({"flower.config.what": "crashes"})
    states = dict(
        ((number, device), (state, reason))
        for number, device, state, reason in rows(
            run, "SELECT round, device, outcome, reason FROM exchange"
        )
    )
    failed = {key: reason for key, (state, reason) in states.items() if state != "done"}
    assert failed.keys() == {(2, "pi-2"), (3, "pi-3")}
    assert "exited with status 3" in failed[2, "pi-2"]
    assert "no training today" in failed[3, "pi-3"]
    log = (run.folder / "logs" / "pi-2.log").read_text(encoding="utf-8")
    assert "the last words of a client" in log
    assert states[3, "pi-2"][0] == "done"


def test_an_app_with_its_own_loop(run_app: RunApp) -> None:
    """Queries, groups that are pushed and pulled, and other arrays for one node."""
    run = run_app({"flower.config.what": "loops"})
    assert rows(run, "SELECT round, count(*) FROM exchange GROUP BY round") == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]
    log = (run.folder / "logs" / "app.log").read_text(encoding="utf-8")
    assert "at the end 3.0 3" in log


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"flower.config.what": "raises", "devices": 2},
            r"app: ValueError: the second round is cursed",
        ),
        ({"flower.config.what": "ends", "devices": 1}, r"app: must train devices"),
        (
            {"flower.config.what": "hangs", "flower.timeout_s": 1.0, "devices": 1},
            r"app: must push messages, or end within 1 s \(flower.timeout_s\)",
        ),
        (
            {"flower.timeout_s": 6.0, "flower.poll_s": 0.5, "devices": 1},
            r"must push messages, or end within 6 s \(flower.timeout_s\), got polls: the app waits "
            r"for devices: 1 of 2 are willing, .* the fleet has 1: lower min-available-nodes",
        ),
        (
            {
                "flower.config.what": "polls",
                "selection.policy": "uniform",
                "selection.per_round": 2,
                "flower.poll_s": 1.0,
            },
            r"selection: .* min-train-nodes and min-available-nodes",
        ),
        (
            {
                "flower.config.fraction-train": 0.5,
                "selection.policy": "uniform",
                "selection.per_round": 2,
            },
            r"selection: .* fraction-train = 1\.0",
        ),
    ],
    ids=lambda x: str(x.get("flower.config.what", "subset")) if isinstance(x, dict) else "",
)
def test_an_app_that_fails_ends_the_run_in_one_line(
    run_app: RunApp, settings: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.testbed.flower.server.STOP_S", 0.3)  # an app that sleeps
    with pytest.raises(RunError, match=line) as failure:
        run_app(settings)
    assert "\n" not in str(failure.value)


def killed(
    settings: Mapping[str, Any], python: str, tmp_path: Path
) -> tuple[Path, list[psutil.Process]]:
    """Run an app, and kill its coordinator after round 3.

    Returns:
        The folder of the run, and all processes that had been started for it.
    """
    app = shutil.copytree(ODD, tmp_path / "app")
    file, folder = tmp_path / "app.toml", tmp_path / "run"
    file.write_text(fairbed_toml(experiment(python, app, settings)), encoding="utf-8")
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "run", "--headless"]
    with subprocess.Popen([*command, str(file), "--out", str(folder)]) as process:
        ends = time.monotonic() + 60.0
        while time.monotonic() < ends and not _closed_rounds(folder) >= 3:
            time.sleep(0.05)
        started = psutil.Process(process.pid).children(recursive=True)
        if "flower.config.mark" in settings:
            marked = _with_argument(settings["flower.config.mark"])
            assert len(marked) == 2 * (1 + DEVICES), "of the ServerApp, and of each ClientApp"
            started += marked
        os.kill(process.pid, signal.SIGKILL)
    return folder, started


def test_a_killed_run_goes_on_from_the_last_arrays(
    tmp_path: Path, run_app: RunApp, flower_python: str
) -> None:
    mark = str(tmp_path)
    changes = {"num-server-rounds": 30, "what": "starts", "mark": mark}
    settings = {f"flower.config.{key}": value for key, value in changes.items()}
    folder, started = killed(settings, flower_python, tmp_path)
    left = psutil.wait_procs(started, 10.0)[1]
    for each in left:
        each.kill()
    assert not left, "all that it, or code of the user, has started ends with it"
    done = _closed_rounds(folder)
    assert 3 <= done < 30
    assert np.all(arrays(folder)[0] == done)
    for name in ("odd_app.py", "pyproject.toml"):
        file = tmp_path / "app" / name
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("fraction-train", "share-train"), encoding="utf-8")
        with pytest.raises(UsageError, match=r"/app: must have the code with which the run beg"):
            fairbed.run(folder)
        file.write_text(text, encoding="utf-8")
    run = fairbed.run(folder)
    assert run.status == "done"
    assert not _with_argument(mark), "of a run that has ended by itself"
    assert np.all(arrays(folder)[0] == 30.0)
    (text,) = rows(run, "SELECT text FROM event WHERE kind = 'resumed' AND text LIKE '%app%'")[0]
    assert "lost" in text


def test_a_killed_run_whose_floats_we_merge_by_our_rule_goes_on(
    tmp_path: Path, run_app: RunApp, flower_python: str
) -> None:
    settings = {
        "flower.merge": "ours",
        "aggregation.rule": "fedavg",
        "aggregation.raw": "max",
        "selection.policy": "rbcs-f",
        "selection.per_round": 2,
        "flower.config.num-server-rounds": 30,
    }
    folder, _ = killed(settings, flower_python, tmp_path)
    done = _closed_rounds(folder)
    assert 3 <= done < 30
    run = fairbed.run(folder)
    assert run.status == "done"
    checkpoint = stored_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.model.shape == (2000,)
    assert np.all(checkpoint.model == 30.0)
    assert np.array_equal(arrays(folder)[0], [30, 30, 30])
    cohorts = rows(run, "SELECT round, count(*) FROM exchange GROUP BY round")
    assert cohorts == [(number, 2) for number in range(1, 31)]
    assert run.summary.fairness.invariant_holds is True
    assert run.summary.aggregation.rule == "fedavg"
    with RunReader(run.folder) as reader:
        offered = [command for _, _, command in next_commands(result_of(reader))]
    assert offered
    assert not any("replay" in command for command in offered), "it would be refused"


def _with_argument(text: str) -> list[psutil.Process]:
    """Return the processes whose last argument is a text."""
    return [x for x in psutil.process_iter(["cmdline"]) if (x.info["cmdline"] or [""])[-1] == text]


def _closed_rounds(folder: Path) -> int:
    try:
        return int(rows(folder, "SELECT coalesce(max(round), 0) FROM checkpoint")[0][0])
    except sqlite3.Error:
        return 0


def fairbed_toml(document: Mapping[str, Any]) -> str:
    import msgspec

    return msgspec.toml.encode(document).decode()


def test_physical_devices_run_the_app_beside_emulated_ones(
    tmp_path: Path, run_app: RunApp, flower_python: str
) -> None:
    for name in ("app", "changed"):
        shutil.copytree(ODD, tmp_path / name)
    with (tmp_path / "changed" / "odd_app.py").open("a") as file:
        file.write("# of another version\n")
    allowed = {
        "pi-kitchen": ("app", flower_python),
        "pi-hall": ("app", sys.executable),
        "pi-cellar": ("changed", flower_python),
        "pi-attic": None,
    }

    published = Counter[str]()

    async def count(broker: str) -> None:
        """Count the bytes of the blobs for all devices that the coordinator publishes."""
        async with MqttTransport(broker, "look") as link:
            async for event in link.events():
                if isinstance(event, LinkUp):
                    await link.subscribe(Topics().chunk("+", "+"))
                elif isinstance(event, Packet):
                    published[event.topic.split("/c/")[0]] += len(event.payload)

    async def mixed() -> fairbed.Run:
        with ExitStack() as agents:
            async with (
                start_broker("mosquitto", folder=tmp_path) as broker,
                anyio.create_task_group() as group,
            ):
                group.start_soon(count, broker.url)
                for name, code in allowed.items():
                    options = [] if code is None else [f"app={tmp_path / code[0]},{code[1]}"]
                    options = [x for one in options for x in ("--allow-client", one)]
                    place = tmp_path / name
                    place.mkdir()
                    agents.enter_context(physical_agent(broker.url, name, place, options=options))
                settings = {
                    "broker.url": broker.url,
                    "round.min_devices": DEVICES + 1,
                    "round.deadline_s": 60.0,
                }
                given = experiment(flower_python, tmp_path / "app", settings)
                del given["broker"]["kind"]
                given["fleet"].append({"physical": list(allowed)})
                run = partial(fairbed.run, given, out=tmp_path / "run")
                ended = await anyio.to_thread.run_sync(run)
                group.cancel_scope.cancel()
                return ended
        raise AssertionError

    run = anyio.run(mixed)
    assert run.status == "done"
    payload = 8 * (50 * 40 + 3)
    versions = [size for size in published.values() if size > payload]
    assert len(versions) == 1 + 3, "each, and no copy of it, for 4 devices and 2 types of messages"
    assert sum(published.values()) < 4.1 * payload
    outcomes = dict(rows(run, "SELECT device, count(*) FROM exchange GROUP BY device"))
    assert outcomes == {"pi-1": 3, "pi-2": 3, "pi-3": 3, "pi-kitchen": 3}
    assert rows(run, "SELECT DISTINCT outcome FROM exchange") == [("done",)]
    warned = dict(
        rows(
            run, "SELECT device, text FROM event WHERE device > '' AND kind IN ('skill', 'trouble')"
        )
    )
    assert warned.keys() == {"pi-hall", "pi-cellar", "pi-attic"}
    assert "needs flwr 1.21 or later, got none in" in warned["pi-hall"]
    assert "client app: must have the code of the run, sha256" in warned["pi-cellar"]
    assert "start its agent with --allow-client app=FOLDER" in warned["pi-attic"]
