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
from fairbed.coordinator.task.catalogue import initial_vector, load_task
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
from fairbed.wire.artifact import Artifact

CHECKPOINT_S = 10.0
"""A run that is killed loses at most so many seconds of work."""
NO_SEED = 0
"""The data sets are files: all of one does not depend on a seed."""

Kept = TypeVar("Kept")
Told = Callable[[int], None]


class DamagedFile(Exception):
    """What an earlier call left cannot be read; the message is one line."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What one run of training came to."""

    rounds: list[int]
    """Evaluated after these."""
    time_s: list[float]
    """On the virtual clock, when each of them was over."""
    accuracy: list[float]
    """Mean over the devices' held-out examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A run that is not done: where it stands, and all that remembers something."""

    round: int
    state: dict[str, Any]
    """Of the engine after that round."""
    vector: bytes
    """The model, float32."""
    curve: Curve


@dataclass(frozen=True, slots=True)
class Source:
    """All examples of a data set and a task for them, read once for many runs."""

    dataset: Dataset
    artifact: Artifact


@lru_cache(maxsize=1)
def source_of(dataset: str, model: str) -> Source:
    """Return the source of a data set and a key of MODELS.

    Raises:
        DatasetError: The data cannot be had.
        TaskError: The model cannot.
    """
    whole = load(DataConfig(dataset=dataset), NO_SEED, os.environ)
    return Source(whole, load_task(MODELS[model], whole.x_shape, whole.classes))


def train_all(
    settings: Sequence[Setting],
    size: Size,
    folder: Path,
    told: Told = lambda done: None,
    workers: int | None = None,
) -> dict[Setting, Curve]:
    """Return the curve of every run; those that `folder` holds already are not run again.

    Args:
        settings: All different.
        size: How much is trained.
        folder: Keeps one file a curve.
        told: Is called with the number of runs that are done, as it grows.
        workers: Processes; None takes one a core.

    Raises:
        ExperimentError: A run cannot be replayed.
        DatasetError: Its data cannot be had.
        TaskError: Its model cannot be had.
        DamagedFile: The folder holds something that cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(setting, size, folder) for setting in settings]
    curves = []
    for curve in _in_parallel(jobs, workers or os.cpu_count() or 1):
        curves.append(curve)
        told(len(curves))
    return dict(zip(settings, curves, strict=True))


def train(setting: Setting, size: Size, folder: Path) -> Curve:
    """Return the curve of one run, from its file if there is one."""
    experiment = setting.experiment(size)
    path = folder / f"{experiment.hash()[:16]}.json"
    if path.exists():
        return _kept(path, Curve, msgspec.json.decode)
    source = source_of(setting.dataset, size.model)
    draft = path.with_suffix(".draft")
    *_, curve = curves_of(experiment, source, draft)
    _keep(path, msgspec.json.encode(curve))
    draft.unlink(missing_ok=True)
    return curve


def curves_of(
    experiment: Experiment, source: Source, draft: Path, checkpoint_s: float = CHECKPOINT_S
) -> Generator[Curve, None, None]:
    """Train round by round and yield the curve so far, at the start and after each.

    Goes on from `draft` if it is there: what comes of it is what would have come without the
    interruption, bit for bit.

    Args:
        experiment: What is replayed.
        source: Its data set and task.
        draft: Where the state is kept.
        checkpoint_s: Between two writings of it, seconds of this machine.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as scratch:
        engine, learning = _engine(experiment, source, Path(scratch))
        try:
            curve = Curve([], [], [])
            if draft.exists():
                kept = _kept(draft, Draft, msgspec.msgpack.decode)
                vector = np.frombuffer(kept.vector, dtype=np.float32).copy()
                engine.load_state(kept.round, vector, kept.state)
                curve = kept.curve
            yield curve
            saved = time.perf_counter()
            for played in engine.play(experiment.rounds):
                if played.scores is not None:
                    curve.rounds.append(played.after.round)
                    curve.time_s.append(played.after.now)
                    curve.accuracy.append(_accuracy(played.scores))
                if time.perf_counter() - saved >= checkpoint_s:
                    vector = learning.vector.tobytes()
                    stands = Draft(
                        round=engine.at.round, state=engine.to_state(), vector=vector, curve=curve
                    )
                    _keep(draft, msgspec.msgpack.encode(stands))
                    saved = time.perf_counter()
                yield curve
        finally:
            learning.close()


def _engine(experiment: Experiment, source: Source, scratch: Path) -> tuple[ReplayEngine, Learning]:
    """Return the world of `testbed.replay.setup`, with data and task that are read already."""
    cast, config, seed = linear_fleet_of(experiment), experiment.data, experiment.seed_for("data")
    data = FleetData(
        subsample(source.dataset, config.max_examples, seed),
        config,
        devices=len(cast.names),
        seed=seed,
        names=cast.names,
    )
    n_k = np.array([len(rows) for rows in data.train_rows], dtype=np.int64)
    bits, luck = experiment.replay.update_bits, experiment.seed_for("traces")
    decisions = make_decisions(experiment.coordinator())
    learning = Learning(
        decisions,
        make_trainer(source.artifact, data, experiment.replay.engine),
        FleetEvaluator(data, source.artifact),
        initial_vector(source.artifact.spec, experiment.seed_for("init")),
        scratch,
    )
    world = LinearWorld(cast.laws, bits, luck, n_k)
    return ReplayEngine(decisions, world, cohort=learning), learning


def _keep(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    part.replace(path)


def _kept(path: Path, kind: type[Kept], decode: Callable[..., Kept]) -> Kept:
    try:
        return decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as exc:
        raise DamagedFile(
            f"{path}: must be what an earlier call wrote, got: {exc}; remove it, and it is made "
            "again"
        ) from exc


def _accuracy(scores: Mapping[str, Score]) -> float:
    """Return the mean over devices of their shares of correct answers."""
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
