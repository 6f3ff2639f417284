"""What the numbers of a run depend on besides its configuration, each with its hash.

| name | hash of |
|---|---|
| `fairbed` | its version; in a checkout of git also its source, without what only shows results |
| `cats.py`, `package/module.py` | a source file of a selector, rule, model, augmentation, ... |
| `mine.toml`, `data:traces/x.csv` | a profile, link, population, cell, trace or log of the fleet |
| `data NAME` | all examples and labels, before `max_examples`; not of generated data |
| `weights FILE` | the values before round 1, `model.weights` |
| `client NAME` | the folder with the training code of the user, its names and contents |
| `costs of MODEL from RUN` | the costs of local training that a replay took from a run |
| `cohorts from RUN` | the cohorts of another replay that this one has |

The table is the only one: a run stores these hashes in its provenance, a grid keys its cells by
them, and a comparison warns where its runs differ in one.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

import fairbed
from fairbed.coordinator.policy.config import OF_MODULE
from fairbed.coordinator.policy.plugins import (
    ESTIMATOR,
    LOCAL_RULE,
    PSEUDO_GRADIENT,
    RULE,
    SELECTOR,
    SERVER_STEP,
)
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.coordinator.task.recipes import MODEL_NAMES
from fairbed.device_agent.installed import agent_version
from fairbed.profiles.reads import noted
from fairbed.testbed.experiment.data import GROUP as DATA_GROUP
from fairbed.testbed.experiment.data import NAMES
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.datasets.loading import FOLDER_VARIABLE
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.sources import Sources, sources_of
from fairbed.wire.models import GROUP as MODEL_GROUP
from fairbed.wire.models import package_of
from fairbed.wire.plugins import Registered, installed, is_path

FAIRBED: Final = "fairbed"
"""Name of Fairbed itself among the inputs."""

CLIENT: Final = "client "
"""Begins the name of the code of a client."""

HASH_DIGITS = 8
"""Digits of the hash of a source in the name of a version of Fairbed."""

PACKAGES = ("coordinator", "device_agent", "profiles", "testbed", "wire")
SUFFIXES = (".py", ".toml", ".task")
"""Files of Fairbed that may change a result."""

READERS = (
    "coordinator/report",
    "coordinator/tui",
    "testbed/api",
    "testbed/cli",
    "testbed/compare",
    "testbed/core_stability",
    "testbed/metrics",
    "testbed/notify",
    "testbed/packs",
    "testbed/reproduction",
    "testbed/web",
)
"""Folders that start runs or show their results, and change no number in a store."""


@dataclass(frozen=True, slots=True)
class NamedPart:
    """A part that an experiment names, and that may be the user's."""

    key: str
    """Key of the experiment."""
    group: str
    """Its group of entry points."""
    name: str
    built_in: tuple[str, ...]


def named_parts(experiment: Experiment) -> list[NamedPart]:
    """Return the parts of an experiment that are not built in."""
    selection, merge = experiment.selection, experiment.aggregation
    kinds = {
        SELECTOR: selection.policy,
        ESTIMATOR: selection.estimator,
        RULE: merge.rule,
        PSEUDO_GRADIENT: merge.pseudo_gradient,
        SERVER_STEP: merge.server,
        LOCAL_RULE: experiment.training.rule,
    }
    found = [NamedPart(kind.key, kind.group, name, kind.built_in) for kind, name in kinds.items()]
    found.append(NamedPart("model.name", MODEL_GROUP, experiment.model.name, MODEL_NAMES))
    for path in experiment.training.own_augmentations:
        found.append(NamedPart("training.augment", "", path, ()))
    found.append(NamedPart("data.source", DATA_GROUP, experiment.data.name, NAMES))
    return [part for part in found if part.name not in part.built_in]


def own_sources(experiment: Experiment) -> Sources:
    """Return the source files of all parts of an experiment that are not built in."""
    modules, factories = list[str](), []
    named = (experiment.model.loss, *experiment.evaluation.metrics)
    modules += [package_of(name) for name in named if is_path(name)]
    for part in named_parts(experiment):
        if part.group == DATA_GROUP and not experiment.data.is_function:
            continue
        if is_path(part.name):
            modules.append(package_of(part.name))
        elif (found := installed(part.group).get(part.name)) is not None:
            if isinstance(found, Registered):
                factories.append(found.factory)
            else:
                modules.append(found.module)
    if not modules and not factories:
        return Sources({}, {})
    return sources_of(modules, factories)


@cache
def product() -> str:
    """Return the version of Fairbed, in a checkout with the hash of its source."""
    number = agent_version()
    package = Path(next(iter(fairbed.__path__)))
    root = package.resolve().parent
    if not os.path.exists(root / ".git"):
        return number
    digest = hashlib.sha256()
    for path in sorted(_product_files(str(root))):
        digest.update(f"{path.replace(os.sep, '/')}\0".encode())
        with open(os.path.join(root, path), "rb", buffering=0) as file:
            digest.update(file.readall())
    return f"{number} (source {digest.hexdigest()[:HASH_DIGITS]})"


def _product_files(root: str) -> Iterator[str]:
    """Yield the paths below a root; as text, because a start waits for them."""
    folders, shown = list(PACKAGES), {os.path.normpath(name) for name in READERS}
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                if entry.name.endswith(SUFFIXES):
                    yield path
                elif entry.is_dir(follow_symlinks=False) and path not in shown:
                    folders.append(path)


def shown_path(path: str) -> str:
    """Return a path below the data folder or the working directory relative to it."""
    root = os.environ.get(FOLDER_VARIABLE)
    places = [("", os.getcwd())]
    places += [("data:", os.path.expanduser(root))] if root else []
    for prefix, folder in places:
        below = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
        if not below.startswith(os.pardir):
            return prefix + Path(below).as_posix()
    return path


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a run."""

    hashes: Mapping[str, str] = field(default_factory=dict)
    """Hash by name."""
    stale: tuple[str, ...] = ()
    """Source files that have changed since this process imported them: the run has the former
    version, whose hash this is."""


_loaded: Final[dict[str, str]] = {}
"""SHA-256 of each source file when this process first read it for a run."""


class InputReader:
    """Hashes what a run reads. Make it before a part is imported, and read within `reading`.

    Args:
        experiment: The experiment.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._before = own_sources(experiment)
        self._stale = set[str]()
        self._sources = {name: self._of(name, sha) for name, sha in self._before.files.items()}
        self._files = dict[str, str]()

    def _of(self, name: str, now: str) -> str:
        """Return the hash of a source as this process has it, or will import it."""
        path = self._before.paths.get(name)
        if path is None:
            return now
        imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        if path not in imported or name in self._reloaded():
            _loaded[path] = now
        before = _loaded.setdefault(path, now)
        if before != now:
            self._stale.add(name)
        return before

    def _reloaded(self) -> set[str]:
        """Return the sources that `wire.models` imports again when they have changed."""
        model, metrics = self._experiment.model, self._experiment.evaluation.metrics
        named = (model.name, *(x for x in (model.loss, *metrics) if is_path(x)))
        return {f"{package_of(name).replace('.', '/')}.py" for name in named}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Note the files of the fleet that are read while the context lasts."""
        with noted() as files:
            yield
        self._files |= {shown_path(path): sha for path, sha in files.items()}

    def read(self, dataset: Dataset | None, resolved: Experiment | None = None) -> Inputs:
        """Return the inputs, after the parts have been imported.

        Args:
            dataset: The data; None without.
            resolved: The experiment with the costs of training that a replay takes.

        Raises:
            ExperimentError: A source file has changed meanwhile.
        """
        after = own_sources(self._experiment).files
        if changed := differing(self._before.files, after):
            raise ExperimentError(
                f"{changed[0]}: must not change while a run begins, got another content; run the "
                "same command again"
            )
        hashes = {FAIRBED: product(), **self._sources, **dict(sorted(self._files.items()))}
        if dataset is not None and self._experiment.data.dataset != "synthetic":
            hashes[f"data {self._experiment.data.name}"] = dataset.whole_sha256 or dataset.sha256
        if (client := self._experiment.training.client) is not None:
            from fairbed.wire.client_folder import folder_sha256

            folder = Path(self._experiment.training.client_folder or "").absolute()
            hashes[f"{CLIENT}{client}"] = folder_sha256(folder).hex()
        if (weights := self._experiment.model.weights) not in (None, OF_MODULE):
            file = str(Path(str(weights)).expanduser())
            hashes[f"weights {shown_path(file)}"] = _file_sha256(file)
        if resolved is not None:
            hashes |= _costs(resolved) | _cohorts(resolved)
        return Inputs(hashes, tuple(sorted(self._stale)))


def _file_sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _costs(experiment: Experiment) -> dict[str, str]:
    replay = experiment.replay
    if replay.costs_from == "shipped" or replay.task_costs is None:
        return {}
    digest = hashlib.sha256(msgspec.json.encode(replay.task_costs, order="sorted")).hexdigest()
    name = experiment.training.client or experiment.model.name
    return {f"costs of {name} from {replay.costs_from}": digest}


def _cohorts(experiment: Experiment) -> dict[str, str]:
    folder = experiment.replay.cohorts_from
    if folder is None:
        return {}
    with RunReader(Path(folder)) as reader:
        cohorts = sorted(reader.columns(ExchangeRow, ("round", "device")))
    return {f"cohorts from {folder}": hashlib.sha256(msgspec.json.encode(cohorts)).hexdigest()}


def code_of_client(hashes: Mapping[str, str]) -> str | None:
    """Return the hash of the code of the client; None without one."""
    return next((sha for name, sha in hashes.items() if name.startswith(CLIENT)), None)


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names whose hash differs, or that only one of them has."""
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def in_words(names: Iterable[str], most: int = 3) -> str:
    """Return the first names of a list, and the number of the others."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"{', '.join(listed[:most])}{more}"
