"""What belongs into a pack: a run or a grid, and the files that it reads, each with its place.

The working directory becomes `work/`, the folder FAIRBED_DATA `data/`, what else an experiment
names by its path `work/outside/`, and sources from elsewhere `sources/`. Experiments name the
places in copies, `experiments/`, where their own paths would not lead there.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from fairbed.coordinator.store import Provenance, RunReader
from fairbed.coordinator.store.connection import CONFIG, DATABASE
from fairbed.coordinator.store.model_files import FOLDER as MODELS
from fairbed.testbed.compare.folder import MANIFEST as GRID_MANIFEST
from fairbed.testbed.compare.folder import REPLACED
from fairbed.testbed.compare.grid import RUNS
from fairbed.testbed.compare.needed_files import Needs, needs_of, reads_files
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.experiment.task_file import TASK
from fairbed.testbed.inputs import FAIRBED, named_parts, own_sources, product
from fairbed.testbed.packs.archive import sha256_of
from fairbed.testbed.packs.manifest import (
    DATA,
    EXPERIMENTS,
    FORMAT,
    GRID,
    LOCK,
    README,
    RUN,
    SOURCES,
    WORK,
    LeftOut,
    Manifest,
    PackedFile,
    PackedRun,
    PackError,
    check_place,
)
from fairbed.testbed.packs.readme import readme
from fairbed.testbed.provenance import packages
from fairbed.testbed.run_folder import WORK as COSTS
from fairbed.wire.client_folder import files_of
from fairbed.wire.plugins import is_path, registered

OUTSIDE = "outside"
"""Folder of files from outside of the working directory, below `work/`."""

STORED = frozenset({DATABASE, CONFIG, TASK, COSTS})
"""Files of a run that are packed, besides its models: no logs, no login of a broker."""

UNCOMPARED = ("costs of ", "cohorts from ")
"""Begins of inputs that are numbers in the experiment, or another run of the pack."""


@dataclass(slots=True)
class Contents:
    """A pack before it is written."""

    manifest: Manifest
    sources: dict[str, "Path | bytes"]
    """File or content of each place."""
    notes: list[str] = field(default_factory=list)
    """What the user should know."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """A run that is packed."""

    folder: Path
    place: str
    experiment: Experiment
    clock: str
    status: str
    inputs: Mapping[str, str]
    arm: str = ""


@dataclass(slots=True)
class _Places:
    """Where the files of this machine are in the pack."""

    cwd: str
    data: str | None
    """Folder of FAIRBED_DATA; None without."""
    own: dict[str, str]
    """Place of folders of this machine that have one: the run or the grid."""
    outside: dict[str, str] = field(default_factory=dict)

    def of(self, path: str) -> str:
        """Return the place of a file or folder.

        Raises:
            PackError: It has none, because no experiment names it.
        """
        real = os.path.realpath(path)
        roots = self.own | self.outside
        roots |= {} if self.data is None else {self.data: DATA}
        roots[self.cwd] = WORK
        for root in sorted(roots, key=len, reverse=True):
            if real == root or real.startswith(root.rstrip(os.sep) + os.sep):
                below = os.path.relpath(real, root)
                return roots[root] if below == "." else f"{roots[root]}/{_posix(below)}"
        raise PackError(
            f"{path}: a file that the run reads must be below the folder in which you pack, "
            f"{self.cwd}, or FAIRBED_DATA, or be named in the experiment, got another one; pack "
            "in the folder from which you have run it, or copy the file there and run again"
        )

    def name(self, path: str) -> None:
        """Give what an experiment names outside of all folders a place."""
        real = os.path.realpath(path)
        try:
            self.of(real)
        except PackError:
            mark = sha256(os.fsencode(real)).hexdigest()[:8]
            self.outside[real] = f"{WORK}/{OUTSIDE}/{mark}/{os.path.basename(real)}"


def _posix(path: str) -> str:
    return path.replace(os.sep, "/")


def contents_of(
    what: Path, *, with_data: bool = False, leave_out: Sequence[str] = (), report: bytes = b""
) -> Contents:
    """Return what a pack of a finished run or grid has.

    Args:
        what: Folder of the run or the grid.
        with_data: Add the files below FAIRBED_DATA.
        leave_out: Patterns of places that are left out.
        report: The page of the run; empty without one.

    Raises:
        PackError: A run is live, has read a file that is another one now, or reads one that no
            place can be given.
        StoreError: A run cannot be read.
        ExperimentError: An experiment cannot be read.
        RunError: The process that finds the files failed.
    """
    is_grid = (what / GRID_MANIFEST).exists()
    top = GRID if is_grid else RUN
    subjects = list(_subjects(what, top))
    data = os.environ.get("FAIRBED_DATA")
    places = _Places(
        cwd=os.path.realpath(os.getcwd()),
        data=None if not data else os.path.realpath(os.path.expanduser(data)),
        own={os.path.realpath(what): top},
    )
    pack = Contents(_empty(what, is_grid), {})
    distinct = {_key(one.experiment): one.experiment for one in subjects}
    needs = dict(zip(distinct, needs_of_all(list(distinct.values())), strict=True))
    for one in subjects:
        _check_inputs(one, needs[_key(one.experiment)])
    roots, installed, needed = dict[str, None](), dict[str, None](), dict[str, str]()
    documents = {key: _document(experiment) for key, experiment in distinct.items()}
    for key, experiment in distinct.items():
        sources = _sources(experiment, places, roots)
        pack.sources |= sources
        installed |= dict.fromkeys(_installed(experiment))
        for path in _paths_in(documents[key]):
            places.name(path)
        modules = {os.path.realpath(str(path)) for path in sources.values()}
        for read in needs[key].files:
            if os.path.realpath(read.here()) not in modules:
                needed[read.here()] = read.sha256
        needed |= dict.fromkeys(_client_files(experiment), "")
    left_out = list[LeftOut]()
    for path in needed:
        place = places.of(path)
        if place.startswith(f"{top}/"):
            continue
        if place.startswith(f"{DATA}/") and not with_data:
            size, digest = sha256_of(Path(path))
            left_out.append(LeftOut(place=place, bytes=size, sha256=digest, reason="data"))
        else:
            pack.sources[place] = Path(path)
    pack.sources |= _stored(what, top, subjects)
    runs = list[PackedRun]()
    for one in subjects:
        file = f"{one.place}/{CONFIG}"
        document = documents[_key(one.experiment)] | {"seed": one.experiment.seed}
        moved = _moved(document, places)
        if moved != document:
            file = f"{EXPERIMENTS}/{one.place}.toml"
            pack.sources[file] = msgspec.toml.encode(moved)
        runs.append(
            PackedRun(
                folder=one.place,
                experiment=file,
                clock=one.clock,
                status=one.status,
                seed=one.experiment.seed,
                arm=one.arm,
            )
        )
    if report:
        pack.sources["report.html"] = report
    pack.sources[LOCK] = "".join(f"{line}\n" for line in _lock()).encode()
    versions = sorted({one.inputs.get(FAIRBED, "unknown") for one in subjects} - {product()})
    if versions:
        pack.notes.append(
            f"the runs are of Fairbed {', '.join(versions)}, and this is {product()}: numbers may "
            "differ between versions"
        )
    _describe(pack, runs, left_out, leave_out, list(roots), list(installed))
    return pack


def _describe(
    pack: Contents,
    runs: list[PackedRun],
    left_out: list[LeftOut],
    patterns: Sequence[str],
    roots: list[str],
    installed: list[str],
) -> None:
    """Complete a pack by its manifest and its page."""
    files = list[PackedFile]()
    for place in sorted(pack.sources):
        check_place(place, "pack")
        size, digest = sha256_of(pack.sources[place])
        if any(fnmatchcase(place, pattern) for pattern in patterns):
            left_out.append(LeftOut(place=place, bytes=size, sha256=digest, reason="pattern"))
            del pack.sources[place]
        else:
            files.append(PackedFile(place=place, bytes=size, sha256=digest))
    for pattern in patterns:
        if not any(fnmatchcase(one.place, pattern) for one in left_out):
            raise PackError(
                f"--leave-out {pattern}: must be like the place of a file, got none; places are "
                f"paths such as {files[0].place}"
            )
    manifest = msgspec.structs.replace(
        pack.manifest,
        runs=runs,
        files=files,
        left_out=sorted(left_out, key=lambda one: one.place),
        paths=roots,
        installed=installed,
    )
    page = readme(manifest).encode()
    pack.sources[README] = page
    size, digest = sha256_of(page)
    of_page = PackedFile(place=README, bytes=size, sha256=digest)
    pack.manifest = msgspec.structs.replace(manifest, files=[of_page, *files])


def _empty(what: Path, is_grid: bool) -> Manifest:
    return Manifest(
        format=FORMAT,
        fairbed=product(),
        packed=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        kind="grid" if is_grid else "run",
        name=what.resolve().name,
        runs=[],
        files=[],
        packages=packages(),
    )


def _subjects(what: Path, top: str) -> Iterator[_Subject]:
    """Yield the runs of a folder.

    Raises:
        PackError: There is none, or one is live.
    """
    folders = [what]
    if top == GRID:
        folders = sorted(path.parent for path in (what / RUNS).glob(f"*/*/{DATABASE}"))
        if not folders:
            raise PackError(f"{what}: must be a grid with runs, got none; run it first")
    for folder in folders:
        with RunReader(folder) as reader:
            info = reader.run()
        if info.is_alive:
            raise PackError(f"{folder}: must be a finished run, got a live one; stop it first")
        place = top if folder == what else f"{top}/{_posix(os.path.relpath(folder, what))}"
        yield _Subject(
            folder=folder,
            place=place,
            experiment=load_experiment(folder / CONFIG),
            clock=info.row.clock,
            status=info.status,
            inputs=msgspec.json.decode(info.row.provenance, type=Provenance).inputs,
            arm="" if folder == what else folder.parent.name,
        )


def _key(experiment: Experiment) -> bytes:
    """Return what is equal for experiments that read the same files: all but the seed."""
    return msgspec.json.encode(msgspec.structs.replace(experiment, seed=0), order="sorted")


def needs_of_all(experiments: Sequence[Experiment]) -> list[Needs]:
    """Return what experiments read; nothing for those that read no file."""
    reading = [one for one in experiments if reads_files(one)]
    found = iter(needs_of(reading) if reading else [])
    nothing = Needs(inputs={})
    return [next(found) if reads_files(one) else nothing for one in experiments]


def _check_inputs(run: _Subject, needs: Needs) -> None:
    """Check that the files here are those that a run has read.

    Raises:
        PackError: One is another file now, or is not found.
    """
    for name, digest in run.inputs.items():
        if name == FAIRBED or name.startswith(UNCOMPARED) or not needs.inputs:
            continue
        now = needs.inputs.get(name)
        if now != digest:
            raise PackError(
                f"{run.folder}: {name} must be as the run has read it, got "
                f"{'none' if now is None else 'another content'}; restore it, or pack in the "
                "folder from which you have run it"
            )


def _sources(
    experiment: Experiment, places: _Places, roots: dict[str, None]
) -> dict[str, "Path | bytes"]:
    """Return the sources of an experiment by place, and note the folders that Python searches."""
    found = dict[str, Path | bytes]()
    sources = own_sources(experiment)
    for name in sources.files:
        if name not in sources.paths:
            raise PackError(
                f"{name}: a part must be in a file, got one that a program has registered; write "
                "it into a module, and name it as module:Name"
            )
    for name, path in sources.paths.items():
        root = os.path.realpath(path)[: -len(name)].rstrip(os.sep)
        below = os.path.relpath(root, places.cwd)
        if os.path.realpath(path).endswith(f"{os.sep}{name}") and not below.startswith(os.pardir):
            folder = WORK if below == "." else f"{WORK}/{_posix(below)}"
        else:
            folder = SOURCES
        roots[folder] = None
        found[f"{folder}/{_posix(name)}"] = Path(path)
    return found


def _installed(experiment: Experiment) -> Iterator[str]:
    for part in named_parts(experiment):
        if part.group and not is_path(part.name) and part.key != "data.source":
            if part.name in registered(part.group):
                raise PackError(
                    f"{part.key}: must be a module:Name or an installed part, got {part.name!r}, "
                    "which a program has registered"
                )
            yield f"{part.key} = {part.name}"


def _client_files(experiment: Experiment) -> Iterator[str]:
    folder = experiment.training.client_folder
    if folder is not None:
        yield from (str(Path(folder, path)) for path in files_of(Path(folder)))


def _document(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as its file has it, without tables of rooms: they send messages."""
    text = experiment.without_rooms.resolved_toml()
    document: dict[str, Any] = msgspec.toml.decode(text)
    return document


def _paths_in(value: object) -> Iterator[str]:
    """Yield the texts of a document that name a file or a folder of this machine."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _paths_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _paths_in(each)
    elif isinstance(value, str) and _is_moving(value):
        yield os.path.expanduser(value)


def _is_moving(text: str) -> bool:
    """Whether a text is a path that may lead elsewhere from another folder; a name is none."""
    path = os.path.expanduser(text)
    return os.sep in path and "\0" not in path and os.path.exists(path)


def _moved(value: Any, places: _Places) -> Any:
    """Return a document with the places of the pack, relative to `work/`."""
    if isinstance(value, Mapping):
        return {key: _moved(each, places) for key, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, places) for each in value]
    if isinstance(value, str) and _is_moving(value):
        return _posix(os.path.relpath(places.of(os.path.expanduser(value)), WORK))
    return value


def _stored(what: Path, top: str, subjects: Sequence[_Subject]) -> dict[str, "Path | bytes"]:
    """Return the files of the runs, and those of their grid."""
    found = dict[str, Path | bytes]()
    for one in subjects:
        models = (path for path in (one.folder / MODELS).glob("*") if path.suffix != ".partial")
        stored = (path for name in STORED if (path := one.folder / name).is_file())
        for path in (*stored, *models):
            found[f"{one.place}/{_posix(os.path.relpath(path, one.folder))}"] = path
    if top == GRID:
        for folder, folders, names in os.walk(what):
            below = os.path.relpath(folder, what)
            if below == ".":
                folders[:] = [name for name in folders if name not in (RUNS, REPLACED)]
            for name in names:
                path = Path(folder, name)
                if name not in ("lock",) and path.suffix != ".new" and path.is_file():
                    found[f"{top}/{_posix(os.path.relpath(path, what))}"] = path
    return found


def _lock() -> list[str]:
    """Return the installed packages, as `pip freeze` without addresses."""
    found = {f"{one.metadata['Name']}=={one.version}" for one in distributions()}
    return sorted(found, key=str.lower)
