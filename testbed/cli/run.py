"""`fairbed run` and `fairbed coordinator`: start a run or resume one.

On a terminal the TUI shows the run (`testbed.cli.watch`); otherwise, and on a dumb terminal, one
line per round.
"""

import argparse
import functools
import itertools
import logging
import os
import re
import sys
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TextIO

import anyio
import msgspec

from fairbed.coordinator.algorithms.selection.base import Selector
from fairbed.coordinator.policy.decisions import FleetSizeError, make_decisions
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.rounds.loop import FleetMissingError, NothingAggregatedError
from fairbed.coordinator.server.lease import AnotherCoordinatorError
from fairbed.coordinator.store import RunInfo, RunReader, StoreError
from fairbed.coordinator.store.connection import CONFIG, DATABASE
from fairbed.coordinator.task.errors import TaskError, UnknownTask
from fairbed.device_agent.engines.base import EngineError
from fairbed.device_agent.sensors import real_host
from fairbed.profiles.errors import ProfileError
from fairbed.testbed.cli import (
    DONE,
    FAILED,
    RUNS,
    output_width,
    shows_screens,
    without_errno,
)
from fairbed.testbed.errors import (
    BackendError,
    BackendUnavailable,
    BrokerError,
    RunError,
    UsageError,
)
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import (
    EMBEDDED,
    LAB,
    Experiment,
    ExperimentError,
    load_experiment,
)
from fairbed.testbed.experiment.fleet import plan_fleet
from fairbed.testbed.experiment.notify import NotifyError, NotifySettings, notify_settings
from fairbed.testbed.host.dilation import loop_factory
from fairbed.testbed.host.speed import host_speed
from fairbed.testbed.run.preflight import choose_dilation
from fairbed.testbed.run.supervisor import RunPlan, run_experiment
from fairbed.testbed.run_folder import foreign_files
from fairbed.wire.errors import TransportError
from fairbed.wire.plugins import PluginError
from fairbed.wire.transport.address import is_loopback

RUN_ERRORS = (
    AnotherCoordinatorError,
    BackendError,
    BrokerError,
    EngineError,
    FleetMissingError,
    FleetSizeError,
    NothingAggregatedError,
    OSError,
    PluginError,
    StoreError,
    TaskError,
    TransportError,
)
"""Errors of a run with a message of one line."""

EXPERIMENT_ERRORS = (
    BackendUnavailable,
    DatasetError,
    ExperimentError,
    ProfileError,
    UnknownTask,
)
"""Errors of the experiment with a message of one line."""


def main(options: argparse.Namespace) -> int:
    """Run an experiment or resume a run; return the exit code."""
    try:
        plan = plan_run(options)
    except StoreError as exc:
        raise RunError(str(exc)) from exc
    if shows_screens() and not (options.headless or options.json):
        from fairbed.testbed.cli.watch import run_with_tui

        is_detached = run_with_tui(plan, options)
        return DONE if is_detached else _close(plan, as_json=False)
    return _run_headless(plan, options)


def plan_run(options: argparse.Namespace) -> RunPlan:
    """Return the plan of the run from the command line.

    Raises:
        UsageError: The command line, or a file that it names, cannot be used.
    """
    experiment, folder = named_experiment(options)
    experiment = _with_host_speed(experiment)
    run_id = folder.name if folder else new_id(experiment.name)
    folder = folder or options.out or RUNS / run_id
    if holds_run(folder):
        run_id = check_resumable(folder, experiment, is_named=path_is_run(options))
    elif options.out is not None:
        run_id = folder.resolve().name
        check_new(folder)
    host, port = _listen(getattr(options, "listen", "127.0.0.1"))
    if not (is_loopback(host) or options.plain):
        raise UsageError(
            f"--listen: must be a loopback address, got {host}, where passwords and models would "
            "travel in plain text; make a lab with TLS (fairbed lab init, then broker.url = "
            '"lab"), or add --plain'
        )
    has_fleet = options.command != "coordinator"
    _check_policy(experiment)
    if has_fleet and experiment.physical and experiment.broker.url == EMBEDDED:
        raise UsageError(
            "broker.url: must be a broker that physical devices such as "
            f'{experiment.physical[0]} reach, got "embedded", which serves this machine alone; '
            'set it to "lab" (fairbed lab init makes one) or to mqtts://user:password@host'
        )
    return RunPlan(
        experiment=experiment,
        folder=folder,
        run_id=run_id,
        has_fleet=has_fleet,
        listen_host=host,
        listen_port=port,
        dilation=_dilation(experiment, folder) if has_fleet else 1.0,
        origin=options.experiment.parent,
        notify=notify_of(experiment),
    )


def notify_of(experiment: Experiment) -> NotifySettings | None:
    """Return how a person gets messages about a run; None: not at all.

    Raises:
        UsageError: The command or the address cannot be used.
    """
    try:
        return notify_settings(experiment.notify, os.environ)
    except NotifyError as exc:
        raise UsageError(str(exc)) from exc


def _check_policy(experiment: Experiment) -> None:
    """Check that the policy exists and works without the ground truth.

    Raises:
        UsageError: The policy is a plug-in that cannot be loaded, or needs true exchange times.
    """
    selection = experiment.selection
    selector_of(experiment)
    if selection.needs_known_times:
        raise UsageError(
            f"selection.policy: must not need true exchange times in a live run, got "
            f"{selection.policy!r}; use rbcs-f, fedcs, oort, power-of-choice or uniform"
        )


def selector_of(experiment: Experiment) -> Selector:
    """Return the selector of an experiment.

    Raises:
        UsageError: A plug-in cannot be loaded or does not support such rounds, or the weight rule
            is made for fewer devices.
    """
    try:
        return make_decisions(experiment.coordinator(), experiment.devices).selector
    except (PluginError, ValueError) as exc:
        raise UsageError(str(exc)) from exc


def _dilation(experiment: Experiment, folder: Path) -> float:
    """Return the time dilation of the fleet; a resumed run keeps its own.

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
    """Print the summary of an ended run; return the exit code."""
    with RunReader(plan.folder) as reader:
        summary = summarise_run(reader)
    if as_json:
        print(msgspec.json.encode(summary).decode())
    else:
        print(summary_table(summary, output_width()))
        if plan.has_fleet and summary.status == "done":
            if any(device.kind == "physical" for device in summary.fleet):
                print(
                    "\na record of this run, to replay it on a virtual clock:\n"
                    f"  fairbed record --all --run {plan.folder} --out {plan.folder.name}-recorded"
                )
            else:
                print(
                    "\nthe same on a virtual clock, with the costs of this run:\n"
                    f"  fairbed replay {plan.folder}/experiment.toml "
                    f"--set replay.costs_from={plan.folder}"
                )
    return DONE if summary.status in ("done", "stopped") else FAILED


def _run_headless(plan: RunPlan, options: argparse.Namespace) -> int:
    is_debug = hasattr(options, "debug")
    out = sys.stderr if options.json else sys.stdout
    logging.basicConfig(
        level=logging.DEBUG if is_debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    physical, rounds = len(plan.experiment.physical), plan.experiment.rounds
    emulated = plan.experiment.devices - physical if plan.has_fleet else 0
    devices = f"{emulated} emulated devices" + (f" and {physical} physical" if physical else "")
    _print(out, f"run {plan.run_id}: {rounds} rounds, {devices}, in {plan.folder}")
    if not plan.has_fleet:
        of_run = "" if plan.experiment.broker.url == LAB else f" --run {plan.folder}"
        _print(out, f"to add a device, run: fairbed enroll NAME{of_run}")
    run = functools.partial(
        run_experiment,
        plan,
        lambda progress: _print(out, progress.line(rounds)),
        lambda: _print(sys.stderr, "fairbed: stopping; press Ctrl-C again to stop immediately"),
        lambda line: _print(out, f"waiting: {line}"),
        alerted=lambda change: _print(out, f"alert: {change.line}"),
        is_attached=options.attached,
    )
    try:
        anyio.run(run, backend_options={"loop_factory": loop_factory(plan.dilation)})
    except EXPERIMENT_ERRORS as exc:
        raise UsageError(str(exc)) from exc
    except RUN_ERRORS as exc:
        raise RunError(without_errno(exc)) from exc
    if not (plan.folder / DATABASE).exists():
        raise RunError("stopped before the run began; no file was kept")
    return _close(plan, as_json=options.json)


def _print(out: TextIO, line: str) -> None:
    with suppress(BrokenPipeError):
        print(line, file=out, flush=True)


def named_experiment(options: argparse.Namespace) -> tuple[Experiment, Path | None]:
    """Return the experiment, and the folder of the run if the command line names a folder."""
    path: Path = options.experiment
    folder = path if path_is_run(options) else None
    if folder is not None:
        path = folder / CONFIG
        if not path.exists():
            raise UsageError(
                f"{folder}: must be an experiment file or the folder of a run, got a folder "
                "without experiment.toml; fairbed runs lists the runs"
            )
        _check_run_folder(folder, "replay" if options.command == "replay" else "run")
        if options.out is not None or options.set or options.seed is not None:
            raise UsageError(
                f"{folder}: a resumed run keeps its settings; remove --out, --set and --seed"
            )
    elif path.suffix != ".toml" and not os.path.exists(path):
        raise UsageError(
            f"{path}: there is no such experiment file or run; `fairbed runs` lists the runs, and "
            "`fairbed examples` the examples"
        )
    try:
        experiment = load_experiment(path, options.set, options.seed)
    except ExperimentError as exc:
        raise UsageError(str(exc)) from exc
    return experiment, folder


def _check_run_folder(folder: Path, command: Literal["run", "replay"]) -> None:
    """Check that a folder holds a run that the command can resume, or one that did not begin.

    Raises:
        UsageError: It does not.
    """
    if (folder / DATABASE).exists():
        _check_unfinished(folder, command, is_named=True)
    elif foreign_files(folder):
        raise UsageError(
            f"{folder}: must be the folder of a run, got one without {DATABASE}; start its "
            f"experiment with: fairbed {command} {folder / CONFIG}"
        )


def _check_unfinished(
    folder: Path, command: Literal["run", "replay"], *, is_named: bool
) -> RunInfo:
    """Return a run that the command can resume.

    Raises:
        UsageError: The run is live, done, or of the other command.
    """
    with RunReader(folder) as reader:
        info = reader.run()
    anew = f"fairbed {command} {folder / CONFIG}"
    if info.is_alive:
        raise UsageError(f"{folder}: this run is live; watch it with: fairbed watch {folder}")
    if (info.row.clock == "virtual") != (command == "replay"):
        found = "a live run" if command == "replay" else "a replay"
        hint = f"start it anew with: {anew}" if is_named else "choose another --out"
        raise UsageError(f"{folder}: must be a run of fairbed {command}, got {found}; {hint}")
    if info.status == "done" and is_named:
        raise UsageError(
            f"{folder}: this run is done, nothing is left to resume; see it with: fairbed show "
            f"{folder}; repeat it with: {anew}"
        )
    if info.status == "done":
        raise UsageError(
            f"{folder}: this run is done; choose another --out, or open it with: "
            f"fairbed watch {folder}"
        )
    return info


def holds_run(folder: Path) -> bool:
    """Return whether a folder holds a run; a path that the file system rejects does not."""
    return os.path.exists(folder / DATABASE)


def _with_host_speed(experiment: Experiment) -> Experiment:
    """Return the experiment with the measured speed of this machine in place of "auto".

    Raises:
        RunError: The speed cannot be measured.
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
    return os.path.isdir(path)


def check_new(folder: Path) -> None:
    """Check that a folder has only files of runs, because `fairbed rm` deletes all its files.

    Raises:
        UsageError: The path is a file, or the folder has other files.
    """
    try:
        found = foreign_files(folder)
    except OSError as exc:
        raise UsageError(
            f"--out {folder}: must be a folder, got: {exc.strerror}; choose another"
        ) from exc
    if found:
        raise UsageError(
            f"--out {folder}: must be a new or empty folder, got one with {found[0]}; choose "
            "another"
        )


def check_resumable(
    folder: Path,
    experiment: Experiment,
    *,
    is_named: bool,
    command: Literal["run", "replay"] = "run",
) -> str:
    """Check that a run can be resumed; return its id.

    Args:
        folder: The folder of the run.
        experiment: The experiment to resume.
        is_named: The command line names the folder, not an experiment file.
        command: The command, as a replay cannot resume a live run.

    Raises:
        UsageError: The run cannot be resumed.
    """
    info = _check_unfinished(folder, command, is_named=is_named)
    if info.row.config_hash != experiment.hash() and is_named:
        raise UsageError(
            f"{folder}/experiment.toml: must be unchanged since the run began, got a change; "
            "undo it, or start a new run from this file with --out"
        )
    if info.row.config_hash != experiment.hash():
        raise UsageError(
            f"{folder}: has a run of another experiment; choose another --out, or resume that "
            f"run with: fairbed {command} {folder}"
        )
    return info.run_id


def new_id(name: str) -> str:
    """Return the id of a run that begins now, which no run in the default folder has."""
    slug = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "run"
    first = f"{slug}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    following = (f"{first}-{number}" for number in itertools.count(2))  # begun in the same second
    return next(name for name in itertools.chain([first], following) if not (RUNS / name).exists())


def _listen(text: str) -> tuple[str, int | None]:
    host, separator, port = text.rpartition(":")
    if not (host if separator else text):
        raise UsageError(
            f"--listen: must be HOST or HOST:PORT, got {text!r}; 0.0.0.0 means all addresses"
        )
    if not separator or text.endswith("]"):
        return text, None
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--listen: must be HOST or HOST:PORT, got {text!r}")
    return host, int(port)
