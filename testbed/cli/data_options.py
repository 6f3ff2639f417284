"""The arguments of `fairbed data`. Every command loads it, so it is small."""

import argparse
from pathlib import Path

FETCH_S = 600.0


def add_data_keys(parser: argparse.ArgumentParser) -> None:
    """Add the keys of `[data]` that the user's own data may need."""
    parser.add_argument("--label", metavar="COLUMN", help="labels of a .csv or .parquet file")
    parser.add_argument("--device", metavar="COLUMN", help="users of a .csv or .parquet file")
    parser.add_argument("--folder", metavar="DIR", help="folder of the data")


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `fairbed data` and their arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=text)

    listing = action("list", "print data sets: rows, users, licence, and whether they are here")
    verify = action("verify", "read data sets whole and compare checksums")
    what = "own data as in `[data] source`, or experiment files"
    for one, default in ((listing, "all"), (verify, "all that are here")):
        one.add_argument(
            "what", metavar="NAME", nargs="*", help=f"data sets (default: {default}), {what}"
        )
        _add_own(one)
    show = action("show", "draw how a data set is divided over devices")
    show.add_argument("what", metavar="NAME", help=f"a data set, {what}")
    show.add_argument(
        "--devices", type=int, metavar="N", help="devices (default: a user each, or 10)"
    )
    show.add_argument(
        "--partition",
        metavar="KIND",
        help="kind of division, also with its first option: dirichlet:0.5 (default: natural if "
        "the data have users, else iid)",
    )
    show.add_argument("--seed", type=int, metavar="N", help="of the division (default: 1)")
    show.add_argument(
        "--out", type=Path, metavar="FILE", help="a figure that ends in .svg, .pdf, .png or .html"
    )
    _add_own(show)
    fetch = action("fetch", "download data sets from the place of their authors")
    fetch.add_argument("what", metavar="NAME", nargs="+", help="names of data sets")
    fetch.add_argument(
        "--folder", metavar="DIR", help="folder of the files (default: FAIRBED_DATA/NAME)"
    )
    fetch.add_argument(
        "--from", dest="place", metavar="URL", help="folder on the web that has the files instead"
    )
    fetch.add_argument(
        "--timeout",
        type=float,
        default=FETCH_S,
        metavar="S",
        help=f"longest time for a file in seconds (default: {FETCH_S:g})",
    )
    fetch.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_own(parser: argparse.ArgumentParser) -> None:
    add_data_keys(parser)
    parser.add_argument(
        "--features",
        metavar="NAMES",
        help="columns of a table that are features, as in `[data] features`, with commas",
    )
    parser.add_argument(
        "--categories",
        metavar="NAMES",
        help="columns of a table that are one-hot encoded, as in `[data] categories`, with commas",
    )
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
