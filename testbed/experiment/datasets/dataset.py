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
from fairbed.testbed.experiment.datasets.features import Encoding
from fairbed.testbed.experiment.datasets.labels import Names, as_classes, check_classes, class_text
from fairbed.wire.artifact import TaskKind
from fairbed.wire.evaluation import Targets
from fairbed.wire.labels import LabelError


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
    x_classes: int = 0
    """Size of the vocabulary of tokens, which are int64 x; 0 for other x."""
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
    labels: Names = ()
    """Label of each class; empty: label k is class k."""
    guess: str = ""
    """Why y are classes or targets, as long as no task decides it, and which numbers are classes;
    empty: no doubt."""
    encoding: Encoding | None = None
    """How the columns of a table became x; None for other data."""
    notes: tuple[str, ...] = ()
    """Lines about columns that are left out, encoded or filled without being named."""

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
        """Hash of examples, labels and users; equal on machines of either byte order.

        Missing values count as such, whatever replaces them.
        """
        users = () if self.device_ids is None else (self.device_ids,)
        x = self.x if self.encoding is None else self.encoding.as_read(self.x)
        return arrays_sha256((x, self.y, *users))

    def take(self, rows: Ints) -> "Dataset":
        """Return the examples `rows`, shape (m,), with users renumbered without gaps."""
        users = self.device_ids
        if users is not None:
            users = np.unique(users[rows], return_inverse=True)[1].astype(np.int64)
        encoding = None if self.encoding is None else self.encoding.take(rows)
        x, y = self.x[rows], self.y[rows]
        return replace(self, x=x, y=y, device_ids=users, encoding=encoding)

    def fitted(self, rows: Ints) -> "Dataset":
        """Return the examples with missing values and categories as the training rows define them.

        Args:
            rows: The training rows of all devices, shape (m,).
        """
        if self.encoding is None:
            return self
        x, encoding = self.encoding.fitted(self.x, rows)
        return self if x is self.x else replace(self, x=x, encoding=encoding)

    def class_counts(self) -> list[tuple[str, int]]:
        """Return the label and the number of examples or positions of each class.

        Empty for regression.
        """
        if self.is_regression:
            return []
        known = self.y[self.y >= 0]  # of positions without a label none counts
        counts = np.bincount(known.astype(np.int64), minlength=self.classes)
        return [(class_text(self.labels, c), int(count)) for c, count in enumerate(counts)]


def targets_text(y: Targets) -> str:
    """Return a part of a description: what classes or targets, shape (n,), a data set has."""
    if y.dtype.kind == "f":
        return f"targets {y.min():g} .. {y.max():g}"
    return f"{y.max() + 1} classes"


def for_task(dataset: Dataset, task: TaskKind | None) -> Dataset:
    """Return the examples with the targets that a task has.

    Labels become targets for regression, and targets that are whole numbers become labels.

    Args:
        dataset: The examples.
        task: `[model] task`; None: regression if y has fractions, else classification.

    Raises:
        DatasetError: The targets do not fit the task.
    """
    found = _for_task(dataset if task is None else replace(dataset, guess=""), task)
    texts = targets_text(dataset.y), targets_text(found.y)
    return replace(found, description=found.description.replace(*texts))


def _for_task(dataset: Dataset, task: TaskKind | None) -> Dataset:
    """Return the examples with other targets, and the description that they had."""
    if task == "regression":
        return _as_targets(dataset)
    try:
        if task is not None and dataset.is_regression:
            labels = as_classes(dataset.y)
            classes = int(labels.y.max()) + 1
            dataset = replace(dataset, y=labels.y, classes=classes, labels=labels.names)
        if dataset.origin == "own" and not dataset.is_regression:
            note = check_classes(dataset.y.astype(np.int64), dataset.labels, task)
            dataset = replace(dataset, guess="; ".join(filter(None, (dataset.guess, note))))
    except LabelError as exc:
        raise DatasetError(dataset.source, *exc.args) from exc
    if task == "binary" and dataset.classes != 2:
        raise DatasetError(
            "model.task",
            f"binary must have 2 classes, got {dataset.classes} in {dataset.name}",
            'set task = "classification"',
        )
    return replace(dataset, is_binary=task == "binary")


def _as_targets(dataset: Dataset) -> Dataset:
    """Return the labels as numbers, as they are in the source."""
    y = dataset.y.astype(np.float32)
    if dataset.labels:
        if any(isinstance(label, str) for label in dataset.labels):
            raise DatasetError(
                "model.task",
                f"regression must have numbers as targets, got the names {dataset.labels[0]!r}, "
                f"{dataset.labels[1]!r}, ... in {dataset.name}",
                'set task = "classification", or name another column',
            )
        y = np.array(dataset.labels, np.float32)[dataset.y]
    return replace(dataset, y=y, classes=1, labels=())
