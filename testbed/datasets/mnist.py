"""MNIST and Fashion-MNIST from a folder of the original four files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from testbed.datasets import idx
from testbed.datasets.dataset import Dataset
from testbed.datasets.errors import DataError

CLASSES = 10
IMAGE_SHAPE = (28, 28)
IMAGE_DIMENSIONS = 3
LABEL_DIMENSIONS = 1
PARTS = ("train", "t10k")


@dataclass(frozen=True, slots=True)
class Published:
    """A data set as its authors published it."""

    description: str
    source: str
    publisher: str
    md5: Mapping[str, str]
    """Of each uncompressed file, by name."""


PUBLISHED: Mapping[str, Published] = {
    "mnist": Published(
        description="70,000 handwritten digits, 28x28 pixels, 10 classes",
        source="LeCun, Cortes, Burges 1998; CC BY-SA 3.0 as commonly stated",
        publisher="the MNIST database of LeCun, Cortes and Burges",
        md5={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
    ),
    "fashion-mnist": Published(
        description="70,000 pictures of clothes, 28x28 pixels, 10 classes",
        source="Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747; MIT",
        publisher="the Fashion-MNIST project of Zalando Research",
        md5={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
    ),
}


def how_to_get(name: str) -> str:
    """Return what to do for a person who lacks the files of `name`."""
    return (
        f"put {{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte.gz of {PUBLISHED[name].publisher} "
        f"into a folder {name} and set FAIRBED_DATA to its parent"
    )


def count(name: str, folder: Path) -> tuple[int, ...]:
    """Return the number of examples of each part, reading only the headers.

    Raises:
        DataError: The folder or a file is missing, or a header is wrong.
    """
    if not folder.is_dir():
        raise DataError(name, f"folder must exist, got {folder}", how_to_get(name))
    counts = []
    for part in PARTS:
        images_path = _find(name, folder, f"{part}-images-idx3-ubyte")
        labels_path = _find(name, folder, f"{part}-labels-idx1-ubyte")
        images = idx.read_header(images_path, IMAGE_DIMENSIONS).shape
        labels = idx.read_header(labels_path, LABEL_DIMENSIONS).shape
        if images[1:] != IMAGE_SHAPE:
            raise DataError(
                str(images_path),
                f"images must be 28x28, got {images[1]}x{images[2]}",
                f"use the files of {PUBLISHED[name].publisher}",
            )
        if images[:1] != labels:
            raise DataError(
                str(images_path),
                f"must hold as many images as {labels_path.name} labels, "
                f"got {images[0]} and {labels[0]}",
                "get both files again from one publisher",
            )
        counts.append(images[0])
    return tuple(counts)


def load_mnist(name: str, folder: Path) -> Dataset:
    """Return all examples of both parts, x uint8, shape (n, 1, 28, 28).

    Raises:
        DataError: The folder or a file is missing, damaged or not of this family.
    """
    counts = count(name, folder)
    x = np.empty((sum(counts), 1, *IMAGE_SHAPE), np.uint8)
    y = np.empty(len(x), np.uint8)
    is_verified, start = True, 0
    for part, n in zip(PARTS, counts, strict=True):
        rows = slice(start, start + n)
        for file, out, dimensions in (
            (f"{part}-images-idx3-ubyte", x[rows], IMAGE_DIMENSIONS),
            (f"{part}-labels-idx1-ubyte", y[rows], LABEL_DIMENSIONS),
        ):
            path = _find(name, folder, file)
            is_verified &= idx.read_into(path, out, dimensions) == PUBLISHED[name].md5[file]
        if y[rows].max() >= CLASSES:
            raise DataError(
                str(folder / f"{part}-labels-idx1-ubyte"),
                f"labels must be 0 .. {CLASSES - 1}, got {y[rows].max()}",
                "get this file again from its publisher",
            )
        start += n
    return Dataset(
        name=name,
        x=x,
        y=y.astype(np.int64),
        classes=CLASSES,
        description=PUBLISHED[name].description,
        source=PUBLISHED[name].source,
        origin="verified" if is_verified else "unverified",
    )


def _find(name: str, folder: Path, file: str) -> Path:
    path = idx.find(folder, file)
    if path is None:
        raise DataError(
            name, f"{folder} must hold {file}.gz or {file}, got neither", how_to_get(name)
        )
    return path
