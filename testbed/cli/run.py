"""`fairbed run` and `fairbed coordinator`: start a run or resume one.

On a terminal the TUI shows the run (`testbed.cli.watch`); otherwise one line per round.
"""

import argparse
import functools
import logging
import os
import re
import sys
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

import anyio
import msgspec

from fairbed.coordinator.algorithms.selection.base import Selector
from fairbed.coordinator.algorithms.selection.guarded import PluginError
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.rounds.loop import FleetMissingError, RoundProgress
from fairbed.coordinator.server.lease import AnotherCoordinatorError
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.task.errors import TaskError
from fairbed.device_agent.engines.base import EngineError
from fairbed.device_agent.sensors import real_host
from fairbed.profiles.errors import ProfileError
from fairbed.testbed.cli import DONE, FAILED, RUNS, without_errno
from fairbed.testbed.errors import BackendError, BackendUnavailable, RunError, UsageError
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.host.dilation import loop_factory
from fairbed.testbed.host.speed import host_speed
from fairbed.testbed.run.broker import BrokerError
from fairbed.testbed.run.preflight import choose_dilation
from fairbed.testbed.run.supervisor import RunPlan, run_experiment
from fairbed.testbed.run_folder import foreign_files
from fairbed.wire.errors import TransportError


def progress_line(progress: RoundProgress, rounds: int) -> str:
    """Return the line of a closed round: cohort, slowest device, tau, accuracy, queue total."""
    row, metric = progress.round, progress.metric
    width = len(str(rounds))
    head = f"round {row.round:>{width}}/{rounds}"
    if row.status == "void":
        return f"{head}  void: no device trained; the model stays  queues {row.queue_total:.2f}"
    accuracy = f"{metric.accuracy_mean:.3f}" if metric is not None else "-"
    missing = f" ({row.selected - row.aggregated} missing)" if row.aggregated < row.selected else ""
    return (
        f"{head}  tau {row.tau_max_s:6.2f} s  accuracy {accuracy}  queues {row.queue_total:5.2f}  "
        f"slowest {row.slowest}  cohort {' '.join(progress.cohort)}{missing}"
    )


EXPECTED = (
    AnotherCoordinatorError,
    BackendError,
    BrokerError,
    EngineError,
    FleetMissingError,
    OSError,
    PluginError,
    StoreError,
    TaskError,
    TransportError,
)
"""Errors of a run with a message of one line."""

BAD_INPUT = (BackendUnavailable, DatasetError, ExperimentError, ProfileError)
"""Errors of the experiment with a message of one line."""


def main(options: argparse.Namespace) -> int:
    """Run an experiment or resume a run; return the exit code."""
    try:
        plan = plan_run(options)
    except StoreError as exc:
        raise RunError(str(exc)) from exc
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if is_terminal and not (options.headless or options.json):
        from fairbed.testbed.cli.watch import run_with_tui

        is_detached = run_with_tui(plan, options)
        return DONE if is_detached else _close(plan, as_json=False)
    return _run_headless(plan, options)


def plan_run(options: argparse.Namespace) -> RunPlan:
    """Return the plan of the run from the command line.

    Raises:
        UsageError: It cannot be used.
    """
    experiment, folder = named_experiment(options)
    experiment = _measured(experiment)
    run_id = folder.name if folder else new_id(experiment.name)
    folder = folder or options.out or RUNS / run_id
    if (folder / DATABASE).exists():
        run_id = check_resumable(folder, experiment, is_named=path_is_run(options))
    elif options.out is not None:
        run_id = folder.resolve().name
        check_new(folder)
    host, port = _listen(getattr(options, "listen", "127.0.0.1"))
    has_fleet = options.command == "run"
    _check_policy(experiment)
    return RunPlan(
        experiment=experiment,
        folder=folder,
        run_id=run_id,
        has_fleet=has_fleet,
        listen_host=host,
        listen_port=port,
        dilation=_dilation(experiment, folder) if has_fleet else 1.0,
    )


def _check_policy(experiment: Experiment) -> None:
    """Check that the policy exists and works without the ground truth.

    Raises:
        UsageError: It is a plug-in that cannot be loaded, or needs the true exchange times.
    """
    selection = experiment.selection
    selector_of(experiment)
    if selection.needs_known_times:
        raise UsageError(
            "selection.policy: must choose by what was measured, got "
            f"{selection.policy!r}, which needs the true exchange times; use rbcs-f, "
            "fedcs, oort, power-of-choice or uniform"
        )


def selector_of(experiment: Experiment) -> Selector:
    """Return the selector of an experiment.

    Raises:
        UsageError: It is a plug-in that cannot be loaded, or does not support such rounds.
    """
    try:
        return make_decisions(experiment.coordinator()).selector
    except (PluginError, ValueError) as exc:
        raise UsageError(str(exc)) from exc


def _dilation(experiment: Experiment, folder: Path) -> float:
    """Return the time dilation that the fleet needs; a resumed run keeps its own.

    Raises:
        UsageError: The fleet does not fit into this machine.
    """
    earlier = None
    if (folder / DATABASE).exists():
        with RunReader(folder) as reader:
            earlier = reader.run().row.dilation
    try:
        devices = plan_fleet(experiment, os.environ)
        return choose_dilation(experiment, devices, real_host().sensors.cores(), earlier)
    except (ExperimentError, ProfileError) as exc:
        raise UsageError(str(exc)) from exc


def _close(plan: RunPlan, *, as_json: bool) -> int:
    """Print how a run ended; return the exit code."""
    with RunReader(plan.folder) as reader:
        summary = summarise_run(reader)
    if as_json:
        print(msgspec.json.encode(summary).decode())
    else:
        print(summary_table(summary))
    return DONE if summary.status in ("done", "stopped") else FAILED


def _run_headless(plan: RunPlan, options: argparse.Namespace) -> int:
    is_debug = hasattr(options, "debug")
    out = sys.stderr if options.json else sys.stdout
    logging.basicConfig(
        level=logging.DEBUG if is_debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    kind = f"{plan.experiment.devices} emulated devices" if plan.has_fleet else "own devices"
    _print(out, f"run {plan.run_id}: {plan.experiment.rounds} rounds, {kind}, in {plan.folder}")
    if not plan.has_fleet:
        _print(out, f"print the command line of a device with: fairbed enroll NAME {plan.folder}")
    play = functools.partial(
        run_experiment,
        plan,
        lambda progress: _print(out, progress_line(progress, plan.experiment.rounds)),
        lambda: _print(sys.stderr, "fairbed: stopping in order; interrupt again to stop at once"),
        is_attached=options.attached,
    )
    try:
        anyio.run(play, backend_options={"loop_factory": loop_factory(plan.dilation)})
    except BAD_INPUT as exc:
        raise UsageError(str(exc)) from exc
    except EXPECTED as exc:
        raise RunError(without_errno(exc)) from exc
    if not (plan.folder / DATABASE).exists():
        raise RunError("stopped before the run began; nothing was kept")
    return _close(plan, as_json=options.json)


def _print(out: TextIO, line: str) -> None:
    with suppress(BrokenPipeError):
        print(line, file=out, flush=True)


def named_experiment(options: argparse.Namespace) -> tuple[Experiment, Path | None]:
    """Return the experiment, and the folder of the run if the command line names one."""
    path: Path = options.experiment
    folder = path if path_is_run(options) else None
    if folder is not None:
        path = folder / "experiment.toml"
        if not path.exists():
            raise UsageError(
                f"{folder}: must be an experiment file or the folder of a run, got a folder "
                "without experiment.toml; fairbed runs lists the runs"
            )
        if options.out is not None or options.set or options.seed is not None:
            raise UsageError(
                f"{folder}: a resumed run keeps its settings; leave out --out, --set and --seed"
            )
    try:
        experiment = load_experiment(path, options.set, options.seed)
    except ExperimentError as exc:
        raise UsageError(str(exc)) from exc
    return experiment, folder


def _measured(experiment: Experiment) -> Experiment:
    """Return the experiment with the speed of this machine as a number, which a run then keeps.

    Raises:
        RunError: It cannot be measured.
    """
    if experiment.emulation.host_core_speed != "auto" or not experiment.fleet:
        return experiment
    try:
        speed = host_speed(os.environ).core_speed
    except BackendError as exc:
        raise RunError(str(exc)) from exc
    emulation = msgspec.structs.replace(experiment.emulation, host_core_speed=speed)
    return msgspec.structs.replace(experiment, emulation=emulation)


def path_is_run(options: argparse.Namespace) -> bool:
    """Return whether the command line names the folder of a run to resume."""
    path: Path = options.experiment
    return path.is_dir()


def check_new(folder: Path) -> None:
    """Check that a folder is free for a new run: `fairbed rm` deletes all its files.

    Raises:
        UsageError: It is a file, or holds something that is not of a run.
    """
    try:
        found = foreign_files(folder)
    except OSError as exc:
        raise UsageError(f"--out {folder}: must be a folder, got: {exc.strerror}") from exc
    if found:
        raise UsageError(
            f"--out {folder}: must be a new or empty folder, got one with {found[0]}; name another"
        )


def check_resumable(
    folder: Path, experiment: Experiment, *, is_named: bool, clock: str = "real"
) -> str:
    """Check that a run can be resumed; return its id.

    Args:
        folder: Of the run.
        experiment: To resume.
        is_named: The folder was named, and not the experiment.
        clock: Of the run: a replay cannot resume a live run.

    Raises:
        UsageError: It cannot be.
    """
    command = "run" if clock == "real" else "replay"
    with RunReader(folder) as reader:
        info = reader.run()
    if info.is_alive:
        raise UsageError(f"{folder}: this run is live; watch it with: fairbed watch {folder}")
    if info.row.clock != clock:
        made = "replayed" if clock == "real" else "live"
        raise UsageError(
            f"{folder}: must hold a run by fairbed {command}, got one that is {made}; "
            "name another folder"
        )
    if info.status == "done":
        raise UsageError(
            f"{folder}: this run is done; give another --out, or look at it with: "
            f"fairbed watch {folder}"
        )
    if info.row.config_hash != experiment.hash() and is_named:
        raise UsageError(
            f"{folder}/experiment.toml: must be as it was when the run began, got a changed one; "
            "undo the change, or start a new run from it with --out"
        )
    if info.row.config_hash != experiment.hash():
        raise UsageError(
            f"{folder}: holds a run of another experiment; give another --out, or resume it "
            f"with: fairbed {command} {folder}"
        )
    return info.run_id


def new_id(name: str) -> str:
    """Return an id for a run that begins now."""
    slug = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "run"
    return f"{slug}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"


def _listen(text: str) -> tuple[str, int | None]:
    host, separator, port = text.rpartition(":")
    if not (host if separator else text):
        raise UsageError(f"--listen: must be HOST or HOST:PORT, got {text!r}; 0.0.0.0 is all")
    if not separator or text.endswith("]"):
        return text, None
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--listen: must be HOST or HOST:PORT, got {text!r}")
    return host, int(port)
