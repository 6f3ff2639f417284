"""Quantities for people: how many exchanges they are of, and their texts.

`coordinator.report.measures` has the numbers that are written so.
"""

from collections.abc import Callable

from msgspec import Struct

MISSING = "–"
"""Text of an unknown value."""

LEAST = 5
"""Fewest exchanges with a value for a median, a percentile, a mean or a share of them."""
LEAST_SHARE = 0.5
"""Smallest share of the exchanges that must have a value: the others may be of another kind."""


class SampleCount(Struct, frozen=True):
    """The exchanges behind a number."""

    n: int
    """Those that have a value."""
    of: int
    """All of the kind, with those that failed, were late or are untimed."""

    @property
    def why_none(self) -> str:
        """Why a median, percentile, mean or share of them is not stated; empty: it is."""
        if self.n < LEAST:
            return f"fewer than {LEAST}"
        return self.why_no_total

    @property
    def why_no_total(self) -> str:
        """Why the sum over them is not stated; empty: it is."""
        return "fewer than half" if self.n < LEAST_SHARE * self.of else ""

    @property
    def mark(self) -> str:
        """Text of a cell without a number: `–` without a value, `n < 5`, `n < half`."""
        if not self.n:
            return MISSING
        return f"n < {LEAST}" if self.n < LEAST else "n < half"

    def __str__(self) -> str:
        """Return `105 of 120`."""
        return f"{self.n:,} of {self.of:,}"


NO_SAMPLE = SampleCount(0, 0)


def of_enough(value: float | None, sample: SampleCount) -> float | None:
    """Return a statistic, or None if it is of too few exchanges."""
    return None if value is None or sample.why_none else value


def cell(text: str, value: float | None, sample: SampleCount) -> str:
    """Return the text of a number in a table, or why there is none."""
    return sample.mark if value is None and sample.why_none else text


def text_in(unit: str, value: str | bool | float | None) -> str:
    """Return the text of a cell of a table, by the unit of its column; empty is no unit."""
    if value is None or value != value:
        return MISSING
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if (text := _TEXTS.get(unit)) is not None:
        return text(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def seconds(value: float | None) -> str:
    """Return the text of an exchange time: `0.042`, `1.37`, `12.4`; `3:07` from 100 s on."""
    if value is None or value != value:
        return MISSING
    if value >= 99.95:
        return clock(value)
    return f"{value:.3f}" if value < 0.0995 else f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def clock(value: float) -> str:
    """Return the text of a time of the run clock or of a long duration: `0:07`, `1:02:03`."""
    whole = int(value)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"


def instant(value_s: float) -> str:
    """Return the text of an instant of the run clock, as `clock` does; `before` the run."""
    return "before" if value_s < 0.0 else clock(value_s)


def device_time(value_s: float) -> str:
    """Return the text of device-seconds: `4.2`, `312`, `1,204,311`."""
    return f"{value_s:.1f}" if value_s < 99.95 else f"{value_s:,.0f}"


def age(value_s: float) -> str:
    """Return the text of an age in its largest unit: `41 s`, `12 min`, `3 h`, `5 d`."""
    for unit, unit_s in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if value_s >= unit_s:
            return f"{int(value_s // unit_s)} {unit}"
    return f"{int(value_s)} s"


def bandwidth(value_bps: float | None) -> str:
    """Return the text of a link rate in bit/s: `9.5M`, `48M`, `640k`."""
    return MISSING if value_bps is None else _prefixed(value_bps, "")


def size(value_bytes: float | None) -> str:
    """Return the text of a number of bytes: `4.8 MB`, `912 kB`, `12 B`."""
    return MISSING if value_bytes is None else f"{_prefixed(value_bytes, ' ')}B"


def energy(value_j: float | None) -> str:
    """Return the text of an energy in joules: `4.8 kJ`, `12 J`, `0.34 J`."""
    if value_j is None:
        return MISSING
    return f"{value_j:.2g} J" if value_j < 9.95 else f"{_prefixed(value_j, ' ')}J"


def known_energy(value_j: float | None, sample: SampleCount) -> str:
    """Return the text of an energy in a table, with its exchanges unless it is of all.

    `4.8 kJ`, `4.8 kJ of 105` exchanges; `n 9 of 20` in place of a sum of too few.
    """
    if value_j is None or sample.why_no_total:
        return f"n {sample}" if sample.n else MISSING
    return energy(value_j) if sample.n == sample.of else f"{energy(value_j)} of {sample.n:,}"


def ratio(value: float | None, digits: int = 3) -> str:
    """Return the text of an accuracy or a rate: `0.871`."""
    return MISSING if value is None or value != value else f"{value:.{digits}f}"


def percent(value: float | None, *, is_signed: bool = False) -> str:
    """Return the text of a ratio in percent: `12.3 %`, `+1.2 %`."""
    if value is None or value != value:
        return MISSING
    rounded = round(100 * value, 1) + 0.0  # no "-0.0"
    return f"{rounded:{'+' if is_signed else ''}.1f} %"


def _prefixed(value: float, gap: str) -> str:
    for factor, prefix in _PREFIXES:
        if value >= 0.9995 * factor:
            scaled = value / factor
            return f"{scaled:.1f}{gap}{prefix}" if scaled < 9.95 else f"{scaled:.0f}{gap}{prefix}"
    return f"{value:.0f}{gap}"


_TEXTS: dict[str, Callable[[float], str]] = {
    "s": seconds,
    "J": energy,
    "byte": size,
    "bit/s": bandwidth,
}
