"""Every trainer of cohorts, compared with the engine and trainer of the device."""

import hashlib
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.task.catalogue import make_module
from fairbed.coordinator.task.recipes import Recipe
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.trainer import evaluate
from fairbed.device_agent.trainer import train as device_train
from fairbed.testbed.replay.cohort.base import CohortRule, Trainer
from fairbed.testbed.replay.cohort.dense import DenseTrainer
from fairbed.testbed.replay.cohort.devices import DeviceTrainer
from fairbed.testbed.replay.cohort.functional import TorchTrainer
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.wire.artifact import Artifact
from fairbed.wire.messages import Augment, Hyperparameters
from tests.testbed.replay.cohort.fleets import (
    DITTO,
    EVERYTHING,
    OPTIMISERS,
    PLAIN,
    RECIPES,
    SIZES,
    Meter,
    distance,
    fleet_data,
    jobs_of,
    kept,
    on_devices,
    one_by_one,
    propfair,
    shipped,
    split_drift,
    start_of,
)

Make = Callable[[Artifact, Shards], Trainer]

MAX_POOL_TOLERANCE = 5e-2
"""A near-tie in a pooling window moves a gradient to another cell, in torch as well."""
TOLERANCE = 1e-5

ADAM_TOLERANCE = 1e-3
"""Adam divides a gradient by its size: where it is about 0, rounding decides the step."""

MLP = "mlp-64-64-10"
DENSE = [name for name, recipe in RECIPES.items() if recipe.model != "cnn"]


def batched(artifact: Artifact, shards: Shards) -> Trainer:
    return DenseTrainer(artifact.spec, shards)


def torched(artifact: Artifact, shards: Shards) -> Trainer:
    spec = artifact.spec
    return TorchTrainer(make_module(spec.model, spec.x_shape, spec.classes), spec, shards)


def the_devices(artifact: Artifact, shards: Shards) -> Trainer:
    return DeviceTrainer(artifact, shards, threads=2)


CASES = [
    *(pytest.param(batched, name, id=f"batched-{name}") for name in DENSE),
    *(pytest.param(torched, name, id=f"torch-{name}") for name in RECIPES),
    *(pytest.param(the_devices, name, id=f"device-{name}") for name in ("softmax-60-10",)),
]

RULE_CASES = [
    *(pytest.param(batched, name, id=f"batched-{name}") for name in ("softmax-60-10", MLP)),
    *(pytest.param(torched, name, id=f"torch-{name}") for name in ("softmax-60-10", MLP)),
    *(pytest.param(the_devices, name, id=f"device-{name}") for name in (MLP, "cnn-1x8x8-10")),
]
RuleOf = Callable[[Vector, int], CohortRule]


@pytest.mark.parametrize("hyperparameters", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize(("make", "name"), CASES)
def test_an_update_equals_that_of_the_device(
    make: Make, name: str, hyperparameters: Hyperparameters
) -> None:
    recipe, artifact = RECIPES[name], shipped(RECIPES[name])
    shards = Shards(fleet_data(recipe), artifact.spec.x_shape)
    start, jobs = start_of(artifact), jobs_of(len(SIZES))
    unchanged = start.copy()
    answers = kept(make(artifact, shards).train(start, jobs, hyperparameters), len(jobs))
    np.testing.assert_array_equal(start, unchanged)
    truths = on_devices(artifact, shards, start, jobs, hyperparameters)
    tolerance = MAX_POOL_TOLERANCE if recipe.model == "cnn" else TOLERANCE
    for answer, truth in zip(answers, truths, strict=True):
        assert answer.problem == ""
        assert answer.steps == truth.steps
        assert truth.loss_train is not None
        assert answer.loss_train == pytest.approx(truth.loss_train, rel=tolerance)
        assert distance(answer.vector, truth.vector, start) < tolerance


@pytest.mark.parametrize(
    "hyperparameters",
    [DITTO, EVERYTHING, OPTIMISERS["adam"]],
    ids=["ditto", "everything", "adam"],
)
@pytest.mark.parametrize(("make", "name"), CASES)
def test_a_personal_model_equals_that_of_the_device(
    make: Make, name: str, hyperparameters: Hyperparameters
) -> None:
    recipe, artifact = RECIPES[name], shipped(RECIPES[name])
    shards = Shards(fleet_data(recipe), artifact.spec.x_shape)
    w_t, jobs = start_of(artifact), jobs_of(len(SIZES))
    noise = np.random.default_rng(3).normal(scale=0.02, size=(len(jobs), w_t.size))
    starts = w_t + noise.astype(np.float32)
    unchanged = starts.copy()
    trained = make(artifact, shards).train(w_t, jobs, hyperparameters, starts)
    answers = kept(trained, len(jobs))
    np.testing.assert_array_equal(starts, unchanged)
    engine = OnnxEngine(artifact)
    tolerance = MAX_POOL_TOLERANCE if recipe.model == "cnn" else TOLERANCE
    if hyperparameters.is_adam:
        tolerance = max(tolerance, ADAM_TOLERANCE)
    for job, start, answer in zip(jobs, starts, answers, strict=True):
        x, y = shards.whole(job.device)
        truth = device_train(
            engine, start, x, y, hyperparameters, job.seed, Meter(), lambda: False, w_t
        )
        assert distance(answer.vector, truth.vector, start) < tolerance


@pytest.mark.parametrize(
    ("make", "name"),
    [(batched, "softmax-60-10"), (the_devices, MLP)],
    ids=["batched-softmax", "device-mlp"],
)
def test_parts_that_follow_from_the_memory_of_a_device_are_those_of_the_device(
    make: Make, name: str
) -> None:
    artifact = shipped(RECIPES[name])
    shards = Shards(fleet_data(RECIPES[name]), artifact.spec.x_shape)
    start, sizes = start_of(artifact), [1, 2, 3, 5, 7, 20, 40]
    jobs = [replace(job, micro_batch=m) for job, m in zip(jobs_of(7), sizes, strict=True)]
    answers = kept(make(artifact, shards).train(start, jobs, EVERYTHING), len(jobs))
    for job, answer in zip(jobs, answers, strict=True):
        parts = msgspec.structs.replace(EVERYTHING, micro_batch=job.micro_batch)
        [truth] = on_devices(artifact, shards, start, [job], parts)
        if make is the_devices:
            np.testing.assert_array_equal(answer.vector, truth.vector)
        assert distance(answer.vector, truth.vector, start) < TOLERANCE


@pytest.mark.parametrize("terms", [PLAIN, OPTIMISERS["adamw"]], ids=["plain", "adamw"])
@pytest.mark.parametrize(("make", "name"), RULE_CASES)
def test_augmented_mini_batches_are_those_of_the_device(
    make: Make, name: str, terms: Hyperparameters
) -> None:
    recipe, artifact = RECIPES[name], shipped(RECIPES[name])
    kinds = ["noise", "mixup"]
    if recipe.model == "cnn":
        kinds = ["flip", "crop", "colour", "erase", *kinds]
    augment = tuple(Augment(kind=kind) for kind in kinds)
    h = msgspec.structs.replace(terms, augment=augment)
    shards = Shards(fleet_data(recipe), artifact.spec.x_shape)
    start, jobs = start_of(artifact), jobs_of(len(SIZES))
    answers = kept(make(artifact, shards).train(start, jobs, h), len(jobs))
    truths = on_devices(artifact, shards, start, jobs, h)
    plain = on_devices(artifact, shards, start, jobs[:1], terms)[0]
    assert distance(truths[0].vector, plain.vector, start) > 0.01, "they change the training"
    tolerance = MAX_POOL_TOLERANCE if recipe.model == "cnn" else TOLERANCE
    for answer, truth in zip(answers, truths, strict=True):
        assert truth.loss_train is not None
        assert answer.loss_train == pytest.approx(truth.loss_train, rel=tolerance)
        assert distance(answer.vector, truth.vector, start) < tolerance
        if make is the_devices:
            np.testing.assert_array_equal(answer.vector, truth.vector)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize(("make", "name"), RULE_CASES)
def test_an_optimiser_its_state_and_drawn_work_are_those_of_the_device(
    make: Make, name: str, optimiser: str
) -> None:
    """Two rounds: the second goes on at the state of the first."""
    recipe, artifact, h = RECIPES[name], shipped(RECIPES[name]), OPTIMISERS[optimiser]
    shards = Shards(fleet_data(recipe), artifact.spec.x_shape)
    start, states = start_of(artifact), None
    jobs = [replace(job, epochs=1 + at % 3, max_steps=9 - at) for at, job in enumerate(jobs_of(7))]
    trainer = make(artifact, shards)
    tolerance = MAX_POOL_TOLERANCE if recipe.model == "cnn" else TOLERANCE
    for _ in range(2):
        found = dict[int, tuple[Vector, Vector, int]]()
        for some in trainer.train(start, jobs, h, None, None, states):
            assert some.states is not None
            for i, at in enumerate(some.at.tolist()):
                found[at] = some.vectors[i].copy(), some.states[i].copy(), int(some.steps[i])
        truths = on_devices(artifact, shards, start, jobs, h, states=states)
        for at, truth in enumerate(truths):
            vector, state, steps = found[at]
            assert truth.state is not None
            assert steps == truth.steps
            assert distance(vector, truth.vector, start) < tolerance
            assert state[-2:].tolist() == truth.state[-2:].tolist(), "steps of both rounds"
            scale = np.abs(truth.state).max()
            np.testing.assert_allclose(state, truth.state, rtol=0.0, atol=tolerance * scale)
        states = np.array([truth.state for truth in truths])
    trainer.close()


@pytest.mark.parametrize("rule_of", [split_drift, propfair])
@pytest.mark.parametrize("hyperparameters", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize(("make", "name"), RULE_CASES)
def test_a_local_rule_does_what_it_does_on_the_device(
    make: Make, name: str, hyperparameters: Hyperparameters, rule_of: RuleOf
) -> None:
    recipe, artifact = RECIPES[name], shipped(RECIPES[name])
    shards = Shards(fleet_data(recipe), artifact.spec.x_shape)
    start, jobs = start_of(artifact), jobs_of(len(SIZES))
    rule = rule_of(start, len(jobs))
    before = {key: vector.tobytes() for key, vector in rule.vectors.items()}
    answers = kept(make(artifact, shards).train(start, jobs, hyperparameters, rule=rule), len(jobs))
    assert {key: vector.tobytes() for key, vector in rule.vectors.items()} == before
    truths = on_devices(artifact, shards, start, jobs, hyperparameters, rule)
    plain = on_devices(artifact, shards, start, jobs, hyperparameters)
    for answer, truth, other in zip(answers, truths, plain, strict=True):
        if hyperparameters is PLAIN:  # clipping takes back what propfair does
            assert distance(other.vector, truth.vector, start) > 1e-3
        assert distance(answer.vector, truth.vector, start) < TOLERANCE
        vectors = {**truth.kept, **truth.returned}
        assert set(answer.vectors) == set(vectors)
        for key, vector in vectors.items():
            assert distance(answer.vectors[key], vector, np.zeros_like(vector)) < TOLERANCE
        if make is the_devices:
            assert answer.vector.tobytes() == truth.vector.tobytes()
            for key, vector in vectors.items():
                assert answer.vectors[key].tobytes() == vector.tobytes()


@pytest.mark.parametrize("make", [batched, torched, the_devices])
def test_a_device_that_diverges_is_no_fault_of_the_rule(make: Make) -> None:
    recipe, artifact = RECIPES["softmax-60-10"], shipped(RECIPES["softmax-60-10"])
    data = fleet_data(recipe)
    data.dataset.x[data.train_rows[2]] *= np.float32(1e30)
    shards = Shards(data, artifact.spec.x_shape)
    start, jobs = start_of(artifact), jobs_of(len(SIZES))
    rule = split_drift(start, len(jobs))
    answers = kept(make(artifact, shards).train(start, jobs, PLAIN, rule=rule), len(jobs))
    assert [k for k, answer in enumerate(answers) if answer.problem] == [2]
    assert answers[2].problem.startswith("training: the loss must be finite, got ")


def test_the_devices_engine_gives_the_devices_bits() -> None:
    recipe, artifact = RECIPES["cnn-1x8x8-10"], shipped(RECIPES["cnn-1x8x8-10"])
    shards = Shards(fleet_data(recipe, pixels=True), artifact.spec.x_shape)
    start, jobs = start_of(artifact), jobs_of(3)
    truths = on_devices(artifact, shards, start, jobs, PLAIN)
    answers = the_devices(artifact, shards).train(start, jobs, PLAIN)
    for answer, truth in zip(one_by_one(answers), truths, strict=True):
        assert answer.vector.tobytes() == truth.vector.tobytes()


@pytest.mark.parametrize("make", [batched, torched, the_devices])
def test_pixels_are_scaled_as_on_the_device(make: Make) -> None:
    recipe, artifact = RECIPES["softmax-784-10"], shipped(RECIPES["softmax-784-10"])
    shards = Shards(fleet_data(recipe, pixels=True), artifact.spec.x_shape)
    start, jobs = start_of(artifact), jobs_of(4)
    truths = on_devices(artifact, shards, start, jobs, PLAIN)
    for answer in one_by_one(make(artifact, shards).train(start, jobs, PLAIN)):
        assert distance(answer.vector, truths[answer.at].vector, start) < TOLERANCE


@pytest.mark.parametrize("make", [batched, torched, the_devices])
def test_losses_are_those_that_devices_report(make: Make) -> None:
    recipe, artifact = RECIPES["mlp-64-64-10"], shipped(RECIPES["mlp-64-64-10"])
    shards = Shards(fleet_data(recipe), artifact.spec.x_shape)
    start, engine = start_of(artifact), OnnxEngine(artifact)
    truth = [evaluate(engine, start, *shards.whole(k), Meter())[0] for k in (4, 0, 2)]
    np.testing.assert_allclose(make(artifact, shards).losses(start, [4, 0, 2]), truth, rtol=1e-6)


@pytest.mark.parametrize("make", [batched, torched, the_devices])
def test_a_diverging_device_is_reported_and_does_not_change_the_others(make: Make) -> None:
    recipe, artifact = RECIPES["softmax-60-10"], shipped(RECIPES["softmax-60-10"])
    sound, broken = fleet_data(recipe), fleet_data(recipe)
    broken.dataset.x[broken.train_rows[2]] *= np.float32(1e30)
    start, jobs = start_of(artifact), jobs_of(len(SIZES))

    def answers(data: object) -> list[tuple[str, bytes]]:
        shards = Shards(data, artifact.spec.x_shape)  # type: ignore[arg-type]  # one of the two
        got = kept(make(artifact, shards).train(start, jobs, PLAIN), len(jobs))
        return [(answer.problem, answer.vector.tobytes()) for answer in got]

    for k, (one, other) in enumerate(zip(answers(sound), answers(broken), strict=True)):
        if k == 2:
            assert other[0].startswith("training: the loss must be finite, got ")
            assert "x has values beyond 20: scale them first" in other[0]
        else:
            assert other == one


def test_without_devices_there_is_no_work() -> None:
    artifact = shipped(RECIPES["softmax-60-10"])
    shards = Shards(fleet_data(RECIPES["softmax-60-10"]), artifact.spec.x_shape)
    for make in (batched, torched, the_devices):
        trainer = make(artifact, shards)
        assert list(trainer.train(start_of(artifact), [], PLAIN)) == []
        assert trainer.losses(start_of(artifact), []).shape == (0,)


HASHING = """
import hashlib, sys
from fairbed.testbed.replay.cohort.dense import DenseTrainer
from fairbed.testbed.replay.cohort.devices import DeviceTrainer
from fairbed.testbed.replay.cohort.shards import Shards
from tests.testbed.replay.cohort.fleets import *
threads = int(sys.argv[1])
for name in ("softmax-60-10", "mlp-784-318-10", "cnn-1x8x8-10"):
    artifact = shipped(RECIPES[name])
    shards = Shards(fleet_data(RECIPES[name], SIZES * 3), artifact.spec.x_shape)
    kind = DeviceTrainer if name.startswith("cnn") else DenseTrainer
    task = artifact if name.startswith("cnn") else artifact.spec
    trainer = kind(task, shards, threads)
    h = Hyperparameters(epochs=1, batch_size=32, learning_rate=0.05, momentum=0.5)
    vector, bits = start_of(artifact), hashlib.sha256()
    for answer in one_by_one(trainer.train(vector, jobs_of(len(shards.n_k)), h)):
        bits.update(answer.vector.tobytes() + str((answer.at, answer.loss_train)).encode())
    bits.update(trainer.losses(vector, range(len(shards.n_k))).tobytes())
    print(name, bits.hexdigest())
"""


@pytest.mark.full
def test_no_bit_depends_on_threads(tmp_path: Path) -> None:
    output = []
    for threads in ("1", "2"):
        blas = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", HASHING, threads],
            cwd=Path(__file__).parents[4],
            env={**os.environ, **blas},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        output.append(done.stdout)
    assert output[0].count("\n") == 3
    assert output[0] == output[1]


def test_memory_does_not_grow_with_the_cohort() -> None:
    recipe = Recipe("mlp", (64,), 10, (64,))
    artifact = shipped(recipe)
    shards = Shards(fleet_data(recipe, [12] * 1000), artifact.spec.x_shape)
    trainer, start, jobs = DenseTrainer(artifact.spec, shards), start_of(artifact), jobs_of(1000)
    model_bytes = start.nbytes * len(jobs)
    digest = hashlib.sha256()
    tracemalloc.start()
    for answers in trainer.train(start, jobs, PLAIN):
        digest.update(answers.vectors.tobytes())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert model_bytes > 17e6
    assert peak_bytes < 6e6
