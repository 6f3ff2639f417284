"""The first member of a pack: what is in it, and what a machine needs besides it. Pure."""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

MANIFEST = "pack.json"
README = "README.md"
LOCK = "lock.txt"

FORMAT = 1
"""Version of the manifest and of the folders of a pack."""

WORK, DATA, SOURCES, EXPERIMENTS, RUN, GRID = (
    "work",
    "data",
    "sources",
    "experiments",
    "run",
    "grid",
)
"""The folders of a pack."""

_FOLDERS = frozenset({WORK, DATA, SOURCES, EXPERIMENTS, RUN, GRID})
_FILES = frozenset({README, LOCK, "report.html"})

MAX_PLACE_BYTES = 255
"""Longest place of a file: that of the header of a tar archive."""

_PART = re.compile(r"[^\x00-\x1f\x7f\\/:]+")


class PackError(Exception):
    """A pack cannot be written, read or used; the message is one line."""


class PackedFile(Struct, frozen=True, kw_only=True):
    """A file of a pack."""

    place: str
    """Its path below the folder of the pack, with `/`."""
    bytes: int
    sha256: str


class LeftOut(Struct, frozen=True, kw_only=True):
    """A file that the runs read and the pack has not."""

    place: str
    """Where it must be below the folder of the pack. Files of FAIRBED_DATA may be there."""
    bytes: int
    sha256: str
    reason: Literal["data", "pattern"]
    """data: a file below FAIRBED_DATA; pattern: left out by `--leave-out`."""


class PackedRun(Struct, frozen=True, kw_only=True):
    """A run of a pack."""

    folder: str
    """Its place."""
    experiment: str
    """Place of its experiment file, with paths as they are in the pack."""
    clock: str
    """real, or virtual for a replay."""
    status: str
    seed: int
    arm: str = ""
    """Of a grid."""


class Manifest(Struct, frozen=True, kw_only=True):
    """What is in a pack."""

    format: int
    fairbed: str
    """Version of Fairbed that wrote it, in a checkout with the hash of its source."""
    packed: str
    """Wall-clock instant, ISO 8601 in UTC; for display only."""
    kind: Literal["run", "grid"]
    name: str
    runs: list[PackedRun]
    files: list[PackedFile]
    left_out: list[LeftOut] = []
    paths: list[str] = []
    """Folders of the pack from which Python imports."""
    installed: list[str] = []
    """Parts of packages that must be installed: the key, and the name."""
    packages: dict[str, str] = {}
    """Versions of Python and of the packages that may change a result."""

    @property
    def bytes(self) -> int:
        """Size of all files, unpacked."""
        return sum(file.bytes for file in self.files)


def read_manifest(content: bytes, where: str) -> Manifest:
    """Return the manifest of a pack, after all checks that need no other file.

    Args:
        content: The JSON.
        where: The pack, for the message.

    Raises:
        PackError: It is no manifest, of another version, or has a place outside of the pack.
    """
    try:
        version = msgspec.json.decode(content, type=_Version).format
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise PackError(f"{where}: {MANIFEST} must be the manifest of a pack, got {exc}") from exc
    if version != FORMAT:
        raise PackError(
            f"{where}: must be a pack of format {FORMAT}, got format {version}; use the version of "
            "Fairbed that wrote it"
        )
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise PackError(f"{where}: {MANIFEST} must be the manifest of a pack, got {exc}") from exc
    files: list[PackedFile | LeftOut] = [*manifest.files, *manifest.left_out]
    places = [file.place for file in files]
    named = [*manifest.paths, *(run.folder for run in manifest.runs)]
    named += [run.experiment for run in manifest.runs]
    for place in (*places, *named):
        check_place(place, where)
    if (twice := _first_twice(places)) is not None:
        raise PackError(f"{where}: must have each file once, got {twice!r} twice")
    if any(file.bytes < 0 for file in files):
        raise PackError(f"{where}: {MANIFEST} must have sizes of at least 0, got a negative one")
    return manifest


class _Version(Struct):
    format: int


def _first_twice(places: Iterable[str]) -> str | None:
    seen = set[str]()
    for place in places:
        if place in seen:
            return place
        seen.add(place)
    return None


def check_place(place: str, where: str) -> None:
    """Check that a place is inside a pack, on every system.

    Raises:
        PackError: It is not, or it is too long or has other characters.
    """
    parts = place.split("/")
    is_known = parts[0] in _FOLDERS or place in _FILES
    is_inside = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    try:
        is_short = len(place.encode()) <= MAX_PLACE_BYTES
    except UnicodeEncodeError:
        is_short = False
    if not (is_known and is_inside and is_short):
        raise PackError(
            f"{where}: a place must be a path in {', '.join(sorted(_FOLDERS))}, of at most "
            f"{MAX_PLACE_BYTES} bytes, without '..', ':', '\\' and control characters, "
            f"got {place!r}"
        )
