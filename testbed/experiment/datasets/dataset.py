"""A data set in memory, and the error about data.

DatasetError    a data set cannot be loaded, or cannot be divided as configured
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.device_agent.engines.base import Examples
from fairbed.wire.evaluation import Targets


class DatasetError(ValueError):
    """A data set cannot be loaded, or not divided as configured; the message is one line.

    Attributes:
        where: The data set, file or setting with the error.
        problem: The broken rule and the value found.
        what_to_do: The next step of the user.
    """

    def __init__(self, where: str, problem: str, what_to_do: str) -> None:
        super().__init__(f"{where}: {problem}; {what_to_do}")
        self.where = where
        self.problem = problem
        self.what_to_do = what_to_do


def arrays_sha256(arrays: Iterable[NDArray[Any]]) -> str:
    """Return the hash of types, shapes and values; equal on machines of either byte order."""
    digest = hashlib.sha256()
    for array in arrays:
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{little.dtype.str}{little.shape}".encode())
        digest.update(little.tobytes() if little.size == 0 else little.data)
    return digest.hexdigest()


Origin = Literal["verified", "unverified", "built-in", "generated", "own"]
"""verified: checksums equal those of the published files; unverified: they differ, or none are
published; own: a user's own file or function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Labelled examples; training and test parts of the source are pooled."""

    name: str
    x: Examples | NDArray[np.uint8]
    """Features, shape (n, *x_shape), float32, int64, or uint8 pixels (1/255)."""
    y: Targets
    """Class of each example, 0 .. classes - 1, int64, or target of regression, float32; shape (n,).
    """
    classes: int
    """Number of classes; 1 for regression."""
    device_ids: Ints | None = None
    """Natural user of each example, 0 .. users - 1, shape (n,); None if there are no users."""
    description: str
    """One line for display."""
    source: str
    """Origin and licence, one line."""
    origin: Origin

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.y)

    @property
    def is_regression(self) -> bool:
        """The targets are numbers, not classes."""
        return self.y.dtype.kind == "f"

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.x.shape[1:]

    @property
    def sha256(self) -> str:
        """Hash of examples, labels and users; equal on machines of either byte order."""
        users = () if self.device_ids is None else (self.device_ids,)
        return arrays_sha256((self.x, self.y, *users))

    def take(self, rows: Ints) -> "Dataset":
        """Return the examples `rows`, shape (m,), with users renumbered without gaps."""
        users = self.device_ids
        if users is not None:
            users = np.unique(users[rows], return_inverse=True)[1].astype(np.int64)
        return Dataset(
            name=self.name,
            x=self.x[rows],
            y=self.y[rows],
            classes=self.classes,
            device_ids=users,
            description=self.description,
            source=self.source,
            origin=self.origin,
        )
