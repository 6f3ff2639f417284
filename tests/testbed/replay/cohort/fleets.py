"""Small fleets to train, and the results of the real device."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.task.catalogue import read_shipped
from fairbed.coordinator.task.recipes import SHIPPED, Recipe
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.local_training import make_rule
from fairbed.testbed.experiment.data import DataConfig, Natural
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.replay.cohort.base import CohortJob, CohortResult, CohortRule
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.wire.artifact import Artifact, decode_artifact, initial_vector
from fairbed.wire.local_training import Merged, Step, Trained
from fairbed.wire.messages import Hyperparameters, Optimiser, Schedule

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

    def step(self, n_examples: int, length: int | None = None) -> None:
        pass

    def read(self, n_bytes: int) -> None:
        pass


def fleet_data(recipe: Recipe, sizes: Sequence[int] = SIZES, *, pixels: bool = False) -> FleetData:
    """Return devices of so many examples each, whose labels follow a linear law."""
    rng = np.random.default_rng(7)
    n = sum(sizes)
    x = rng.random((n, *recipe.x_shape)) if pixels else rng.normal(size=(n, *recipe.x_shape))
    law = rng.normal(size=(int(np.prod(recipe.x_shape)), recipe.classes))
    z = (x - x.mean()).reshape(n, -1) @ law
    dataset = Dataset(
        name="law",
        x=(255 * x).astype(np.uint8) if pixels else x.astype(np.float32),
        y=z[:, 0].astype(np.float32) if recipe.kind == "regression" else np.argmax(z, axis=1),
        classes=recipe.classes,
        device_ids=np.repeat(np.arange(len(sizes)), sizes),
        description="",
        source="",
        origin="own",
    )
    config = DataConfig(source="own.npz", partition=Natural(), min_examples=2)
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
    rule: CohortRule | None = None,
    states: Vector | None = None,
) -> list[trainer.TrainResult]:
    """Return the results of the devices' own engine and trainer."""
    engine = open_own_engine(artifact)
    results = []
    for at, job in enumerate(jobs):
        x, y = shards.whole(job.device)
        kept = {} if rule is None else {name: rows[at] for name, rows in rule.kept.items()}
        results.append(
            trainer.train(
                engine,
                vector,
                x,
                y,
                job.fitted(hyperparameters),
                job.seed,
                Meter(),
                lambda: False,
                None,
                None if rule is None else rule.rule,
                None if rule is None else {**rule.sent, **kept},
                None if states is None else states[at],
            )
        )
    return results


OPTIMISERS = {
    "adam": Hyperparameters(
        epochs=2,
        batch_size=20,
        learning_rate=0.01,
        weight_decay=0.01,
        clip_norm=1.0,
        proximal=0.1,
        optimiser=Optimiser(name="adam", keeps_state=True),
    ),
    "adamw": Hyperparameters(
        epochs=1,
        batch_size=20,
        learning_rate=0.01,
        weight_decay=0.1,
        optimiser=Optimiser(name="adamw", betas=(0.8, 0.99), keeps_state=True),
        schedule=Schedule(kind="cosine", warm_up=2),
    ),
    "nesterov": Hyperparameters(
        epochs=3,
        batch_size=20,
        learning_rate=0.05,
        momentum=0.9,
        optimiser=Optimiser(nesterov=True, keeps_state=True),
        schedule=Schedule(kind="step", warm_up=1, every=2, factor=0.5),
    ),
}
"""Optimisers whose state is kept, with the other terms of a step."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one device."""

    at: int
    vector: Vector
    steps: int
    loss_train: float
    problem: str
    vectors: dict[str, Vector] = field(default_factory=dict)
    """Those kept and returned by the local rule."""


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
                vectors={
                    name: rows[i].copy() for name, rows in {**some.kept, **some.returned}.items()
                },
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


class SplitDrift:
    """A local rule with a vector of each kind, a gradient elsewhere, and a loss: all that one may.

    Its drift is what SCAFFOLD's option II calls c_i.
    """

    sent: tuple[str, ...] = ("common",)
    kept: tuple[str, ...] = ("drift", "rounds")
    returned: tuple[str, ...] = ("change",)

    def __init__(self, share: float = 0.5) -> None:
        self._share = np.float32(share)

    def gradient(self, step: Step) -> None:
        drift = step.vectors["common"] - step.vectors["drift"]
        loss, other = step.gradient_at(step.params + np.float32(0.01) * drift)
        ratio = (loss / np.maximum(step.loss, 1e-9)).astype(np.float32)
        step.gradient += self._share * drift + ratio[..., np.newaxis] * (other - step.gradient)

    def end(self, trained: Trained) -> dict[str, Vector]:
        before = trained.vectors["drift"]
        scale = np.asarray(1.0 / (trained.steps * trained.learning_rate), dtype=np.float32)
        moved = scale[..., np.newaxis] * (trained.anchor - trained.params)
        drift = before - trained.vectors["common"] + moved
        rounds = trained.vectors["rounds"] + np.float32(1.0)
        return {"drift": drift, "rounds": rounds, "change": drift - before}

    def merge(self, merged: Merged) -> dict[str, Vector]:
        share = np.float32(merged.n_merged / merged.n_devices)
        return {"common": merged.sent["common"] + share * merged.returned["change"]}

    def to_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


SPLIT_DRIFT = "tests.testbed.replay.cohort.fleets:SplitDrift"


def split_drift(vector: Vector, k: int, share: float = 0.5) -> CohortRule:
    """Return this rule for `k` devices of a model, with vectors of random values."""
    rng, options = np.random.default_rng(11), {"share": share}

    def drawn(*shape: int) -> Vector:
        return rng.normal(scale=0.02, size=shape).astype(np.float32)

    return CohortRule(
        make_rule(SPLIT_DRIFT, options),
        options,
        {"common": drawn(vector.size)},
        {"drift": drawn(k, vector.size), "rounds": np.zeros((k, vector.size), dtype=np.float32)},
    )


def propfair(vector: Vector, k: int) -> CohortRule:
    """Return the rule `propfair`, whose bound some first losses are near."""
    options = {"base": 2.6}
    return CohortRule(make_rule("propfair", options), options, {}, {})
