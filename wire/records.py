"""Records of a client as bytes: arrays, numbers and texts by name, without pickles.

    "FBR1" | length of the header, u32 little-endian | header, JSON | buffers of the arrays

The header is a list of records in their order, each `[name, kind, items]`. An item of the kind
`arrays` is `[key, dtype, shape, size]`, and its buffer has `size` little-endian bytes in C order;
the dtype `bytes` is an object of bytes. An item of the kinds `metrics` and `config` is
`[key, value]`; bytes are `{"bytes": BASE64}`, and NaN and infinities are `{"float": "nan"}`.

This file imports the standard library and numpy alone, so that a program of another interpreter
can load it by its path.
"""

import base64
import json
import math
import struct
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

MAGIC = b"FBR1"
MAX_HEADER_BYTES = 1 << 24
MAX_ITEMS = 1 << 16
MAX_DIMENSIONS = 32

DTYPES = frozenset(
    ["bool", "bytes", "float16", "float32", "float64"]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
)

Kind = Literal["arrays", "metrics", "config"]
Value = Any
"""An int, float, bool, str or bytes, or a list of one of these kinds."""


class RecordsError(ValueError):
    """The bytes are no records, or a value cannot be one; the message is one line."""


@dataclass
class Record:
    """One record: arrays or values by key, in their order."""

    kind: Kind
    items: dict[str, Any] = field(default_factory=dict)


Records = dict[str, Record]


def encode_records(records: Records) -> bytes:
    """Return the bytes of records.

    Raises:
        RecordsError: A value is of a kind that records cannot have, such as an object array.
    """
    header: list[Any] = []
    buffers: list[bytes] = []
    for name, record in records.items():
        items: list[Any] = []
        for key, value in record.items.items():
            if record.kind == "arrays":
                dtype, shape, data = _buffer(f"{name}.{key}", value)
                items.append([key, dtype, shape, len(data)])
                buffers.append(data)
            else:
                items.append([key, _plain(f"{name}.{key}", value)])
        header.append([name, record.kind, items])
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return b"".join([MAGIC, struct.pack("<I", len(text)), text, *buffers])


def decode_records(data: bytes | bytearray | memoryview) -> Records:
    """Return the records in `data`; arrays are views into it.

    Raises:
        RecordsError: The bytes are no records.
    """
    view = memoryview(data)
    if bytes(view[:4]) != MAGIC or len(view) < 8:
        raise RecordsError("records: must begin with FBR1 and the length of a header")
    (length,) = struct.unpack("<I", view[4:8])
    if length > min(MAX_HEADER_BYTES, len(view) - 8):
        raise RecordsError(f"records: the header must be in the bytes, got a length of {length}")
    try:
        header = json.loads(bytes(view[8 : 8 + length]).decode())
    except (ValueError, RecursionError) as exc:
        raise RecordsError(f"records: the header must be JSON, got {exc}") from exc
    records: Records = {}
    at = 8 + length
    for name, kind, items in _entries(header, 3):
        if not isinstance(name, str) or kind not in ("arrays", "metrics", "config"):
            raise RecordsError(f"records: must have a name and a kind, got {kind!r:.60}")
        found: dict[str, Any] = {}
        for item in _entries(items, 4 if kind == "arrays" else 2):
            key = item[0]
            if not isinstance(key, str):
                raise RecordsError(f"records.{name}: a key must be a text, got {key!r:.60}")
            if kind == "arrays":
                found[key], at = _array(f"{name}.{key}", item[1:], view, at)
            else:
                found[key] = _value(f"{name}.{key}", item[1])
        records[name] = Record(kind, found)
    if at != len(view):
        raise RecordsError(f"records: must end after the last array, got {len(view) - at} more")
    return records


def _entries(found: Any, length: int) -> list[Any]:
    if not isinstance(found, list) or len(found) > MAX_ITEMS:
        raise RecordsError(f"records: must be a list of at most {MAX_ITEMS} entries")
    if any(not isinstance(entry, list) or len(entry) != length for entry in found):
        raise RecordsError(f"records: every entry must have {length} parts")
    return found


def _buffer(where: str, value: Any) -> tuple[str, list[int], bytes]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", [len(value)], bytes(value)
    array = np.asarray(value)
    if array.dtype.name not in DTYPES:
        raise RecordsError(
            f"{where}: must be an array of floats, integers or booleans, or bytes, got dtype "
            f"{array.dtype.name:.60}"
        )
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.dtype.name, list(array.shape), little.tobytes()


def _array(where: str, entry: list[Any], view: memoryview, at: int) -> tuple[Any, int]:
    dtype, shape, size = entry
    if dtype not in DTYPES:
        raise RecordsError(f"records.{where}: unknown dtype {dtype!r:.60}")
    is_shape = isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
    if not is_shape or any(type(n) is not int or n < 0 for n in [*shape, size]):
        raise RecordsError(f"records.{where}: shape and size must be whole numbers from 0")
    if size > len(view) - at:
        raise RecordsError(f"records.{where}: must be in the bytes, got a size of {size}")
    part, end = view[at : at + size], at + size
    if dtype == "bytes":
        if shape != [size]:
            raise RecordsError(f"records.{where}: bytes must have the shape [{size}]")
        return bytes(part), end
    kind = np.dtype(dtype).newbyteorder("<")
    if math.prod(shape) * kind.itemsize != size:
        raise RecordsError(
            f"records.{where}: {dtype} of shape {shape} must have "
            f"{math.prod(shape) * kind.itemsize} bytes, got {size}"
        )
    return np.frombuffer(part, kind).reshape(shape), end


def _plain(where: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(where, one) for one in value]
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, (bool, int, float, str)):
        return value
    raise RecordsError(
        f"{where}: must be a number, a text or bytes, or a list of these, got "
        f"{type(value).__name__:.60}"
    )


def _value(where: str, value: Any, *, is_in_list: bool = False) -> Any:
    if isinstance(value, list) and not is_in_list:
        return [_value(where, one, is_in_list=True) for one in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((kind, text),) = value.items()
        if kind == "float" and text in ("nan", "inf", "-inf"):
            return float(text)
        if kind == "bytes" and isinstance(text, str):
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                pass
    raise RecordsError(f"records.{where}: unknown value {value!r:.60}")
