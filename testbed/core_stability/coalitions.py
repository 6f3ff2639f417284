"""Coalitions of devices, and the models that they would train without the others.

A coalition trains one model by SGD on the pooled examples of its members, from the initial model
of the run and with its hyperparameters. This stands for any training among its members: other
models of the same coalition may be better for them.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints, Vector
from fairbed.device_agent.engines.base import Engine
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.testbed.core_stability.finished_runs import Game
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.shards import first_model
from fairbed.testbed.replay.cohort.base import CohortJob
from fairbed.testbed.replay.cohort.choose import make_trainer
from fairbed.wire.evaluation import positions_of
from fairbed.wire.shard import make_shard

Members: TypeAlias = tuple[int, ...]
"""Devices of a coalition, ascending."""

MAX_MODELS = 5_000
"""Most coalitions whose models are trained: hours, for the smallest model."""

KINDS = "all, local, pairs, leave-one-out, random:N, none"

MAX_LISTED_ALL = 6
"""Largest number of devices for which all coalitions are the default: 63 models."""

MAX_NAMED = 6
"""Most devices of a coalition that are named."""

MODELS_HELD = 64
"""Trained models in memory at a time."""

GRADIENT_BATCH = 1_024
"""Examples per call of the engine; bounds the memory of activations."""


def default_kinds(devices: int) -> tuple[str, ...]:
    """Return the kinds of coalitions without `--coalitions`."""
    return ("all",) if devices <= MAX_LISTED_ALL else ("local", "leave-one-out")


def coalitions_of(kinds: Sequence[str], devices: int, rng: np.random.Generator) -> list[Members]:
    """Return the coalitions of some kinds, each once; with all devices as the last one.

    Args:
        kinds: all: every coalition; local: each device alone; pairs; leave-one-out: all but one;
            random:N: N coalitions of 2 to n - 1 devices; none: no coalition, on its own.
        devices: n.
        rng: Draws the random ones.

    Raises:
        UsageError: A kind is unknown, or there are more than `MAX_MODELS` coalitions.
    """
    n, everyone = devices, tuple(range(devices))
    if tuple(kinds) == ("none",):
        return []
    found: dict[Members, None] = {}
    for kind in kinds:
        name, _, number = kind.partition(":")
        if name == "all" and not number:
            _check_count(kind, 2**n - 1, n)
            found.update(
                (members, None) for size in range(1, n) for members in combinations(everyone, size)
            )
        elif name == "local" and not number:
            _check_count(kind, n, n)
            found.update(((device,), None) for device in everyone)
        elif name == "pairs" and not number:
            _check_count(kind, math.comb(n, 2), n)
            found.update((members, None) for members in combinations(everyone, 2))
        elif name == "leave-one-out" and not number:
            _check_count(kind, n, n)
            found.update((everyone[:i] + everyone[i + 1 :], None) for i in everyone)
        elif name == "random" and number.isdecimal() and int(number) > 0:
            _check_count(kind, int(number), n)
            found.update((members, None) for members in _random(int(number), n, rng))
        else:
            raise UsageError(
                f"--coalitions: must be one or more of {KINDS}, with commas, got {kind!r}"
                + ("; random needs a number: random:20" if name == "random" else "")
            )
    found.pop(everyone, None)
    return [*sorted(found, key=lambda members: (len(members), members)), everyone]


def _check_count(kind: str, count: int, devices: int) -> None:
    if count > MAX_MODELS:
        raise UsageError(
            f"--coalitions: {kind} must be at most {MAX_MODELS:,} models, got {count:,} for "
            f"{devices} devices; choose local, leave-one-out or random:N"
        )


def _random(count: int, n: int, rng: np.random.Generator) -> Iterator[Members]:
    """Yield coalitions of 2 to n - 1 devices, of uniform sizes; fewer than n devices have some."""
    if n < 3:
        return
    for _ in range(count):
        size = int(rng.integers(2, n))
        yield tuple(sorted(rng.choice(n, size, replace=False).tolist()))


def named(members: Sequence[str], names: Sequence[str]) -> str:
    """Return a coalition in words.

    Args:
        members: Its devices.
        names: All devices.
    """
    n = len(names)
    if len(members) == n:
        return f"all {n} devices"
    if len(members) == n - 1 and n > 3:
        return f"all but {next(name for name in names if name not in members)}"
    shown = ", ".join(members[:MAX_NAMED])
    return shown if len(members) <= MAX_NAMED else f"{shown} and {len(members) - MAX_NAMED} more"


@dataclass(frozen=True, slots=True)
class _Parts:
    """A `cohort.shards.DividedData` of any rows."""

    dataset: Dataset
    train_rows: tuple[Ints, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Models that were trained for a game, by their losses on each device."""

    titles: tuple[str, ...]
    members: tuple[Members, ...]
    """The coalition of each model."""
    losses: Floats
    """F, nats, shape (A, n)."""
    epochs: int
    """Passes of each coalition over its examples."""
    example_passes: int
    """Examples of all mini-batches."""
    train_s: float
    """Time of this machine."""
    fedavg: int | None
    """Row of the model of FedAvg; None without one."""

    def finite(self) -> "Alternatives":
        """Return the models whose losses are finite on every device."""
        kept = np.flatnonzero(np.isfinite(self.losses).all(axis=1)).tolist()
        return replace(
            self,
            titles=tuple(self.titles[at] for at in kept),
            members=tuple(self.members[at] for at in kept),
            losses=self.losses[kept],
            fedavg=kept.index(self.fedavg) if self.fedavg in kept else None,
        )


def run_epochs(experiment: Experiment) -> int:
    """Return the passes over its examples that a device made in the run, on average."""
    passes = experiment.rounds * experiment.training.epochs * experiment.selection.per_round
    return max(1, round(passes / experiment.shards))


class GameModels:
    """Trains and evaluates models on the devices of a game.

    Args:
        game: The game.
        rows: Rows of the data set on which utilities are measured, by device, none empty.
        coalitions: Coalitions whose models may be trained.
        threads: Models trained at the same time; no result depends on it.

    Raises:
        EngineError: The engine cannot run the model.
        ExperimentError: The engine of the experiment cannot train it.
    """

    def __init__(
        self, game: Game, rows: Sequence[Ints], coalitions: Sequence[Members], threads: int
    ) -> None:
        self._game, self._rows, self._coalitions = game, tuple(rows), tuple(coalitions)
        pooled = [
            np.sort(np.concatenate([game.train_rows[device] for device in members]))
            for members in coalitions
        ]
        parts = _Parts(game.dataset, (*rows, *game.train_rows, *pooled))
        self._trainer = make_trainer(game.artifact, parts, game.experiment.replay.engine, threads)
        self._spec = game.artifact.spec

    def close(self) -> None:
        """End all threads."""
        self._trainer.close()

    def losses(self, vector: Vector) -> Floats:
        """Return F of a model on each device, nats, shape (n,); infinite if not finite."""
        return self._trainer.losses(vector, range(len(self._rows)))

    def train(
        self, epochs: int, seed: int, *, fedavg: bool, progress: Callable[[int, int], None]
    ) -> Alternatives:
        """Train a model of each coalition, and by FedAvg one of all devices.

        FedAvg has all devices in each round, and as many rounds as give each device the passes
        that it had in the run on average.

        Args:
            epochs: Passes of each coalition over its examples.
            seed: Seed of the order of mini-batches.
            fedavg: Train the model of FedAvg.
            progress: Called with the number of trained models, and of all.
        """
        started, game, n = time.perf_counter(), self._game, len(self._rows)
        training = game.experiment.training
        start = first_model(game.experiment, game.artifact)
        seeds = np.random.default_rng([seed, 1]).integers(2**63, size=len(self._coalitions))
        jobs = [CohortJob(2 * n + at, int(job_seed)) for at, job_seed in enumerate(seeds.tolist())]
        hyperparameters = msgspec.structs.replace(
            training.hyperparameters(1), epochs=epochs, proximal=0.0, max_steps=None
        )
        losses: Floats = np.full((len(jobs), n), np.inf)  # of a model that diverged
        for first in range(0, len(jobs), MODELS_HELD):
            progress(first, len(jobs))
            part = jobs[first : first + MODELS_HELD]
            vectors = dict[int, Vector]()
            for result in self._trainer.train(start, part, hyperparameters):
                for at in np.flatnonzero(~result.has_failed).tolist():
                    vectors[first + int(result.at[at])] = result.vectors[at].copy()
            for at, vector in vectors.items():
                losses[at] = self.losses(vector)
        titles = [f"model of {self._named(members)}" for members in self._coalitions]
        members = list(self._coalitions)
        passes = epochs * sum(len(game.train_rows[i]) for one in members for i in one)
        if fedavg:
            rounds = max(1, round(run_epochs(game.experiment) / training.epochs))
            titles.append(f"FedAvg of all devices, {rounds} rounds")
            members.append(tuple(range(n)))
            losses = np.vstack([losses, self.losses(self._fedavg(start, rounds, seed))])
            passes += rounds * training.epochs * sum(map(len, game.train_rows))
        return Alternatives(
            titles=tuple(titles),
            members=tuple(members),
            losses=losses,
            epochs=epochs,
            example_passes=passes,
            train_s=time.perf_counter() - started,
            fedavg=len(titles) - 1 if fedavg else None,
        )

    def _named(self, members: Members) -> str:
        return named([self._game.names[i] for i in members], self._game.names)

    def _fedavg(self, start: Vector, rounds: int, seed: int) -> Vector:
        n, training = len(self._rows), self._game.experiment.training
        counts = positions_of(self._game.dataset.y)
        n_k = np.array([counts[rows].sum() for rows in self._game.train_rows], dtype=np.float64)
        vector, rng = start, np.random.default_rng([seed, 2])
        for round_id in range(1, rounds + 1):
            jobs = [CohortJob(n + k, int(s)) for k, s in enumerate(rng.integers(2**63, size=n))]
            total, weight = np.zeros(vector.shape), 0.0
            for result in self._trainer.train(vector, jobs, training.hyperparameters(round_id)):
                shares = np.where(result.has_failed, 0.0, n_k[result.at])
                models = np.where(result.has_failed[:, np.newaxis], 0.0, result.vectors)
                total += shares @ models
                weight += float(shares.sum())
            if weight > 0.0:
                vector = (total / weight).astype(np.float32)
        return vector

    def gradients(self, vector: Vector) -> Floats:
        """Return grad F of each device, shape (n, n_params).

        Raises:
            EngineError: The engine failed.
        """
        engine = open_own_engine(self._game.artifact)
        return np.array([self._gradient(engine, vector, k) for k in range(len(self._rows))])

    def smoothness(self, vector: Vector, radius: float, seed: int, steps: int = 8) -> float:
        """Return the largest smoothness B that was found within a ball: a lower bound of B.

            B >= |grad F(theta + r v) - grad F(theta - r v)| / (2 r),   |v| = 1

        v is the direction of the last difference, as in a power iteration, from a random one.

        Args:
            vector: theta, shape (n_values,).
            radius: r.
            seed: Seed of the first directions.
            steps: Differences per device.
        """
        engine, rng = open_own_engine(self._game.artifact), np.random.default_rng([seed, 3])
        n_params, largest = self._spec.layout.n_params, 0.0
        for device in range(len(self._rows)):
            direction: Floats = rng.normal(size=n_params)
            for _ in range(steps):
                direction *= radius / max(float(np.linalg.norm(direction)), 1e-300)
                ends = []
                for sign in (1.0, -1.0):
                    moved = vector.copy()
                    moved[:n_params] += (sign * direction).astype(np.float32)
                    ends.append(self._gradient(engine, moved, device))
                direction = ends[0] - ends[1]
                largest = max(largest, float(np.linalg.norm(direction)) / (2.0 * radius))
        return largest

    def _gradient(self, engine: Engine, vector: Vector, device: int) -> Floats:
        rows, dataset = self._rows[device], self._game.dataset
        work, total = vector.copy(), np.zeros(self._spec.layout.n_params)
        for at in range(0, len(rows), GRADIENT_BATCH):
            part = rows[at : at + GRADIENT_BATCH]
            x, y = make_shard(dataset.x[part], dataset.y[part]).arrays()
            total += len(part) / len(rows) * engine.gradient(work, x, y)[1]
        return total
