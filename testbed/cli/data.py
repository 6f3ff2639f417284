"""`fairbed data`: list the data sets and verify their files."""

import argparse
import os

import msgspec

from fairbed.testbed.cli import DONE, FAILED
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.datasets.catalogue import DatasetStatus, describe_all, verify
from fairbed.testbed.progress import Bar, progress


def main(options: argparse.Namespace) -> int:
    """Run one of the actions; return the exit code."""
    found = (_list if options.action == "list" else _verify)(options.what)
    if options.json:
        print(msgspec.json.encode(found).decode())
    else:
        for status in found:
            _print_status(status)
    is_good = options.action == "list" or all(status.is_available for status in found)
    return DONE if is_good else FAILED


def _list(requested: list[str]) -> list[DatasetStatus]:
    statuses = describe_all(os.environ)
    known = [status.name for status in statuses]
    for name in requested:
        if name not in known:
            raise UsageError(f"data list: no data set {name!r}; there are: {', '.join(known)}")
    return [status for status in statuses if not requested or status.name in requested]


def _verified(name: str, bar: Bar) -> DatasetStatus:
    status = verify(name, os.environ)
    bar.advance()
    return status


def _verify(requested: list[str]) -> list[DatasetStatus]:
    names = requested or [status.name for status in describe_all(os.environ) if status.is_available]
    try:
        with progress(len(names), "data sets", "data verify") as bar:
            return [_verified(name, bar) for name in names]
    except ValueError as exc:
        raise UsageError(f"data verify: {exc}") from exc


def _print_status(status: DatasetStatus) -> None:
    if status.is_available:
        examples = f"{status.n} examples, " if status.n is not None else ""
        print(f"ok       {status.name:<16}{examples}{status.description} ({status.where})")
    else:
        print(f"missing  {status.name:<16}{status.problem}; {status.what_to_do}")
