"""`fairbed shape`: run any command on an emulated device."""

import argparse
import sys

from fairbed.testbed.errors import UsageError
from fairbed.testbed.shape import signals


def main(options: argparse.Namespace) -> int:
    """Run the command; return its status, or die of the signal that it died of."""
    if sys.platform != "linux":
        raise UsageError(f"shape: needs Linux, got {sys.platform}; use a virtual machine with it")
    if not options.argv:
        raise UsageError(
            "shape: must have a command after --, got none; "
            "fairbed shape raspberry-pi-4b -- COMMAND"
        )
    with signals.held() as held:  # numpy starts threads when it is loaded, and those inherit it
        from fairbed.testbed.shape.cli import shape

        ending = shape(options, held)
    if ending.killed_by is None:
        return ending.status
    signals.end_by_signal(ending.killed_by)
    return ending.status
