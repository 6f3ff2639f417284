"""Rows of the result: target, achieved value, error and limit. Pure."""

from typing import Literal, TypeAlias

from msgspec import Struct, structs

from benchmarks._fidelity.windows import Finding

Unit: TypeAlias = Literal["cores", "s", "bit/s", "ratio", "bytes"]


class Row(Struct, frozen=True, kw_only=True):
    """One quantity on one backend."""

    backend: str
    quantity: str
    target: float | None
    """In `unit`."""
    achieved: float | None
    """Median of the valid windows; None without any."""
    error: float | None
    """Relative to the target, or in `unit` if `is_relative` is false."""
    limit: float | None
    """Of the absolute error, or, if `is_bound`, of the achieved value; None without a limit."""
    ok: bool | None
    """None if unknown or without a limit."""
    unit: Unit
    is_relative: bool = True
    is_bound: bool = False
    """Whether less is better: there is no error, only an upper limit."""
    low: float | None = None
    high: float | None = None
    """Least and greatest value of the valid windows."""
    valid: int = 0
    attempts: int = 0
    reason: str | None = None
    """Why it is unknown, or why windows were invalid."""
    group: str = ""
    """Its name in `--quantity`."""


class QuantitySpec(Struct, frozen=True, kw_only=True):
    """A quantity before its measurement."""

    backend: str
    quantity: str
    target: float | None
    unit: Unit
    limit: float | None = None
    is_relative: bool = True
    is_bound: bool = False


def row_of(spec: QuantitySpec, found: Finding) -> Row:
    """Return the row of a measured quantity."""
    error, ok = None, None
    value = found.value
    if value is not None and spec.is_bound:
        ok = None if spec.limit is None else value <= spec.limit
    elif value is not None and spec.target is not None:
        error = value - spec.target
        if spec.is_relative:
            error /= spec.target
        ok = None if spec.limit is None else abs(error) <= spec.limit
    return Row(
        backend=spec.backend,
        quantity=spec.quantity,
        target=spec.target,
        achieved=value,
        error=error,
        limit=spec.limit,
        ok=ok,
        unit=spec.unit,
        is_relative=spec.is_relative,
        is_bound=spec.is_bound,
        low=found.low,
        high=found.high,
        valid=found.valid,
        attempts=found.attempts,
        reason=found.reason,
    )


def unknown(spec: QuantitySpec, reason: str) -> Row:
    """Return the row of a quantity that cannot be emulated or measured here; it has no limit."""
    nothing = Finding(value=None, low=None, high=None, valid=0, attempts=0, reason=reason)
    return row_of(structs.replace(spec, limit=None), nothing)
