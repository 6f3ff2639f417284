"""Run any command on an emulated device from a program, by `fairbed shape` in a child process.

Signals, folder and privileges of the emulation belong to a process of its own.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from fairbed.testbed.api.errors import arguments_for
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.shape.report import ShapeReport

_BAD_USAGE = 2
"""Exit status of `fairbed shape` when it did not run the command, among others."""

_PATIENCE_S = 10.0
"""Time for an interrupted command to end before the next, stronger signal."""


@dataclass(frozen=True, slots=True)
class ShapedCommand:
    """A command that has ended on an emulated device."""

    status: int
    """Exit status as in a shell: 128 + n if signal n ended it, 127 if there is no such program."""
    stdout: str
    stderr: str
    report: ShapeReport
    """What the device gave to the command, and whether this machine delayed it."""


def shape(
    profile: str | None,
    command: Sequence[str | os.PathLike[str]],
    *,
    cpu: float | str | None = None,
    threads: int | None = None,
    memory: str | None = None,
    link: str | None = None,
    down: str | None = None,
    up: str | None = None,
    delay: str | None = None,
    jitter: str | None = None,
    loss: str | None = None,
    trace: str | os.PathLike[str] | None = None,
    seed: int = 0,
    user: str | None = None,
    backend: Literal["auto", "namespace", "process"] = "auto",
    host_core_speed: float | Literal["auto"] = 1.0,
) -> ShapedCommand:
    """Run a command on an emulated device and wait for its end; docs/shape.md has the options.

    Args:
        profile: A device profile; None is this machine, with the other arguments.
        command: The program and its arguments; it has no standard input.
        cpu: Total speed in cores of this machine; "none" is no limit.
        threads: Threads of the command that are busy at the same time.
        memory: Memory limit such as "512M"; "none" is no limit.
        link: A link of the library, or "host".
        down: Rate towards the command such as "10mbit".
        up: Rate away from the command.
        delay: One-way delay such as "20ms".
        jitter: Standard deviation of the delay.
        loss: Share of packets lost in each direction such as "1%".
        trace: File with rates over time.
        seed: Seed of loss, jitter and drawn values.
        user: Run the command as this user.
        backend: How the device is emulated.
        host_core_speed: Speed of one core of this machine, in cores of the reference machine.

    Raises:
        UsageError: The device cannot be emulated here; the command was not run.
        RunError: The emulation failed.
        KeyboardInterrupt: It was interrupted; the command has ended.
    """
    if not command or isinstance(command, str):
        raise UsageError(f"shape: the command must be a list of texts, got {command!r}")
    options = {
        "cpu": cpu,
        "threads": threads,
        "memory": memory,
        "link": link,
        "down": down,
        "up": up,
        "delay": delay,
        "jitter": jitter,
        "loss": loss,
        "trace": trace,
        "seed": seed,
        "user": user,
        "backend": backend,
        "host-core-speed": host_core_speed,
    }
    with tempfile.TemporaryDirectory(prefix="fairbed-shape-") as folder:
        report = Path(folder) / "report.json"
        arguments = [
            *([] if profile is None else [profile]),
            *(f"--{name}={value}" for name, value in options.items() if value is not None),
            f"--json={report}",
            "--",
            *(os.fspath(word) for word in command),
        ]
        status, stdout, stderr = _ended(arguments)
        try:
            found = msgspec.json.decode(report.read_bytes(), type=ShapeReport)
        except FileNotFoundError:
            lines = stderr.splitlines()
            line = lines[-1] if lines else f"shape: ended with status {status} without a report"
            error = UsageError if status == _BAD_USAGE else RunError
            raise error(arguments_for(options, line.removeprefix("fairbed: "))) from None
    return ShapedCommand(status, stdout, stderr, found)


def _ended(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run `fairbed shape` to its end; return its exit status and what it printed."""
    process = subprocess.Popen(
        guarded([sys.executable, "-m", "fairbed.testbed.cli.main", "shape", *arguments]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # an interrupt of the terminal ends it through the line below
    )
    try:
        stdout, stderr = process.communicate()
    except BaseException:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_PATIENCE_S)
                break
        raise
    status = process.returncode
    return (status if status >= 0 else 128 - status), stdout, stderr
