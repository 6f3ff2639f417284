"""Data in the JSON of LEAF: the examples of each user by its name.

    {"users": ["a", ...], "num_samples": [3, ...], "user_data": {"a": {"x": [...], "y": [...]}}}

| x of an example | read as |
|---|---|
| numbers (FEMNIST, synthetic) | float32; 784 of them are a picture of 28 x 28 |
| a text, with one character as y (Shakespeare) | tokens; y is the character that follows |
| a text, or a row of a tweet whose fifth field is one (Sent140) | tokens, y is the label |
| the name of a picture (CelebA) | pixels of the file |
| sequences of words, with `target_tokens` in y (Reddit) | tokens; y the next one of each |

Source:
    Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.experiment.data import TextConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.folders import pixels_of
from fairbed.testbed.experiment.datasets.own import check_memory, own_dataset
from fairbed.testbed.experiment.datasets.text import MAX_WORDS, dataset_of_texts
from fairbed.wire.labels import shortened
from fairbed.wire.preparation import FIRST, NO_LABEL, PADDING, UNKNOWN, TextPreparation, tokenizer

PARTS = ("train", "test")
"""Folders of LEAF's own split; both are read, as Fairbed makes a split of its own."""
SUFFIX = ".json"
PICTURES = (".png", ".jpg", ".jpeg")
PLACES = ("", "images", "raw/img_align_celeba", "../raw/img_align_celeba")
"""Folders in which pictures are looked for, relative to that of the JSON."""
DECODED = 4
"""Memory of decoded JSON, in sizes of its files: a number is an object and a pointer to it."""
PICTURE = (1, 28, 28)
TWEET_FIELD = 4
TWEET = TextConfig(unit="words", length=25)
"""q-FFL and LEAF read 25 words of a tweet."""
PAD = "<PAD>"
_FIX = "write it as LEAF does"


class _Examples(msgspec.Struct):
    x: list[Any]
    y: list[Any]


class _File(msgspec.Struct):
    users: list[str]
    user_data: dict[str, _Examples]
    num_samples: list[int] | None = None


def json_files(path: Path) -> list[Path]:
    """Return the files of LEAF's layout at a path, by name; none if it has another one."""
    if path.suffix.lower() == SUFFIX:
        return [path]
    for folders in ([path], [path / part for part in PARTS]):
        found = [file for folder in folders for file in sorted(folder.glob(f"*{SUFFIX}"))]
        if found:
            return found
    return []


def load_leaf(path: Path, text: TextConfig | None) -> Dataset:
    """Return the examples of all users in a file or folder of LEAF's layout.

    Args:
        path: A file, a folder of files, or one with the folders `train` and `test`.
        text: `[data.text]`; None: characters of the length of the texts, or 25 words of a tweet.

    Raises:
        DatasetError: A file cannot be read, or has another layout.
    """
    found = json_files(path)
    try:
        check_memory(str(path), DECODED * sum(file.stat().st_size for file in found))
        contents = {str(file): file.read_bytes() for file in found}
    except OSError as exc:
        raise DatasetError(
            str(path), f"must be readable, got: {exc.strerror or exc}", "check data.source"
        ) from exc
    return of_contents(path.stem, contents, where=str(path), folder=found[0].parent, text=text)


def of_contents(
    name: str,
    contents: Mapping[str, bytes],
    *,
    where: str = "",
    folder: Path | None = None,
    text: TextConfig | None = None,
) -> Dataset:
    """Return the data set in the contents of files; users are in the order of their names.

    Args:
        name: Name of the data set.
        contents: Content of each file by its name.
        where: File or folder, for messages; empty: the name.
        folder: Where pictures are looked for.
        text: How texts become tokens; None: as `load_leaf`.

    Raises:
        DatasetError: A file has another layout.
    """
    where = where or name
    pooled = dict[str, _Examples]()
    for file, content in contents.items():
        for user, examples in _decoded(file, content).items():
            own = pooled.setdefault(user, _Examples([], []))
            own.x += examples.x
            own.y += examples.y
    empty = sorted(user for user, examples in pooled.items() if not examples.y)
    users = sorted(user for user in pooled if user not in set(empty))
    if not users:
        raise DatasetError(where, "must hold a user with examples, got none", _FIX)
    x = list(chain.from_iterable(pooled[user].x for user in users))
    y = list(chain.from_iterable(pooled[user].y for user in users))
    owner = np.repeat(np.arange(len(users)), [len(pooled[user].y) for user in users])
    del pooled
    dataset = _dataset(where, name, x, y, owner, folder, text)
    notes = [f"users without an example are left out: {shortened(empty)}"] if empty else []
    return replace(dataset, notes=(*dataset.notes, *notes))


def _decoded(file: str, content: bytes) -> dict[str, _Examples]:
    """Return the examples of each user in a file that keeps the rules of the layout."""
    try:
        found = msgspec.json.decode(content, type=_File)
    except msgspec.MsgspecError as exc:
        raise DatasetError(
            file, f"must be JSON with users, user_data and x and y of each user, got: {exc}", _FIX
        ) from exc
    if twice := [user for user, count in Counter(found.users).items() if count > 1]:
        raise DatasetError(file, f"users must differ, got {shortened(twice)} twice", _FIX)
    if odd := sorted(set(found.users) ^ set(found.user_data)):
        raise DatasetError(
            file,
            f"users and user_data must name the same users, got {shortened(odd)} in one alone",
            _FIX,
        )
    counts = found.num_samples
    if counts is not None and len(counts) != len(found.users):
        raise DatasetError(
            file, f"num_samples must have {len(found.users)} numbers, got {len(counts)}", _FIX
        )
    for place, user in enumerate(found.users):
        examples = found.user_data[user]
        sizes = {len(examples.x), len(examples.y), *([] if counts is None else [counts[place]])}
        if len(sizes) > 1:
            shown = "" if counts is None else f", and num_samples {counts[place]}"
            raise DatasetError(
                file,
                f"x and y of a user must be as many as num_samples, got {len(examples.x)} and "
                f"{len(examples.y)}{shown} for {shortened([user])}",
                "get the file again: it may be cut short",
            )
    return found.user_data


def _dataset(
    where: str,
    name: str,
    x: list[Any],
    y: list[Any],
    owner: NDArray[np.int64],
    folder: Path | None,
    text: TextConfig | None,
) -> Dataset:
    first, arrays = x[0], {"device": owner}
    if isinstance(first, list) and first and isinstance(first[0], list):
        return _sequences(where, name, x, y, owner)
    if isinstance(first, list) and len(first) > TWEET_FIELD and _all_texts(first):
        _check(where, x, lambda row: isinstance(row, list) and len(row) > TWEET_FIELD)
        x, text, first = [str(row[TWEET_FIELD]) for row in x], text or TWEET, first[TWEET_FIELD]
    if not isinstance(first, str):
        return _numbers(where, name, x, y, owner)
    _check(where, x, lambda row: isinstance(row, str))
    if first.lower().endswith(PICTURES):
        pixels = pixels_of(where, [_picture(where, folder, file) for file in x])
        return own_dataset(
            where, {"x": pixels, "y": _labels(where, y), **arrays}, name=name, fix=_FIX
        )
    if text is None and all(isinstance(label, str) and len(label) == 1 for label in y):
        return _next_character(where, name, x, y, owner)
    return dataset_of_texts(
        where, x, {"y": _labels(where, y), **arrays}, text or TextConfig(), "label", name=name
    )


def _all_texts(row: Iterable[Any]) -> bool:
    return all(isinstance(field, str) for field in row)


def _check(where: str, x: Sequence[Any], is_right: Any) -> None:
    """Check that all examples are of the kind of the first one."""
    wrong = next((k for k, row in enumerate(x) if not is_right(row)), None)
    if wrong is not None:
        raise DatasetError(
            where,
            f"x must be of one kind, got {type(x[wrong]).__name__} in example {wrong}, unlike the "
            "first one",
            _FIX,
        )


def _labels(where: str, y: list[Any]) -> NDArray[Any]:
    """Return labels, of which each may be a list of one."""
    found = [label[0] if isinstance(label, list) and len(label) == 1 else label for label in y]
    kind: type | tuple[type, ...] = str if isinstance(found[0], str) else (int, float)
    wrong = next((k for k, label in enumerate(found) if not isinstance(label, kind)), None)
    if wrong is not None:
        raise DatasetError(
            where,
            f"y must be numbers, or texts, got {type(found[wrong]).__name__} in example {wrong}",
            _FIX,
        )
    return np.array(found)


def _numbers(
    where: str, name: str, x: list[Any], y: list[Any], owner: NDArray[np.int64]
) -> Dataset:
    """Return examples of numbers, each a list of equal length."""
    try:
        rows = np.array(x, np.float32)
    except (ValueError, TypeError) as exc:
        raise DatasetError(
            where, "x must be lists of equally many numbers, got others", _FIX
        ) from exc
    notes = tuple[str, ...]()
    if rows.ndim == 2 and rows.shape[1] == np.prod(PICTURE):
        rows = rows.reshape(-1, *PICTURE)
        notes = ("784 numbers of an example are read as a picture of 28 x 28, as FEMNIST has",)
    arrays = {"x": rows, "y": _labels(where, y), "device": owner}
    return replace(own_dataset(where, arrays, name=name, fix=_FIX), notes=notes)


def _picture(where: str, folder: Path | None, file: str) -> Path:
    """Return the path of a picture, which must be below the folder of the JSON, or beside it."""
    if folder is not None and Path(file).name == file:
        for place in PLACES:
            if (path := folder / place / file).is_file():
                return path
    raise DatasetError(
        where,
        f"pictures of x must be in a folder images beside it, got none for {shortened([file])}",
        "put them there, all of one size",
    )


def _next_character(
    where: str, name: str, x: list[str], y: list[str], owner: NDArray[np.int64]
) -> Dataset:
    """Return texts of characters; class k is the k-th character, in their order."""
    length = max(map(len, x))
    if not min(map(len, x)):
        raise DatasetError(where, "x must be texts with a character, got an empty one", _FIX)
    preparation = TextPreparation(
        unit="characters",
        length=length,
        target="label",
        stride=length,
        vocabulary=tuple(sorted(set[str]().union(*x, y))),
    )
    check_memory(where, len(x) * length * np.dtype(np.int64).itemsize)
    encode = tokenizer(preparation)
    tokens = np.full((len(x), length), PADDING, np.int64)
    for row, each in enumerate(x):
        tokens[row, : len(each)] = encode(each)
    users = int(owner[-1]) + 1
    return Dataset(
        name=name,
        x=tokens,
        y=encode("".join(y)) - FIRST,
        classes=len(preparation.vocabulary),
        x_classes=preparation.x_classes,
        device_ids=owner,
        description=f"{len(x):,} texts of {length} characters and the next one, {users:,} users, "
        f"{preparation.x_classes} tokens",
        source=where,
        origin="own",
    )


def _sequences(
    where: str, name: str, x: list[Any], y: list[Any], owner: NDArray[np.int64]
) -> Dataset:
    """Return sequences of words with the next word of each; an example of LEAF has several."""
    try:
        targets = [label["target_tokens"] for label in y]
        rows = [sequence for comment in x for sequence in comment]
        nexts = [sequence for comment in targets for sequence in comment]
        lengths = {len(sequence) for sequence in (*rows, *nexts)}
        is_whole = [len(a) == len(b) for a, b in zip(x, targets, strict=True)]
        words = Counter(chain.from_iterable(rows))
    except (TypeError, KeyError) as exc:
        raise DatasetError(
            where, f"x must be sequences of words and y hold target_tokens, got: {exc!r}", _FIX
        ) from exc
    if len(lengths) != 1 or not all(is_whole):
        raise DatasetError(
            where,
            "sequences of x and target_tokens must be of one length and number, got others",
            _FIX,
        )
    (length,) = lengths
    check_memory(where, 2 * len(rows) * length * np.dtype(np.int64).itemsize)
    ranked = sorted((word for word in words if word != PAD), key=lambda word: (-words[word], word))
    places = {word: FIRST + k for k, word in enumerate(ranked[: MAX_WORDS - FIRST])}
    places[PAD] = PADDING
    tokens, found = (
        np.array([[places.get(word, UNKNOWN) for word in row] for row in part], np.int64)
        for part in (rows, nexts)
    )
    labels = np.where(found == PADDING, NO_LABEL, found)
    kept = (labels != NO_LABEL).any(axis=1)
    if not kept.any():
        raise DatasetError(where, "target_tokens must hold a word, got padding alone", _FIX)
    owners = np.repeat(owner, [len(comment) for comment in x])[kept]
    users = np.unique(owners, return_inverse=True)[1].astype(np.int64)
    n_tokens = FIRST + len(places) - 1
    return Dataset(
        name=name,
        x=tokens[kept],
        y=labels[kept],
        classes=n_tokens,
        x_classes=n_tokens,
        device_ids=users,
        description=f"{int(kept.sum()):,} sequences of {length} words and the next of each, "
        f"{int(users.max()) + 1:,} users, {n_tokens:,} tokens",
        source=where,
        origin="own",
        notes=(
            f"{len(words) - (PAD in words):,} different words, of which the {len(places) - 1:,} "
            "most frequent are tokens and the others token 1",
        ),
    )
