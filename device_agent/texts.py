"""Read texts: a file, or a folder of files by user or by class."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.folders import (
    FolderError,
    class_files,
    entries_of,
    is_of,
    left_out,
)
from fairbed.wire.preparation import TextTarget
from fairbed.wire.text import NotText, text_of


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts with their labels or users."""

    texts: list[str]
    files: list[Path]
    """Of each text."""
    target: TextTarget
    labels: NDArray[np.str_] | None = None
    """Name of the folder of each, shape (n,); None: they have no labels."""
    users: NDArray[np.str_] | None = None
    """User of each, shape (n,); None: there are none."""
    notes: tuple[str, ...] = ()
    """Lines about files that are left out."""


def read_texts(path: Path, target: TextTarget | None, *, min_classes: int = 1) -> Texts:
    """Return the texts of a file or folder.

    A folder of folders has texts of classes, each with texts or a folder for each user, unless
    `target` is not the label: then each folder has the texts of one user. In a folder of files,
    each file has the text of one user.

    Args:
        path: A file in UTF-8, or UTF-16 with a byte order mark, or a folder.
        target: label, next or x; None: label for a folder of folders, and next otherwise.
        min_classes: Least number of classes; a device may have texts of one.

    Raises:
        FolderError: A file cannot be read or is no text, or the folder has another layout.
    """
    if not path.is_dir():
        return Texts([read_text(path)], [path], _unlabelled(path, target))
    entries = entries_of(path, "text")
    if target == "label" or (target is None and any(entry.is_dir() for entry in entries)):
        found = class_files(path, "text", min_classes)
        files = [file for file, _ in found.pairs]
        labels = np.array([label for _, label in found.pairs])
        users = None if found.users is None else np.array(found.users)
        texts = [read_text(file) for file in files]
        return Texts(texts, files, "label", labels, users, found.notes)
    if any(entry.is_dir() for entry in entries):
        found = class_files(path, "text", 1, may_have_users=False)
        pairs, notes = found.pairs, found.notes
    else:
        chosen = [entry for entry in entries if is_of(entry, "text")] or entries
        if not chosen:
            raise FolderError(path, "a folder must hold texts, got none", "check the path")
        pairs = [(file, file.name) for file in chosen]
        others = [entry for entry in entries if entry not in chosen]
        notes = tuple(left_out(path, others, "without the suffix .txt"))
    files, users = [file for file, _ in pairs], np.array([user for _, user in pairs])
    texts = [read_text(file) for file in files]
    return Texts(texts, files, _unlabelled(path, target), users=users, notes=notes)


def _unlabelled(path: Path, target: TextTarget | None) -> TextTarget:
    if target == "label":
        raise FolderError(
            path, "texts with labels must be in a folder for each class, got a file", "set target"
        )
    return "next" if target is None else target


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        FolderError: It cannot be read, or is no text.
    """
    try:
        return text_of(path.read_bytes())
    except NotText as exc:
        problem, _, what_to_do = str(exc).rpartition("; ")
        raise FolderError(path, problem, what_to_do) from exc
    except FileNotFoundError as exc:
        raise FolderError(path, "file must exist, got none", "check data.source") from exc
    except OSError as exc:
        raise FolderError(
            path, f"must be readable, got: {exc.strerror or exc}", "check its path and permissions"
        ) from exc
