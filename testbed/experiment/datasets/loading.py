"""From a `[data]` section to the examples in memory.

Independent random streams of the data, so that changing one draw leaves the others alone.
"""

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

import numpy as np

from fairbed.testbed.experiment.data import DataConfig, SyntheticConfig
from fairbed.testbed.experiment.datasets import cifar
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.digits import load_digits
from fairbed.testbed.experiment.datasets.mnist import PUBLISHED, how_to_get, load_mnist
from fairbed.testbed.experiment.datasets.npz import load_npz
from fairbed.testbed.experiment.datasets.synthetic import synthetic


class Draw(IntEnum):
    """What is drawn; the values are part of what a seed means, so they never change."""

    GENERATE = 0
    """Examples of generated data."""
    SUBSAMPLE = 1
    """Which examples `max_examples` leaves."""
    PARTITION = 2
    """Which device holds which example."""
    SPLIT = 3
    """Which examples are held out; one more number follows, the device."""


def generator(seed: int, draw: Draw, *more: int) -> np.random.Generator:
    """Return the generator of one draw; the same arguments always give the same numbers."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(draw), *more)))


FOLDER_VARIABLE = "FAIRBED_DATA"
"""Environment variable: the folder that holds one folder per data set."""


def folder_of(name: str, environment: Mapping[str, str]) -> Path:
    """Return where the files of a data set are by default: `FAIRBED_DATA/<name>`.

    Raises:
        DataError: The variable is not set.
    """
    root = environment.get(FOLDER_VARIABLE)
    if not root:
        raise DatasetError(
            name,
            f"{FOLDER_VARIABLE} or data.folder must say where the files are, got neither",
            cifar.HOW_TO_GET if name == cifar.NAME else how_to_get(name),
        )
    return Path(root).expanduser() / name


def load(config: DataConfig, seed: int, environment: Mapping[str, str]) -> Dataset:
    """Return the examples that `[data]` asks for, at most `max_examples` of them.

    Args:
        config: The section.
        seed: What generated data and the draw of `max_examples` depend on.
        environment: Read for `FAIRBED_DATA` only.

    Raises:
        DataError: They cannot be had.
    """
    return thin(
        _load_all(config, generator(seed, Draw.GENERATE), environment), config.max_examples, seed
    )


def thin(dataset: Dataset, most: int | None, seed: int) -> Dataset:
    """Return `most` examples of a data set, drawn by a seed; all of it if it has no more, or None.

    `load` with `max_examples` is this of the whole; who needs many draws reads the whole once.
    """
    if most is None or most >= dataset.n:
        return dataset
    rng = generator(seed, Draw.SUBSAMPLE)
    return dataset.take(np.sort(rng.choice(dataset.n, most, replace=False)))


def _load_all(
    config: DataConfig, rng: np.random.Generator, environment: Mapping[str, str]
) -> Dataset:
    folder = None if config.folder is None else Path(config.folder).expanduser()
    if config.dataset == "digits":
        return load_digits()
    if config.dataset == "synthetic":
        return synthetic(config.synthetic or SyntheticConfig(), rng)
    if config.dataset == cifar.NAME:
        return cifar.load_cifar10(folder or folder_of(config.dataset, environment))
    if config.dataset in PUBLISHED:
        return load_mnist(config.dataset, folder or folder_of(config.dataset, environment))
    return load_npz((folder or Path()) / Path(config.dataset).expanduser())
