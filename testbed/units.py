"""Numbers with a unit, as people type them: `10mbit`, `20ms`, `1%`, `512M`."""

import math
import re

from msgspec import ValidationError, convert

from fairbed.profiles import LinkQueue
from fairbed.profiles.schema import QueueBytes, QueueMs
from fairbed.profiles.traces.units import AmbiguousUnit, unit_of

DURATIONS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
RATIOS = {"%": 0.01, "": 1.0}
SIZES = {"k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}
"""Units of memory, powers of 1024 as in container engines; `512MB` equals `512MiB`."""

_FORM = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z%]*)", re.IGNORECASE)

_RATE = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z].*)", re.IGNORECASE)


def rate_bps(text: str) -> float:
    """Return a rate in bit/s.

    Raises:
        ValueError: The text is not a number with a unit of rates, or not positive.
    """
    match = _RATE.fullmatch(text.strip())
    try:
        unit = None if match is None else unit_of(match[2])
    except AmbiguousUnit as exc:
        raise ValueError(f"must be a rate such as 10mbit or 2MB/s, got {text!r}: {exc}") from exc
    if match is None or unit is None or unit.dimension not in ("rate", "amount"):
        raise ValueError(
            f"must be a rate such as 10mbit (units: bit, kbit, mbit, gbit, MB/s), got {text!r}"
        )
    value = float(match[1]) * unit.factor
    if not math.isfinite(value):
        raise ValueError(f"must be a rate such as 10mbit, got {text!r}")
    if value <= 0.0:
        raise ValueError(f"must be a rate above 0, got {text!r}")
    return value


def duration_s(text: str) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: The text is not a number with a unit of time.
    """
    return _read(text, DURATIONS_S, "a duration such as 20ms")


def ratio(text: str) -> float:
    """Return a share from 0 to 1, given as a number or in per cent.

    Raises:
        ValueError: The text is neither, or the share is above 1.
    """
    value = _read(text, RATIOS, "a share such as 1% or 0.01")
    if value > 1.0:
        raise ValueError(f"must be a share from 0 to 1, got {text!r}")
    return value


def size_bytes(text: str) -> int:
    """Return an amount of memory in bytes.

    Raises:
        ValueError: The text is not a number with a unit of memory, or less than one byte.
    """
    units = {f"{unit}{end}": factor for unit, factor in SIZES.items() for end in ("", "b", "ib")}
    try:
        value = int(_read(text, units, "memory"))
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"must be an amount of memory such as 512M or 2G, got {text!r}")
    return value


def queue_depth(text: str) -> LinkQueue:
    """Return a drop-tail queue of a depth, given as a time or in bytes.

    Raises:
        ValueError: The text is neither, or no link can have such a queue.
    """
    try:
        if text.strip().lower().endswith("s"):
            depth_s = duration_s(text)
            convert(1000.0 * depth_s, QueueMs)
            return LinkQueue(depth_s=depth_s)
        return LinkQueue(depth_bytes=convert(size_bytes(text), QueueBytes))
    except (ValueError, ValidationError):
        raise ValueError(
            "must be a time up to 60s such as 300ms, or an amount from 3k to 16m such as 64k, "
            f"got {text!r}"
        ) from None


def _read(text: str, units: dict[str, float], expected: str) -> float:
    match = _FORM.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        known = ", ".join(unit or "none" for unit in units)
        raise ValueError(f"must be {expected} (units: {known}), got {text!r}")
    value = float(match[1]) * units[match[2].lower()]
    if not math.isfinite(value):
        raise ValueError(f"must be {expected}, got {text!r}")
    return value
