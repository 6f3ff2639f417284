"""Merge of raw arrays: the integers, booleans and bytes of a client, which no sum of floats has.

    largest   all arrays of the update with the most examples; of equal ones, the first device row
    first     all arrays of the update of the first device row
    mean      round(sum_k n_k x_k / sum_k n_k), half to even; not for bytes
    sum       sum_k x_k, the values and not their changes, clipped to the type; not for bytes
    max       the largest of each value; not for bytes

A boolean counts as 0 or 1. Sums are exact, so the order of the updates changes nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.aggregation.base import Note
from fairbed.wire.artifact import ClientArray
from fairbed.wire.plugins import PluginError, described, users_code
from fairbed.wire.records import Record, RecordsError, decode_records, encode_records

RECORD: Final = "arrays"
"""Name of the only record of raw arrays."""

_FOR_BYTES: Final = ("largest", "first")
_SAFE: Final = float(1 << 62)
"""Sums below it are exact in int64."""

Raw = bytes | bytearray | memoryview
Arrays = dict[str, Any]
"""Raw arrays by name: numpy arrays of integers or booleans, or bytes."""
OwnMerge = Callable[[Arrays, list[tuple[Arrays, int, str]]], Arrays]
"""`merge(old, updates)`: the arrays before, and of each update its arrays, examples and device."""


@dataclass(frozen=True, slots=True)
class RawUpdate:
    """The raw part of one update that counts."""

    device: str
    n: int
    """Its examples, at least 1."""
    raw: Raw
    """Records that `RawRule.fault` accepts."""


def raw_arrays(arrays: Sequence[ClientArray]) -> dict[str, ClientArray]:
    """Return the arrays that travel raw, by name: all but floats."""
    return {one.name: one for one in arrays if not one.dtype.startswith("float")}


def encode_raw(arrays: Arrays) -> bytes:
    """Return raw arrays as they travel; no bytes without any."""
    return encode_records({RECORD: Record("arrays", arrays)}) if arrays else b""


def decode_raw(raw: Raw) -> Arrays:
    """Return raw arrays that `encode_raw` encoded; arrays are read-only views.

    Raises:
        RecordsError: The bytes are no such records.
    """
    if not len(raw):
        return {}
    records = decode_records(raw)
    if list(records) != [RECORD] or records[RECORD].kind != "arrays":
        raise RecordsError(f"records: must be one of arrays named {RECORD}, got {list(records)}")
    return records[RECORD].items


class RawRule:
    """Merges the raw parts of the updates of a round into the next raw part.

    Args:
        name: One of those above, or the name of a function of the user.
        arrays: All arrays of the client.
        own: The function; None for a built-in rule.
    """

    def __init__(
        self, name: str, arrays: Sequence[ClientArray], own: OwnMerge | None = None
    ) -> None:
        self.name = name
        self._arrays, self._own = raw_arrays(arrays), own

    def problem(self) -> str:
        """Return why the rule does not fit the arrays; empty if it fits."""
        of_bytes = [one.name for one in self._arrays.values() if one.dtype == "bytes"]
        if not of_bytes or self._own is not None or self.name in _FOR_BYTES:
            return ""
        return (
            f"aggregation.raw must be {' or '.join(map(repr, _FOR_BYTES))}, or a function of "
            f"yours as package.module:function, with bytes ({of_bytes[0]!r:.60}), got "
            f"{self.name!r}: bytes have no {self.name}"
        )

    def fault(self, raw: Raw) -> str | None:
        """Return why the raw part of an update is not valid; None if it is."""
        try:
            found = decode_raw(raw)
        except RecordsError as exc:
            return str(exc)
        if found.keys() != self._arrays.keys():
            wrong = sorted(found.keys() ^ self._arrays.keys())
            return f"update: must have the raw arrays of the model, differs in {wrong[0]!r:.60}"
        for name, array in self._arrays.items():
            if (problem := _misfit(array, found[name])) is not None:
                return f"update: {name!r:.60} must be {problem}"
        return None

    def merge(self, old: Raw, updates: Iterable[RawUpdate]) -> tuple[bytes, tuple[Note, ...]]:
        """Return the next raw part, and what is remarkable about it.

        Args:
            old: The raw part before.
            updates: Those that count, by device row; each is read once. Without any, the old one.

        Raises:
            PluginError: A function of the user violates its contract.
        """
        if self._own is not None:
            return self._merge_own(self._own, old, updates), ()
        if self.name in _FOR_BYTES:
            return _one_of(old, updates, is_largest=self.name == "largest"), ()
        sums = {name: _SUMS[self.name](array) for name, array in self._arrays.items()}
        count = 0
        for update in updates:
            count += 1
            for name, values in decode_raw(update.raw).items():
                sums[name].add(values, update.n)
        if not count:
            return bytes(old), ()
        clipped = [name for name, one in sums.items() if one.is_clipped()]
        notes = [
            Note("raw", f"the sum of {name!r:.60} exceeds {self._arrays[name].dtype}: clipped")
            for name in clipped
        ]
        return encode_raw({name: one.result() for name, one in sums.items()}), tuple(notes)

    def _merge_own(self, own: OwnMerge, old: Raw, updates: Iterable[RawUpdate]) -> bytes:
        given = [(_writable(decode_raw(one.raw)), one.n, one.device) for one in updates]
        if not given:
            return bytes(old)
        with users_code(lambda got: self._error(f"must not raise, got {got}")):
            merged: object = own(_writable(decode_raw(old)), given)
        if not isinstance(merged, dict):
            self._fail(f"must return a dict of arrays by name, got {described(merged)}")
        if merged.keys() != self._arrays.keys():
            wrong = sorted(map(str, merged.keys() ^ self._arrays.keys()))
            self._fail(f"must return the names of the old arrays, differs in {wrong[0]!r:.60}")
        for name, array in self._arrays.items():
            if (problem := _misfit(array, merged[name])) is not None:
                self._fail(f"must return {name!r:.60} as {problem}")
        return encode_raw({name: merged[name] for name in self._arrays})

    def _fail(self, what: str) -> NoReturn:
        raise self._error(what)

    def _error(self, what: str) -> PluginError:
        return PluginError(f"raw merge {self.name} (aggregation.raw): merge() {what}")


def _misfit(array: ClientArray, value: object) -> str | None:
    """Return what a value must be, and what it is; None if it is that."""
    if array.dtype == "bytes":
        is_bytes = isinstance(value, bytes | bytearray)
        return None if is_bytes else f"bytes, got {described(value)}"
    is_array = isinstance(value, np.ndarray | np.generic)
    if is_array and value.dtype.name == array.dtype and value.shape == array.shape:  # type: ignore[attr-defined] # an array
        return None
    return f"{array.dtype} of shape {array.shape}, got {described(value)}"


def _writable(arrays: Arrays) -> Arrays:
    return {
        name: one.copy() if isinstance(one, np.ndarray) else one for name, one in arrays.items()
    }


def _one_of(old: Raw, updates: Iterable[RawUpdate], *, is_largest: bool) -> bytes:
    best: RawUpdate | None = None
    for update in updates:
        if best is None or (is_largest and update.n > best.n):
            best = update
    return bytes(old if best is None else best.raw)


class _Sum:
    """sum_k x_k of one array."""

    weighs: ClassVar[bool] = False

    def __init__(self, array: ClientArray) -> None:
        self._dtype = np.dtype(array.dtype)
        self._total: NDArray[Any] = np.zeros(array.shape, np.int64)
        self._bound, self._n = 0.0, 0
        """Bound of all values of the sum, and of the examples."""

    def add(self, values: NDArray[Any], n: int) -> None:
        """Add an array of `n` examples."""
        factor = n if self.weighs else 1
        largest = 0 if not values.size else max(abs(int(values.min())), abs(int(values.max())))
        self._bound += float(largest) * factor
        self._n += n
        is_exact = self._bound < _SAFE and self._total.dtype != object
        self._total = self._total if is_exact else self._total.astype(object)
        self._total += values.astype(np.int64 if is_exact else object) * factor

    def is_clipped(self) -> bool:
        """Return whether a value exceeds the type."""
        low, high = self._range()
        is_out = np.asarray((self._total < low) | (self._total > high))
        return self._dtype.kind != "b" and bool(is_out.any())

    def result(self) -> NDArray[Any]:
        """Return the array, of its own type."""
        low, high = self._range()
        clipped = np.minimum(np.maximum(self._total, low), high)
        return np.asarray(clipped).astype(self._dtype)

    def _range(self) -> tuple[int, int]:
        if self._dtype.kind == "b":
            return 0, 1
        limits = np.iinfo(self._dtype)
        high = int(limits.max)
        if self._total.dtype != object:  # numpy compares with numbers of its own type only
            high = min(high, np.iinfo(np.int64).max)
        return int(limits.min), high


class _Mean(_Sum):
    """round(sum_k n_k x_k / sum_k n_k), half to even, of one array."""

    weighs = True

    def is_clipped(self) -> bool:
        """Return False: a mean is between its values."""
        return False

    def result(self) -> NDArray[Any]:
        """Return the array, of its own type."""
        whole = self._total // self._n
        twice = 2 * (self._total - whole * self._n)
        is_up = (twice > self._n) | ((twice == self._n) & (whole % 2 == 1))
        return np.asarray(whole + is_up).astype(self._dtype)


class _Max(_Sum):
    """The largest of each value of one array."""

    def add(self, values: NDArray[Any], n: int) -> None:
        """Add an array."""
        self._total = values.copy() if not self._n else np.maximum(self._total, values)
        self._n += n

    def is_clipped(self) -> bool:
        """Return False: the values are of the type."""
        return False

    def result(self) -> NDArray[Any]:
        """Return the array, of its own type."""
        return np.asarray(self._total)


_SUMS: Final[dict[str, type[_Sum]]] = {"mean": _Mean, "sum": _Sum, "max": _Max}
