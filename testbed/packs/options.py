"""The arguments of `fairbed pack` and `fairbed unpack`."""

import argparse
from pathlib import Path

MAX_GB = 10.0
"""Size of a pack above which the user must agree."""


def add_pack(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairbed pack`."""
    parser.add_argument("what", metavar="RUN", help="a run, or the folder of a grid")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="a new file; else NAME.tar.zst here"
    )
    parser.add_argument(
        "--with-data",
        action="store_true",
        help="add the files below FAIRBED_DATA, if their licence allows it; else their hashes only",
    )
    parser.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave files out whose place in the pack is like PATTERN: 'run/models/*'",
    )
    _add_common(parser)


def add_unpack(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairbed unpack`."""
    parser.add_argument("pack", type=Path, metavar="PACK", help="a pack, or the folder of one")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="a new folder; else its name")
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--verify", action="store_true", help="check it, and what this machine lacks; write nothing"
    )
    action.add_argument(
        "--rerun", action="store_true", help="run its replays again, and compare every number"
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="run the code in it; it can do all you can",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="replays in parallel (default: one per core)"
    )
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-gb",
        type=float,
        default=MAX_GB,
        metavar="GB",
        help="largest size of the files in it (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
