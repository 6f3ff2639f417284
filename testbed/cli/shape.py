"""`fairbed shape`: run any command on an emulated device."""

import argparse
import sys

from fairbed.testbed.errors import UsageError
from fairbed.testbed.shape import signals


def main(options: argparse.Namespace) -> int:
    """Run the command; return its status, or end this process by the signal that ended it."""
    if sys.platform != "linux":
        raise UsageError(f"shape: needs Linux, got {sys.platform}; use a Linux virtual machine")
    if not options.argv:
        raise UsageError(
            "shape: must have a command after --, got none; "
            "use: fairbed shape raspberry-pi-4b -- COMMAND"
        )
    with signals.held() as held:  # before numpy starts threads, which inherit the mask
        from fairbed.testbed.shape.cli import shape

        ending = shape(options, held)
    if ending.killed_by is None:
        return ending.status
    signals.end_by_signal(ending.killed_by)
    return ending.status
