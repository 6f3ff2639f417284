"""Checks a pack against its manifest, and lists what this machine lacks for running it again."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairbed.testbed.experiment.datasets.loading import FOLDER_VARIABLE
from fairbed.testbed.inputs import product
from fairbed.testbed.packs.archive import PackReader, sha256_of
from fairbed.testbed.packs.manifest import (
    DATA,
    MANIFEST,
    LeftOut,
    Manifest,
    PackError,
    read_manifest,
)
from fairbed.testbed.provenance import packages


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found."""

    manifest: Manifest
    problems: list[str] = field(default_factory=list)
    """What is wrong with the pack."""
    notes: list[str] = field(default_factory=list)
    """What a run on this machine would lack, or have in another version."""


def check_archive(reader: PackReader, advance: Callable[[int], object]) -> Checked:
    """Return what is wrong with a pack; it is read to its end, and nothing is written.

    Raises:
        PackError: The archive itself is damaged.
    """
    for _, blocks in reader.files():
        for block in blocks:
            advance(len(block))
    manifest = reader.manifest
    return Checked(manifest, notes=[*_lacking(manifest, None)])


def check_folder(folder: Path) -> Checked:
    """Return what is wrong with an unpacked pack.

    Raises:
        PackError: The folder is none.
        OSError: A file cannot be read.
    """
    try:
        content = (folder / MANIFEST).read_bytes()
    except FileNotFoundError as exc:
        raise PackError(
            f"{folder}: must be the folder of a pack, got one without {MANIFEST}"
        ) from exc
    manifest = read_manifest(content, str(folder))
    problems = list[str]()
    for file in manifest.files:
        path = folder / file.place
        found = "none"
        if path.is_file():
            found = "its content" if sha256_of(path)[1] == file.sha256 else "another content"
        if found != "its content":
            problems.append(f"{path} must be the file of the pack, got {found}")
    return Checked(manifest, problems, [*_lacking(manifest, folder)])


def _lacking(manifest: Manifest, folder: Path | None) -> Iterator[str]:
    """Yield what differs on this machine, and what it lacks."""
    if (here := product()) != manifest.fairbed:
        yield f"Fairbed: {here} here, {manifest.fairbed} in the pack: numbers may differ"
    now = packages()
    for name, version in manifest.packages.items():
        found = now.get(name, "none")
        if found != version and name != "fairbed":
            yield f"{name}: {found} here, {version} in the pack: the last digits may differ"
    for name in manifest.installed:
        yield f"needs an installed part: {name}"
    for file in manifest.left_out:
        if (problem := _missing(file, folder)) is not None:
            yield problem


def _missing(file: LeftOut, folder: Path | None) -> str | None:
    """Return what is missing of a file that the pack has not; None if it is here."""
    places = [] if folder is None else [folder / file.place]
    root = os.environ.get(FOLDER_VARIABLE)
    if root and file.place.startswith(f"{DATA}/"):
        places.append(Path(root).expanduser() / file.place.removeprefix(f"{DATA}/"))
    found = "none"
    for path in places:
        if path.is_file():
            if sha256_of(path)[1] == file.sha256:
                return None
            found = "another content"
    where = f"{FOLDER_VARIABLE} or " if file.place.startswith(f"{DATA}/") else ""
    return (
        f"needs {file.place} in {where}the folder of the pack, {file.bytes:,} bytes, SHA-256 "
        f"{file.sha256[:16]}..., got {found}"
    )
