"""`fairbed export`: the tables of a run as files."""

import argparse
import signal
import sys
from pathlib import Path

import msgspec

from fairbed.coordinator.report.export import ExportError, FolderExistsError, export_run
from fairbed.coordinator.report.tables import TABLES
from fairbed.coordinator.store import RunNotFoundError, RunReader, StoreError, resolve_run
from fairbed.testbed.cli import DONE
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.progress import progress


def main(options: argparse.Namespace) -> int:
    """Export a run; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # or unfinished files would be left behind
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        with (
            RunReader(resolve_run(options.runs, options.run)) as reader,
            progress(None, "rows", "export") as bar,
        ):
            run_id = reader.run().run_id
            out = options.out or Path(f"{run_id}-{options.format}")

            def show(done: int, total: int) -> None:
                bar.total = total
                bar.update(done)

            exported = export_run(reader, out, options.format, options.table or TABLES, show)
    except (FolderExistsError, RunNotFoundError, ValueError) as exc:
        raise UsageError(str(exc)) from exc
    except (ExportError, StoreError) as exc:
        raise RunError(str(exc)) from exc
    if options.json:
        found = {
            "run": run_id,
            "format": options.format,
            "folder": str(exported.folder),
            "tables": exported.rows,
            "bytes": exported.bytes,
        }
        print(msgspec.json.encode(found).decode())
    else:
        tables = "1 table" if len(exported.rows) == 1 else f"{len(exported.rows)} tables"
        rows = f"{sum(exported.rows.values()):,} rows"
        print(f"{exported.folder}: {tables}, {rows}, {exported.bytes / 1e6:,.1f} MB")
    return DONE
