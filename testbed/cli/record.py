"""`fairbed record`: write the profile of a device from measurements."""

import argparse
import platform
import socket
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import msgspec

from fairbed import profiles
from fairbed.profiles import Profile, ProfileError, unknown_numbers
from fairbed.testbed.cli import DONE
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.host.termination import unwound_by_signals
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

ANY_ADDRESS = "0.0.0.0"

MIN_WATCH_S = 1.0
"""Shortest observation, in which the idle machine is read a few times; seconds."""


def main(options: argparse.Namespace) -> int:
    """Record a device; return the exit code."""
    with unwound_by_signals():
        return _main(options)


def _main(options: argparse.Namespace) -> int:
    if options.serve is not None:
        return _serve(options.serve)
    name = options.as_name or options.name
    if name is None:
        raise UsageError("record: must have a name for the profile, as in: fairbed record pi-7")
    if not is_device_name(name):
        raise UsageError(f"name: must be 1 to 32 of a-z, 0-9 and hyphen, got {name!r}; use --as")
    target = options.out / f"{name}.toml"
    if target.exists() and not options.force:
        raise UsageError(f"{target}: exists already; choose another --out or --as, or use --force")
    try:
        base = None if options.like is None else profiles.load(options.like)
    except ProfileError as exc:
        raise UsageError(f"--like {exc}") from exc
    record = _from_machine if options.run is None else _from_run
    findings, identity = record(options, name)
    return _save(options, findings, identity, base)


def _from_run(options: argparse.Namespace, name: str) -> tuple[Findings, Identity]:
    from fairbed.coordinator.store import RunNotFoundError, StoreError, resolve_run
    from fairbed.testbed.errors import BackendError
    from fairbed.testbed.experiment.file import ExperimentError
    from fairbed.testbed.recording.analysis.from_run import findings_of_run
    from fairbed.testbed.recording.run_store import NoSuchDevice, read_device, read_training

    try:
        folder = resolve_run(options.runs, options.run)
        device = read_device(folder, options.name)
        training = read_training(folder)
    except (RunNotFoundError, NoSuchDevice) as exc:
        raise UsageError(str(exc)) from exc
    except (StoreError, ExperimentError, BackendError) as exc:
        raise RunError(str(exc)) from exc
    board = device.capabilities.model or f"{device.capabilities.machine} device"
    origin = f"device {options.name} of run {folder.name}, {device.run_created}, {_written_by()}"
    kind: Kind = "board" if device.capabilities.model else "computer"
    return findings_of_run(device, training), Identity(name, _title(board), kind, origin)


def _from_machine(options: argparse.Namespace, name: str) -> tuple[Findings, Identity]:
    from fairbed.device_agent.sensors import RealSensors
    from fairbed.testbed.host.speed import cpu_model
    from fairbed.testbed.recording.analysis.from_machine import findings_of_machine
    from fairbed.testbed.recording.probes import ProbeFailed, open_probe
    from fairbed.testbed.recording.session import RecordingSession, record

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
        recording, cost = record(session, lambda line: print(f"fairbed: {line}", file=sys.stderr))
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
    if base is not None:
        identity = Identity(identity.name, identity.title, base.kind, identity.origin)
    try:
        recorded = compose(identity, findings, base)
    except IncompleteProfile as exc:
        raise RunError(str(exc)) from exc
    path, trace = _write(options.out, identity.name, recorded)
    unknown = unknown_numbers(profiles.load(path))
    if options.json:
        defaults = {key: getattr(number, "value", None) for key, number in unknown.items()}
        content = {**_as_json(findings, path, trace), "unknown": defaults}
        print(msgspec.json.encode(content).decode())
        return DONE
    for key, finding in findings.found.items():
        varies = " (varies)" if finding.series is not None else ""
        print(f"  {key:<30}{finding.value:<14.6g}{finding.how}{varies}")
    for key, why in findings.missing.items():
        print(f"  {key:<30}{'unknown' if key in unknown else '-':<14}{why}")
    for key, number in unknown.items():
        print(f"  {key:<30}{getattr(number, 'value', None):<14g}{number.source}")
    for remark in findings.remarks:
        print(f"  {remark}")
    and_trace = f", with {trace.name} beside it" if trace is not None else ""
    print(f'{path}: written{and_trace}; use it as [[fleet]] profile = "{path}"')
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
    return {
        "profile": str(path),
        "trace": None if trace is None else str(trace),
        "numbers": {
            key: {"value": found.value, "how": found.how, "moves": found.series is not None}
            for key, found in findings.found.items()
        },
        "missing": findings.missing,
        "remarks": findings.remarks,
    }


def _title(board: str) -> str:
    text = "".join(letter if letter.isprintable() else " " for letter in board)
    return f"{text[:200]}, recorded"


def _written_by() -> str:
    now = datetime.now(timezone.utc)
    return f"written {now:%Y-%m-%d %H:%M} UTC by fairbed {version('fairbed')}"
