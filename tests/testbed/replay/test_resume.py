"""A resumed replay equals an uninterrupted one, bit for bit."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_experiment
from tests.testbed.replay.fleets import EXAMPLES, QUICKSTART

BARE = ["replay.training=false"]
TABLES = ("device", "truth", "round", "selection", "exchange")


class Killed(Exception):
    """The replay was interrupted."""


def tables(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(folder / "run.db") as connection:
        return {
            name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall()
            for name in TABLES
        }


def cut_off_at(round_id: int, of: Experiment, folder: Path) -> None:
    def listener(replayed: ReplayedRound) -> None:
        if replayed.choice.round == round_id:
            raise Killed

    with pytest.raises(Killed):
        replay_experiment(of, folder, "run", listener, checkpoint_s=0.0)


def experiment(path: Path, settings: list[str]) -> Experiment:
    return load_experiment(path, settings)


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        (EXAMPLES / "rbcs-f-paper.toml", ["rounds=60"]),
        (QUICKSTART, [*BARE, "rounds=40", "replay.noise=0.1", 'exchange.down="delta"']),
        (EXAMPLES / "phones.toml", [*BARE, "rounds=40", "selection.estimator=phases"]),
        (EXAMPLES / "rbcs-f-paper.toml", ["rounds=60", "round.late=merge", "round.deadline_s=3"]),
        (QUICKSTART, [*BARE, "rounds=40", "round.late=merge", "round.deadline_s=1.5"]),
        (EXAMPLES / "phones.toml", [*BARE, "rounds=40", "round.mode=async", "replay.noise=0.1"]),
        (
            QUICKSTART,
            [
                "rounds=34",
                "model.name=softmax",
                "evaluation.every=0",
                "training.optimiser=adam",
                "training.optimiser_state=kept",
                "training.epochs=2",
                "training.least_epochs=1",
                'training.augment=[{kind="noise"}]',
            ],
        ),
    ],
    ids=[
        "linear",
        "profiles",
        "drawn",
        "linear late",
        "profiles late",
        "drawn async",
        "kept states",
    ],
)
def test_a_resumed_replay_equals_an_uninterrupted_one(
    tmp_path: Path, path: Path, settings: list[str]
) -> None:
    of = experiment(path, settings)
    replay_experiment(of, tmp_path / "whole", "run", lambda replayed: None)
    for at in (7, 8, 31):
        cut_off_at(at, of, tmp_path / "parts")
    replay_experiment(of, tmp_path / "parts", "run", lambda replayed: None)
    assert tables(tmp_path / "parts") == tables(tmp_path / "whole")
    with RunReader(tmp_path / "parts") as reader:
        assert reader.run().row.resumes == 3
        summary = summarise_run(reader)
    assert summary.status == "done"
    assert bool(summary.exchange.aggregated_late) == of.round.merges_late_updates, (
        "something was under way"
    )


def test_rounds_after_the_last_checkpoint_are_replayed_again(tmp_path: Path) -> None:
    of = experiment(EXAMPLES / "rbcs-f-paper.toml", ["rounds=30"])
    replay_experiment(of, tmp_path / "whole", "run", lambda replayed: None)

    def listener(replayed: ReplayedRound) -> None:
        if replayed.choice.round == 20:
            raise Killed

    with pytest.raises(Killed):
        replay_experiment(of, tmp_path / "parts", "run", listener)  # no checkpoint within 30 s
    replay_experiment(of, tmp_path / "parts", "run", lambda replayed: None)
    assert tables(tmp_path / "parts") == tables(tmp_path / "whole")


def test_a_killed_replay_is_resumed_from_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper, folder = EXAMPLES / "rbcs-f-paper.toml", tmp_path / "run"
    killer = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from fairbed.testbed.experiment.file import load_experiment\n"
        "from fairbed.testbed.replay.run import replay_experiment\n"
        "def listener(replayed):\n"
        "    if replayed.choice.round == 25: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"of = load_experiment(Path({str(paper)!r}), ['rounds=50'])\n"
        f"replay_experiment(of, Path({str(folder)!r}), 'run', listener, checkpoint_s=0.0)\n"
    )
    done = subprocess.run([sys.executable, "-c", killer], timeout=60, env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL
    assert main(["replay", str(folder), "--json"]) == 0
    assert main(["replay", str(paper), "--out", str(tmp_path / "b"), "--set", "rounds=50"]) == 0
    assert tables(folder) == tables(tmp_path / "b")
    capsys.readouterr()
    assert main(["replay", str(folder)]) == 2
    assert "this run is done" in capsys.readouterr().err


def test_a_checkpoint_of_another_version_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    cut_off_at(5, experiment(QUICKSTART, [*BARE, "rounds=20"]), folder)
    with sqlite3.connect(folder / "run.db") as connection:
        (kept,) = connection.execute("SELECT state FROM checkpoint").fetchone()
        state = msgspec.msgpack.decode(kept)
        del state["world"]["idle_at"]
        connection.execute("UPDATE checkpoint SET state = ?", [msgspec.msgpack.encode(state)])
    assert main(["replay", str(folder)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"fairbed: {folder}: its checkpoint must be of this version of Fairbed, got one without "
        "'idle_at'; continue with the version that wrote it, or start a new run"
    )


def test_another_experiment_cannot_resume_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper, folder = EXAMPLES / "rbcs-f-paper.toml", tmp_path / "run"
    cut_off_at(5, experiment(paper, ["rounds=20"]), folder)
    assert main(["replay", str(paper), "--out", str(folder), "--set", "rounds=21"]) == 2
    assert f"fairbed replay {folder}" in capsys.readouterr().err
    assert main(["run", str(folder), "--headless"]) == 2
    assert "got a replay" in capsys.readouterr().err
