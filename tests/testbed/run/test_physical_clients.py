"""A client on physical devices: `device-agent` processes with own data, and three that cannot."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import numpy as np
import pytest

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.testbed.host.broker_process import find_mosquitto
from fairbed.testbed.run.broker import enrol_in_run
from fairbed.testbed.run_folder import read_endpoint
from tests.processes import end
from tests.testbed.small_run import LIMIT_S, wait_until

CODE = Path(__file__).parents[2] / "cases" / "own_clients"

EXPERIMENT = f"""
name = "own"
rounds = 2
[data]
dataset = "none"
[training]
client = "counts:Counts"
client_folder = "{CODE}"
[selection]
policy = "uniform"
per_round = 2
[round]
deadline_s = 60.0
min_devices = 2
[broker]
kind = "mosquitto"
[[fleet]]
physical = ["board-a", "board-b", "stranger", "other", "bare"]
"""


@contextmanager
def agent(url: str, name: str, folder: Path, *options: str) -> Iterator[None]:
    """Run a `device-agent` as its owner starts it."""
    command = [sys.executable, "-m", "fairbed.device_agent.cli", "--broker", url, "--name", name]
    command += ["--cache", str(folder / f"{name}-cache"), "--state", str(folder / f"{name}-state")]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
    try:
        yield
    finally:
        end(process)


def interpreter(folder: Path, *packages: str) -> Path:
    """Return the Python of a new environment that has these packages of this one alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (library,) = folder.glob("lib/python*/site-packages")
    for package in packages:
        for found in Path(np.__file__).parents[1].glob(package):
            (library / found.name).symlink_to(found)
    return folder / "bin" / "python"


def problems_of(run: Path, count: int) -> dict[str, str]:
    """Return why devices of a run cannot join it; empty until there are as many."""
    try:
        with RunReader(run) as reader:
            events = [e for _, e in reader.events() if e.kind in ("skill", "trouble")]
    except StoreError:
        return {}  # the store begins after the broker
    found = {event.device: event.text for event in events if event.device is not None}
    return found if len(found) >= count else {}


@pytest.mark.broker
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
def test_boards_train_on_data_of_their_own_and_those_that_cannot_are_named(tmp_path: Path) -> None:
    python, bare = interpreter(tmp_path / "a", "numpy", "numpy.libs"), interpreter(tmp_path / "b")
    changed = tmp_path / "changed"
    shutil.copytree(CODE, changed, ignore=shutil.ignore_patterns("__pycache__"))
    (changed / "notes.log").write_text("epoch 1\n")
    (tmp_path / "photos").mkdir()
    np.save(tmp_path / "photos" / "labels.npy", np.array([3, 3, 7]))
    (tmp_path / "a.toml").write_text(
        f'[clients.own-clients]\nfolder = "{CODE}"\npython = "{python}"\n'
        f'data = "{tmp_path / "photos"}"\n'
    )
    np.savez(tmp_path / "b.npz", x=np.zeros((4, 2), np.float32), y=np.arange(4))  # of other runs
    devices = {
        "board-a": ("--config", str(tmp_path / "a.toml")),
        "board-b": ("--allow-client", f"own-clients={CODE}", "--data", str(tmp_path / "b.npz")),
        "stranger": ("--allow-client", f"another={CODE}"),
        "other": ("--allow-client", f"own-clients={changed}"),
        "bare": ("--allow-client", f"own-clients={CODE},{bare}"),
    }
    (tmp_path / "own.toml").write_text(EXPERIMENT)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "coordinator"]
    command += [str(tmp_path / "own.toml"), "--headless", "--out", str(out)]
    coordinator = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    problems: dict[str, str] = {}
    with ExitStack() as agents:
        try:
            wait_until(lambda: coordinator.poll() is not None or bool(read_endpoint(out)), "broker")
            endpoint = read_endpoint(out)
            assert endpoint is not None, coordinator.communicate()[0]
            for name in ("stranger", "other", "bare", "board-a", "board-b"):
                if name == "board-a":
                    problems = wait_until(lambda: problems_of(out, 3), "three problems")
                url = anyio.run(enrol_in_run, out, endpoint, name)
                agents.enter_context(agent(url, name, tmp_path, *devices[name]))
            printed, _ = coordinator.communicate(timeout=LIMIT_S)
        finally:
            end(coordinator)
    assert coordinator.returncode == 0, printed
    with RunReader(out) as reader:
        final, exchanges = reader.final_model(), reader.exchanges()
        metrics = {(row.device, row.name): row.value for row in reader.client_metrics()}
    assert {(x.device, x.outcome) for x in exchanges} == {("board-a", "done"), ("board-b", "done")}
    assert {(x.device, x.n_k) for x in exchanges} == {("board-a", 3), ("board-b", 2)}
    assert final is not None
    # labels 3, 3, 7 of one device and the number 1 twice of the other, weighted by examples
    assert final[1].tolist() == pytest.approx([0, 0.4, 0, 0.4, 0, 0, 0, 0.2, 0, 0])
    assert metrics["board-a", "has fairbed"] == 0.0
    assert "its owner does not allow the client own-clients" in problems["stranger"]
    assert "--allow-client own-clients=FOLDER" in problems["stranger"]
    assert "(3 files, the newest is notes.log); copy the folder" in problems["other"]
    assert f"needs the package numpy, which {bare} " in problems["bare"]
