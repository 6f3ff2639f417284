"""Live runs in processes of their own; one that is done is not repeated."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.connection import DATABASE
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.run_folder import WORK

ROUND_LIMIT_S, START_LIMIT_S = 120.0, 300.0
"""A run that lasts longer than this, for each round and for its start, is given up."""


class LiveRunError(Exception):
    """A live run failed, or its folder holds another one; the message is one line."""


def play_live(
    experiment: Experiment, folder: Path, tell: Callable[[str], None], costs: Path | None = None
) -> Path:
    """Run an experiment in a folder, go on with it, or leave it if it is done; return the folder.

    Args:
        experiment: What to run; its file is written beside the folder.
        folder: Of the run.
        tell: Given a line for people, now and then.
        costs: A run whose calibration holds here too: what is compared is the devices, and not
            what this machine did while it was measured.

    Raises:
        LiveRunError: The run fails, or the folder holds a run of another experiment.
    """
    status = _status(experiment, folder)
    if status == "done":
        tell(f"{folder.name}: is done already")
        return folder
    if status is None:
        source = folder.with_suffix(".toml")
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(experiment.resolved_toml(), encoding="utf-8")
        if costs is not None and (costs / WORK).exists():
            folder.mkdir(exist_ok=True)
            shutil.copy(costs / WORK, folder)
        words = [str(source), "--out", str(folder)]
        tell(f"{folder.name}: {experiment.rounds} rounds live")
    else:
        words = [str(folder)]
        tell(f"{folder.name}: resumes live")
    _fairbed("run", *words, limit_s=START_LIMIT_S + ROUND_LIMIT_S * experiment.rounds)
    if _status(experiment, folder) != "done":
        raise LiveRunError(
            f"{folder}: must end by itself, but was stopped; the same command resumes it"
        )
    return folder


def _status(experiment: Experiment, folder: Path) -> str | None:
    """Return the status of the run in a folder; None if there is none.

    Raises:
        LiveRunError: It is one of another experiment.
    """
    if not (folder / DATABASE).exists():
        return None
    with RunReader(folder) as reader:
        info = reader.run()
    if info.row.config_hash != experiment.hash():
        raise LiveRunError(
            f"{folder}: must hold a run of this experiment, got one of another; name another folder"
        )
    return info.status


def _fairbed(command: str, *words: str, limit_s: float) -> None:
    arguments = [
        sys.executable,
        "-m",
        "fairbed.testbed.cli.main",
        command,
        *words,
        "--headless",
        "--json",
    ]
    try:
        done = subprocess.run(
            guarded(arguments), capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise LiveRunError(f"{command}: must end within {limit_s:.0f} s, did not") from exc
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise LiveRunError(f"{command} {words[-1]}: failed: {last_line}")
