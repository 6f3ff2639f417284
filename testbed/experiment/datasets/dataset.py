"""A data set in memory, and the error about data.

DatasetError    a data set cannot be loaded, or cannot be divided as configured
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.device_agent.engines.base import Examples
from fairbed.wire.artifact import TaskKind
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
    is_binary: bool = False
    """The model has one logit for the two classes: `[model] task = "binary"`."""
    device_ids: Ints | None = None
    """Natural user of each example, 0 .. users - 1, shape (n,); None if there are no users."""
    description: str
    """One line for display."""
    source: str
    """Origin and licence, one line."""
    origin: Origin
    whole_sha256: str = ""
    """Hash of the set from which `max_examples` has drawn these; empty: these are all."""

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.y)

    @property
    def is_regression(self) -> bool:
        """The targets are numbers, not classes."""
        return self.y.dtype.kind == "f"

    @property
    def kind(self) -> TaskKind:
        """What a model of these data predicts."""
        if self.is_regression:
            return "regression"
        return "binary" if self.is_binary else "classification"

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
            is_binary=self.is_binary,
            device_ids=users,
            description=self.description,
            source=self.source,
            origin=self.origin,
        )


MAX_CLASSES = 1 << 20
"""A larger label is an identifier, not a class."""


def for_task(dataset: Dataset, task: TaskKind | None) -> Dataset:
    """Return the examples with the targets that a task has.

    Labels become targets for regression, and targets that are whole numbers become labels.

    Args:
        dataset: The examples.
        task: `[model] task`; None: regression if y is float, else classification.

    Raises:
        DatasetError: The targets do not fit the task.
    """
    if task is None:
        return dataset
    if task == "regression":
        y = dataset.y.astype(np.float32)
        return replace(dataset, y=y, classes=1)
    if dataset.is_regression:
        low, high = float(dataset.y.min()), float(dataset.y.max())
        is_whole = bool((dataset.y == np.round(dataset.y)).all())
        if not is_whole or low < 0 or not 1 <= high < MAX_CLASSES:
            raise DatasetError(
                "model.task",
                f"{task} must have classes as targets, 0, 1, ..., got numbers {low:g} .. {high:g} "
                f"in {dataset.name}",
                'number the classes from 0, or set task = "regression"',
            )
        dataset = replace(dataset, y=dataset.y.astype(np.int64), classes=int(high) + 1)
    if task == "binary" and dataset.classes != 2:
        raise DatasetError(
            "model.task",
            f"binary must have 2 classes, got {dataset.classes} in {dataset.name}",
            'set task = "classification"',
        )
    return replace(dataset, is_binary=task == "binary")
