"""The inputs of a grid and the files that its cells read, by hash.

A process of its own sets the experiments up and notes each file that it opens, because an audit
hook cannot be removed again: `python -m fairbed.testbed.compare.needed_files`, with the experiments
as JSON on its standard input. A grid keys its cells by the inputs (`testbed.inputs`), looks for
edits of the files while it runs, and checks that each host of a cluster has the same ones.
"""

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import all_suffixes
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from fairbed import profiles
from fairbed.profiles.errors import ProfileError
from fairbed.profiles.quantities import DATA
from fairbed.testbed.compare.cell import CellOutcome, CellResult, remove_leftovers
from fairbed.testbed.compare.grid import Grid
from fairbed.testbed.compare.worker import CELL_ERRORS
from fairbed.testbed.errors import RunError
from fairbed.testbed.experiment.data import FOLDER_NAMES
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.datasets.loading import FOLDER_VARIABLE
from fairbed.testbed.experiment.file import Experiment, FleetConfig
from fairbed.testbed.experiment.fleet import check_fleet
from fairbed.testbed.experiment.shards import COLUMNS_LOG, load_examples
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.inputs import (
    FAIRBED,
    InputReader,
    Inputs,
    named_parts,
    own_sources,
    product,
    shown_path,
)
from fairbed.testbed.replay.setup import setup_of
from fairbed.wire.plugins import is_of_user, registered
from fairbed.wire.text import NotText, text_of

BLOCK_BYTES = 1 << 20

_OF_THE_SYSTEM = ("/dev/", "/etc/", "/proc/", "/sys/", "/usr/lib/", "/usr/share/")

_COMPILED = f"{os.sep}__pycache__{os.sep}"


class NeededFile(Struct, frozen=True, kw_only=True):
    """A file that a cell reads."""

    path: str
    """Absolute, or below the folder of data sets."""
    is_data: bool
    """Whether it is below the folder of data sets, `FAIRBED_DATA`, which each host sets."""
    sha256: str

    def here(self) -> str:
        """Return the path on this machine."""
        return os.path.join(_data_folder() or "", self.path) if self.is_data else self.path


class Needs(Struct, frozen=True, kw_only=True):
    """What one experiment reads."""

    inputs: dict[str, str]
    """Hash of each input, as the provenance of its runs has them, and of other opened files."""
    files: list[NeededFile] = []


@dataclass(frozen=True, slots=True)
class GridInputs:
    """What the arms of a grid read, before the first cell runs."""

    needs: Mapping[str, Needs]
    """By arm."""
    _stats: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def of_arm(self) -> dict[str, dict[str, str]]:
        """Hash of each input, by arm."""
        return {arm: needs.inputs for arm, needs in self.needs.items()}

    @property
    def files(self) -> list[NeededFile]:
        """The files that any arm reads."""
        return list({file.path: file for one in self.needs.values() for file in one.files}.values())

    def checked(self, result: CellResult, out: Path) -> CellResult:
        """Return the result of a cell; a failed one if a file that it reads has changed meanwhile.

        The run of such a cell is removed, because the content that it has read is unknown.
        """
        if result.outcome.was_done_before or result.outcome.problem:
            return result
        changed = next(filter(self._has_changed, self.needs[result.arm].files), None)
        if changed is None:
            return result
        remove_leftovers(out / result.folder)
        problem = f"{shown_path(changed.here())} has changed while the grid ran; run it again"
        return msgspec.structs.replace(result, outcome=CellOutcome(problem=problem))

    def _has_changed(self, file: NeededFile) -> bool:
        path = file.here()
        try:
            found = os.stat(path)
            stat = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
            if self._stats.get(path) != stat and _sha256(path) != file.sha256:
                return True
        except OSError:
            return True
        self._stats[path] = stat
        return False


def inputs_of_grid(grid: Grid) -> GridInputs:
    """Return what the arms of a grid read.

    Arms of which all parts ship read no file. Parts that this program registered are read in this
    process, all others in one of their own.

    Raises:
        RunError: That process failed.
    """
    found = {arm.name: Needs(inputs={FAIRBED: product()}) for arm in grid.arms}
    distinct: dict[bytes, Experiment] = {}
    arms: dict[bytes, list[str]] = {}
    for arm in grid.arms:
        experiment = arm.experiment
        if any(part.name in registered(part.group) for part in named_parts(experiment)):
            found[arm.name] = Needs(inputs=dict(_inputs(experiment, None).hashes))
        elif reads_files(experiment):
            key = _key(experiment)
            distinct.setdefault(key, experiment)
            arms.setdefault(key, []).append(arm.name)
    needs = dict(zip(distinct, needs_of(list(distinct.values())), strict=True))
    found |= {name: needs[key] for key, names in arms.items() for name in names}
    return GridInputs(found)


def reads_files(experiment: Experiment) -> bool:
    """Return whether the numbers depend on a file that does not ship with Fairbed."""
    data, replay = experiment.data, experiment.replay
    return (
        any(part.key != "data.source" for part in named_parts(experiment))
        or data.is_own
        or data.dataset in FOLDER_NAMES
        or (replay.costs_from != "shipped" and replay.task_costs is None)
        or any(map(_has_file, experiment.fleet))
        or any((cell.profile or "").endswith(".toml") for cell in experiment.cell)
    )


def _has_file(group: FleetConfig) -> bool:
    """Return whether a group of devices reads a file that does not ship."""
    names = [name for name in (group.profile, group.population, *group.links) if name]
    if group.trace or group.exchange_times or any(name.endswith(".toml") for name in names):
        return True
    with suppress(ProfileError, OSError, NotText):
        return any(f'"{DATA}' in text_of(profiles.find(name).read_bytes()) for name in names)
    return False


def needs_of(experiments: Sequence[Experiment]) -> list[Needs]:
    """Return what some experiments read, from a process that sets them up.

    Raises:
        RunError: The process failed.
    """
    if not experiments:
        return []
    done = subprocess.run(
        guarded([sys.executable, "-m", __spec__.name]),
        input=msgspec.json.encode(experiments),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise RunError(
            "the files that an experiment reads must be known, but the process that finds "
            f"them ended with exit status {done.returncode}; its output is above"
        )
    return msgspec.json.decode(done.stdout, type=list[Needs])


def first_missing(files: Sequence[NeededFile]) -> str | None:
    """Return the problem of the first file that this machine lacks; None if it has all."""
    for file in files:
        path = file.here()
        try:
            found = _sha256(path)
        except OSError:
            return f"{path} must be the file of this machine, got none; copy it there"
        if found != file.sha256:
            return f"{path} must be the file of this machine, got another content; copy it there"
    return None


def _key(experiment: Experiment) -> bytes:
    """Return all settings that name a file or a part."""
    parts = [(part.key, part.name) for part in named_parts(experiment)]
    selection, merge = experiment.selection, experiment.aggregation
    options = (
        selection.options,
        selection.estimator_options,
        merge.rule_options,
        merge.pseudo_gradient_options,
        merge.server_options,
        experiment.training.rule_options,
    )
    of_world = (experiment.data, experiment.model, experiment.fleet, experiment.cell)
    of_costs = (experiment.replay, experiment.exchange)
    return msgspec.json.encode((parts, options, of_world, of_costs), order="sorted")


def _data_folder() -> str | None:
    root = os.environ.get(FOLDER_VARIABLE)
    return None if not root else os.path.realpath(os.path.expanduser(root))


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _inputs(experiment: Experiment, dataset: Dataset | None) -> Inputs:
    """Return the inputs of an experiment; of one that no replay can set up, those of a live run."""
    with suppress(*CELL_ERRORS):  # the cell reports it
        return setup_of(experiment, dataset).inputs
    reader = InputReader(experiment)
    with reader.reading(), suppress(*CELL_ERRORS):
        check_fleet(experiment, os.environ)
    return reader.read(dataset)


def main() -> None:
    """Print what experiments read, as JSON."""
    logging.getLogger(COLUMNS_LOG).disabled = True
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a plug-in prints must not mix with the answer
    opened = set[str]()

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            mode = arguments[1]
            if not isinstance(mode, str) or not set(mode) & set("wax+"):
                opened.add(os.fsdecode(os.path.abspath(arguments[0])))
        elif event == "sqlite3.connect" and isinstance(arguments[0], str):
            opened.add(os.path.abspath(unquote(urlsplit(arguments[0]).path)))

    sys.addaudithook(note)
    found, of_data = list[tuple[dict[str, str], set[str]]](), dict[bytes, _Data]()
    experiments = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Experiment])
    others = dict[str, str]()
    for experiment in experiments:
        key = msgspec.json.encode((experiment.data, experiment.model.task, experiment.seeds))
        if key not in of_data:
            opened.clear()
            of_data[key] = _Data(_load(experiment, opened), set(opened))
        opened.clear()
        inputs = dict(_inputs(experiment, of_data[key].dataset).hashes)
        files = {*opened, *own_sources(experiment).paths.values()}
        others |= {} if not named_parts(experiment) else _others(experiment, opened, inputs)
        found.append((inputs, files | of_data[key].files))
    needs = [
        Needs(
            inputs=(others if named_parts(experiment) else {}) | inputs,
            files=_described(files),
        )
        for experiment, (inputs, files) in zip(experiments, found, strict=True)
    ]
    answer.write(msgspec.json.encode(needs))
    answer.close()


@dataclass(frozen=True, slots=True)
class _Data:
    dataset: Dataset | None
    """None if it cannot be loaded."""
    files: set[str]


def _load(experiment: Experiment, opened: set[str]) -> Dataset | None:
    data = experiment.data
    if data.is_table and data.source is not None:  # read by a library of C++
        path = Path(data.folder or "").expanduser() / Path(data.source).expanduser()
        opened.add(os.path.abspath(path))
    with suppress(*CELL_ERRORS):  # the cell reports it
        return load_examples(experiment, os.environ)
    return None


def _others(
    experiment: Experiment, opened: Iterable[str], inputs: Mapping[str, str]
) -> dict[str, str]:
    """Return files that parts have opened themselves, such as weights, by the name to show.

    The costs of a run count as numbers, not as files. Modules are among the sources; whether their
    import opens them depends on what Python has compiled before.
    """
    run = os.path.realpath(experiment.replay.costs_from) + os.sep
    data = (file for file in opened if not file.endswith(tuple(all_suffixes())))
    files = [file for file in _described(data) if not file.here().startswith(run)]
    named = {shown_path(file.here()): file.sha256 for file in files}
    return {name: sha for name, sha in named.items() if name not in inputs}


def _described(paths: Iterable[str]) -> list[NeededFile]:
    """Return existing files of the user, sorted."""
    found, data = dict[str, NeededFile](), _data_folder()
    cache = os.path.realpath(os.path.expanduser("~/.cache")) + os.sep
    for path in sorted(map(os.path.realpath, paths)):
        if path.startswith((*_OF_THE_SYSTEM, cache)) or _is_compiled(path):
            continue
        if not is_of_user(path) or not os.path.isfile(path):
            continue
        is_data = data is not None and path.startswith(data + os.sep)
        name = os.path.relpath(path, data) if is_data else path
        found[path] = NeededFile(path=name, is_data=is_data, sha256=_sha256(path))
    return list(found.values())


def _is_compiled(path: str) -> bool:
    """Whether Python wrote it from a module, which is a file of its own here."""
    elsewhere = sys.pycache_prefix  # of PYTHONPYCACHEPREFIX
    below = elsewhere is not None and path.startswith(os.path.realpath(elsewhere) + os.sep)
    return below or _COMPILED in path


if __name__ == "__main__":
    main()
