"""The measures that follow from the declarations of measured columns of the exchange."""

from collections.abc import Iterator, Mapping

from fairbed.coordinator.report.measures.entry import (
    BYTES,
    FOUR_DIGITS,
    JOULES,
    OWN,
    SECONDS,
    WHOLE,
    Exchanges,
    Format,
    RunMeasure,
)
from fairbed.coordinator.store.schema import MEASURED, ColumnSpec

_FORMATS = {"s": SECONDS, "J": JOULES, "byte": BYTES}
"""By unit; others are whole numbers or have four digits."""


def measures_of(columns: Mapping[str, ColumnSpec]) -> Iterator[RunMeasure]:
    """Yield the measure of each column that declares a statistic."""
    for name, spec in columns.items():
        if spec.column is None or spec.column.statistic is None:
            continue
        statistic, key = spec.column.statistic, f"{name}_{spec.column.statistic}"
        is_count = spec.kind is int and statistic == "sum"
        yield RunMeasure(
            key=key,
            name=f"{spec.column.heading}, {statistic}",
            meaning=f"{statistic.capitalize()} of the column `{name}` over all exchanges",
            source=Exchanges(name, statistic, of="all"),
            unit="" if is_count else spec.unit,
            format=_format(spec, is_count=is_count),
            json=f"{OWN}{key}",
            show="measured",
            report=spec.column.heading,
            states_zero=False,
            prometheus=f"exchange_{statistic}_{_in_words(name, spec.unit)}",
        )


def _in_words(name: str, unit: str) -> str:
    """Return the name of a column with its unit in words, as Prometheus has it."""
    words = {"s": "seconds", "J": "joules"}
    return f"{name.rpartition('_')[0]}_{words[unit]}" if unit in words else name


def _format(spec: ColumnSpec, *, is_count: bool) -> Format:
    return _FORMATS.get(spec.unit, WHOLE if is_count else FOUR_DIGITS)


COLUMNS: tuple[RunMeasure, ...] = tuple(measures_of(MEASURED))
