"""The options of commands whose work the hosts of a cluster can do."""

import argparse


def add_emulating(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairbed run`."""
    _add(parser, "emulate devices")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="with --cluster: allow the run's own broker beyond this machine, in plain text",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the option of `fairbed replay`."""
    _add(parser, "train devices")


def add_replaying(parser: argparse.ArgumentParser) -> None:
    """Add the option of `fairbed compare`."""
    _add(parser, "replay the cells")


def _add(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--cluster",
        dest="hosts",
        metavar="ADDRESS",
        help=f"{what} on the hosts of a Ray cluster: HOST:PORT of its head, or local",
    )
