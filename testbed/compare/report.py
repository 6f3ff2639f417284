"""Writes what a comparison says: as JSON, as CSV and as LaTeX."""

from pathlib import Path

import msgspec

from testbed.compare.comparison import Comparison
from testbed.compare.table import cells_csv, metrics_csv
from testbed.compare.tex import tex


def write_report(comparison: Comparison, out: Path) -> None:
    """Write all files but the figures into the grid's folder.

    Raises:
        OSError: A file cannot be written.
    """
    files = {
        "compare.json": msgspec.json.format(msgspec.json.encode(comparison)).decode() + "\n",
        "compare.csv": metrics_csv(comparison),
        "cells.csv": cells_csv(comparison),
        "compare.tex": tex(comparison),
    }
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
