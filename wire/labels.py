"""Labels of examples as the classes of a task: one rule for the coordinator and every device.

A class has a name or a number. Devices with own data have other labels than the fleet, so that the
place of a label in their own list is not its class: names are looked up among those of the task.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.artifact import Artifact, TaskKind
from fairbed.wire.evaluation import Targets
from fairbed.wire.preparation import NO_LABEL

MAX_SHOWN = 12
"""Most labels in a message."""

MAX_COUNTED = 20
"""Most labels in a list with numbers of examples."""

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?"})
"""Spellings of a missing label, in lower case: those of pandas and of UCI files."""

_WHOLE = re.compile(r"[+-]?\d{1,17}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class LabelError(ValueError):
    """Labels are not those of a task; the arguments are the broken rule and what to do."""


def plain_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Return booleans as integers, text that is all numbers as numbers, other text without spaces.

    Args:
        y: Labels or targets, shape (n, *y_shape). With more than one per example they are numbers,
            and -1 is a position without a label.

    Raises:
        LabelError: They are neither numbers nor text, one is missing or not finite, or an example
            has no labelled position.
    """
    if y.dtype.kind not in "biufU" or not y.ndim or not y.size:
        raise LabelError(
            f"y must be integers, text or floats, shape (n, ...), no 0, got {y.dtype} {y.shape}",
            "write the label, or the labels, of each example",
        )
    if y.dtype.kind == "U" and y.ndim > 1:
        raise LabelError(
            f"y must be numbers where an example has several labels, got text {y.shape}",
            "write the number of each class, and -1 where a position has no label",
        )
    if y.dtype.kind == "U":
        y = _plain_text(y)
    if y.dtype.kind == "f":
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(y.astype(np.float32))
        if not is_finite.all():
            place = tuple(np.argwhere(~is_finite)[0].tolist())
            got = f"got {y[place]} in row {place[0]}"
            if np.isnan(y[place]):
                raise LabelError(f"y must have a value in every row, {got}", _FIX_MISSING)
            raise LabelError(f"y must be finite as float32, {got}", "replace it, or remove the row")
    elif y.ndim > 1 and y.dtype.kind in "iu":
        _check_positions(y)
    return y.astype(np.int64) if y.dtype.kind == "b" else y


def _check_positions(y: NDArray[Any]) -> None:
    """Check classes per position, shape (n, *y_shape).

    Raises:
        LabelError: One is below -1, or an example has no label at all.
    """
    if y.min() < NO_LABEL:
        row = int(np.argwhere(y == y.min())[0, 0])
        raise LabelError(
            f"y must be classes 0, 1, ..., or -1 where a position has no label, got {y.min()} in "
            f"row {row}",
            "correct the labels; targets of regression must be floats",
        )
    empty = np.flatnonzero((y.reshape(len(y), -1) == NO_LABEL).all(axis=1))
    if len(empty):
        raise LabelError(
            f"y must have a labelled position in every row, got only -1 in row {empty[0]}",
            "remove the example",
        )


_FIX_MISSING = "add it, or remove the row"


def _plain_text(y: NDArray[Any]) -> NDArray[Any]:
    distinct, places = np.unique(y, return_inverse=True)
    texts = [_plain_name(text) for text in distinct.tolist()]
    for place, text in enumerate(texts):
        if text.lower() in MISSING:
            row = int(np.flatnonzero(places == place)[0])
            raise LabelError(
                f"y must have a value in every row, got {str(y[row])!r} in row {row}", _FIX_MISSING
            )
    numbers: list[int] | list[float] | list[str] = texts
    if all(_WHOLE.fullmatch(text) for text in texts):
        numbers = [int(text) for text in texts]
    elif all(is_number(text) for text in texts):
        numbers = [float(text) for text in texts]
    return np.array(numbers)[places]


def _plain_name(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def label_key(text: str) -> str | int:
    """Return what equal labels have in common: the value of a whole number, or the name."""
    name = _plain_name(text)
    return int(name) if _WHOLE.fullmatch(name) else name


def is_number(text: str) -> bool:
    """Return whether a label is a number; `1_0`, `inf` and `0x1` are names."""
    return _NUMBER.fullmatch(text) is not None


def spelling(name: str) -> str:
    """Return what the spellings of one name have in common: not case, spaces or the code of ü."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def listed(values: Iterable[object]) -> str:
    """Return labels in one line, the middle of many left out; text is quoted."""
    return shortened([label_text(value, is_quoted=True) for value in values])


def shortened(shown: Sequence[str]) -> str:
    """Return texts in one line, the middle of many left out."""
    return ", ".join(shown if len(shown) <= MAX_SHOWN else [*shown[:10], "...", shown[-1]])


def counted(classes: Iterable[tuple[str, int]], hint: str = "") -> str:
    """Return labels and their numbers of examples in one line; `hint` follows what is left out."""
    shown = [f"{label} {count:,}" for label, count in classes]
    more = len(shown) - MAX_COUNTED
    return ", ".join([*shown[:MAX_COUNTED], f"{more:,} more{hint}"] if more > 0 else shown)


def label_text(value: object, *, is_quoted: bool = False) -> str:
    """Return a label in print."""
    if isinstance(value, str):
        return repr(value) if is_quoted or not value.isprintable() else value
    return f"{value + 0.0:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Classes:
    """What a task predicts, for the labels in the file of a device.

    Names match in their exact spelling. Without names, class k is the number k.
    """

    kind: TaskKind
    count: int
    """Number of classes; 1 for regression."""
    names: tuple[str, ...] = ()
    """Label of each class; empty: the numbers 0, 1, ..."""
    y_shape: tuple[int, ...] = ()
    """Shape of the labels of one example."""
    has_tokens: bool = False
    """x are tokens and each has a label, which may be a token: 0 is padding, and no label then."""

    @classmethod
    def of(cls, task: Artifact) -> "Classes":
        """Return the classes of a task."""
        spec = task.spec
        has_tokens = spec.x_classes > 0 and bool(spec.y_shape)
        return cls(spec.kind, spec.classes, task.labels, spec.y_shape, has_tokens)

    @property
    def has_numbers(self) -> bool:
        """Labels are whole numbers."""
        return all(_WHOLE.fullmatch(name) for name in self.names)

    @property
    def text(self) -> str:
        """The labels in one line."""
        return listed(self._numbered()) if self.names else f"0 .. {self.count - 1}"

    def label(self, number: int) -> str:
        """Return the label of a class in print."""
        return label_text(self.names[number]) if self.names else str(number)

    def targets(self, y: NDArray[Any]) -> Targets:
        """Return the class of each example, int64, or its target of regression, float32.

        Args:
            y: Labels in a file, shape (n, *y_shape).

        Raises:
            LabelError: One is not a label of this task, or the shape is another.
        """
        if y.dtype.kind == "b" and not self.has_numbers:
            y = np.where(y, *(self._spelt(text) for text in ("True", "False")))
        y = plain_labels(y)
        if y.shape[1:] != self.y_shape:
            shape = f"(n, {', '.join(map(str, self.y_shape))})" if self.y_shape else "(n,)"
            raise LabelError(
                f"y must have the shape {shape} of the run, got {y.shape}",
                "write the labels as the data of the run have them",
            )
        if y.dtype.kind == "U" and self.has_numbers:
            raise self._no_number(y)
        if self.kind == "regression":
            return y.astype(np.float32)
        values, places = np.unique(y, return_inverse=True)
        places = places.reshape(y.shape)  # numpy 2.0 has it flat
        numbers = self._numbered()
        found: list[int] = []
        for place, value in enumerate(values.tolist()):
            number = numbers.get(value) if self.names else self._own_number(value)
            if value == NO_LABEL and self.y_shape:
                number = NO_LABEL
            if number is None:
                row = int(np.argwhere(places == place)[0, 0])
                raise self._unknown(values.tolist(), value, row)
            found.append(number)
        return np.array(found, np.int64)[places]

    def doubt(self, parts: Iterable[Targets]) -> str:
        """Return a doubt about targets that are of this task; empty if there is none.

        Labels that count from 1 are legal if a device lacks class 0 and the last class.

        Args:
            parts: Training and test targets, each of shape (n, *y_shape), n >= 1.
        """
        if self.kind in ("regression", "multi-label") or self.names or self.has_tokens:
            return ""
        if min(int(y[y != NO_LABEL].min()) for y in parts) != 1:
            return ""
        return "no example has label 0; if the labels count from 1, subtract 1 from y"

    def _numbered(self) -> dict[Any, int]:
        """Return the class of each name; a float is found as the integer that equals it."""
        names = map(int, self.names) if self.has_numbers else self.names
        return {name: number for number, name in enumerate(names)}

    def _own_number(self, value: Any) -> int | None:
        count = 2 if self.kind == "multi-label" else self.count
        is_class = not isinstance(value, str) and 0 <= value < count and value == int(value)
        return int(value) if is_class else None

    def _spelt(self, text: str) -> str:
        """Return the name of the task with this spelling, or the text itself."""
        return next((name for name in self.names if spelling(name) == spelling(text)), text)

    def _no_number(self, y: NDArray[Any]) -> LabelError:
        """Return the error about text where labels or targets are numbers."""
        row = next(row for row, text in enumerate(y.tolist()) if not is_number(text))
        got = f"got {str(y[row])!r} in row {row}"
        if self.kind == "regression":
            return LabelError(
                f"y must be numbers, as the run is a regression, {got}",
                "write the number to predict",
            )
        return LabelError(
            f"y must be {self.text}, as the classes of the run have no names, {got}",
            "write the number that the data of the run have for it, or give them names",
        )

    def _unknown(self, labels: list[Any], label: Any, row: int) -> LabelError:
        """Return the error about a label that is none of this task, and the likely cause.

        Args:
            labels: All labels of the file.
            label: The first wrong one.
            row: Where it is first.
        """
        is_text = isinstance(label, str)
        got = f"got {label_text(label, is_quoted=True)} in row {row}"
        if not is_text and not self.has_numbers:
            return LabelError(
                f"y must be names, {self.text}, as the data of the run have, {got}",
                "write names: which class a number means is unknown",
            )
        if is_text and (name := self._spelt(label)) != label:
            return LabelError(
                f"y must have the spelling of the run, {name!r}, {got}", "correct the labels"
            )
        if isinstance(label, float) and not label.is_integer():
            return LabelError(
                f"y must be classes, {self.text}, {got}", "write the class of each example"
            )
        what_to_do = "correct it, or remove the examples of this class, which the run lacks"
        if not self.names and labels[0] >= 1 and labels[-1] == self.count:
            what_to_do = "if the labels count from 1, subtract 1 from y"
        elif not self.names and self.count == 2 and set(labels) <= {-1, 1}:
            what_to_do = "if the classes are -1 and 1, change -1 to 0"
        return LabelError(f"y must be classes of the run, {self.text}, {got}", what_to_do)
