"""The option `--flower` of `fairbed run`, and the command `fairbed flower`."""

import argparse
import json
import os
from pathlib import Path

from fairbed.testbed.cli import EXAMPLES
from fairbed.testbed.errors import UsageError

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
        UsageError: Neither an app nor an experiment is given.
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
    options.set = [*options.set, f"flower.app={json.dumps(path)}"]


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
