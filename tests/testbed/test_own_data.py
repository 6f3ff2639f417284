"""The example of devices with own data, live: two such devices and one with a shard."""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import numpy as np
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.device_agent.examples import OwnData
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.run.broker import enrol_in_run
from fairbed.testbed.run_folder import read_endpoint
from fairbed.wire.labels import Classes
from fairbed.wire.messages import HeldOut
from tests.processes import end
from tests.testbed.small_run import LIMIT_S, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("board-a", "board-b", "board-c")


@contextmanager
def agent(url: str, name: str, folder: Path, data: Path | None) -> Iterator[None]:
    command = [sys.executable, "-m", "fairbed.device_agent.cli", "--broker", url, "--name", name]
    command += ["--cache", str(folder / f"{name}-cache"), "--state", str(folder / f"{name}-state")]
    command += ["--data", str(data)] if data is not None else []
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        end(process)


def run(folder: Path, *settings: str) -> Path:
    """Run the example as its first lines say; return the folder of the run."""
    out = folder / "run"
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "coordinator"]
    command += [str(EXAMPLES / "own-data.toml"), "--headless", "--out", str(out)]
    command += [word for setting in settings for word in ("--set", setting)]
    coordinator = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with ExitStack() as agents:
        try:
            wait_until(lambda: coordinator.poll() is not None or bool(read_endpoint(out)), "broker")
            endpoint = read_endpoint(out)
            assert endpoint is not None, coordinator.communicate()[0]
            for name in NAMES:
                data = folder / f"{name}.npz"
                own = data if data.exists() else None
                url = anyio.run(enrol_in_run, out, endpoint, name)
                agents.enter_context(agent(url, name, folder, own))
            printed, _ = coordinator.communicate(timeout=LIMIT_S)
        finally:
            end(coordinator)
    assert coordinator.returncode == 0, printed
    return out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the files of the example's data."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "own_data.py"))
    return tmp_path


def test_no_picture_of_the_example_is_in_two_files(folder: Path) -> None:
    seen = set[bytes]()
    for name in ("server", "board-a", "board-b"):
        x = np.load(folder / f"{name}.npz")["x"]
        pictures = {bytes(each.tobytes()) for each in x}
        assert len(pictures) == len(x)
        assert not pictures & seen
        seen |= pictures


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.full
def test_every_device_of_the_example_has_an_accuracy_and_a_log(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(folder)
    for name in NAMES:
        assert main(["logs", name, str(out)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert any(line.endswith(" INFO    round -: preparing") for line in lines), lines
        assert not [line for line in lines if "mqtt://" in line or name in line]
    with RunReader(out) as reader:
        rows = reader.device_metrics()
        metrics, devices = reader.metrics(), reader.devices()
        events = [e.text for _, e in reader.events() if e.level != "info"]
    scores = {row.device: row for row in rows}
    assert sorted(scores) == list(NAMES)
    assert [row.devices for row in metrics] == [3] * 20, events
    assert {name: scores[name].n for name in NAMES[:2]} == {"board-a": 100, "board-b": 99}
    assert {row.name: (row.n_k, row.has_own_data) for row in devices if row.has_own_data} == {
        "board-a": (400, True),
        "board-b": (398, True),
    }
    assert [scores[name].bytes_down is None for name in NAMES] == [False, False, True]
    accuracy = {name: score.accuracy or 0.0 for name, score in scores.items()}
    assert accuracy["board-a"] > 0.85
    assert accuracy["board-b"] < accuracy["board-a"] - 0.05, "upside down"
    assert metrics[-1].accuracy_mean == pytest.approx(np.mean([row.accuracy for row in rows]))


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.full
def test_a_server_test_set_does_not_see_the_camera_that_is_upside_down(folder: Path) -> None:
    out = run(folder, "evaluation.own_data=server-test-set", "rounds=5")
    with RunReader(out) as reader:
        (*_, last), rows, devices = reader.metrics(), reader.device_metrics(), reader.devices()
    assert [row.device for row in rows] == ["board-c"]
    assert last.test_n is not None
    assert last.test_n > rows[0].n, "of all shards"
    assert {row.name: row.n_k for row in devices if row.has_own_data} == {
        "board-a": 500,
        "board-b": 497,
    }


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.full
def test_names_at_a_device_are_the_classes_of_the_fleet(folder: Path) -> None:
    """Each file lacks other digits, so that a name has another place in its own sorted list."""
    names = np.array(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    )
    for board, left_out in (("server", ()), ("board-a", (0, 4, 9)), ("board-b", (1, 8))):
        with np.load(folder / f"{board}.npz") as arrays:
            x, y = arrays["x"], arrays["y"]
        is_kept = ~np.isin(y, left_out)
        np.savez(folder / f"{board}.npz", x=x[is_kept], y=names[y[is_kept]])
    out = run(folder, "rounds=16")
    with RunReader(out) as reader:
        scores = {row.device: row.accuracy for row in reader.device_metrics()}
    assert (scores["board-a"] or 0.0) > 0.7
    lines = (folder / "board-a.log").read_text()
    assert "preparation failed" not in lines


def test_a_device_of_the_example_holds_out_the_share_of_the_experiment(folder: Path) -> None:
    held_out = load_experiment(EXAMPLES / "own-data.toml").coordinator(starts_fleet=False).held_out
    assert held_out == HeldOut(fraction=0.2, seed=1)
    classes = Classes("classification", 10)
    found = OwnData(folder / "board-a.npz", classes, held_out, "board-a").held_out()
    assert found is not None
    assert set(found[1].tolist()) == set(range(10))


@pytest.mark.parametrize(
    ("settings", "holds_out"),
    [
        ([], True),
        (["evaluation.own_data=off"], False),
        (["evaluation.own_data=server-test-set"], False),
        (["privacy.clip=1.0", "privacy.noise_multiplier=1.0"], False),
        (["privacy.clip=1.0", "privacy.noise_multiplier=1.0", "privacy.scores=true"], True),
    ],
)
def test_devices_hold_out_examples_only_where_they_may_report_scores(
    settings: list[str], holds_out: bool
) -> None:
    experiment = load_experiment(EXAMPLES / "own-data.toml", settings)
    assert (experiment.coordinator(starts_fleet=False).held_out is not None) == holds_out
