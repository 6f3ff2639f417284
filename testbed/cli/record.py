"""`fairbed record`: write the profile of a device from measurements."""

import argparse
import platform
import socket
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import msgspec

from fairbed import profiles
from fairbed.profiles import Profile, ProfileError, unknown_numbers
from fairbed.testbed.cli import DONE
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.host.termination import unwound_by_signals
from fairbed.testbed.progress import SECONDS, progress
from fairbed.testbed.recording.analysis.compose import (
    Identity,
    IncompleteProfile,
    Kind,
    Recorded,
    compose,
    trace_name,
)
from fairbed.testbed.recording.analysis.findings import Findings
from fairbed.testbed.units import duration_s
from fairbed.wire.messages import is_device_name
from fairbed.wire.printable import printable

if TYPE_CHECKING:
    from fairbed.testbed.recording.analysis.from_run import DeviceOfRun, TrainingSettings

ANY_ADDRESS = "0.0.0.0"

BAR_INTERVAL_S = 1.0
"""Time between two drawings of the bar, whose processor time is part of the idle readings."""

MIN_WATCH_S = 1.0
"""Shortest observation, in which the idle machine is read a few times; seconds."""


def main(options: argparse.Namespace) -> int:
    """Record a device; return the exit code."""
    with unwound_by_signals():
        return _main(options)


def _main(options: argparse.Namespace) -> int:
    if options.serve is not None:
        return _serve(options.serve)
    if options.all:
        return _whole_run(options)
    name = options.as_name or options.name
    if name is None:
        raise UsageError("record: must have a name for the profile, as in: fairbed record pi-7")
    if not is_device_name(name):
        raise UsageError(f"name: must be 1 to 32 of a-z, 0-9 and hyphen, got {name!r}; use --as")
    target = options.out / f"{name}.toml"
    if target.exists() and not options.force:
        raise UsageError(f"{target}: exists already; choose another --out or --as, or use --force")
    base = _base(options)
    record = _from_machine if options.run is None else _from_run
    findings, identity = record(options, name)
    return _save(options, findings, identity, base)


def _base(options: argparse.Namespace) -> Profile | None:
    try:
        return None if options.like is None else profiles.load(options.like)
    except ProfileError as exc:
        raise UsageError(f"--like {exc}") from exc


def _from_run(options: argparse.Namespace, name: str) -> tuple[Findings, Identity]:
    from fairbed.coordinator.store import RunNotFoundError, StoreError, resolve_run
    from fairbed.testbed.errors import BackendError
    from fairbed.testbed.experiment.file import ExperimentError
    from fairbed.testbed.recording.run_store import NoSuchDevice, read_device, read_training

    try:
        folder = resolve_run(options.runs, options.run)
        device = read_device(folder, options.name)
        return _of_device(device, name, folder, read_training(folder))
    except (RunNotFoundError, NoSuchDevice) as exc:
        raise UsageError(str(exc)) from exc
    except (StoreError, ExperimentError, BackendError) as exc:
        raise RunError(str(exc)) from exc


def _of_device(
    device: "DeviceOfRun", name: str, folder: Path, training: "TrainingSettings"
) -> tuple[Findings, Identity]:
    """Return what a run measured of a device, for a profile of this name."""
    from fairbed.testbed.recording.analysis.from_run import findings_of_run

    board = device.capabilities.model or f"{device.capabilities.machine} device"
    origin = f"device {device.row.name} of run {folder.name}, {device.run_created}, {_written_by()}"
    kind: Kind = "board" if device.capabilities.model else "computer"
    return findings_of_run(device, training), Identity(name, _title(board), kind, origin)


def _from_machine(options: argparse.Namespace, name: str) -> tuple[Findings, Identity]:
    from fairbed.device_agent.sensors import RealSensors
    from fairbed.testbed.host.speed import cpu_model
    from fairbed.testbed.recording.analysis.from_machine import findings_of_machine
    from fairbed.testbed.recording.probes import ProbeFailed, open_probe
    from fairbed.testbed.recording.session import RecordingSession, planned_s, record

    try:
        session = RecordingSession(
            folder=options.out,
            watch_s=_duration_s("--for", options.watch, MIN_WATCH_S),
            load_s=_duration_s("--load", options.load, 0.0),
            interface=options.interface,
            probe=None if options.probe is None else open_probe(options.probe),
        )
    except ValueError as exc:
        raise UsageError(f"record: {exc}") from exc
    began = datetime.now(timezone.utc)
    try:
        with progress(planned_s(session), SECONDS, "record", is_ticking=False) as bar:
            bar.interval_s = BAR_INTERVAL_S
            recording, cost = record(session, bar)
    except ProbeFailed as exc:
        raise RunError(str(exc)) from exc
    except OSError as exc:
        raise RunError(f"{options.out}: must be writable, got: {exc.strerror or exc}") from exc
    findings = findings_of_machine(recording)
    findings.remarks.append(f"Recording took {100 * cost.ratio:.2f} % of one core.")
    board = RealSensors().board()
    title = board or f"{platform.machine()} {platform.system()} machine, {cpu_model()}"
    origin = f"on {socket.gethostname()}, {began:%Y-%m-%d %H:%M} UTC, fairbed {version('fairbed')}"
    return findings, Identity(name, _title(title), "board" if board else "computer", origin)


def _duration_s(option: str, text: str, minimum_s: float) -> float:
    try:
        value_s = duration_s(text)
    except ValueError as exc:
        raise ValueError(f"{option} {exc}") from None
    if value_s < minimum_s:
        raise ValueError(f"{option} must be at least {minimum_s:g}s, got {text!r}; 60s is usual")
    return value_s


def _serve(where: str) -> int:
    import anyio

    from fairbed.testbed.recording.tcp_peer import serve, split_address

    try:
        host, port = split_address(where, ANY_ADDRESS)
    except ValueError as exc:
        raise UsageError(f"--serve {exc}") from exc
    print(f"fairbed: answering probes on {host}:{port} until Ctrl-C", file=sys.stderr)
    try:
        anyio.run(serve, host, port)
    except OSError as exc:
        raise RunError(
            f"--serve {where}: must be a free address of this machine, got: {exc.strerror or exc}"
        ) from exc
    return DONE


def _save(
    options: argparse.Namespace, findings: Findings, identity: Identity, base: Profile | None
) -> int:
    path, trace = _write(options.out, identity.name, _composed(findings, identity, base))
    if options.json:
        print(msgspec.json.encode(_as_json(findings, path, trace)).decode())
        return DONE
    _print_findings(findings, path)
    and_trace = f", with {trace.name} beside it" if trace is not None else ""
    print(f'{path}: written{and_trace}; use it as [[fleet]] profile = "{path}"')
    return DONE


def _composed(findings: Findings, identity: Identity, base: Profile | None) -> Recorded:
    """Return the files of a profile.

    Raises:
        RunError: A required number is missing or impossible.
    """
    if base is not None:
        identity = Identity(identity.name, identity.title, base.kind, identity.origin)
    try:
        return compose(identity, findings, base)
    except IncompleteProfile as exc:
        raise RunError(str(exc)) from exc


def _print_findings(findings: Findings, path: Path) -> None:
    unknown = unknown_numbers(profiles.load(path))
    for key, finding in findings.found.items():
        varies = " (varies)" if finding.series is not None else ""
        print(f"  {key:<30}{finding.value:<14.6g}{finding.how}{varies}")
    for key, why in findings.missing.items():
        print(f"  {key:<30}{'unknown' if key in unknown else '-':<14}{why}")
    for key, number in unknown.items():
        print(f"  {key:<30}{getattr(number, 'value', None):<14g}{number.source}")
    for remark in findings.remarks:
        print(f"  {remark}")


def _whole_run(options: argparse.Namespace) -> int:
    """Record every device of a run that has no profile, and the experiment that replays the run."""
    from fairbed.coordinator.store import RunNotFoundError, RunReader, StoreError, resolve_run
    from fairbed.testbed.compare.twin import read_task
    from fairbed.testbed.errors import BackendError
    from fairbed.testbed.experiment.datasets.dataset import DatasetError
    from fairbed.testbed.experiment.file import ExperimentError
    from fairbed.testbed.recording.run_store import CONFIG, read_device
    from fairbed.testbed.recording.whole_run import devices_to_record, recorded_experiment

    if options.run is None or options.name or options.as_name:
        raise UsageError(
            "--all: records the devices of a run under their names, as in: "
            "fairbed record --all --run latest --out DIR"
        )
    base = _base(options)
    try:
        folder = resolve_run(options.runs, options.run)
        with RunReader(folder) as reader:
            if not reader.run().plan.can_be_replayed:
                raise UsageError(
                    f"{folder}: must be a run that can be replayed, got one with a client or an "
                    "app, whose training only a live run has; record each device by its name"
                )
        names = [row.name for row in devices_to_record(folder)]
        if not names:
            raise UsageError(
                f"{folder}: must have a device without a profile, got none; replay it with: "
                f"fairbed replay {quote(str(folder / CONFIG))} --set "
                f"{quote(f'replay.costs_from={folder}')}"
            )
        paths = {name: options.out / f"{name}.toml" for name in names}
        target = options.out / CONFIG
        for path in (*paths.values(), target):
            if path.exists() and not options.force:
                raise UsageError(f"{path}: exists already; choose another --out, or use --force")
        task = read_task(folder)
        # All devices before the first file: one without enough exchanges leaves nothing behind.
        found = [_of_device(read_device(folder, n), n, folder, task.training) for n in names]
        recorded = [_composed(findings, identity, base) for findings, identity in found]
        experiment, remarks = recorded_experiment(folder, paths, task.costs)
    except (RunNotFoundError, DatasetError, ProfileError) as exc:
        raise UsageError(str(exc)) from exc
    except (StoreError, ExperimentError, BackendError) as exc:
        raise RunError(str(exc)) from exc
    written = [
        _write(options.out, name, files) for name, files in zip(names, recorded, strict=True)
    ]
    header = f"# Recorded from run {folder.name}, {_written_by()}.\n"
    notes = "".join(f"# {remark}.\n" for remark in remarks)
    target.write_text(header + notes + experiment.resolved_toml(), encoding="utf-8")
    if options.json:
        devices = [
            _as_json(findings, *files) for (findings, _), files in zip(found, written, strict=True)
        ]
        content = {"experiment": str(target), "devices": devices, "remarks": remarks}
        print(msgspec.json.encode(content).decode())
        return DONE
    for (findings, _), (path, _) in zip(found, written, strict=True):
        print(f"{path}:")
        _print_findings(findings, path)
    for remark in remarks:
        print(remark)
    print(f"{target}: written; replay the run with: fairbed replay {quote(str(target))}")
    return DONE


def _write(folder: Path, name: str, recorded: Recorded) -> tuple[Path, Path | None]:
    """Write the files, the trace first; return their paths."""
    path, trace = folder / f"{name}.toml", folder / trace_name(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if recorded.trace is not None:
            trace.write_text(recorded.trace, encoding="utf-8")
        else:
            trace.unlink(missing_ok=True)  # the trace of a recording that this one replaces
        path.write_text(recorded.profile, encoding="utf-8")
    except OSError as exc:
        raise RunError(f"{folder}: must be writable, got: {exc.strerror or exc}") from exc
    problems = profiles.check(path, {})
    if problems:
        raise RunError(
            f"the recorded profile breaks a rule, which is a bug in fairbed: {problems[0]}"
        )
    return path, None if recorded.trace is None else trace


def _as_json(findings: Findings, path: Path, trace: Path | None) -> dict[str, object]:
    unknown = unknown_numbers(profiles.load(path))
    return {
        "profile": str(path),
        "trace": None if trace is None else str(trace),
        "numbers": {
            key: {"value": found.value, "how": found.how, "moves": found.series is not None}
            for key, found in findings.found.items()
        },
        "missing": findings.missing,
        "remarks": findings.remarks,
        "unknown": {key: getattr(number, "value", None) for key, number in unknown.items()},
    }


def _title(board: str) -> str:
    return f"{printable(board)[:200]}, recorded"


def _written_by() -> str:
    now = datetime.now(timezone.utc)
    return f"written {now:%Y-%m-%d %H:%M} UTC by fairbed {version('fairbed')}"
