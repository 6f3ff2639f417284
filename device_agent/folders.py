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

_PARTS: Final = {"train", "training", "test", "testing", "val", "valid", "validation", "dev"}
"""Names of folders, in lower case, that are parts of a data set and no classes."""

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
    """Lines about users, and files that are left out."""
    has_users: bool = False
    """Each file is in the folder of a user, in that of the class."""

    @property
    def pairs(self) -> list[tuple[Path, str]]:
        """Each file with the name of its class."""
        return [(path, label) for label, paths in self.classes.items() for path in paths]

    @property
    def users(self) -> list[str] | None:
        """User of each of the pairs; None: there are none."""
        return [path.parent.name for path, _ in self.pairs] if self.has_users else None


def folder_kind(folder: Path) -> Kind:
    """Return what a folder has by its files; pictures also if it has nothing of the kinds.

    Raises:
        FolderError: It cannot be read.
    """
    inner = entries_of(folder, "pictures")
    if {IMAGES, MASKS} <= {entry.name for entry in inner if entry.is_dir()}:
        return "masks"
    deeper = _inside(inner)
    deeper += _inside(deeper)
    for kind in ("pictures", "audio", "text"):
        found = deeper if kind != "text" else [*deeper, *inner]
        if any(is_of(path, kind) for path in found):
            return kind
    return "pictures"


def class_files(
    folder: Path, kind: Kind, min_classes: int, *, may_have_users: bool = True
) -> ClassFiles:
    """Return the files of each class: those of one folder of `folder`.

    All folders of classes may have a folder for each user instead of files.

    Args:
        folder: Has a folder for each class; hidden files are left out without a line.
        kind: Of the files.
        min_classes: Least number of classes.
        may_have_users: Accept folders of users.

    Raises:
        FolderError: The folder has another layout.
    """
    entries = entries_of(folder, kind)
    named = [entry for entry in entries if entry.is_dir()]
    layout = _LAYOUT[kind]
    if len(named) < min_classes:
        raise FolderError(folder, f"{layout}, got {len(named)} folders", "check the path")
    _check_names(folder, [entry.name for entry in named])
    classes, others, of_users = dict[str, list[Path]](), list[Path](), list[bool]()
    for entry in named:
        inner = sorted(_visible(entry))
        found = [path for path in inner if is_of(path, kind, any_text=True)]
        in_users = _inside(inner)
        of_user = [path for path in in_users if is_of(path, kind, any_text=not found)]
        if may_have_users and of_user:
            _check_users(entry, kind, found, of_user)
            inner, found = [*inner, *in_users], of_user
        elif not found:
            thing = kind.removesuffix("s")
            raise FolderError(
                entry,
                f"{layout}, got no {thing} in this folder",
                f"add {kind} or remove the folder; name the folder whose folders are the classes",
            )
        of_users.append(found is of_user)
        for deeper in in_users if found is of_user else inner:
            if deeper.is_dir() and any(is_of(path, kind) for path in deeper.rglob("*")):
                raise FolderError(
                    deeper,
                    f"{layout}, got a folder with {kind} in a folder of a "
                    f"{'user' if found is of_user else 'class'}",
                    f"move the {kind} up, or take the folder away",
                )
        others += [path for path in inner if path.is_file() and path not in found]
        classes[entry.name] = found
    if any(of_users) and not all(of_users):
        lacks = named[of_users.index(False)]
        raise FolderError(
            lacks,
            f"all folders of classes must have a folder for each user, or none, got {kind} here "
            f"and folders in {named[of_users.index(True)].name}",
            f"move the {kind} into the folders of their users",
        )
    _check_splits(folder, named, has_users=any(of_users))
    beside = [entry for entry in entries if entry.is_file()]
    suffixes = " or ".join(SUFFIXES[kind])
    notes = [
        *left_out(folder, beside, "beside the folders of the classes"),
        *left_out(folder, others, f"without the suffix {suffixes}"),
    ]
    return ClassFiles(classes, tuple(notes), any(of_users))


def _check_users(entry: Path, kind: Kind, files: list[Path], of_user: list[Path]) -> None:
    """Refuse a class that has files beside the folders of users."""
    if files:
        raise FolderError(
            entry,
            f"the folder of a class must have {kind}, or a folder for each user, got "
            f"{files[0].name} and {of_user[0].relative_to(entry).as_posix()}",
            f"move the {kind} into the folders of their users, or all up",
        )


def _check_splits(folder: Path, named: list[Path], *, has_users: bool) -> None:
    """Refuse parts of a data set, whose folders of classes look like those of users."""
    if has_users and {entry.name.lower() for entry in named} <= _PARTS:
        raise FolderError(
            folder,
            f"{', '.join(entry.name for entry in named)}: must be classes, whose folders are "
            "users, got names of parts of a data set",
            "name the folder whose folders are the classes, or rename them",
        )


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


def _inside(entries: Iterable[Path]) -> list[Path]:
    """Return what the folders among `entries` have, sorted by name."""
    return [path for entry in entries if entry.is_dir() for path in sorted(_visible(entry))]


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
