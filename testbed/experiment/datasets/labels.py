"""Labels as classes 0, 1, ...: one rule for tables, arrays, functions and folders of pictures.

The classes are a fact of the data set: distinct labels in their order, whatever device has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints, distinct
from fairbed.wire.artifact import MAX_CLASSES, TaskKind
from fairbed.wire.evaluation import Targets
from fairbed.wire.labels import (
    LabelError,
    is_number,
    label_text,
    listed,
    plain_labels,
    spelling,
)
from fairbed.wire.messages import MAX_TEXT
from fairbed.wire.preparation import NO_LABEL

MAX_WHOLE = 20
"""Most different whole floats, or whole numbers that are not 0, 1, ..., that are read as classes
without a task: one missing value turns integers into floats, and scales of more steps are
measurements (scikit-learn reads any whole floats as classes).
"""

MIN_ROWS = 8
"""With fewer examples every label may be different by chance."""

Names: TypeAlias = tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """Targets of the examples, and what was decided about them."""

    y: Targets
    """Classes, int64, -1 where a position has none, or targets of regression, float32; shape
    (n, *y_shape)."""
    names: Names = ()
    """Label of each class: names, or numbers that are not 0, 1, ...; empty otherwise."""
    guess: str = ""
    """Why these are classes or targets of regression, if no task decides it; empty: no doubt."""


def read_labels(y: NDArray[Any]) -> Labels:
    """Return labels as classes, or as targets of regression if they are numbers with fractions.

    Args:
        y: Integers, booleans, floats or text, shape (n,) or, not text, (n, *y_shape).

    Raises:
        LabelError: They are neither.
    """
    y = plain_labels(y)
    if y.shape[1:] == (1,):
        labels = read_labels(y[:, 0])
        note = "y of shape (n, 1) is read as one label per example, (n,)"
        return replace(labels, guess="; ".join(filter(None, (note, labels.guess))))
    if y.dtype.kind == "U":
        return _named(y)
    values = distinct(labelled(y))
    if len(values) < 2:
        raise LabelError(
            f"y must hold two or more classes, or targets, got {_text(values[0])} in all "
            f"{len(y):,} rows",
            "add examples of another class, or name another column or array",
        )
    if y.dtype.kind != "f":
        return as_classes(y)
    is_few = len(values) <= MAX_WHOLE and 2 * len(values) <= len(y)
    if y.ndim > 1:
        guess = ""
        if _is_whole(values) and len(values) <= MAX_WHOLE:
            guess = (
                f"targets are the whole numbers {listed(values.tolist())} and are read as targets "
                "of regression; classes of positions must be integers"
            )
        return Labels(y.astype(np.float32), guess=guess)
    if _is_whole(values) and is_few:
        classes = as_classes(y)
        guess = (
            f"labels are the whole numbers {listed(values.tolist())} and are read as classes; for "
            'regression set [model] task = "regression"'
        )
        return Labels(classes.y, classes.names, guess)
    guess = ""
    if _is_whole(values):
        guess = (
            f"targets are {len(values)} different whole numbers, {_text(values[0])} .. "
            f"{_text(values[-1])}, and are read as targets of regression"
        )
        if not _is_nearly_unique(len(values), len(y)):
            guess += '; if they are classes, set [model] task = "classification"'
    elif is_few:
        guess = (
            f"targets have only {len(values)} different values, {listed(values.tolist())}, and are "
            "read as targets of regression; if they are classes, write a name for each, such as "
            f"'class {_text(values[0])}'"
        )
    return Labels(y.astype(np.float32), guess=guess)


def as_classes(y: NDArray[Any]) -> Labels:
    """Return whole numbers as classes in their order.

    Args:
        y: Integers or whole floats, shape (n, *y_shape); -1 is no class with several per example.

    Raises:
        LabelError: A number has a fraction, or there are too many.
    """
    is_labelled = np.ones(y.shape, np.bool_) if y.ndim == 1 else y != NO_LABEL
    values, places = np.unique(y[is_labelled], return_inverse=True)
    if not _is_whole(values) or not 2 <= len(values) <= MAX_CLASSES:
        raise LabelError(
            f"must have classes as targets, got {len(values)} numbers, {_text(values[0])} .. "
            f"{_text(values[-1])}",
            "write the class of each example as a whole number or a name",
        )
    names = tuple(int(value) for value in values)
    is_plain = names == tuple(range(len(names)))
    classes = np.full(y.shape, NO_LABEL, np.int64)
    classes[is_labelled] = places
    return Labels(classes, () if is_plain else names)


def labelled(y: Targets) -> Targets:
    """Return the targets that are labels, shape (m,), from targets (n, *y_shape)."""
    return y if y.ndim == 1 else y.reshape(-1) if y.dtype.kind == "f" else y[y != NO_LABEL]


def check_classes(y: Ints, names: Names, task: TaskKind | None) -> str:
    """Refuse labels that are no classes; return what to state of their numbers, if anything.

    Args:
        y: Classes, shape (n, *y_shape).
        names: Label of each class; empty: 0, 1, ...
        task: `[model] task`; None: they count as classes without it.

    Raises:
        LabelError: Fewer than two examples share a label, on average, the labels are many numbers
            that may as well be targets, or 0 and 1 may be labels or classes of positions.
    """
    labels = len(distinct(labelled(y)))
    numbers = [name for name in names if isinstance(name, int)]
    is_open = task is None and (bool(numbers) or not names)
    if y.ndim > 1 and labels == 2 and not names and task is None:
        is_one_hot = y.ndim == 2 and bool((y.sum(axis=1) == 1).all())
        raise LabelError(
            f"y may be labels that an example has or not, or classes of positions, got 0 and 1 of "
            f"shape {y.shape}" + (", one 1 in each row" if is_one_hot else ""),
            "save y.argmax(axis=1), the class of each example"
            if is_one_hot
            else 'set [model] task = "multi-label" or "classification"',
        )
    if y.ndim == 1 and _is_nearly_unique(labels, len(y)):
        raise LabelError(
            f"y must hold classes of several examples each, got {labels:,} different labels in "
            f"{len(y):,} rows",
            "name the column or array of the classes"
            + (', or set [model] task = "regression"' if is_open else ""),
        )
    if not numbers:
        return ""
    if is_open and len(numbers) > MAX_WHOLE:
        raise LabelError(
            f"y may be classes or targets, got {len(numbers):,} different whole numbers, "
            f"{numbers[0]} .. {numbers[-1]}",
            'set [model] task = "classification" or "regression"'
            + (", or data.classes" if y.ndim > 1 else ""),
        )
    absent = _between(numbers)
    return f"labels are the numbers {listed(numbers)}, which are the classes in this order" + (
        f"; no example has label {listed(absent)}" if absent else ""
    )


def class_text(names: Names, number: int) -> str:
    """Return the label of a class."""
    return label_text(names[number]) if names else str(number)


def _named(y: NDArray[Any]) -> Labels:
    """Return names as classes in the order of the names."""
    values, classes = np.unique(y, return_inverse=True)
    names = tuple(values.tolist())
    if len(names) < 2:
        raise LabelError(
            f"y must hold two or more classes, got {names[0]!r} in all {len(y):,} rows",
            "add examples of another class, or name another column or array",
        )
    spelt: dict[str, str] = {}
    for name in names:
        other = spelt.setdefault(spelling(name), name)
        if other != name:
            raise LabelError(
                f"y must spell each class in one way, got {other!r} and {name!r}",
                "correct the labels",
            )
        if len(name) > MAX_TEXT:
            raise LabelError(
                f"y must hold names of at most {MAX_TEXT} characters, got {len(name):,}",
                "name the column or array of the classes",
            )
    numbers = [name for name in names if is_number(name)]
    if numbers:
        text = next(name for name in names if name not in numbers)
        raise LabelError(
            f"y must hold numbers or names, not both, got {numbers[0]!r} and {text!r}",
            "correct the labels",
        )
    return Labels(classes.astype(np.int64), names)


def _between(names: Sequence[int]) -> list[int]:
    """Return the labels between the first and the last that no example has, if they are few."""
    if tuple(names) == (-1, 1) or names[-1] - names[0] >= 2 * len(names):
        return []
    return sorted(set(range(names[0], names[-1])) - set(names))


def _is_whole(values: NDArray[Any]) -> bool:
    return values.dtype.kind != "f" or bool((values == np.round(values)).all())


def _is_nearly_unique(labels: int, rows: int) -> bool:
    return rows >= MIN_ROWS and 2 * labels > rows


def _text(value: Any) -> str:
    return label_text(value.item())
