"""`fairbed flower setup`: make the environment of a Flower app, which no environment of ours is."""

import argparse
import json
import sys

from fairbed.testbed.cli import DONE
from fairbed.testbed.flower.environment import environment_of, line_for_experiment, set_up
from fairbed.testbed.flower.reading import read_app


def main(options: argparse.Namespace) -> int:
    """Make it, or complete it, and print how it is used; return the exit code.

    Raises:
        UsageError: There is no such app.
        RunError: A command failed.
    """
    app = None if options.app is None else read_app(options.app)

    def note(command: str) -> None:
        print(f"+ {command}", file=sys.stderr, flush=True)

    python = set_up(app, options.python, note)
    if options.json:
        print(json.dumps({"python": str(python), "folder": str(environment_of(app))}))
        return DONE
    print(line_for_experiment(python))
    if app is not None:
        print(f"# `fairbed run --flower {options.app}` finds it without this line")
    return DONE
