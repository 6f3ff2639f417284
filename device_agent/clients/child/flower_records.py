"""Records of Flower as our records, and messages as the payloads of a device.

A message becomes two parts. `raw` has its arrays, and `config` all else, with an empty record in
the place of each one that is in `raw`: so the order of the records is kept, equal arrays in
several messages are equal bytes, and each device can get a configuration of its own. The first
record of `config` is `ABOUT`, with the metadata of the message. A reply is `raw` alone.

This file runs in an interpreter with Flower (flwr 1.21 or later), on both sides, whose versions may
differ. The data of Flower's arrays are `.npy` files, which are read without pickles.
"""

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fairbed.device_agent.clients.child.kinds import ClientError
from fairbed.wire.records import (
    DTYPES,
    Record,
    Records,
    RecordsError,
    decode_records,
    encode_records,
)

ABOUT = "fairbed.message"
"""Record with type, group and TTL of a message."""

MAX_CONFIG_BYTES = 60 << 10
"""Most bytes of `config`, below the bound of the message that has it (64 KiB)."""

NUMPY = "numpy.ndarray"
"""Serialisation of an `Array` that is a `.npy` file."""

_TYPES = {"arrays": ArrayRecord, "metrics": MetricRecord, "config": ConfigRecord}


def to_records(content: Mapping[str, Any]) -> Records:
    """Return the records of a RecordDict, in their order.

    Raises:
        ClientError: An array is no array of numbers, such as one of objects.
    """
    found: Records = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            items = {key: _plain(f"{name}.{key}", array) for key, array in record.items()}
            found[name] = Record("arrays", items)
        else:
            kind = "metrics" if isinstance(record, MetricRecord) else "config"
            found[name] = Record(kind, dict(record.items()))  # type: ignore[arg-type]
    return found


def from_records(records: Records) -> Any:
    """Return the RecordDict of records, bit for bit.

    Raises:
        ClientError: A value is of a type that Flower's records cannot have.
    """
    found = {}
    for name, record in records.items():
        if record.kind == "arrays":
            found[name] = ArrayRecord({k: _array(v) for k, v in record.items.items()})
            continue
        try:
            found[name] = _TYPES[record.kind](dict(record.items))
        except (TypeError, ValueError) as exc:
            raise ClientError(f"records.{name}: {' '.join(str(exc).split())}") from exc
    return RecordDict(found)


def encode(records: Records) -> bytes:
    """Return the bytes of records.

    Raises:
        ClientError: They have a value that records cannot have.
    """
    try:
        return encode_records(records)
    except RecordsError as exc:
        raise ClientError(str(exc)) from exc


def decode(data: bytes | bytearray | memoryview) -> Records:
    """Return the records in bytes; no bytes are no records.

    Raises:
        ClientError: The bytes are no records.
    """
    try:
        return decode_records(data) if len(data) else {}
    except RecordsError as exc:
        raise ClientError(str(exc)) from exc


def split_message(records: Records) -> tuple[Records, Records]:
    """Return the records that travel as `raw`, and those of `config` without `ABOUT`.

    Arrays are raw, and of the others the largest until the rest fits into a message.
    """
    raw = {name: record for name, record in records.items() if record.kind == "arrays"}
    sizes = {
        name: len(encode({name: record})) for name, record in records.items() if name not in raw
    }
    while sum(sizes.values()) > MAX_CONFIG_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        del sizes[largest]
        raw[largest] = records[largest]
    rest = {n: Record(r.kind) if n in raw else r for n, r in records.items()}
    return raw, rest


def join_message(raw: Records, config: Records) -> Records:
    """Return the records of a message in their order; inverse of `split_message`."""
    return {name: raw.get(name, record) for name, record in config.items()}


def _plain(where: str, array: Any) -> Any:
    """Return the numpy array of an `Array`; another serialisation as bytes that state it."""
    if array.stype != NUMPY:
        about = json.dumps([array.dtype, list(array.shape), array.stype]).encode()
        return struct.pack("<I", len(about)) + about + bytes(array.data)
    try:
        found = np.load(io.BytesIO(array.data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as exc:
        raise ClientError(
            f"{where}: must be an array of numbers, got {' '.join(str(exc).split())}"
        ) from exc
    if found.dtype.name not in DTYPES:
        raise ClientError(
            f"{where}: must be an array of floats, integers or booleans, got dtype "
            f"{found.dtype.name:.60}"
        )
    return found


def _array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return Array(value)
    try:
        (length,) = struct.unpack("<I", value[:4])
        dtype, shape, stype = json.loads(value[4 : 4 + length])
        return Array(dtype, tuple(shape), stype, bytes(value[4 + length :]))
    except (struct.error, ValueError, TypeError) as exc:
        raise ClientError(f"records: bytes must be an array of Flower, got {exc}") from exc
