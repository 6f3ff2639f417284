"""The arguments of `fairbed reproduce`."""

import argparse
from pathlib import Path

NAMES = ("q-ffl", "ditto", "corefed", "aaggff", "rbcs-f")
"""The sources; each has a file in `studies/`."""
ALL = "all"
OUT = Path("reproduction")


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairbed reproduce`."""
    parser.add_argument("source", metavar="SOURCE", choices=(*NAMES, ALL), help=f"{_sources()}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--smoke",
        action="store_true",
        help="a few rounds of each cell: shows that everything runs, and judges nothing",
    )
    size.add_argument(
        "--full",
        action="store_true",
        help="run or resume all cells (without --smoke and --full: pages of the finished ones)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"folder of pages and finished cells (default: {OUT}, with --smoke {OUT}-smoke)",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="replays in parallel (default: one per core)"
    )
    parser.add_argument(
        "--cluster",
        dest="hosts",
        metavar="ADDRESS",
        help="replay the cells on the hosts of a Ray cluster: HOST:PORT of its head, or local",
    )
    parser.add_argument("--json", action="store_true", help="print claims and verdicts as JSON")


def _sources() -> str:
    return f"{', '.join(NAMES)}, or {ALL}"
