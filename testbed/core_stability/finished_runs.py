"""Reads finished runs of one game: the same data, partition and model."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.connection import CONFIG
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.experiment.shards import (
    ASSIGNMENTS_FILE,
    FleetData,
    StoredShards,
    load_examples,
    task_of,
)
from fairbed.wire.artifact import Artifact


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run that trained a model."""

    folder: Path
    name: str
    """End of its path, long enough that the names of the runs differ."""
    experiment: Experiment
    round: int
    """Last round."""
    vector: Vector
    """Model after that round, shape (n_values,)."""
    shards: Mapping[str, int]
    """Number of the shard of each device."""
    n_k: Mapping[str, int]
    """Training examples that each device had; devices that never joined are missing."""
    malicious: Mapping[str, str]
    """Kind of the malicious behaviour of devices that had one."""


@dataclass(frozen=True, slots=True)
class Game:
    """The devices of the runs, their examples and their model."""

    names: tuple[str, ...]
    """Devices, ordered by shard."""
    dataset: Dataset
    train_rows: tuple[Ints, ...]
    """Rows of the data set on which each device trains."""
    test_rows: tuple[Ints, ...]
    """Rows that each device holds out."""
    artifact: Artifact
    experiment: Experiment
    """The experiment of the first run: hyperparameters of local training, and seeds."""


def read_all(folders: Sequence[Path]) -> list[FinishedRun]:
    """Return finished runs; see `read_finished`.

    Raises:
        UsageError: A run is given twice.
    """
    paths = [folder.resolve() for folder in folders]
    for path, folder in zip(paths, folders, strict=True):
        if paths.count(path) > 1:
            raise UsageError(f"{folder}: must be given once, got it twice; leave one out")
    length = 1
    while len({path.parts[-length:] for path in paths}) < len(paths):
        length += 1
    return [
        read_finished(folder, "/".join(path.parts[-length:]))
        for path, folder in zip(paths, folders, strict=True)
    ]


def read_finished(folder: Path, name: str | None = None) -> FinishedRun:
    """Return a finished run and its final model.

    Args:
        folder: Folder of the run.
        name: How it is called; None is the name of the folder.

    Raises:
        UsageError: The run is not finished, trained no model, or has devices with private data.
        ExperimentError: Its experiment cannot be read.
        StoreError: Its store or model cannot be read.
    """
    with RunReader(folder) as reader:
        info, devices = reader.run(), reader.devices()
        if info.status != "done":
            command = "replay" if info.row.clock == "virtual" else "run"
            raise UsageError(
                f"{folder}: the run must be finished, got status {info.status} after "
                f"{info.rounds_completed} rounds; wait for its end, or resume it with: fairbed "
                f"{command} {folder}"
            )
        private = [device.name for device in devices if device.has_own_data]
        if private:
            raise UsageError(
                f"{folder}: the data of all devices must be known here, got private data on "
                f"{', '.join(private[:5])}; their utilities of other models cannot be computed"
            )
        found = reader.final_model()
        if found is None or not found[1].size:
            raise UsageError(
                f"{folder}: the run must have trained a model, got none; replay it with training: "
                "remove replay.examples and --no-training, and give [data]"
            )
        is_replay, malicious = info.row.clock == "virtual", reader.malicious()
    shards = (
        {device.name: device.row for device in devices} if is_replay else StoredShards.read(folder)
    )
    if shards is None:
        raise UsageError(
            f"{folder / ASSIGNMENTS_FILE}: must hold the shard of each device, got no such file; "
            "run the experiment again"
        )
    return FinishedRun(
        folder=folder,
        name=name or folder.resolve().name,
        experiment=load_experiment(folder / CONFIG),
        round=found[0],
        vector=found[1],
        shards=shards,
        n_k={device.name: device.n_k for device in devices},
        malicious=malicious,
    )


def game_of(runs: Sequence[FinishedRun]) -> Game:
    """Return the game that the runs share.

    Raises:
        UsageError: Data, partition or model differ, or there are fewer than two devices.
        DatasetError: The data can no longer be loaded and divided.
        UnknownTask: The model is not available.
    """
    first = runs[0]
    for run in runs[1:]:
        _check_same(first, run)
    experiment = first.experiment
    dataset = load_examples(experiment, os.environ)
    data = FleetData(
        dataset,
        experiment.data,
        devices=experiment.shards,
        seed=experiment.seed_for("data"),
        fold=experiment.validation_fold,
        assignments=first.shards,
    )
    dataset = data.dataset
    names = sorted(first.shards, key=first.shards.__getitem__)
    if len(names) < 2:
        raise UsageError(
            f"{first.folder}: core stability needs at least 2 devices, got {len(names)}; run "
            "the experiment with more devices"
        )
    for run in runs:
        for name, n_k in run.n_k.items():
            now = len(data.train_rows[run.shards[name]])
            if now != n_k:
                raise UsageError(
                    f"{run.folder}: the data must be those of the run, but {name} trained on "
                    f"{n_k} examples and has {now} now; restore the data set"
                )
    artifact = task_of(experiment, dataset)
    for run in runs:
        if run.vector.shape != (artifact.spec.layout.n_values,):
            raise UsageError(
                f"{run.folder}: its model must have {artifact.spec.layout.n_values} values as "
                f"{artifact.spec.name} has now, got {run.vector.size}; restore the model's code"
            )
    return Game(
        names=tuple(names),
        dataset=dataset,
        train_rows=tuple(data.train_rows[first.shards[name]] for name in names),
        test_rows=tuple(data.test_rows[first.shards[name]] for name in names),
        artifact=artifact,
        experiment=experiment,
    )


def _check_same(first: FinishedRun, other: FinishedRun) -> None:
    settings = dict(_settings(first)), dict(_settings(other))
    for key in sorted(settings[0].keys() | settings[1].keys()):
        a, b = (found.get(key) for found in settings)
        if a != b:
            raise UsageError(
                f"{other.folder}: must have the data, partition and model of {first.folder}, got "
                f"{key} = {b} instead of {a}; compare runs of one experiment"
            )
    if first.shards != other.shards:
        raise UsageError(
            f"{other.folder}: each device must have the same examples as in {first.folder}, got "
            "other devices or another order; compare runs of one experiment"
        )


def _settings(run: FinishedRun) -> Iterator[tuple[str, Any]]:
    """Yield the settings that make the game, by key."""
    experiment = run.experiment
    yield "seeds.data", experiment.seed_for("data")
    yield "model.name", experiment.model.name
    yield "number of shards", experiment.shards
    for key, value in msgspec.to_builtins(experiment.data).items():
        yield f"data.{key}", value
