"""Folders of examples: texts, pictures, pictures with masks, or audio, and the files of a class."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from fairbed.device_agent.errors import DataError
from fairbed.wire.labels import label_key

Kind: TypeAlias = Literal["pictures", "masks", "audio", "text"]

IMAGES, MASKS = "images", "masks"
"""Folders of pictures and of their masks."""

SUFFIXES: Final[dict[Kind, tuple[str, ...]]] = {
    "pictures": (".png", ".jpg", ".jpeg"),
    "audio": (".wav",),
    "text": (".txt",),
}
"""Suffixes in lower case. Texts may have any, if the task is one of text."""

_SHOWN = 3
"""Most files in a line about files that are left out."""

_LAYOUT: Final[dict[Kind, str]] = {
    "pictures": "a folder must hold one folder per class, with .png or .jpg files",
    "audio": "a folder must hold one folder per class, with .wav files",
    "text": "a folder must hold texts, or one folder of texts per class",
}


class FolderError(DataError):
    """A folder of examples cannot be read.

    Attributes:
        where: The folder or file.
        problem: The broken rule and the value found.
        what_to_do: The next step of the user.
    """

    def __init__(self, where: object, problem: str, what_to_do: str) -> None:
        super().__init__(f"{where}: {problem}; {what_to_do}")
        self.where = str(where)
        self.problem = problem
        self.what_to_do = what_to_do


@dataclass(frozen=True, slots=True)
class ClassFiles:
    """The files of each class, both sorted by name."""

    classes: dict[str, list[Path]]
    notes: tuple[str, ...] = ()
    """Lines about files that are left out."""

    @property
    def pairs(self) -> list[tuple[Path, str]]:
        """Each file with the name of its class."""
        return [(path, label) for label, paths in self.classes.items() for path in paths]


def folder_kind(folder: Path) -> Kind:
    """Return what a folder has by its files; pictures also if it has nothing of the kinds.

    Raises:
        FolderError: It cannot be read.
    """
    inner = entries_of(folder, "pictures")
    if {IMAGES, MASKS} <= {entry.name for entry in inner if entry.is_dir()}:
        return "masks"
    deeper = [path for entry in inner if entry.is_dir() for path in sorted(_visible(entry))]
    for kind in ("pictures", "audio", "text"):
        found = deeper if kind != "text" else [*deeper, *inner]
        if any(is_of(path, kind) for path in found):
            return kind
    return "pictures"


def class_files(folder: Path, kind: Kind, min_classes: int) -> ClassFiles:
    """Return the files of each class: those of one folder of `folder`.

    Args:
        folder: Has a folder for each class; hidden files are left out without a line.
        kind: Of the files.
        min_classes: Least number of classes.

    Raises:
        FolderError: The folder has another layout.
    """
    entries = entries_of(folder, kind)
    named = [entry for entry in entries if entry.is_dir()]
    layout = _LAYOUT[kind]
    if len(named) < min_classes:
        raise FolderError(folder, f"{layout}, got {len(named)} folders", "check the path")
    _check_names(folder, [entry.name for entry in named])
    classes, others = dict[str, list[Path]](), list[Path]()
    for entry in named:
        inner = sorted(_visible(entry))
        found = [path for path in inner if is_of(path, kind, any_text=True)]
        if not found:
            thing = kind.removesuffix("s")
            raise FolderError(
                entry,
                f"{layout}, got no {thing} in this folder",
                f"add {kind} or remove the folder; name the folder whose folders are the classes",
            )
        for deeper in inner:
            if deeper.is_dir() and any(is_of(path, kind) for path in deeper.rglob("*")):
                raise FolderError(
                    deeper,
                    f"{layout}, got a folder with {kind} in a folder of a class",
                    f"move the {kind} up, or take the folder away",
                )
        others += [path for path in inner if path.is_file() and path not in found]
        classes[entry.name] = found
    beside = [entry for entry in entries if entry.is_file()]
    suffixes = " or ".join(SUFFIXES[kind])
    notes = [
        *left_out(folder, beside, "beside the folders of the classes"),
        *left_out(folder, others, f"without the suffix {suffixes}"),
    ]
    return ClassFiles(classes, tuple(notes))


def left_out(folder: Path, files: Iterable[Path], reason: str) -> Iterable[str]:
    """Yield the line about files that are left out; nothing without any."""
    names = [path.relative_to(folder).as_posix() for path in files]
    if names:
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        yield f"left out {len(names):,} file{'s' if len(names) > 1 else ''} {reason}: {shown}"


def is_of(path: Path, kind: Kind, *, any_text: bool = False) -> bool:
    """Return whether a path is a file of a kind; with `any_text` a text may have any suffix."""
    has_suffix = path.suffix.lower() in SUFFIXES[kind] or (kind == "text" and any_text)
    return has_suffix and path.is_file()


def entries_of(folder: Path, kind: Kind) -> list[Path]:
    """Return what a folder has, sorted by name, without hidden files and folders.

    Raises:
        FolderError: It cannot be read.
    """
    try:
        return sorted(_visible(folder))
    except FileNotFoundError as exc:
        raise FolderError(folder, "folder must exist, got none", "check the path") from exc
    except NotADirectoryError as exc:
        raise FolderError(
            folder,
            f"must be a folder of {kind}, got a file ending in {folder.suffix or 'nothing'}",
            "convert it to .npz, .csv, .parquet or .txt, or write a function that reads it",
        ) from exc
    except OSError as exc:
        raise FolderError(
            folder, f"must be readable, got: {exc.strerror or exc}", "check its permissions"
        ) from exc


def _visible(folder: Path) -> Iterable[Path]:
    return (entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _check_names(folder: Path, names: list[str]) -> None:
    """Refuse two folders of one class."""
    by_label: dict[str | int, str] = {}
    for name in names:
        other = by_label.setdefault(label_key(name), name)
        if other != name:
            raise FolderError(
                folder,
                f"folders must name each class once, got {other!r} and {name!r}",
                "put their files into one folder",
            )
