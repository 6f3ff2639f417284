"""Live runs in separate processes; a completed run is not repeated."""

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
"""Time limits for each round and for the start of a run."""


class LiveRunError(Exception):
    """A live run failed, or its folder holds another run; the message is one line."""


def play_live(
    experiment: Experiment, folder: Path, log: Callable[[str], None], costs: Path | None = None
) -> Path:
    """Run an experiment in a folder, or resume it unless it is completed; return the folder.

    Args:
        experiment: Experiment to run; its file is written beside the folder.
        folder: Folder of the run.
        log: Receives progress lines.
        costs: Folder of a run whose calibration is reused, so that runs do not differ by the load
            of this machine during two calibrations.

    Raises:
        LiveRunError: The run fails, or the folder holds a run of another experiment.
    """
    status = _status(experiment, folder)
    if status == "done":
        log(f"{folder.name}: is done already")
        return folder
    if status is None:
        source = folder.with_suffix(".toml")
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(experiment.resolved_toml(), encoding="utf-8")
        if costs is not None and (costs / WORK).exists():
            folder.mkdir(exist_ok=True)
            shutil.copy(costs / WORK, folder)
        arguments = [str(source), "--out", str(folder)]
        log(f"{folder.name}: {experiment.rounds} rounds live")
    else:
        arguments = [str(folder)]
        log(f"{folder.name}: resumes live")
    _run_fairbed(*arguments, limit_s=START_LIMIT_S + ROUND_LIMIT_S * experiment.rounds)
    if _status(experiment, folder) != "done":
        raise LiveRunError(
            f"{folder}: must end by itself, but was stopped; the same command resumes it"
        )
    return folder


def _status(experiment: Experiment, folder: Path) -> str | None:
    """Return the status of the run in a folder; None without a run.

    Raises:
        LiveRunError: The run is of another experiment.
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


def _run_fairbed(*arguments: str, limit_s: float) -> None:
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "run"]
    try:
        done = subprocess.run(
            guarded([*command, *arguments, "--headless", "--json"]),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired as exc:
        raise LiveRunError(f"run: must end within {limit_s:.0f} s, did not") from exc
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise LiveRunError(f"run {arguments[-1]}: failed: {last_line}")
