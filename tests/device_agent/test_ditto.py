"""Personal models whose lambda the device chooses, against the source in plain numpy."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fairbed.device_agent import trainer
from fairbed.device_agent.ditto import train_personal, validation_size
from fairbed.device_agent.trainer import TrainingDiverged, mini_batches
from fairbed.wire.messages import Hyperparameters, LambdaChoice, Personal
from tests.device_agent.softmax import N_VALUES, SoftmaxEngine, examples, softmax_artifact
from tests.testbed.replay.cohort.fleets import Meter

Vector = NDArray[np.float32]

CANDIDATES = (0.1, 1.0, 2.0)
H = Hyperparameters(epochs=3, batch_size=8, learning_rate=0.2, proximal=0.7)
N, DRAWN = 95, 10
"""Examples of the device, and how many of them validate."""
X, Y = examples(N).arrays()


def w(seed: int) -> Vector:
    return np.random.default_rng(seed).normal(size=N_VALUES).astype(np.float32)


def engine() -> SoftmaxEngine:
    return SoftmaxEngine(softmax_artifact().spec)


class Validations:
    """Counts the validations."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def __call__(self) -> Iterator[Meter]:
        self.count += 1
        yield Meter()


def chosen(
    choice: LambdaChoice, n: int = N, h: Hyperparameters = H, validations: Validations | None = None
) -> Vector:
    """Return v_k of a device with the first `n` examples, from w(1) with w_t = w(2)."""
    candidates = () if choice == "fixed" else CANDIDATES
    personal = Personal(run="r", hyperparameters=h, choice=choice, candidates=candidates)
    validating = validations or Validations()
    return train_personal(
        engine(), w(1), w(2), X[:n], Y[:n], personal, 5, Meter(), validating, lambda: False
    )


def parts() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which examples train and which validate."""
    drawn = np.zeros(N, dtype=np.bool_)
    drawn[np.random.Generator(np.random.PCG64(0)).choice(N, DRAWN, replace=False)] = True
    return ~drawn, drawn


def loss_of(v: Vector) -> float:
    _, drawn = parts()
    return engine().evaluate(v, X[drawn], Y[drawn])[0] / DRAWN


def test_the_dynamic_choice_is_that_of_the_source() -> None:
    train, _ = parts()
    x, y, v, taken = X[train], Y[train], w(1), []
    for _, batch in mini_batches(len(y), H, 5):
        _, g = engine().gradient(v, x[batch], y[batch])
        trials = [v - np.float32(0.2) * (g + np.float32(c) * (v - w(2))) for c in CANDIDATES]
        taken.append(int(np.argmin([loss_of(trial) for trial in trials])))
        v = trials[taken[-1]]
    assert set(taken) == {0, 1, 2}, "the case has a choice"
    validations = Validations()
    found = chosen("dynamic", validations=validations)
    np.testing.assert_allclose(found, v, rtol=1e-5, atol=1e-6)
    assert validations.count == len(taken)


def test_the_local_choice_is_the_section_of_least_validation_loss() -> None:
    train, _ = parts()
    sections = [
        trainer.train(
            engine(),
            w(1),
            X[train],
            Y[train],
            replace(H, proximal=c),
            5,
            Meter(),
            lambda: False,
            w(2),
        ).vector
        for c in CANDIDATES
    ]
    losses = [loss_of(v) for v in sections]
    assert len(set(losses)) == 3
    validations = Validations()
    best = sections[int(np.argmin(losses))]
    assert chosen("local", validations=validations).tobytes() == best.tobytes()
    assert validations.count == 3


@pytest.mark.parametrize("choice", ["local", "dynamic"])
def test_a_device_with_few_examples_takes_the_fixed_lambda(choice: LambdaChoice) -> None:
    assert chosen(choice, n=30).tobytes() == chosen("fixed", n=30).tobytes()
    assert chosen(choice, n=31).tobytes() != chosen("fixed", n=31).tobytes()
    assert validation_size(np.array([1, 30, 31, 40, 41, 1000])).tolist() == [0, 0, 4, 4, 5, 100]


@pytest.mark.parametrize("choice", ["local", "dynamic"])
def test_a_candidate_that_diverges_is_not_taken(choice: LambdaChoice) -> None:
    h = replace(H, learning_rate=1e38)
    with (
        np.errstate(all="ignore"),
        pytest.raises(TrainingDiverged, match=r"finite.*lower learning_rate"),
    ):
        chosen(choice, h=h)
