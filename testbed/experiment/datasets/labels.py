"""Labels as classes 0, 1, ...: one rule for tables, arrays, functions and folders of pictures.

The classes are a fact of the data set: distinct labels in their order, whatever device has them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.wire.evaluation import Targets

MAX_CLASSES = 1 << 20
"""More labels are identifiers, not classes."""

MAX_WHOLE = 20
"""Most different whole floats that are read as classes: one missing value turns integers into
floats, and scales of more steps are measurements (scikit-learn reads any whole floats as classes).
"""

MAX_SHOWN = 12
"""Most labels in a message."""

MIN_ROWS = 8
"""With fewer examples every label may be different by chance."""

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?"})
"""Spellings of a missing label, in lower case: those of pandas and of UCI files."""

_WHOLE = re.compile(r"[+-]?\d+")

Names: TypeAlias = tuple[int, ...] | tuple[str, ...]


class LabelError(ValueError):
    """Labels are no classes; the arguments are the broken rule and what to do."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Targets of the examples, and what was decided about them."""

    y: Targets
    """Class of each example, int64, or target of regression, float32; shape (n,)."""
    names: Names = ()
    """Label of each class: names, or numbers that are not 0, 1, ...; empty otherwise."""
    guess: str = ""
    """Why these are classes or targets of regression, if no task decides it; empty: no doubt."""


def read_labels(y: NDArray[Any]) -> Labels:
    """Return labels as classes, or as targets of regression if they are numbers with fractions.

    Args:
        y: Integers, booleans, floats or text, shape (n,), n >= 1.

    Raises:
        LabelError: They are neither.
    """
    y = _plain(y)
    if y.dtype.kind == "U":
        return _named(y)
    if y.dtype.kind == "f":
        with np.errstate(over="ignore"):
            wrong = np.flatnonzero(~np.isfinite(y.astype(np.float32)))
        if len(wrong):
            raise LabelError(
                f"y must be finite as float32, got {y[wrong[0]]} in row {wrong[0]}",
                "remove or replace such values",
            )
    values = np.unique(y)
    if len(values) < 2:
        raise LabelError(
            f"y must hold two or more classes, or targets, got {_text(values[0])} in all "
            f"{len(y):,} rows",
            "add examples of another class, or name another column or array",
        )
    if y.dtype.kind != "f":
        return as_classes(y)
    is_few = len(values) <= MAX_WHOLE and 2 * len(values) <= len(y)
    if _is_whole(values) and is_few:
        classes = as_classes(y)
        guess = (
            f"labels are the whole numbers {_listed(values)} and are read as classes; for "
            'regression set [model] task = "regression"'
        )
        return Labels(classes.y, classes.names, guess)
    guess = ""
    if _is_whole(values):
        guess = (
            f"targets are {len(values)} different whole numbers, {_text(values[0])} .. "
            f"{_text(values[-1])}, and are read as targets of regression; if they are classes, set "
            '[model] task = "classification"'
        )
    elif is_few:
        guess = (
            f"targets have only {len(values)} different values, {_listed(values)}, and are read as "
            "targets of regression; if they are classes, write them as names"
        )
    return Labels(y.astype(np.float32), guess=guess)


def as_classes(y: NDArray[Any]) -> Labels:
    """Return whole numbers as classes in their order; `gap` has what is wrong if they have names.

    Args:
        y: Integers or whole floats, shape (n,).

    Raises:
        LabelError: A number has a fraction, or there are too many.
    """
    values, classes = np.unique(y, return_inverse=True)
    if not _is_whole(values) or not 2 <= len(values) <= MAX_CLASSES:
        raise LabelError(
            f"must have classes as targets, got {len(values)} numbers, {_text(values[0])} .. "
            f"{_text(values[-1])}",
            'number the classes from 0, or set task = "regression"',
        )
    names = tuple(int(value) for value in values)
    is_plain = names == tuple(range(len(names)))
    return Labels(classes.astype(np.int64), () if is_plain else names)


def gap(names: Sequence[int]) -> LabelError:
    """Return the error about whole numbers that are not 0, 1, ..., and how they are numbered.

    Numbered here, they would differ from those in the files of devices with own data.
    """
    message = f"labels must be 0 .. {len(names) - 1} for {len(names)} classes, got {_listed(names)}"
    if absent := _between(names):
        message += f"; no example has label {', '.join(map(str, absent))}"
    pairs = [f"{name} to {number}" for number, name in enumerate(names)]
    changes = ", ".join(pairs if len(pairs) <= MAX_SHOWN else [*pairs[:3], "...", pairs[-1]])
    return LabelError(message, f"change {changes}, also in the files of devices, or use names")


def class_text(names: Names, number: int) -> str:
    """Return the label of a class."""
    return str(names[number]) if names else str(number)


def check_classes(y: Ints, names: Names) -> None:
    """Refuse labels that are no classes 0, 1, ..., or of which nearly every example has its own.

    Raises:
        LabelError: They are other whole numbers, or fewer than two examples share a label, on
            average.
    """
    labels = len(np.unique(y))
    if len(y) >= MIN_ROWS and 2 * labels > len(y):
        is_text = bool(names) and isinstance(names[0], str)
        raise LabelError(
            f"y must hold classes of several examples each, got {labels:,} different labels in "
            f"{len(y):,} rows",
            "name the column or array of the classes"
            + ("" if is_text else ', or set [model] task = "regression"'),
        )
    numbers = [name for name in names if isinstance(name, int)]
    if numbers:
        raise gap(numbers)


def _plain(y: NDArray[Any]) -> NDArray[Any]:
    """Return booleans as integers, and text that is all numbers as numbers."""
    if y.dtype.kind == "b":
        return y.astype(np.int64)
    if y.dtype.kind != "U":
        return y
    text = np.char.strip(y)
    missing = np.flatnonzero([value.lower() in MISSING for value in text.tolist()])
    if len(missing):
        raise LabelError(
            f"y must have a label in every row, got {str(y[missing[0]])!r} in row {missing[0]}",
            "add it, or remove the row",
        )
    distinct = np.unique(text)
    if all(_WHOLE.fullmatch(value) and len(value) < 18 for value in distinct):
        return text.astype(np.int64)
    try:
        return text.astype(np.float64)
    except ValueError:
        return text


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
        other = spelt.setdefault(" ".join(name.casefold().split()), name)
        if other != name:
            raise LabelError(
                f"y must spell each class in one way, got {other!r} and {name!r}",
                "correct the labels",
            )
    numbers = [name for name in names if _is_number(name)]
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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _listed(values: NDArray[Any] | Sequence[int]) -> str:
    shown = [_text(value) for value in values]
    return ", ".join(shown if len(shown) <= MAX_SHOWN else [*shown[:10], "...", shown[-1]])


def _text(value: Any) -> str:
    return f"{value + 0.0:g}" if isinstance(value, np.floating) else str(value)
