"""The records of a Flower app on the coordinator's side: their checks, and merges by our rules.

Where the app merges, an update is raw: records that only the app reads. Where a rule of ours
merges, the floats of the record of arrays are the vector, its other arrays are merged by
`aggregation.raw`, and all else goes to the app alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Note
from fairbed.coordinator.algorithms.aggregation.raw import RawRule, decode_raw, encode_raw
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.rounds.raw_updates import RawMerge, RawUpdates
from fairbed.device_agent.clients.child.flower import join_arrays, split_arrays
from fairbed.device_agent.clients.child.kinds import ClientError
from fairbed.wire.artifact import ClientArray
from fairbed.wire.printable import one_line
from fairbed.wire.records import Record, Records, RecordsError, decode_records, encode_records
from fairbed.wire.tensors import Layout, Tensor

ARRAYS = "arrays"
"""Name of the record of arrays in what the ServerApp's process sends and gets."""


def client_arrays(record: Record) -> tuple[ClientArray, ...]:
    """Return the arrays of a record, in their order."""
    return tuple(
        ClientArray(name=name, dtype="bytes")
        if isinstance(value, bytes)
        else ClientArray(name=name, dtype=value.dtype.name, shape=value.shape)
        for name, value in record.items.items()
    )


def layout_of(arrays: Sequence[ClientArray]) -> Layout:
    """Return the layout of the floats, which are the vector."""
    tensors, offset = [], 0
    for one in arrays:
        if one.dtype.startswith("float"):
            tensor = Tensor(name=one.name, shape=one.shape, offset=offset, role="param")
            tensors.append(tensor)
            offset += tensor.size
    return Layout(tensors=tuple(tensors))


class AppRecords:
    """Checks the raw parts of updates that the app merges; a `RawMerger` that merges nothing."""

    def fault(self, raw: memoryview) -> str | None:
        """Return why an update is no records; None if it is."""
        try:
            decode_records(raw)
        except RecordsError as exc:
            return f"update: {one_line(str(exc), 200)}"
        return None

    def begin(self, old: bytes, folder: Path) -> RawMerge:
        """Is not called."""
        raise AssertionError("the app merges")


@dataclass(frozen=True, slots=True)
class AppArrays:
    """The arrays of an app of which a rule of ours merges the floats."""

    arrays: tuple[ClientArray, ...]
    record: str
    """Name of their record in the messages of the app."""

    @property
    def _layout(self) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(one.name, one.dtype, one.shape) for one in self.arrays]

    def split(self, records: Records) -> tuple[Vector, bytes]:
        """Return the floats of records as a vector, shape (n_values,), and the rest.

        Raises:
            ClientError: They have other arrays.
        """
        vector, rest = split_arrays(records, self._layout)
        return vector.astype(np.float32, copy=True), encode_records(rest)

    def joined(self, vector: Vector, raw: bytes | memoryview) -> bytes:
        """Return records with the floats of a vector in the place that `split` took them from.

        Raises:
            RecordsError, ClientError: The bytes are no such records.
        """
        records = join_arrays(
            np.ascontiguousarray(vector, "<f4"), decode_records(raw), self._layout
        )
        return encode_records(records)

    def merged(self, vector: Vector, raw: bytes) -> bytes:
        """Return a version as the ServerApp's process gets it."""
        records = decode_records(self.joined(vector, raw))
        return encode_records({ARRAYS: records[self.record]})


class MergedArrays:
    """Merges the integers and bytes of updates by a rule; the `RawMerger` of `merge = "ours"`.

    Args:
        arrays: The arrays.
        rule: The rule.
    """

    def __init__(self, arrays: AppArrays, rule: RawRule) -> None:
        self._arrays, self._rule = arrays, rule

    def fault(self, raw: memoryview) -> str | None:
        """Return why the raw part of an update is not valid; None if it is."""
        try:
            return self._rule.fault(encode_raw(_rest(decode_records(raw))))
        except (RecordsError, ClientError) as exc:
            return f"update: {one_line(str(exc), 200)}"

    def begin(self, old: bytes, folder: Path) -> "_Merge":
        """Begin a round on a version with the raw part `old`."""
        kept = encode_raw(_rest(decode_records(old))) if old else b""
        return _Merge(self._arrays.record, RawUpdates(self._rule, kept, folder))


class _Merge:
    def __init__(self, record: str, updates: RawUpdates) -> None:
        self._record, self._updates = record, updates

    def add(self, device: str, row: int, n: int, raw: memoryview) -> None:
        self._updates.add(device, row, n, memoryview(encode_raw(_rest(decode_records(raw)))))

    def finish(self, counts: Sequence[bool]) -> tuple[bytes, tuple[Note, ...]]:
        merged, notes = self._updates.finish(counts)
        return encode_records({self._record: Record("arrays", decode_raw(merged))}), notes


def _rest(records: Records) -> dict[str, Any]:
    """Return the integers and bytes of the only record of arrays."""
    found = [record for record in records.values() if record.kind == "arrays"]
    if len(found) != 1:
        raise ClientError(f"must have one record of arrays, got {len(found)}")
    return found[0].items
