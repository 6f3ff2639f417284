"""The options of commands that export the numbers of a run."""

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--metrics` and `--tensorboard`."""
    parser.add_argument(
        "--metrics",
        metavar="[HOST]:PORT",
        help="serve metrics for Prometheus, as at :9464; on this machine alone without a host",
    )
    parser.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write curves for TensorBoard into a folder of DIR",
    )
