"""Compares the rows of two runs: two replays of one experiment have the same ones."""

from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path

from fairbed.coordinator.store.connection import DATABASE, open_readonly, translated
from fairbed.coordinator.store.schema import RECORDS, table_of
from fairbed.coordinator.store.tables import Record

OF_ONE_MACHINE = frozenset(
    {"created", "wall", "dilation", "evaluate_s", "provenance", "run_id", "state", "version"}
)
"""Columns that two replays need not share: times of the machine, and its versions. The state of a
checkpoint has such times; its model is compared."""


def differences(one: Path, other: Path, ignored: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield a line for each table in which two runs differ: the first row and column that do.

    Args:
        one: Folder of a finished run.
        other: Folder of another one.
        ignored: Further columns that may differ.

    Raises:
        StoreError: A run cannot be read.
    """
    paths = [folder / DATABASE for folder in (one, other)]
    with (
        closing(open_readonly(paths[0])) as first,
        closing(open_readonly(paths[1])) as second,
        translated(paths[0]),
        translated(paths[1]),
    ):
        for record in RECORDS:
            names = _columns(record, ignored)
            table = table_of(record).name
            order = ", ".join(record.KEY) or "id"
            query = f"SELECT {', '.join(names)} FROM {table} ORDER BY {order}"
            pairs = zip_longest(first.execute(query), second.execute(query))
            found = next(((a, b) for a, b in pairs if a != b), None)
            if found is not None:
                yield f"table {record.TABLE}: {_difference(names, record.KEY, *found)}"


def _columns(record: type[Record], ignored: frozenset[str]) -> list[str]:
    left_out = OF_ONE_MACHINE | ignored
    return [c.name for c in table_of(record).columns if c.name not in left_out]


def _difference(
    names: list[str],
    key: tuple[str, ...],
    one: tuple[object, ...] | None,
    other: tuple[object, ...] | None,
) -> str:
    row = dict(zip(names, one or other or (), strict=True))
    at = ", ".join(f"{name} {row[name]}" for name in key if name in row)
    where = f"the row of {at}" if at else "a row"
    if one is None or other is None:
        return f"{where} is in {'the second' if one is None else 'the first'} run only"
    name, a, b = next((name, a, b) for name, a, b in zip(names, one, other, strict=True) if a != b)
    return f"{where} has {name} {a!r} and {b!r}"
