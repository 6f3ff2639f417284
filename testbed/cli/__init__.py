"""The commands of `fairbed`; a module is imported when one of its commands is called."""

import argparse
import gc
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import fairbed
from fairbed.testbed import rooms
from fairbed.testbed.errors import UsageError
from fairbed.testbed.install import what_to_install
from fairbed.wire.console import shows

DONE, FAILED, BAD_USAGE = 0, 1, 2
"""Exit codes."""

NOT_BEGUN = "stopped before the run began; no file was kept"
"""Printed when a signal ends a start."""

EXAMPLES = Path(fairbed.__file__).with_name("examples")
"""Folder of the examples; part of the wheel."""


class CommandModule(Protocol):
    """The interface of a command's module."""

    def main(self, options: argparse.Namespace) -> int:
        """Run the command; return the exit code."""
        ...


_MODULES = {
    "demo": "run",
    "run": "run",
    "replay": "replay",
    "compare": "compare",
    "plot": "plot",
    "core": "core",
    "coordinator": "run",
    "watch": "watch",
    "show": "runs",
    "report": "report",
    "export": "export",
    "export-model": "export_model",
    "runs": "runs",
    "stop": "runs",
    "command": "command",
    "rm": "runs",
    "logs": "runs",
    "enroll": "enroll",
    "profiles": "profiles",
    "data": "data",
    "record": "record",
    "twin": "twin",
    "shape": "shape",
    "doctor": "doctor",
    "bench": "bench",
    "init": "experiment",
    "new": "experiment",
    "examples": "experiment",
    "config": "experiment",
    "schema": "experiment",
    "completion": "completion",
}


def shows_screens() -> bool:
    """Return whether this terminal can show the control room.

    A pipe, a dumb terminal, and one without UTF-8 cannot; the last one gets a line with the reason.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        return False
    if shows(sys.stdout):
        return True
    print(
        f"fairbed: the control room must have a terminal with UTF-8, got {sys.stdout.encoding}: "
        "lines instead; set LC_ALL=C.UTF-8",
        file=sys.stderr,
    )
    return False


def output_width() -> int | None:
    """Return the columns of the terminal on stdout; None if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


MAX_COUNT = 1_000
"""Maximum number of seeds, threads or parallel replays."""


def count_option(option: str, value: int | None) -> int | None:
    """Return the value of an option that counts something; None if it is not given.

    Raises:
        UsageError: The value is below 1 or above `MAX_COUNT`.
    """
    if value is not None and not 1 <= value <= MAX_COUNT:
        raise UsageError(f"{option}: must be from 1 to {MAX_COUNT:,}, got {value}; or leave it out")
    return value


def from_clone(module: str) -> ModuleType:
    """Import a module of `benchmarks/` or `experiments/`, which no wheel contains.

    Raises:
        UsageError: This installation is not a clone of the repository.
    """
    folder = module.partition(".")[0]
    try:
        importlib.import_module(folder)
    except ModuleNotFoundError as exc:
        raise UsageError(
            f"{folder}: is not part of the installed package; run this in a clone of the repository"
        ) from exc
    return importlib.import_module(module)


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage while a new process imports: there is none, and all objects are looked at.

    Nor later in what was imported, which stays (`gc.freeze`). A process that has imported numpy is
    not new: it may have garbage, which would stay, too.
    """
    if "numpy" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def room_words(options: argparse.Namespace) -> list[str]:
    """Return the options that rooms add, as given, for the same command in another process."""
    words = list[str]()
    for action in getattr(options, "room_actions", ()):
        value = getattr(options, action.dest)
        if value != action.default:
            words += [action.option_strings[-1], *([] if action.nargs == 0 else [str(value)])]
    return words


def dispatch(options: argparse.Namespace) -> int:
    """Run the command; return the exit code.

    Raises:
        UsageError: The command line cannot be used.
        RunError: The command failed.
    """
    name = options.module or f"fairbed.testbed.cli.{_MODULES[options.command]}"
    try:
        with uncollected():
            module = importlib.import_module(name)
            takes = [rooms.load(take) for take in options.takes]
        for take in takes:
            if (code := take(options)) is not None:
                return int(code)
        return cast(CommandModule, module).main(options)
    except ModuleNotFoundError as exc:
        if (advice := what_to_install(exc)) is None:
            raise
        raise UsageError(f"{options.command}: {advice}") from exc
