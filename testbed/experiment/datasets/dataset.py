"""A data set in memory, and the error about data.

DatasetError    a data set cannot be loaded, or cannot be divided as configured
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.device_agent.engines.base import Examples
from fairbed.testbed.experiment.datasets.features import Encoding
from fairbed.testbed.experiment.datasets.labels import (
    Names,
    as_classes,
    check_classes,
    class_text,
    labelled,
)
from fairbed.wire.artifact import TaskKind
from fairbed.wire.buckets import best_buckets, sequence_lengths
from fairbed.wire.evaluation import Targets
from fairbed.wire.labels import LabelError
from fairbed.wire.preparation import (
    NO_LABEL,
    PADDING,
    UNKNOWN,
    Preparation,
    TextPreparation,
)


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


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Labelled examples; training and test parts of the source are pooled."""

    name: str
    x: Examples | NDArray[np.uint8]
    """Features, shape (n, *x_shape), float32, int64 tokens, or uint8 pixels (1/255)."""
    y: Targets
    """Classes, 0 .. classes - 1, int64, or targets of regression, float32; shape (n, *y_shape).
    Where an example has several labels, -1 is a position without one."""
    classes: int
    """Number of classes, or of labels for multi-label; 1 for regression."""
    x_classes: int = 0
    """Number of tokens, the vocabulary, for int64 x; 0 for other x."""
    buckets: tuple[int, ...] = ()
    """Lengths to which sequences are padded, ascending, the last that of x; empty: that alone."""
    is_binary: bool = False
    """The model has one logit for the two classes: `[model] task = "binary"`."""
    is_multi_label: bool = False
    """y are 0 and 1, whether an example has each label; -1 is not known."""
    is_autoencoder: bool = False
    """y are x: `data.target = "x"`."""
    preparation: Preparation | None = None
    """How files of text, pictures with masks or audio became x and y; None for other data."""
    read_sha256: str = ""
    """Hash of the examples as they were read; empty: `fitted` has changed nothing."""
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
        if self.is_multi_label:
            return "multi-label"
        return "binary" if self.is_binary else "classification"

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of the targets of one example; empty for one label per example."""
        return self.y.shape[1:]

    @property
    def predicts_tokens(self) -> bool:
        """The targets are tokens of the vocabulary of x, of which texts lack some."""
        is_text = isinstance(self.preparation, TextPreparation) or self.is_autoencoder
        return is_text and self.x_classes > 0 and self.y_shape == self.x_shape

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.x.shape[1:]

    @property
    def example_bytes(self) -> int:
        """Size of one example with its targets in a shard."""
        return int(self.x[:1].nbytes + self.y[:1].nbytes)

    @property
    def bucket_places(self) -> Ints:
        """Place in `buckets` of the one that holds each example, shape (n,); 0 without any."""
        if not self.buckets:
            return np.zeros(self.n, np.int64)
        has_labels = self.y_shape[:1] == self.x_shape[:1] and not self.is_multi_label
        lengths = sequence_lengths(self.x, self.y, has_labels=has_labels)
        return np.searchsorted(self.buckets, lengths).astype(np.int64)

    @cached_property
    def sha256(self) -> str:
        """Hash of examples, labels and users; equal on machines of either byte order.

        Missing values count as such, whatever replaces them.
        """
        if self.read_sha256:
            return self.read_sha256
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
        return replace(self, x=x, y=y, device_ids=users, encoding=encoding, read_sha256="")

    def fitted(self, rows: Ints) -> "Dataset":
        """Return the examples with missing values, categories and words as training rows have them.

        A word that no training row has becomes the unknown word.

        Args:
            rows: The training rows of all devices, shape (m,).
        """
        if isinstance(self.preparation, TextPreparation) and self.preparation.unit == "words":
            return self._with_known_words(rows)
        if self.encoding is None:
            return self
        x, encoding = self.encoding.fitted(self.x, rows)
        if x is self.x:
            return self
        y = x.astype(np.float32, copy=False) if self.is_autoencoder else self.y
        return replace(self, x=x, y=y, encoding=encoding)

    def _with_known_words(self, rows: Ints) -> "Dataset":
        is_token = self.predicts_tokens
        seen = np.zeros(self.x_classes, np.bool_)
        seen[[PADDING, UNKNOWN]] = True
        seen[self.x[rows]] = True
        if is_token:
            trained = self.y[rows].astype(np.int64)
            seen[trained[trained != NO_LABEL]] = True
        if seen.all():
            return self
        # y has -1 where no token follows: the last place stands for it
        known = np.append(np.where(seen, np.arange(self.x_classes), UNKNOWN), NO_LABEL)
        y = known[self.y.astype(np.int64)] if is_token else self.y
        return replace(self, x=known[self.x], y=y, read_sha256=self.sha256)

    def class_counts(self, rows: Ints | None = None) -> list[tuple[str, int]]:
        """Return the label and the number of examples, or of positions, of each class.

        Empty for regression; for multi-label the number of examples that have each label.

        Args:
            rows: The examples to count, shape (m,); None: all.
        """
        if self.is_regression:
            return []
        y = (self.y if rows is None else self.y[rows]).astype(np.int64)
        counts = (y == 1).sum(axis=0) if self.is_multi_label else _counts(labelled(y), self.classes)
        return [(self._class_text(c), int(count)) for c, count in enumerate(counts)]

    def _class_text(self, number: int) -> str:
        how = self.preparation
        if self.predicts_tokens and isinstance(how, TextPreparation):
            return how.token_text(number)
        return class_text(self.labels, number)


def _counts(y: Targets, classes: int) -> Ints:
    return np.bincount(y.astype(np.int64), minlength=classes)


def targets_text(y: Targets, classes: int, *, is_multi_label: bool = False) -> str:
    """Return a part of a description: what classes or targets, (n, *y_shape), a data set has."""
    shape = f" of shape {y.shape[1:]}" if y.ndim > 1 else ""
    if y.dtype.kind == "f":
        return f"targets{shape} {y.min():g} .. {y.max():g}"
    if is_multi_label:
        return f"{classes} labels, several per example"
    return f"{classes:,} classes" + (f", labels{shape}" if shape else "")


def sized(dataset: Dataset, classes: int | None, vocabulary: int | None) -> Dataset:
    """Return the examples with the numbers of classes and tokens that the user has given.

    Classes keep their numbers then, also if the data lack some.

    Args:
        dataset: The examples.
        classes: `data.classes`; None: those that occur.
        vocabulary: `data.vocabulary`; None: up to the largest token.

    Raises:
        DatasetError: The data have more, or no classes or tokens.
    """
    where, old = dataset.source, targets_text(dataset.y, dataset.classes)
    if vocabulary is not None:
        if not dataset.x_classes or dataset.preparation is not None:
            has = "a vocabulary of its own" if dataset.x_classes else f"x of {dataset.x.dtype}"
            raise DatasetError(
                where, f"data.vocabulary must be set for integer x only, got {has}", "remove it"
            )
        if vocabulary < dataset.x_classes:
            row = int(np.argwhere(dataset.x >= vocabulary)[0, 0])
            raise DatasetError(
                where,
                f"x must be tokens 0 .. {vocabulary - 1}, as data.vocabulary has, got "
                f"{dataset.x_classes - 1} (the first above it in row {row})",
                "raise data.vocabulary, or correct x",
            )
        tokens = f"of {dataset.x_classes:,} tokens", f"of {vocabulary:,} tokens"
        dataset = replace(
            dataset, x_classes=vocabulary, description=dataset.description.replace(*tokens)
        )
    if classes is None:
        return dataset
    names = dataset.labels or tuple(range(dataset.classes))
    if dataset.is_regression or isinstance(names[0], str):
        has = "targets with fractions" if dataset.is_regression else f"the name {names[0]!r}"
        raise DatasetError(
            where, f"data.classes must be set for numbered classes only, got {has}", "remove it"
        )
    numbers = np.array(names, np.int64)
    if numbers.min() < 0 or numbers.max() >= classes:
        wrong = numbers[(numbers < 0) | (numbers >= classes)][0]
        raise DatasetError(
            where,
            f"y must be classes 0 .. {classes - 1}, as data.classes has, got {wrong}",
            "raise data.classes, or correct y",
        )
    y = np.append(numbers, NO_LABEL)[dataset.y.astype(np.int64)]
    return replace(
        dataset,
        y=y,
        classes=classes,
        labels=(),
        guess="",
        description=dataset.description.replace(old, targets_text(y, classes)),
    )


def bucketed(dataset: Dataset, buckets: int | tuple[int, ...]) -> Dataset:
    """Return the examples with the lengths to which sequences are padded.

    Args:
        dataset: The examples, with the targets of the task.
        buckets: `data.buckets`.

    Raises:
        DatasetError: x are no sequences, one is empty or longer than the longest bucket, or targets
            by token have no mark of padding.
    """
    x, where = dataset.x, "data.buckets"
    if not dataset.x_classes:
        kind = "pixels" if x.dtype == np.uint8 else "numbers"
        raise DatasetError(
            where, f"must be set for sequences of tokens, integer x, got {kind}", "remove it"
        )
    longest, has_tokens = x.shape[1], dataset.y_shape[:1] == x.shape[1:2]
    if has_tokens and dataset.is_regression:
        raise DatasetError(
            where,
            "must not be set if each token has a number as target, which has no mark of padding, "
            f"got y of shape {dataset.y.shape}",
            "remove it",
        )
    has_labels = has_tokens and not dataset.is_multi_label
    lengths = sequence_lengths(x, dataset.y, has_labels=has_labels)
    if not lengths.all():
        raise DatasetError(
            dataset.source,
            f"each sequence must have a token, got padding alone (token 0) in row "
            f"{int(lengths.argmin())}",
            "leave it out",
        )
    if isinstance(buckets, int):
        found = best_buckets(lengths, buckets, longest)
    elif buckets[-1] != longest:
        row = int(lengths.argmax())
        raise DatasetError(
            where,
            f"the longest must be {longest}, the length of x, got {buckets[-1]} (row {row} has "
            f"{lengths[row]} tokens)",
            f"end it with {longest}, or set data.text.length for texts",
        )
    else:
        found = buckets
    if len(found) < 2:
        note = f"all sequences have {longest} tokens, so data.buckets changes nothing"
        return replace(dataset, notes=(*dataset.notes, note))
    padded = np.array(found)[np.searchsorted(found, lengths)].sum() / (longest * len(lengths))
    note = (
        f"sequences are padded to {', '.join(map(str, found))} tokens (data.buckets): "
        f"{padded:.0%} of the tokens of one length"
    )
    return replace(dataset, buckets=found, notes=(*dataset.notes, note))


def autoencoder(dataset: Dataset) -> Dataset:
    """Return the examples with x as their targets: pixels 0 to 1, floats, or tokens."""
    x, old = dataset.x, targets_text(dataset.y, dataset.classes)
    y: Targets = x.astype(np.int64) if dataset.x_classes else x.astype(np.float32)
    if x.dtype == np.uint8:
        y = x.astype(np.float32) / np.float32(255.0)
    classes = dataset.x_classes or 1
    if isinstance(dataset.preparation, TextPreparation):
        y = np.where(x == PADDING, NO_LABEL, x)
    return replace(
        dataset,
        y=y,
        classes=classes,
        labels=(),
        guess="",
        is_autoencoder=True,
        description=dataset.description.replace(old, targets_text(y, classes)),
    )


def for_task(dataset: Dataset, task: TaskKind | None) -> Dataset:
    """Return the examples with the targets that a task has.

    Labels become targets for regression, and targets that are whole numbers become labels.

    Args:
        dataset: The examples.
        task: `[model] task`; None: regression if y has fractions, else classification.

    Raises:
        DatasetError: The targets do not fit the task.
    """
    is_clear = dataset.preparation is not None and dataset.y.ndim > 1
    if task is None and is_clear and not dataset.is_regression:
        found = _for_task(dataset, "classification")
    else:
        found = _for_task(dataset if task is None else replace(dataset, guess=""), task)
    old = targets_text(dataset.y, dataset.classes)
    new = targets_text(found.y, found.classes, is_multi_label=found.is_multi_label)
    return replace(found, description=found.description.replace(old, new))


def _for_task(dataset: Dataset, task: TaskKind | None) -> Dataset:
    """Return the examples with other targets, and the description that they had."""
    if task == "regression":
        return _as_targets(dataset)
    if task == "multi-label":
        return _as_multi_label(dataset)
    if task is not None and dataset.is_autoencoder and dataset.is_regression:
        raise DatasetError(
            "model.task",
            f"{task} must have classes as targets, got the numbers of x (data.target) in "
            f"{dataset.name}",
            "remove task",
        )
    try:
        if task is not None and dataset.is_regression and not dataset.is_autoencoder:
            labels = as_classes(dataset.y)
            classes = int(labels.y.max()) + 1
            dataset = replace(dataset, y=labels.y, classes=classes, labels=labels.names)
        if dataset.origin == "own" and not dataset.is_regression and not dataset.is_autoencoder:
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


def _as_multi_label(dataset: Dataset) -> Dataset:
    """Return y as the labels that each example has: 0 and 1, shape (n, labels)."""
    y = dataset.y
    if y.ndim != 2 or dataset.labels or not np.isin(y, (NO_LABEL, 0, 1)).all():
        got = f"numbers up to {y.max():g}" if y.ndim == 2 else f"shape {y.shape}"
        raise DatasetError(
            "model.task",
            f"multi-label must have y of 0 and 1, shape (n, labels), got {got} in {dataset.name}",
            "write 1 for each label that an example has, 0 for the others, -1 if it is not known",
        )
    return replace(dataset, y=y.astype(np.int64), classes=y.shape[1], is_multi_label=True)


def _as_targets(dataset: Dataset) -> Dataset:
    """Return the labels as numbers, as they are in the source."""
    if dataset.is_regression:
        return dataset
    if dataset.y.ndim > 1 and (dataset.preparation is not None or dataset.is_autoencoder):
        raise DatasetError(
            "model.task",
            f"regression must have numbers as targets, got classes or tokens in {dataset.name}",
            'set task = "classification"',
        )
    y = dataset.y.astype(np.float32)
    if dataset.labels:
        if any(isinstance(label, str) for label in dataset.labels):
            raise DatasetError(
                "model.task",
                f"regression must have numbers as targets, got the names {dataset.labels[0]!r}, "
                f"{dataset.labels[1]!r}, ... in {dataset.name}",
                'set task = "classification", or name another column',
            )
        y = np.append(np.array(dataset.labels, np.float32), np.float32(NO_LABEL))[
            dataset.y.astype(np.int64)
        ]
    return replace(dataset, y=y, classes=1, labels=())
