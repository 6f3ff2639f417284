"""Load the examples that a `[data]` section describes.

Each draw has its own random stream, so that a change of one draw does not affect the others.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

import numpy as np

from fairbed.device_agent.folders import FolderError, folder_kind
from fairbed.testbed.experiment.data import AudioConfig, DataConfig, MasksConfig, SyntheticConfig
from fairbed.testbed.experiment.datasets.dataset import (
    Dataset,
    DatasetError,
    autoencoder,
    bucketed,
    for_task,
    sized,
)
from fairbed.testbed.experiment.datasets.folders import load_audio, load_masks, load_pictures
from fairbed.testbed.experiment.datasets.function import load_function
from fairbed.testbed.experiment.datasets.npz import load_npz
from fairbed.testbed.experiment.datasets.scikit_learn import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
)
from fairbed.testbed.experiment.datasets.synthetic import synthetic
from fairbed.testbed.experiment.datasets.table import load_table
from fairbed.testbed.experiment.datasets.text import load_text_table, load_texts
from fairbed.testbed.experiment.published import PUBLISHED, READERS, how_to_get
from fairbed.wire.artifact import TaskKind


class Draw(IntEnum):
    """Purposes of random draws; a seed gives the same data only if these values never change."""

    GENERATE = 0
    """Examples of generated data."""
    SUBSAMPLE = 1
    """The examples that `max_examples` keeps."""
    PARTITION = 2
    """The device of each example."""
    SPLIT = 3
    """The held-out examples of a device; the key also has the device number."""
    MALICIOUS = 4
    """The malicious devices of a group; the key also has the number of the group."""
    POISON = 5
    """Poisoned labels of a device; the key also has the number of its shard."""
    VALIDATION = 6
    """The validation examples of a device; the key also has the device number."""


def generator(seed: int, draw: Draw, *more: int) -> np.random.Generator:
    """Return the random generator of one draw; equal arguments give equal numbers."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(draw), *more)))


FOLDER_VARIABLE = "FAIRBED_DATA"
"""Environment variable: the folder that has one folder per data set."""


def folder_of(name: str, environment: Mapping[str, str]) -> Path:
    """Return the default folder of a data set: `FAIRBED_DATA/<name>`.

    Raises:
        DatasetError: The variable is not set.
    """
    root = environment.get(FOLDER_VARIABLE)
    if not root:
        raise DatasetError(
            name,
            f"{FOLDER_VARIABLE} or data.folder must name the folder of its files, got neither",
            how_to_get(name),
        )
    return Path(root).expanduser() / name


def load(
    config: DataConfig,
    seed: int,
    environment: Mapping[str, str],
    *,
    task: TaskKind | None = None,
    always_twice: bool = False,
) -> Dataset:
    """Return the examples of a `[data]` section, at most `max_examples` of them.

    Args:
        config: The section.
        seed: Seed of generated data and of the draw for `max_examples`.
        environment: Read for `FAIRBED_DATA` only.
        task: `[model] task`.
        always_twice: Call a function of the user twice even if it is slow, to compare the results.

    Raises:
        DatasetError: The data are not available, or do not fit the task.
    """
    if config.is_function:
        whole = load_function(config, always_twice=always_twice)
    else:
        whole = _load_all(config, generator(seed, Draw.GENERATE), environment)
    whole = sized(whole, config.classes, config.vocabulary)
    if config.target == "x":
        whole = autoencoder(whole)
    taken = subsample(for_task(whole, task), config.max_examples, seed)
    if taken.n < whole.n:
        taken = replace(taken, whole_sha256=whole.sha256)
    return taken if config.buckets is None else bucketed(taken, config.buckets)


def subsample(dataset: Dataset, max_examples: int | None, seed: int) -> Dataset:
    """Return `max_examples` random examples of a data set; the whole set if None or not larger.

    `load` calls it. A caller that needs many draws loads the whole set once and calls it itself.
    """
    if max_examples is None or max_examples >= dataset.n:
        return dataset
    rng = generator(seed, Draw.SUBSAMPLE)
    return dataset.take(np.sort(rng.choice(dataset.n, max_examples, replace=False)))


_SHIPPED: Mapping[str, Callable[[], Dataset]] = {
    "digits": load_digits,
    "breast-cancer": load_breast_cancer,
    "diabetes": load_diabetes,
}


def _load_all(
    config: DataConfig, rng: np.random.Generator, environment: Mapping[str, str]
) -> Dataset:
    folder = None if config.folder is None else Path(config.folder).expanduser()
    if config.source is not None:
        return _load_path((folder or Path()) / Path(config.source).expanduser(), config)
    name = config.name
    if name in _SHIPPED:
        return _SHIPPED[name]()
    if name == "synthetic":
        return synthetic(config.synthetic or SyntheticConfig(), rng)
    module, _, reader = PUBLISHED[name].reader.partition(":")
    read: Callable[[str, Path], Dataset] = getattr(
        importlib.import_module(f"{READERS}.{module}"), reader
    )
    return read(name, folder or folder_of(name, environment))


def _load_path(path: Path, config: DataConfig) -> Dataset:
    if path.suffix.lower() == ".json" or path.is_dir():
        from fairbed.testbed.experiment.datasets import client_table, leaf

        if leaf.json_files(path):
            return leaf.load_leaf(path, config.text)
        if (path / client_table.TABLE).is_file():
            return client_table.load_client_table(path, config)
    if path.suffix == ".npz":
        return load_npz(path, config)
    if config.is_table and config.text is not None:
        return load_text_table(path, config)
    if config.is_table:
        assert config.label is not None, "the section was checked"
        return load_table(path, config.label, config.device, config.features, config.categories)
    if config.is_text or config.text is not None or config.target == "next":
        return load_texts(path, config)
    try:
        kind = folder_kind(path)
    except FolderError as exc:
        raise DatasetError(exc.where, exc.problem, exc.what_to_do) from exc
    match kind:
        case "masks":
            return load_masks(path, config.masks or MasksConfig())
        case "audio":
            return load_audio(path, config.audio or AudioConfig())
        case "text":
            return load_texts(path, config)
        case _:
            return load_pictures(path)
