"""The option `--flower` of `fairbed run`, and the command `fairbed flower`."""

import argparse
import json
import os
from pathlib import Path

from fairbed.testbed.cli import EXAMPLES
from fairbed.testbed.errors import UsageError

POLICY = "selection.policy"

FLEET = EXAMPLES / "flower-ten-pis.toml"
"""The experiment of an app that is run without one."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option to `fairbed run`, whose experiment can then be left out."""
    parser.add_argument(
        "--flower",
        metavar="PATH",
        help="run this Flower app; without an experiment, on ten emulated Raspberry Pis",
    )
    for action in parser._actions:
        if action.dest == "experiment":
            action.nargs, action.required = "?", False


def take(options: argparse.Namespace) -> None:
    """Put the app into the settings of the run; return None, so that the core runs it.

    Raises:
        UsageError: Neither an app nor an experiment is given, or the file cannot be read.
    """
    if options.flower is None:
        if options.experiment is None:
            raise UsageError(
                "run: must have an experiment file, or --flower PATH, got neither; `fairbed "
                "examples` lists the examples"
            )
        return
    if options.experiment is None:
        options.experiment = FLEET
    path = os.path.abspath(options.flower)
    settings = [f"flower.app={json.dumps(path)}"]
    if not _has_policy(options):
        from fairbed.coordinator.policy.config import APP

        settings.append(f"selection.policy={APP}")
    options.set = [*settings, *options.set]


def _has_policy(options: argparse.Namespace) -> bool:
    """Return whether a policy is set: otherwise the strategy of the app selects."""
    if any(one.partition("=")[0].strip() == POLICY for one in options.set):
        return True
    if os.path.isdir(options.experiment):
        return True  # a run to resume
    from fairbed.testbed.experiment.file import ExperimentError, read_document

    try:
        table = read_document(Path(options.experiment)).get("selection")
    except ExperimentError as exc:
        raise UsageError(str(exc)) from exc
    return isinstance(table, dict) and "policy" in table


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairbed flower`."""
    parser.add_argument("action", choices=("setup",), help="setup: make the environment of an app")
    parser.add_argument(
        "app", nargs="?", type=Path, help="folder of the app (default: flwr and numpy alone)"
    )
    parser.add_argument(
        "--python", metavar="PATH", help="interpreter from which it is made (default: this one)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
