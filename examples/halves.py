"""Pictures in two halves of their classes: one to train a network on, one to fine-tune it on.

Digits by default; with a folder CIFAR-10, in its binary version or as `fairbed data` lists it.
"""

import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pictures = tuple[NDArray[np.float32], NDArray[np.int64]]

HALF = 5
"""Classes of each half."""


def first(folder: str | None = None) -> Pictures:
    """Return the pictures of classes 0 to 4."""
    x, y = _all(folder)
    return x[y < HALF], y[y < HALF]


def second(folder: str | None = None) -> Pictures:
    """Return the pictures of classes 5 to 9, which are numbered from 0."""
    x, y = _all(folder)
    return x[y >= HALF], y[y >= HALF] - HALF


def _all(folder: str | None) -> Pictures:
    """Return all pictures, shape (n, channels, height, width) from 0 to 1, and their classes."""
    if folder is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        x = (digits.images[:, None] / 16).astype(np.float32)
        return x, digits.target.astype(np.int64)
    files = sorted(Path(folder).expanduser().glob("*.bin*"))
    read = [
        lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
        for file in files
    ]
    records = np.frombuffer(b"".join(read), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    x = (records[:, 1:].reshape(-1, 3, 32, 32) / 255).astype(np.float32)
    return x, records[:, 0].astype(np.int64)
