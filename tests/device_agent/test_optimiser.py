"""Optimisers of local training against those of torch, in float64, and their kept state."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fairbed.device_agent.optimiser import COUNT_BASE, count_of, state_size, write_count
from fairbed.device_agent.trainer import Descent
from fairbed.wire.messages import Hyperparameters, Optimiser, Schedule

STEPS, N = 50, 20_000
"""More parameters than a pass of the optimiser takes (`BLOCK`)."""

PLAIN = Hyperparameters(epochs=1, batch_size=1, learning_rate=0.05)

CASES = {
    "nesterov": replace(PLAIN, momentum=0.9, weight_decay=0.01, optimiser=Optimiser(nesterov=True)),
    "momentum": replace(PLAIN, momentum=0.9, weight_decay=0.01),
    "adam": replace(PLAIN, optimiser=Optimiser(name="adam"), weight_decay=0.02),
    "adamw": replace(
        PLAIN,
        weight_decay=0.1,
        optimiser=Optimiser(name="adamw", betas=(0.8, 0.95), epsilon=1e-4),
    ),
    "adam-warm-cosine": replace(
        PLAIN,
        optimiser=Optimiser(name="adam"),
        schedule=Schedule(kind="cosine", warm_up=8, length=STEPS, least_ratio=0.1),
    ),
    "sgd-warm-steps": replace(
        PLAIN, momentum=0.5, schedule=Schedule(kind="step", warm_up=5, every=7, factor=0.5)
    ),
}


def kept(h: Hyperparameters) -> Hyperparameters:
    """Return the hyperparameters with a state that is kept."""
    return replace(h, optimiser=replace(h.optimiser or Optimiser(), keeps_state=True))


def gradients(n: int = N) -> Callable[[NDArray[Any], int], NDArray[Any]]:
    """Return the gradient of a quadratic with noise that depends on the step alone."""
    curvature = np.random.default_rng(1).uniform(0.1, 2.0, n)

    def gradient(w: NDArray[Any], step: int) -> NDArray[Any]:
        noise = np.random.default_rng([2, step]).normal(size=n)
        return np.asarray(curvature * w + noise, dtype=w.dtype)

    return gradient


def ours(h: Hyperparameters, steps: int = STEPS, dtype: type = np.float64) -> NDArray[Any]:
    """Return the parameters after some steps."""
    w: NDArray[Any] = np.random.default_rng(0).normal(size=N).astype(dtype)
    descent, gradient = Descent(w, h, w.copy(), lengths=np.array([steps])), gradients()
    for step in range(steps):
        descent.step(gradient(w, step))
    return w


@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_are_those_of_torch_in_float64(name: str) -> None:
    torch = pytest.importorskip("torch")

    h = CASES[name]
    w = torch.tensor(np.random.default_rng(0).normal(size=N), requires_grad=True)
    rest = {"lr": h.learning_rate, "weight_decay": h.weight_decay}
    o = h.optimiser or Optimiser()
    if o.name == "sgd":
        made = torch.optim.SGD([w], momentum=h.momentum, nesterov=o.nesterov, **rest)
    else:
        make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[o.name]
        made = make([w], betas=o.betas, eps=o.epsilon, **rest)
    schedule, rates = h.schedule, torch.optim.lr_scheduler
    scheduler = None
    if schedule is not None:
        first, whole = schedule.warm_up, schedule.length or STEPS
        warm = rates.LinearLR(made, 1.0 / first, 1.0, first - 1)
        least = schedule.least_ratio * h.learning_rate
        then = (
            rates.CosineAnnealingLR(made, whole - first, least)
            if schedule.kind == "cosine"
            else rates.StepLR(made, schedule.every, schedule.factor)
        )
        scheduler = rates.SequentialLR(made, [warm, then], [first])
    gradient = gradients()
    for step in range(STEPS):
        w.grad = torch.from_numpy(gradient(w.detach().numpy(), step))
        made.step()
        if scheduler is not None:
            scheduler.step()
    theirs = w.detach().numpy()
    np.testing.assert_allclose(ours(h), theirs, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours(h, dtype=np.float32), theirs, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["nesterov", "adam", "adamw"])
def test_a_kept_state_goes_on_as_one_training(name: str) -> None:
    h = kept(CASES[name])
    w = np.random.default_rng(0).normal(size=N).astype(np.float32)
    state, gradient = np.zeros(state_size(h, N), np.float32), gradients()
    for first, end in ((0, 20), (20, STEPS)):
        descent = Descent(w, h, w.copy(), state=state)
        for step in range(first, end):
            descent.step(gradient(w, step))
        descent.count_steps(np.array([end - first]))
    assert count_of(state).tolist() == [STEPS]
    np.testing.assert_array_equal(w, ours(h, dtype=np.float32))


@pytest.mark.parametrize("name", CASES)
def test_models_side_by_side_have_the_bits_of_one_alone(name: str) -> None:
    h, n, lengths = CASES[name], 18_001, np.array([9, 6, 4])
    if h.schedule is not None:
        h = replace(h, schedule=replace(h.schedule, length=None))
    keeps = h.n_moments > 0
    h = kept(h) if keeps else h
    rng = np.random.default_rng(5)
    params = rng.normal(size=(3, n)).astype(np.float32)
    g = rng.normal(size=(9, 3, n)).astype(np.float32)
    states = np.zeros((3, state_size(h, n)), np.float32) if keeps else None
    if states is not None:
        states[:, :-2] = rng.uniform(0.0, 1.0, size=(3, states.shape[1] - 2))
        write_count(states, np.array([[0], [7], [COUNT_BASE + 3]]))
    alone = [(params[k].copy(), None if states is None else states[k].copy()) for k in range(3)]
    for k, (w, state) in enumerate(alone):
        descent = Descent(w, h, w.copy(), state=state, lengths=lengths[k : k + 1])
        for step in range(lengths[k]):
            descent.step(g[step, k].copy())
        if state is not None:
            descent.count_steps(lengths[k : k + 1])
    together = Descent(params, h, params[0].copy(), state=states, lengths=lengths)
    for step in range(9):
        active = int((lengths > step).sum())
        together.step(g[step, :active].copy(), slice(0, active))
    if states is not None:
        together.count_steps(lengths)
    for k, (w, state) in enumerate(alone):
        np.testing.assert_array_equal(params[k], w)
        if state is not None:
            assert states is not None
            np.testing.assert_array_equal(states[k], state)


def test_a_count_outlasts_float32() -> None:
    state, count = np.zeros((2, 5), np.float32), np.array([[3], [(1 << 40) + 12_345]])
    write_count(state, count)
    np.testing.assert_array_equal(count_of(state), count)
