"""Find the data sets that this machine has, by reading their files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairbed.testbed.experiment.data import FOLDER_NAMES, GROUP, NAMES, DataConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError, Origin
from fairbed.testbed.experiment.datasets.features import Feature
from fairbed.testbed.experiment.datasets.loading import folder_of, load
from fairbed.testbed.experiment.datasets.published_files import check_folder, find
from fairbed.testbed.experiment.published import PUBLISHED, Published, how_to_get
from fairbed.wire.artifact import TaskKind
from fairbed.wire.labels import listed
from fairbed.wire.plugins import Registered, installed
from fairbed.wire.preparation import NO_LABEL, PADDING, UNKNOWN, TextPreparation

ANY_SEED = 0
"""Whether data are available does not depend on the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """The tokens of x. Token 0 counts as padding, which text has at its end."""

    vocabulary: int
    """Number of tokens that may occur."""
    occurring: int
    """Number of tokens that occur, padding aside."""
    shortest: int
    """Fewest tokens of an example without padding; likewise the next two."""
    median: float
    longest: int
    padding_ratio: float
    """Share of padding in x."""
    unknown_ratio: float | None
    """Share of the unknown token in the others; None if x are arrays, or bytes."""
    units: str = ""
    """The first and the last characters, or the most and the least frequent words, of the
    vocabulary; empty if x are arrays, or bytes."""

    @classmethod
    def of(cls, data: Dataset) -> "TokenStats":
        """Return the statistics of a data set of tokens."""
        x = data.x.reshape(data.n, -1)
        lengths, n_tokens = np.count_nonzero(x, axis=1), int(np.count_nonzero(x))
        how = data.preparation
        has_unknown = isinstance(how, TextPreparation) and how.unit != "bytes"
        unknown = int((x == UNKNOWN).sum())
        return cls(
            vocabulary=data.x_classes,
            occurring=len(np.unique(x[x != PADDING])),
            shortest=int(lengths.min()),
            median=float(np.median(lengths)),
            longest=int(lengths.max()),
            padding_ratio=1 - n_tokens / x.size,
            unknown_ratio=unknown / max(1, n_tokens) if has_unknown else None,
            units=listed(how.vocabulary) if isinstance(how, TextPreparation) else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionStats:
    """The positions of y, where an example has several targets."""

    shape: tuple[int, ...]
    labelled_ratio: float
    """Share of the positions that have a label."""
    fewest: int
    """Fewest labelled positions of an example."""
    most: int
    perplexity: float | None
    """Of a model that predicts the shares of the classes everywhere; None for numbers, and for
    labels that exclude no other."""

    @classmethod
    def of(cls, data: Dataset) -> "PositionStats":
        """Return the statistics of a data set with several targets per example."""
        classes = [] if data.is_multi_label else [n for _, n in data.class_counts() if n]
        total = sum(classes)
        y = data.y.reshape(data.n, -1)
        counts = np.count_nonzero((y != NO_LABEL) | data.is_regression, axis=1)
        return cls(
            shape=data.y_shape,
            labelled_ratio=float(counts.sum() / y.size),
            fewest=int(counts.min()),
            most=int(counts.max()),
            perplexity=math.prod((total / n) ** (n / total) for n in classes) if classes else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatus:
    """Status of a data set; one line of `fairbed data list`."""

    name: str
    is_available: bool
    where: str
    """Folder or file; the source of data without files. Empty if no folder is configured."""
    description: str = ""
    """Description of the data; empty if they could not be read."""
    n: int | None = None
    """Number of examples; None for generated data, and if the headers do not contain it."""
    sha256: str = ""
    """Hash of the examples, as the provenance of a run has it; empty if they were not loaded."""
    origin: Origin | None = None
    """Whether the files are the published ones; None if only their headers were read."""
    classes: list[tuple[str, int]] = field(default_factory=list)
    """Label and number of examples, or of positions, of each class, of tokens the most
    frequent first; empty if not loaded, and for regression."""
    tokens: TokenStats | None = None
    """Of x; None for other data than tokens."""
    positions: PositionStats | None = None
    """Of y; None if an example has one target."""
    features: list[Feature] = field(default_factory=list)
    """The columns of a table, besides label and device; empty for other data."""
    notes: list[str] = field(default_factory=list)
    """Lines about columns that are left out, encoded or filled without being named."""
    guess: str = ""
    """Why the labels are classes or targets, if the file leaves it open; empty: no doubt."""
    problem: str = ""
    """Place, broken rule and value found; empty if available."""
    what_to_do: str = ""
    """Remedy for the problem; empty if available."""
    published: Published | None = None
    """Files, users, licence and citation of a data set that is read by name."""


def describe_all(environment: Mapping[str, str]) -> list[DatasetStatus]:
    """Return the status of every data set with a name; only the headers of large files are read.

    A function that is installed or registered is not called, because that may take long.

    Args:
        environment: Read for `FAIRBED_DATA` only.
    """
    own = [
        DatasetStatus(
            name=name,
            is_available=True,
            where="registered" if isinstance(found, Registered) else found.value,
            description=f"not loaded; `fairbed data verify {name}` loads it",
            origin="own",
        )
        for name, found in sorted(installed(GROUP).items())
        if name not in NAMES
    ]
    return [_status_from_headers(name, environment) for name in NAMES] + own


def verify(
    config: DataConfig, environment: Mapping[str, str], task: TaskKind | None = None
) -> DatasetStatus:
    """Load a whole data set, compare its checksums, and return its status.

    A function of the user is called twice, to compare its results.

    Args:
        config: The data set, or the source.
        environment: Read for `FAIRBED_DATA` only.
        task: `[model] task`; None: as the labels suggest.
    """
    return _status_by_loading(config, environment, task)


def _status_from_headers(name: str, environment: Mapping[str, str]) -> DatasetStatus:
    if name not in FOLDER_NAMES:
        return _status_by_loading(DataConfig(dataset=name), environment)
    where = ""
    try:
        folder = folder_of(name, environment)
        where = str(folder)
        n = _read_headers(name, folder)
    except DatasetError as exc:
        return _unavailable(name, where, exc)
    return DatasetStatus(
        name=name,
        is_available=True,
        where=where,
        description=PUBLISHED[name].description,
        n=n,
        published=PUBLISHED[name],
    )


def _read_headers(name: str, folder: Path) -> int | None:
    """Return the number of examples by the headers of a folder's files; None if they lack it.

    Raises:
        DatasetError: The folder or a file is missing.
    """
    published = PUBLISHED[name]
    if published.reader.startswith("mnist:"):
        from fairbed.testbed.experiment.datasets import mnist

        return sum(mnist.count(name, folder))
    if published.reader.startswith("cifar:"):
        from fairbed.testbed.experiment.datasets import cifar

        cifar.files(name, folder)
        return None
    check_folder(name, folder)
    for file in published.files:
        if find(folder, file.name) is None:
            raise DatasetError(name, f"{folder} must hold {file.name}, got none", how_to_get(name))
    return published.rows or None


def _status_by_loading(
    config: DataConfig, environment: Mapping[str, str], task: TaskKind | None = None
) -> DatasetStatus:
    where = ""
    try:
        if config.name in FOLDER_NAMES:
            where = config.folder or str(folder_of(config.name, environment))
        data = load(config, ANY_SEED, environment, task=task, always_twice=True)
    except DatasetError as exc:
        return _unavailable(config.name, where, exc)
    return DatasetStatus(
        name=config.name,
        is_available=True,
        where=where or data.source,
        description=data.description,
        n=None if data.origin == "generated" else data.n,
        origin=data.origin,
        classes=[] if data.origin == "generated" else _classes(data),
        tokens=TokenStats.of(data) if data.x_classes else None,
        positions=PositionStats.of(data) if data.y_shape else None,
        features=[] if data.encoding is None else list(data.encoding.features),
        notes=list(data.notes),
        guess=data.guess,
        published=PUBLISHED.get(config.name),
        sha256="" if data.origin == "generated" else data.sha256,
    )


def _classes(data: Dataset) -> list[tuple[str, int]]:
    counts = data.class_counts()
    if not data.predicts_tokens:
        return counts
    return sorted((found for found in counts if found[1]), key=lambda found: -found[1])


def _unavailable(name: str, where: str, exc: DatasetError) -> DatasetStatus:
    return DatasetStatus(
        name=name,
        is_available=False,
        where=where,
        problem=f"{exc.where}: {exc.problem}",
        what_to_do=exc.what_to_do,
        published=PUBLISHED.get(name),
    )
