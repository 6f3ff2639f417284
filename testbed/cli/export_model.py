"""`fairbed export-model`: the trained model of a run, usable elsewhere."""

import argparse

import msgspec

from fairbed.testbed.api.errors import one_line_errors
from fairbed.testbed.api.export_model import CARD, export_model
from fairbed.testbed.api.run import Run
from fairbed.testbed.cli import DONE


def main(options: argparse.Namespace) -> int:
    """Export the model of a run; return the exit code."""
    with one_line_errors():
        run = Run.open(options.run, options.runs)
        found = export_model(run, options.to, options.out, options.round, options.licence)
    if options.json:
        about = {
            "run": run.id,
            "round": found.round,
            "file": str(found.file),
            "card": str(found.folder / CARD),
            "bytes": found.bytes,
        }
        print(msgspec.json.encode(about).decode())
    else:
        print(f"{found.file}: round {found.round}, {found.bytes / 1e6:,.2f} MB; {CARD} beside it")
    return DONE
