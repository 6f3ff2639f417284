"""Replays with training, for Figs. 5 and 6: stored run by run, and resumed within a run.

A finished run is a file of its curve; an interrupted one is a checkpoint. Both are named after the
hash of the experiment, so that a later call finds them.
"""

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from experiments.processes import fresh_processes
from experiments.rbcs_f_paper.settings import MODELS, Setting, Size
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.ports import Score
from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.datasets.loading import load, subsample
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.replay.cohort.choose import make_trainer
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.learning import Learning
from fairbed.testbed.replay.setup import linear_fleet_of
from fairbed.testbed.replay.world.linear import LinearWorld
from fairbed.testbed.run.evaluation import FleetEvaluator
from fairbed.wire.artifact import Artifact, initial_vector

CHECKPOINT_S = 10.0
"""Greatest loss of work when a run is killed, seconds."""
NO_SEED = 0
"""A complete data set is read from files and does not depend on a seed."""

Stored = TypeVar("Stored")
OnProgress = Callable[[int], None]


class DamagedFile(Exception):
    """A file of an earlier call cannot be read; the message is one line."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The result of one training run."""

    rounds: list[int]
    """Rounds with an evaluation."""
    time_s: list[float]
    """End of each of these rounds on the virtual clock."""
    accuracy: list[float]
    """Mean over the devices' held-out examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of an unfinished run."""

    round: int
    state: dict[str, Any]
    """State of the engine after that round."""
    vector: bytes
    """The model, float32."""
    curve: Curve


@dataclass(frozen=True, slots=True)
class TrainingData:
    """All examples of a data set and a task for them, read once for many runs."""

    dataset: Dataset
    artifact: Artifact


@lru_cache(maxsize=1)
def training_data(dataset: str, model: str) -> TrainingData:
    """Return a data set and the task of a key of MODELS.

    Raises:
        DatasetError: The data set cannot be loaded.
        TaskError: The model cannot be loaded.
    """
    whole = load(DataConfig(dataset=dataset), NO_SEED, os.environ)
    return TrainingData(whole, load_task(MODELS[model], whole.x_shape, whole.classes))


def train_all(
    settings: Sequence[Setting],
    size: Size,
    folder: Path,
    on_progress: OnProgress = lambda done: None,
    workers: int | None = None,
) -> dict[Setting, Curve]:
    """Return the curve of every run; runs whose curve is in `folder` are not repeated.

    Args:
        settings: Different runs.
        size: Extent of the training.
        folder: Has one file per curve.
        on_progress: Called with the number of completed runs.
        workers: Number of processes; None takes one per core.

    Raises:
        ExperimentError: A run cannot be replayed.
        DatasetError: Its data set cannot be loaded.
        TaskError: Its model cannot be loaded.
        DamagedFile: A file in the folder cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(setting, size, folder) for setting in settings]
    curves = []
    for curve in _in_parallel(jobs, workers or os.cpu_count() or 1):
        curves.append(curve)
        on_progress(len(curves))
    return dict(zip(settings, curves, strict=True))


def train(setting: Setting, size: Size, folder: Path) -> Curve:
    """Return the curve of one run, from its file if there is one."""
    experiment = setting.experiment(size)
    path = folder / f"{experiment.hash()[:16]}.json"
    if path.exists():
        return _read(path, Curve, msgspec.json.decode)
    data = training_data(setting.dataset, size.model)
    checkpoint = path.with_suffix(".draft")
    *_, curve = curves_of(experiment, data, checkpoint)
    _write(path, msgspec.json.encode(curve))
    checkpoint.unlink(missing_ok=True)
    return curve


def curves_of(
    experiment: Experiment,
    data: TrainingData,
    checkpoint: Path,
    checkpoint_s: float = CHECKPOINT_S,
) -> Generator[Curve, None, None]:
    """Train round by round; yield the curve so far at the start and after each round.

    Resumes from an existing checkpoint; the result equals that of an uninterrupted run, bit for
    bit.

    Args:
        experiment: Experiment to replay.
        data: Its data set and task.
        checkpoint: File of the checkpoint.
        checkpoint_s: Time between two checkpoints, seconds of this machine.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as scratch:
        engine, learning = _engine(experiment, data, Path(scratch))
        try:
            curve = Curve([], [], [])
            if checkpoint.exists():
                stored = _read(checkpoint, Checkpoint, msgspec.msgpack.decode)
                vector = np.frombuffer(stored.vector, dtype=np.float32).copy()
                engine.load_state(stored.round, vector, stored.state)
                curve = stored.curve
            yield curve
            saved = time.perf_counter()
            for replayed in engine.replay(experiment.rounds):
                if replayed.scores is not None:
                    curve.rounds.append(replayed.after.round)
                    curve.time_s.append(replayed.after.now)
                    curve.accuracy.append(_accuracy(replayed.scores))
                if time.perf_counter() - saved >= checkpoint_s:
                    vector = learning.vector.tobytes()
                    state = Checkpoint(
                        round=engine.at.round, state=engine.to_state(), vector=vector, curve=curve
                    )
                    _write(checkpoint, msgspec.msgpack.encode(state))
                    saved = time.perf_counter()
                yield curve
        finally:
            learning.close()


def _engine(
    experiment: Experiment, data: TrainingData, scratch: Path
) -> tuple[ReplayEngine, Learning]:
    """Return the engine and trainer of a linear world, with data and task already loaded."""
    fleet, config, seed = linear_fleet_of(experiment), experiment.data, experiment.seed_for("data")
    shards = FleetData(
        subsample(data.dataset, config.max_examples, seed),
        config,
        devices=len(fleet.names),
        seed=seed,
        names=fleet.names,
    )
    n_k = np.array([len(rows) for rows in shards.train_rows], dtype=np.int64)
    decisions = make_decisions(experiment.coordinator())
    learning = Learning(
        decisions,
        make_trainer(data.artifact, shards, experiment.replay.engine),
        FleetEvaluator(shards, data.artifact),
        initial_vector(data.artifact.spec, experiment.seed_for("init")),
        scratch,
    )
    bits, noise_seed = experiment.replay.update_bits, experiment.seed_for("traces")
    world = LinearWorld(fleet.laws, bits, noise_seed, n_k)
    return ReplayEngine(decisions, world, cohort=learning), learning


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    part.replace(path)


def _read(path: Path, kind: type[Stored], decode: Callable[..., Stored]) -> Stored:
    try:
        return decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as exc:
        raise DamagedFile(
            f"{path}: must be a file of an earlier call, got: {exc}; remove it to repeat its run"
        ) from exc


def _accuracy(scores: Mapping[str, Score]) -> float:
    """Return the mean accuracy over devices."""
    return float(np.mean([score.correct / score.n for score in scores.values() if score.n]))


def accuracies(curves: Sequence[Curve]) -> Floats:
    """Return the accuracy of each seed at each evaluation, shape (seeds, evaluations)."""
    return np.array([curve.accuracy for curve in curves], dtype=np.float64)


def _in_parallel(jobs: Sequence[tuple[Setting, Size, Path]], workers: int) -> Iterator[Curve]:
    if workers == 1:
        yield from (train(*job) for job in jobs)
        return
    with fresh_processes(workers) as pool:
        yield from pool.map(train, *zip(*jobs, strict=True))
