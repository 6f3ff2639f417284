"""Load texts as tokens: files, folders, tables, arrays, and what a function returns.

The vocabulary of characters, and the ranks of words, are those of all texts. Words that no training
row has become the unknown word when the data are divided (`Dataset.fitted`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.experiment.data import UNLABELLED, DataConfig, TextConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError, targets_text
from fairbed.testbed.experiment.datasets.own import Arrays, check_memory, own_dataset
from fairbed.wire.preparation import (
    MAX_UNIT,
    MAX_UNITS,
    PADDING,
    UNKNOWN,
    EmptyText,
    TextPreparation,
    TextTarget,
    tokens_of,
    units_of,
)

MAX_WORDS = 10_000
"""Size of a vocabulary of words if none is given: it travels with the task, in about 0.1 MB."""


def load_texts(path: Path, config: DataConfig) -> Dataset:
    """Return the texts of a file or folder as tokens, x int64 of shape (n, length).

    Raises:
        DatasetError: A file cannot be read, is no text or has none, or the folder has another
            layout.
    """
    from fairbed.device_agent.folders import FolderError
    from fairbed.device_agent.texts import read_texts

    try:
        found = read_texts(path, config.target, min_classes=2)
    except FolderError as exc:
        raise DatasetError(exc.where, exc.problem, exc.what_to_do) from exc
    arrays = {"y": found.labels, "device": found.users}
    dataset = dataset_of_texts(
        str(path),
        found.texts,
        {name: array for name, array in arrays.items() if array is not None},
        config.text or TextConfig(),
        found.target,
        name=path.stem,
        places=[str(file) for file in found.files],
    )
    return replace(dataset, notes=(*found.notes, *dataset.notes))


def load_text_table(path: Path, config: DataConfig) -> Dataset:
    """Return the texts in a column of a table as tokens.

    Raises:
        DatasetError: The table cannot be read, or a row has no text.
    """
    from fairbed.testbed.experiment.datasets.table import read_text_columns

    assert config.text is not None, "the section was checked"
    assert config.text.column is not None, "the section was checked"
    target = config.target or "label"
    label = None if target in UNLABELLED else config.label
    texts, arrays = read_text_columns(path, config.text.column, label, config.device)
    return dataset_of_texts(str(path), texts, arrays, config.text, target, name=path.stem)


def of_arrays(where: str, arrays: Arrays, config: DataConfig, *, name: str, fix: str) -> Dataset:
    """Return the data set in arrays, whose x may be texts with `[data.text]`.

    Args:
        where: File or function, for messages.
        arrays: The arrays by name.
        config: `text` and `target`.
        name: Name of the data set.
        fix: What the user does about a wrong array.

    Raises:
        DatasetError: The arrays break a rule.
    """
    x = arrays.get("x")
    is_text = x is not None and x.dtype.kind == "U" and x.ndim == 1
    if config.text is None and not is_text:
        is_labelled = config.target not in UNLABELLED
        return own_dataset(where, arrays, name=name, fix=fix, is_labelled=is_labelled)
    if not is_text or x is None or config.text is None:
        got = "none" if x is None else f"{x.dtype} {x.shape}"
        raise DatasetError(
            where,
            f"x must be texts, shape (n,), with [data.text], and only then, got {got}",
            "add or remove [data.text]",
        )
    parts = [x, *([arrays["x_test"]] if "x_test" in arrays else [])]
    texts = [text for part in parts for text in part.tolist()]
    others = {key: value for key, value in arrays.items() if not key.startswith("x")}
    target: TextTarget = config.target or ("label" if "y" in arrays else "next")
    if target in UNLABELLED:
        others = {key: value for key, value in others.items() if not key.startswith("y")}
    pooled = {
        key: np.concatenate([value, others[f"{key}_test"]]) if f"{key}_test" in others else value
        for key, value in others.items()
        if not key.endswith("_test")
    }
    return dataset_of_texts(where, texts, pooled, config.text, target, name=name)


def dataset_of_texts(
    where: str,
    texts: Sequence[str],
    arrays: Arrays,
    config: TextConfig,
    target: TextTarget,
    *,
    name: str,
    places: Sequence[str] = (),
) -> Dataset:
    """Return the data set of texts.

    Args:
        where: File, folder or function, for messages.
        texts: The texts.
        arrays: `y` and `device` of each text, shape (len(texts),).
        config: Unit, length and stride.
        target: label, next or x.
        name: Name of the data set.
        places: File of each text, for messages; empty: they are rows.
    """
    if target == "label" and config.stride is not None:
        raise DatasetError(
            where,
            f"data.text.stride must be set for windows only, got {config.stride} for texts with "
            "labels",
            "remove it",
        )
    preparation = TextPreparation(
        unit=config.unit,
        length=config.length,
        target=target,
        stride=config.stride or config.length,
        vocabulary=_vocabulary(where, texts, config),
    )
    for key, array in arrays.items():
        if array.shape[:1] != (len(texts),):
            raise DatasetError(
                where,
                f"x and {key} must have equal length, got {len(texts)} and {array.shape}",
                "correct the arrays",
            )
    try:
        found = tokens_of(preparation, texts, partial(check_memory, where))
    except EmptyText as exc:
        row, problem, what_to_do = exc.args
        place = places[row] if places else where
        text = problem if places else f"the text in row {row} {problem}"
        raise DatasetError(place, text, what_to_do) from exc
    rows: dict[str, NDArray[Any]] = {key: array[found.texts] for key, array in arrays.items()}
    dataset = own_dataset(
        where, {"x": found.x, **rows}, name=name, fix="correct it", is_labelled=target == "label"
    )
    if found.y is not None:
        dataset = replace(
            dataset,
            y=found.y,
            classes=preparation.x_classes,
            description=dataset.description.replace(
                targets_text(dataset.y, dataset.classes),
                targets_text(found.y, preparation.x_classes),
            ),
        )
    seen = f"of {dataset.x_classes:,} tokens"
    return replace(
        dataset,
        x_classes=preparation.x_classes,
        preparation=preparation,
        description=dataset.description.replace(
            seen, f"of {preparation.x_classes:,} tokens ({config.unit})"
        ),
        notes=tuple(_notes(preparation, found.x, found.cut, len(texts))),
    )


def _vocabulary(where: str, texts: Sequence[str], config: TextConfig) -> tuple[str, ...]:
    """Return the units in the order of their tokens: characters by code, words by frequency."""
    if config.unit == "bytes":
        return ()
    if config.unit == "characters":
        found = sorted(set[str]().union(*texts))
        if len(found) > MAX_UNITS:
            raise DatasetError(
                where,
                f"must have at most {MAX_UNITS:,} characters, got {len(found):,}",
                "use bytes",
            )
        return tuple(found)
    counts = Counter[str]()
    for text in texts:
        counts.update(units_of(text, "words"))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return tuple([word for word in ranked if len(word) <= MAX_UNIT][: config.words or MAX_WORDS])


def _notes(preparation: TextPreparation, x: NDArray[np.int64], cut: int, texts: int) -> list[str]:
    """Return lines about what the tokens leave out."""
    notes, length = [], preparation.length
    if cut:
        notes.append(
            f"{cut:,} of {texts:,} texts are cut to {length} {preparation.unit} (data.text.length)"
        )
    unknown = int((x == UNKNOWN).sum()) if preparation.unit == "words" else 0
    if unknown:
        share = unknown / int((x != PADDING).sum())
        notes.append(
            f"{share:.1%} of the words are not among the {len(preparation.vocabulary):,} most "
            "frequent and are token 1 (data.text.words)"
        )
    return notes
