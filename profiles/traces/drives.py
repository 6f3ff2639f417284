"""Split a table of several drives, at times that fall or by a column, into one trace each."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbed.profiles.traces.trace import Floats

FALLS = "time"
"""Part of a split: a drive begins where the time falls."""

ADVICE = "a file of several drives is split by --split time, or --split COLUMN"


@dataclass(frozen=True, slots=True)
class Split:
    """How a table is split into drives."""

    column: str | None = None
    """A column whose values name the drives."""
    at_falls: bool = False
    """A drive begins where the time falls, also among the rows of one value of the column."""


def parse_split(text: str) -> Split:
    """Return a split from `time`, `COLUMN` or `COLUMN,time`.

    Raises:
        ValueError: The text is empty or names several columns.
    """
    parts = [part.strip() for part in text.split(",")]
    columns = [part for part in parts if part != FALLS]
    if "" in parts or len(columns) > 1 or parts.count(FALLS) > 1:
        raise ValueError(f"must be time, COLUMN, or COLUMN,time, got {text!r}")
    return Split(columns[0] if columns else None, FALLS in parts)


def drives_of(
    times: Floats, labels: list[str], split: Split
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the name and the rows of each drive, in the order of their first rows.

    Args:
        times: Times in the order of the file, seconds, shape (R,).
        labels: Values of the column, of length R; empty without a column.
        split: How to split.
    """
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels or [""] * len(times)):
        rows.setdefault(label, []).append(row)
    for label, members in rows.items():
        whole = np.array(members, dtype=np.int64)
        falls = split.at_falls & (np.diff(times[whole]) < 0.0)
        for part in np.split(whole, np.flatnonzero(falls) + 1):
            yield label, part
