"""`fairbed export`: the tables of a run as files."""

import argparse
import signal
import sys
from contextlib import nullcontext

import msgspec

from fairbed.coordinator.report.tables import TABLES
from fairbed.coordinator.store.connection import is_locked
from fairbed.testbed.api.errors import one_line_errors
from fairbed.testbed.api.run import Run, export_tables
from fairbed.testbed.backends.priority import low_priority
from fairbed.testbed.cli import DONE


def main(options: argparse.Namespace) -> int:
    """Export a run; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # or unfinished files would be left behind
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    with one_line_errors():
        run = Run.open(options.run, options.runs)
        tables = options.table or TABLES
        with low_priority() if is_locked(run.folder) else nullcontext():
            exported = export_tables(run, options.format, options.out, tables)
    if options.json:
        found = {
            "run": run.id,
            "format": options.format,
            "folder": str(exported.folder),
            "tables": exported.rows,
            "bytes": exported.bytes,
        }
        print(msgspec.json.encode(found).decode())
    else:
        count = "1 table" if len(exported.rows) == 1 else f"{len(exported.rows)} tables"
        rows = f"{sum(exported.rows.values()):,} rows"
        print(f"{exported.folder}: {count}, {rows}, {exported.bytes / 1e6:,.1f} MB")
    return DONE
