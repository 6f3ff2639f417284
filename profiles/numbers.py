"""All numbers of a profile, a link or a population, with their keys."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from fairbed.profiles.population import Distributed
from fairbed.profiles.quantities import Episodes, Quantity, Varying
from fairbed.profiles.schema import Power

Number: TypeAlias = Quantity[Any] | Distributed[Any]


def numbers(item: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Number]]:
    """Yield every number with a source, and its key path, in the order of the file."""
    for field in msgspec.structs.fields(item):
        value, key = getattr(item, field.name), f"{prefix}{field.encode_name}"
        if isinstance(value, Quantity | Distributed):
            yield key, value
        elif isinstance(value, msgspec.Struct):
            yield from numbers(value, f"{key}.")
        elif isinstance(value, tuple):
            for index, part in enumerate(value):
                if isinstance(part, msgspec.Struct):
                    yield from numbers(part, f"{key}[{index}].")


def unknown_numbers(item: msgspec.Struct) -> dict[str, Number]:
    """Return the numbers that a file lacks, by key path; each has the emulation's default."""
    return {key: number for key, number in numbers(item) if number.tag == "unknown"}


def schedule_text(number: Number) -> str:
    """Return the text of a number's schedule or distribution; empty for a constant."""
    if isinstance(number, Distributed):
        if number.quantiles is None:
            return ""
        distribution = number.distribution()
        return f"distributed from {distribution.lowest:g} to {distribution.highest:g}"
    if isinstance(number, Power) and number.range != (number.value, number.value):
        return f"published from {number.range[0]:g} to {number.range[1]:g}"
    if isinstance(number, Episodes):
        lengths = number.lengths()
        return (
            f"for {lengths.lowest:g} to {lengths.highest:g} s, half of them at most "
            f"{float(lengths.at(0.5)):g} s; between devices e^(+-{number.drive:g})"
        )
    if not isinstance(number, Varying):
        return ""
    if number.series is not None:
        series = number.series.series()
        return (
            f"series of {len(series.t_s)} steps over {series.period_s:g} s, "
            f"{series.lowest:g} to {series.highest:g}"
        )
    if number.trace is not None:
        return f"trace {number.trace}"
    if number.spread is not None:
        spread = number.spread
        distribution = spread.distribution()
        return (
            f"drawn every {spread.step_s:g} s from {distribution.lowest:g} to "
            f"{distribution.highest:g}, correlation {spread.correlation:g}"
        ) + (
            f"; of the variance {spread.drive:.0%} between devices, {spread.slow:.0%} slow "
            f"({spread.slow_s:g} s)"
            if spread.drive or spread.slow
            else ""
        )
    return ""
