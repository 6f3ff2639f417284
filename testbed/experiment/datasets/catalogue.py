"""Which data sets this machine has; each answer comes from trying."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairbed.testbed.experiment.data import FOLDER_NAMES, NAMES, DataConfig
from fairbed.testbed.experiment.datasets import cifar, mnist
from fairbed.testbed.experiment.datasets.dataset import DatasetError, Origin
from fairbed.testbed.experiment.datasets.loading import folder_of, load

ANY_SEED = 0
"""Whether data can be had does not depend on the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatus:
    """What one line of `fairbed data list` says."""

    name: str
    is_available: bool
    where: str
    """Folder or file; for what needs none, its source. Empty if no folder is named anywhere."""
    description: str = ""
    """What the data are; empty if they could not be read."""
    n: int | None = None
    """Examples found; None for generated ones, and where only reading them all could tell."""
    origin: Origin | None = None
    """Whether the files are the published ones; None while only their headers were read."""
    problem: str = ""
    """The rule broken and the value found, with where; empty if available."""
    what_to_do: str = ""
    """Empty if available."""


def describe_all(environment: Mapping[str, str]) -> list[DatasetStatus]:
    """Return the status of every data set known by name; of large files only the headers are read.

    Args:
        environment: Read for `FAIRBED_DATA` only.
    """
    return [_glance(name, environment) for name in NAMES]


def verify(
    dataset: str, environment: Mapping[str, str], folder: str | None = None
) -> DatasetStatus:
    """Load a data set in full, checksums included, and return what was found.

    Args:
        dataset: Name, or path of an `.npz` file.
        environment: Read for `FAIRBED_DATA` only.
        folder: Where the files are, as `data.folder`.

    Raises:
        ValueError: There is no such name.
    """
    return _loaded(DataConfig(dataset=dataset, folder=folder), environment)


def _glance(name: str, environment: Mapping[str, str]) -> DatasetStatus:
    if name not in FOLDER_NAMES:
        return _loaded(DataConfig(dataset=name), environment)
    where = ""
    try:
        folder = folder_of(name, environment)
        where = str(folder)
        n, description = _counted(name, folder)
    except DatasetError as exc:
        return _missing(name, where, exc)
    return DatasetStatus(
        name=name,
        is_available=True,
        where=where,
        description=description,
        n=n,
    )


def _counted(name: str, folder: Path) -> tuple[int | None, str]:
    """Return how many examples the headers in a folder promise, and what they are."""
    if name == cifar.NAME:
        cifar.files(folder)
        return None, cifar.DESCRIPTION
    return sum(mnist.count(name, folder)), mnist.PUBLISHED[name].description


def _loaded(config: DataConfig, environment: Mapping[str, str]) -> DatasetStatus:
    where = ""
    try:
        if config.dataset in FOLDER_NAMES:
            where = config.folder or str(folder_of(config.dataset, environment))
        data = load(config, ANY_SEED, environment)
    except DatasetError as exc:
        return _missing(config.dataset, where, exc)
    return DatasetStatus(
        name=config.dataset,
        is_available=True,
        where=where or data.source,
        description=data.description,
        n=None if data.origin == "generated" else data.n,
        origin=data.origin,
    )


def _missing(name: str, where: str, exc: DatasetError) -> DatasetStatus:
    return DatasetStatus(
        name=name,
        is_available=False,
        where=where,
        problem=f"{exc.where}: {exc.problem}",
        what_to_do=exc.what_to_do,
    )
