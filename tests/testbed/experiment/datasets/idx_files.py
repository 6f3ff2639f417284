"""Small data sets in the format of the MNIST family, written for tests."""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def idx_bytes(values: NDArray[np.uint8]) -> bytes:
    """Return `values` as an uncompressed IDX file."""
    sizes = np.array(values.shape, ">u4").tobytes()
    return bytes((0, 0, 0x08, values.ndim)) + sizes + values.tobytes()


def write_folder(folder: Path, *, n_train: int = 60, n_test: int = 20) -> Path:
    """Write the four files, the images compressed and the labels not; return the folder."""
    rng = np.random.default_rng(9)
    folder.mkdir(parents=True)
    for part, n in (("train", n_train), ("t10k", n_test)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        write(folder / f"{part}-images-idx3-ubyte.gz", idx_bytes(images))
        write(folder / f"{part}-labels-idx1-ubyte", idx_bytes(labels))
    return folder


def write(path: Path, content: bytes) -> None:
    """Write `content`, compressed if the name ends in `.gz`."""
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
