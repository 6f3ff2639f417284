"""Arrays in memory that several processes see."""

import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import DTypeLike, NDArray

LINE_BYTES = 64
"""Arrays begin at multiples of this: of a line of the cache."""


class Sheet(Struct, frozen=True):
    """Where one array lies."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """Byte."""


def lay_out(wanted: Mapping[str, tuple[DTypeLike, tuple[int, ...]]]) -> dict[str, Sheet]:
    """Return where arrays of these types and shapes lie, one after the other."""
    sheets, start = dict[str, Sheet](), 0
    for name, (dtype, shape) in wanted.items():
        sheets[name] = Sheet(np.dtype(dtype).str, shape, start)
        start += -(-_bytes_of(sheets[name]) // LINE_BYTES) * LINE_BYTES
    return sheets


def make_memory(sheets: Mapping[str, Sheet]) -> int:
    """Return the descriptor of new memory with room for them, all zero.

    Raises:
        OSError: There is not so much.
    """
    size = max(sheet.start + _bytes_of(sheet) for sheet in sheets.values())
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("fairbed-cohort")
    else:
        with tempfile.TemporaryFile() as file:
            memory = os.dup(file.fileno())
    try:
        os.ftruncate(memory, max(1, size))
    except OSError:
        os.close(memory)
        raise
    return memory


def see(memory: int, sheets: Mapping[str, Sheet]) -> dict[str, NDArray[Any]]:
    """Return the arrays that lie in such memory; what one process writes all others read."""
    whole = mmap.mmap(memory, 0)
    return {
        name: np.ndarray(sheet.shape, np.dtype(sheet.dtype), whole, sheet.start)
        for name, sheet in sheets.items()
    }


def _bytes_of(sheet: Sheet) -> int:
    return int(np.dtype(sheet.dtype).itemsize * np.prod(sheet.shape, dtype=np.int64))
