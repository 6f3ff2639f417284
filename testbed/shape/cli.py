"""`fairbed shape`: reads the options, runs the command on an emulated device, prints the report."""

import argparse
import os
import pwd
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import msgspec
import psutil

from fairbed.device_agent.cgroup import cpu_quotas
from fairbed.profiles.errors import ProfileError
from fairbed.profiles.traces import TraceReader
from fairbed.testbed.errors import BackendError, UsageError
from fairbed.testbed.shape import enter, report, signals
from fairbed.testbed.shape.plan import ShapePlan, make_plan
from fairbed.testbed.shape.request import DeviceRequest, RequestError, device_request
from fairbed.testbed.shape.session import Outcome, ShapedCommand, ShapeSession, shell_status
from fairbed.wire.console import print_line


@dataclass(frozen=True, slots=True)
class Ending:
    """How this process must end."""

    status: int
    """Exit status."""
    killed_by: int | None = None
    """Signal that ended the command, or that arrived before the command started."""


def shape(options: argparse.Namespace, held: signals.Signals) -> Ending:
    """Run the command; return how this process must end.

    Args:
        options: The command line.
        held: The queue of blocked signals.

    Raises:
        UsageError: The options are invalid, or this machine cannot emulate the device; the command
            was not run.
    """
    plan, command = _read(options)
    report_path = None if options.json is None else options.json.absolute()
    os.chdir("/")  # helper processes must not import modules from the command's folder
    outcome = anyio.run(ShapeSession(plan, command, held).run)
    _print_report(outcome, report_path, is_verbose=options.verbose)
    return _ending(outcome)


def _read(options: argparse.Namespace) -> tuple[ShapePlan, ShapedCommand]:
    try:
        request = _measured(device_request(options))
        memory_bytes = psutil.virtual_memory().total
        plan = make_plan(request, TraceReader(os.environ), host_cores(), memory_bytes)
        user = None if options.user is None else _user(options.user)
    except (RequestError, ProfileError, BackendError) as exc:
        raise UsageError(f"shape: {exc}") from exc
    return plan, ShapedCommand(options.argv, _folder(), user)


def _measured(request: DeviceRequest) -> DeviceRequest:
    """Return the request with the speed of this machine, measured if it is `auto`.

    Raises:
        BackendError: The speed cannot be measured.
    """
    if request.host_core_speed != "auto":
        return request
    from fairbed.testbed.host.speed import host_speed  # loads the training engine

    return replace(request, host_core_speed=host_speed(os.environ).core_speed)


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as exc:
        raise UsageError(
            "shape: the working folder must exist, got one that was deleted; change to another"
        ) from exc


def host_cores() -> float:
    """Return how many cores affinity and quotas leave to this process."""
    quotas = [quota.cores for quota in cpu_quotas(Path("/"))]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def _user(name: str) -> str:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise RequestError(f"--user: must be a user of this machine, got {name!r}") from None
    if os.geteuid() not in (0, found.pw_uid):
        raise RequestError(f"--user: needs root to run a command as {name}; put sudo in front")
    return found.pw_name


def _print_report(outcome: Outcome, path: Path | None, *, is_verbose: bool) -> None:
    found = outcome.report
    if found is None:
        return
    lines = report.warnings_of(found)
    if is_verbose:
        lines += report.report_lines(found)
    for line in lines:
        print_line(f"fairbed: shape: {line}")
    if path is not None:
        try:
            path.write_bytes(msgspec.json.encode(found) + b"\n")
        except OSError as exc:
            print_line(f"fairbed: shape: {path}: cannot be written, {exc.strerror}")


def _ending(outcome: Outcome) -> Ending:
    if outcome.problem is not None:
        if not outcome.has_begun:
            raise UsageError(f"shape: {outcome.problem}") from outcome.problem
        print_line(f"fairbed: shape: {outcome.problem}")
        return Ending(enter.CANNOT_ENTER)
    if outcome.wait_status is None:
        assert outcome.interrupted_by is not None
        return Ending(128 + outcome.interrupted_by, outcome.interrupted_by)
    status = shell_status(outcome.wait_status)
    return Ending(status, status - 128 if os.WIFSIGNALED(outcome.wait_status) else None)
