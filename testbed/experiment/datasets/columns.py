"""Make x of the columns of a table that are features, with lines about the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.datasets.features import (
    MAX_AUTOMATIC,
    MAX_CATEGORIES,
    NO_VALUE,
    Encoding,
    Feature,
    Groups,
    Kind,
    Verdict,
    judge_numbers,
    judge_text,
    unit_of,
)
from fairbed.testbed.experiment.datasets.own import check_memory
from fairbed.wire.labels import MISSING

MAX_TEXTS = 100_000
"""Most different texts of a column that are counted."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of the user among the columns: `data.features` and `data.categories`."""

    names: list[str]
    """All columns besides label and device."""
    used: list[str]
    """Those that may be features."""
    is_named: bool
    """The user has named them: they are features whatever they hold."""
    categories: frozenset[str]
    """Those that are one-hot encoded in any case."""

    @classmethod
    def of(
        cls, path: Path, names: list[str], features: Sequence[str], categories: Sequence[str]
    ) -> "Choice":
        """Return the choice of the user.

        Args:
            path: The table, for messages.
            names: All columns besides label and device.
            features: `data.features`.
            categories: `data.categories`.

        Raises:
            DatasetError: A pattern fits no column, or no column is left.
        """

        def matching(key: str, pattern: str) -> set[str]:
            found = {name for name in names if fnmatchcase(name, pattern)}
            found = {pattern} if pattern in names else found
            if not found:
                shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
                raise DatasetError(
                    str(path),
                    f"data.{key} must name its columns besides label and device ({shown}), got "
                    f"{pattern!r}",
                    "correct the name or pattern",
                )
            return found

        wanted = [matching("features", name) for name in features if not name.startswith("!")]
        unwanted = [matching("features", name[1:]) for name in features if name.startswith("!")]
        used = set().union(*wanted) if wanted else set(names)
        used = used.difference(*unwanted)
        if not used:
            raise DatasetError(str(path), "data.features must leave a column, got none", "name one")
        named = set[str]().union(*(matching("categories", name) for name in categories))
        order = [name for name in names if name in used]
        return cls(names, order, bool(wanted), frozenset(named))


@dataclass(slots=True)
class Columns:
    """The columns that may be features, by their number."""

    x: NDArray[np.float32]
    """Numbers, shape (n, columns); NaN is missing."""
    texts: dict[int, "Texts"]
    exact: dict[int, Floats] = field(default_factory=dict)
    """Numbers too large for float32."""
    index: frozenset[str] = frozenset()
    """Names of those that pandas has written as an index."""
    zeros: dict[int, str] = field(default_factory=dict)
    """Examples of whole numbers that begin with a zero."""

    def values(self, number: int) -> Floats:
        """Return a column of numbers, shape (n,)."""
        found = self.exact.get(number)
        return self.x[:, number].astype(np.float64) if found is None else found


class Texts:
    """A column of text: its different texts, and which one each row has."""

    def __init__(self, first: tuple[int, str]) -> None:
        self.first = first
        """Row and text of the first that is no number."""
        self.names: list[str] = []
        """The texts in the order of their first rows, at most `MAX_TEXTS`."""
        self.is_complete = True
        """There are no more texts, and `codes` has every row."""
        self._places: dict[str, int] = {}
        self._codes: list[Ints] = []

    @property
    def codes(self) -> Ints:
        """Number of the text of each row, -1 if it is missing."""
        return np.concatenate(self._codes)

    def add(self, texts: Sequence[str], places: Ints) -> None:
        """Add rows.

        Args:
            texts: Different texts.
            places: Which of them each row has, shape (n,); -1 is missing.
        """
        if not self.is_complete:
            return
        numbers = [
            -1 if text.lower() in MISSING else self._places.setdefault(text, len(self._places))
            for text in texts
        ]
        self._codes.append(np.array([*numbers, -1], np.int64)[places])
        self.names = list(self._places)
        self.is_complete = len(self.names) <= MAX_TEXTS


def groups_of(arrays: Mapping[str, NDArray[Any]]) -> list[Groups]:
    """Return the labels and the users of the rows, as what a column may repeat."""
    y = arrays["y"]
    targets = None if y.dtype.kind == "U" else y.astype(np.float64)
    found = [Groups("label", np.unique(y, return_inverse=True)[1].astype(np.int64), targets)]
    if "device" in arrays:
        users = np.unique(arrays["device"], return_inverse=True)[1].astype(np.int64)
        found.append(Groups("device", users))
    return found


@dataclass(frozen=True, slots=True)
class Encoded:
    """The examples of a table."""

    x: NDArray[np.float32]
    """Shape (n, columns); a missing number is the median of all rows until the fit."""
    encoding: Encoding
    notes: tuple[str, ...]
    """Lines about what the user has not named."""


def encode(path: Path, choice: Choice, columns: Columns, groups: Sequence[Groups]) -> Encoded:
    """Return x of the columns that are features, and lines about the others."""
    judged = [
        _judged(path, name, number, choice, columns, groups)
        for number, name in enumerate(choice.used)
    ]
    if not choice.is_named:
        judged = _without_one_hot_labels(judged, groups[0].n)
    kept = [column for column in judged if column.feature.width]
    if not kept:
        features = [column.feature for column in judged]
        left_out = next((feature for feature in features if feature.has_values), features[0])
        use = f', or set data.features = ["{left_out.name}"] to use it'
        raise DatasetError(
            str(path),
            f"must have a column that is a feature, got {_listed([f.name for f in features])}"
            f"; {left_out.name!r} is {left_out.use}",
            f"add columns{use if left_out.has_values else ''}",
        )
    width = sum(column.feature.width for column in kept)
    check_memory(str(path), len(columns.x) * width * np.dtype(np.float32).itemsize)
    if len(kept) == len(choice.used) and all(column.codes is None for column in kept):
        x = columns.x
    else:
        x = np.empty((len(columns.x), width), np.float32)
        start = 0
        for column in kept:
            end = start + column.feature.width
            if column.codes is None:
                x[:, start] = columns.x[:, column.number]
            else:
                x[:, start:end] = column.codes[:, np.newaxis] == np.arange(end - start)
            start = end
    gaps = np.isnan(x)
    has_gaps = gaps.any(axis=0)
    for place in np.flatnonzero(has_gaps):  # until the training rows are known
        x[gaps[:, place], place] = np.median(x[~gaps[:, place], place])
    by_name = {column.feature.name: column.feature for column in judged}
    listed = tuple(by_name.get(name) or _not_chosen(name) for name in choice.names)
    encoding = Encoding(listed, gaps if has_gaps.any() else None)
    return Encoded(x, encoding, tuple(_notes(judged, choice)))


@dataclass(frozen=True, slots=True)
class _Judged:
    """A column, and what is done with it."""

    number: int
    feature: Feature
    codes: Ints | None = None
    """Number of the category of each row, -1 if missing; None for numbers."""
    note: str = ""
    indicates: int = -1
    """As in `Verdict`."""


def _judged(
    path: Path,
    name: str,
    number: int,
    choice: Choice,
    columns: Columns,
    groups: Sequence[Groups],
) -> _Judged:
    """Decide what a column is.

    Raises:
        DatasetError: It is text that is neither numbers nor categories.
    """
    text = columns.texts.get(number)
    if text is None:
        values = columns.values(number)
        known = values[~np.isnan(values)]
        kind: Kind = "whole" if (known == np.round(known)).all() else "number"
        missing = len(values) - len(known)
        low, high = (float(known.min()), float(known.max())) if len(known) else (None, None)
        if name not in choice.categories:
            verdict = judge_numbers(name, values, groups, is_index=name in columns.index)
            feature = Feature(
                name=name, kind=kind, low=low, high=high, missing=missing, use="number", width=1
            )
            code = columns.zeros.get(number)
            if code and verdict == Verdict():
                verdict = Verdict(
                    note=f"has codes such as {code!r}, read as numbers; for categories, set "
                    f'data.categories = ["{name}"]',
                    is_of_values=True,
                )
            return _with_verdict(number, feature, None, verdict, choice)
        distinct, codes = np.unique(values, return_inverse=True)
        names = [f"{value:.12g}" for value in distinct[~np.isnan(distinct)]]
        codes = np.where(np.isnan(values), -1, codes).astype(np.int64)
        n_texts, shown = len(names), ""
    else:
        low = high = None
        kind, codes, n_texts = "text", text.codes, len(text.names)
        _check_text(path, name, text, choice)
        order = sorted(range(n_texts), key=lambda k: _in_order(text.names[k]))
        names = [text.names[k] for k in order]
        codes = np.append(np.argsort(order), -1)[codes]
        more = "" if text.is_complete else "over "
        shown = ", ".join([*(_short_text(value) for value in names[:3])])
        shown += f", ... ({more}{n_texts:,})" if n_texts > 3 else ""
        missing = int((codes < 0).sum())
    verdict = judge_text(
        name,
        codes,
        names,
        groups,
        is_named=name in choice.categories,
        is_index=name in columns.index,
    )
    feature = Feature(
        name=name,
        kind=kind,
        low=low,
        high=high,
        texts=shown,
        missing=missing,
        use=f"one-hot of {n_texts}",
        width=n_texts,
        categories=tuple(names),
    )
    judged = _with_verdict(number, feature, codes, verdict, choice)
    if judged.feature.width:
        _check_categories(path, name, names, choice)
    return judged


def _with_verdict(
    number: int, feature: Feature, codes: Ints | None, verdict: Verdict, choice: Choice
) -> _Judged:
    if verdict.reason and (not choice.is_named or not feature.has_values):
        use = f"left out: {verdict.reason}"
        return _Judged(number, replace(feature, use=use, width=0, categories=()))
    note = "" if choice.is_named and not verdict.is_of_values else verdict.note
    return _Judged(number, feature, codes, note, verdict.indicates)


def _check_text(path: Path, name: str, text: Texts, choice: Choice) -> None:
    """Refuse a column of which most rows are numbers, or that holds numbers with a unit.

    Raises:
        DatasetError: It is such a column.
    """
    if name in choice.categories:
        return
    is_number = np.array([is_float(value) for value in text.names] + [False])
    codes = text.codes
    if 2 * int(is_number[codes].sum()) >= int((codes >= 0).sum()) > 0:
        row, found = text.first
        raise no_number(path, name, repr(found if len(found) <= 40 else f"{found[:37]}..."), row)
    if example := unit_of(text.names):
        raise DatasetError(
            str(path),
            f"column {name!r} must hold numbers without unit or separator, got {example!r}",
            f'write plain numbers, leave it out by data.features = ["!{name}"], or set '
            f'data.categories = ["{name}"]',
        )


def _check_categories(path: Path, name: str, names: Sequence[str], choice: Choice) -> None:
    """Refuse too many categories.

    Raises:
        DatasetError: There are too many.
    """
    is_named = name in choice.categories
    if len(names) > (MAX_CATEGORIES if is_named else MAX_AUTOMATIC):
        found = f"column {name!r} must hold numbers or at most"
        out = f'leave it out by data.features = ["!{name}"]'
        many = f"{len(names):,}" if len(names) <= MAX_TEXTS else f"over {MAX_TEXTS:,}"
        if is_named or len(names) > MAX_CATEGORIES:
            raise DatasetError(
                str(path),
                f"{found} {MAX_CATEGORIES:,} categories, got {many} different texts",
                f"{out}, or write fewer categories",
            )
        raise DatasetError(
            str(path),
            f"{found} {MAX_AUTOMATIC} categories, got {many} different texts",
            f'set data.categories = ["{name}"] to make {many} columns of x of it, or {out}',
        )


def _without_one_hot_labels(judged: list[_Judged], classes: int) -> list[_Judged]:
    """Leave out columns that together are the label, one-hot encoded."""
    marked = {column.indicates for column in judged if column.indicates >= 0}
    if len(marked) < max(2, classes - 1):
        note = "follows from the label: one class has a value of its own"
        return [replace(c, note=note) if c.indicates >= 0 else c for c in judged]
    use = "left out: repeats the label, as one of its one-hot columns"
    return [
        replace(c, feature=replace(c.feature, use=use, width=0, categories=()), note="")
        if c.indicates >= 0
        else c
        for c in judged
    ]


def _not_chosen(name: str) -> Feature:
    use = "left out by data.features"
    return Feature(name=name, kind="", missing=0, use=use, width=0)


def _notes(judged: Sequence[_Judged], choice: Choice) -> Iterator[str]:
    """Yield lines about what was decided and not named by the user."""
    by_reason, by_note = dict[str, list[str]](), dict[str, list[str]]()
    for column in judged:
        feature = column.feature
        if not feature.width:
            by_reason.setdefault(feature.use.removeprefix("left out: "), []).append(feature.name)
        elif column.note:
            by_note.setdefault(column.note, []).append(feature.name)
    for reason, names in by_reason.items():
        use = 'to use it, list the columns in data.features, or ["*"] for all'
        yield f"{_columns(names)} left out: {reason}; {'fill it' if reason == NO_VALUE else use}"
    for note, names in by_note.items():
        yield f'{_columns(names)} {note}; to leave it out, set data.features = ["!{names[0]}"]'
    one_hot = [
        f"{c.feature.name!r} ({c.feature.width})"
        for c in judged
        if c.feature.categories and c.feature.name not in choice.categories
    ]
    if one_hot:
        first = one_hot[0].split("'")[1]
        yield (
            f"{_listed(one_hot)}: text, one column of x for each category; to leave it out, set "
            f'data.features = ["!{first}"]'
        )
    gaps = [c.feature for c in judged if c.feature.width and c.feature.missing]
    if gaps:
        total = sum(feature.missing for feature in gaps)
        where = _listed([f"{feature.name!r} {feature.missing:,}" for feature in gaps])
        yield (
            f"{total:,} missing values ({where}): a number becomes the median of the training "
            "rows, a category all zeros"
        )


def _columns(names: Sequence[str]) -> str:
    quoted = _listed([repr(name) for name in names])
    return f"column {quoted}" if len(names) == 1 else f"{len(names):,} columns, {quoted},"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5:,} more"


def _short_text(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:17]}..."


def _in_order(text: str) -> tuple[float, str]:
    """Return the key that sorts categories: numbers by value, then texts."""
    return (float(text), "") if is_float(text) else (np.inf, text)


def is_float(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return text.isascii() and "_" not in text and bool(np.isfinite(float(text)))
    except ValueError:
        return False


def no_number(path: Path, name: str, shown: str, row: int) -> DatasetError:
    """Return the error about a value that is no finite number; `row` counts from 0."""
    return DatasetError(
        str(path),
        f"column {name!r} must hold a finite number in every row, got {shown} in row {row + 1}",
        "replace it (an empty field is a missing value), remove the row, or leave the column out "
        f'by data.features = ["!{name}"]',
    )
