"""Small fleets to train, and the results of the real device."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.task.catalogue import read_shipped
from fairbed.coordinator.task.recipes import SHIPPED, Recipe
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.testbed.experiment.data import DataConfig, Natural
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.replay.cohort.base import CohortJob, CohortResult
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.wire.artifact import Artifact, decode_artifact, initial_vector
from fairbed.wire.messages import Hyperparameters

SIZES = (3, 26, 51, 26, 90, 40, 13)
"""Examples of each device, the held-out ones included."""

PLAIN = Hyperparameters(epochs=1, batch_size=20, learning_rate=0.05)
DITTO = Hyperparameters(epochs=1, batch_size=20, learning_rate=0.05, proximal=1.0)
"""A personal model with lambda = 1."""
EVERYTHING = Hyperparameters(
    epochs=2,
    batch_size=16,
    learning_rate=0.03,
    momentum=0.9,
    weight_decay=1e-3,
    proximal=0.1,
    clip_norm=1.0,
    max_steps=9,
)
"""Hyperparameters with every term of a step."""

RECIPES = {recipe.name: recipe for recipe in SHIPPED}


class Meter:
    """A meter that does nothing."""

    def step(self, n_examples: int) -> None:
        pass

    def read(self, n_bytes: int) -> None:
        pass


def fleet_data(recipe: Recipe, sizes: Sequence[int] = SIZES, *, pixels: bool = False) -> FleetData:
    """Return devices of so many examples each, whose labels follow a linear law."""
    rng = np.random.default_rng(7)
    n = sum(sizes)
    x = rng.random((n, *recipe.x_shape)) if pixels else rng.normal(size=(n, *recipe.x_shape))
    law = rng.normal(size=(int(np.prod(recipe.x_shape)), recipe.classes))
    dataset = Dataset(
        name="law",
        x=(255 * x).astype(np.uint8) if pixels else x.astype(np.float32),
        y=np.argmax((x - x.mean()).reshape(n, -1) @ law, axis=1),
        classes=recipe.classes,
        device_ids=np.repeat(np.arange(len(sizes)), sizes),
        description="",
        source="",
        origin="own",
    )
    config = DataConfig(dataset="own.npz", partition=Natural(), min_examples=2)
    names = [f"device-{k}" for k in range(len(sizes))]
    return FleetData(dataset, config, devices=len(sizes), seed=0, names=names)


def shipped(recipe: Recipe) -> Artifact:
    return decode_artifact(read_shipped(recipe.name))


def start_of(artifact: Artifact) -> Vector:
    return initial_vector(artifact.spec, 3)


def jobs_of(count: int) -> list[CohortJob]:
    return [CohortJob(device=k, seed=1000 + k) for k in range(count)]


def on_devices(
    artifact: Artifact,
    shards: Shards,
    vector: Vector,
    jobs: Sequence[CohortJob],
    hyperparameters: Hyperparameters,
) -> list[trainer.TrainResult]:
    """Return the results of the devices' own engine and trainer."""
    engine = OnnxEngine(artifact)
    results = []
    for job in jobs:
        x, y = shards.whole(job.device)
        results.append(
            trainer.train(engine, vector, x, y, hyperparameters, job.seed, Meter(), lambda: False)
        )
    return results


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one device."""

    at: int
    vector: Vector
    steps: int
    loss_train: float
    problem: str


def one_by_one(answers: Iterable[CohortResult]) -> Iterator[Answer]:
    """Yield the result of each device, with a copy of its model."""
    for some in answers:
        for i, at in enumerate(some.at.tolist()):
            yield Answer(
                at=at,
                vector=some.vectors[i].copy(),
                steps=int(some.steps[i]),
                loss_train=float(some.loss_train[i]),
                problem=some.problems[i],
            )


def kept(answers: Iterable[CohortResult], count: int) -> list[Answer]:
    """Return all results in the order of their jobs."""
    found = list(one_by_one(answers))
    by_place = {answer.at: answer for answer in found}
    assert len(by_place) == len(found) == count
    return [by_place[at] for at in range(count)]


def distance(vector: Vector, other: Vector, start: Vector) -> float:
    """Return the distance of two models, relative to the change of the second."""
    return float(np.linalg.norm(vector - other) / np.linalg.norm(other - start))
