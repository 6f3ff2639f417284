"""q-FFL, Lemma 3: the curvature of F^(q+1) / (q + 1) at w is at most L F^q + q F^(q-1) |grad F|^2.

q-FedAvg takes it for the inverse of its step, so the bound is read off the product's own weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.q_ffl import q_ffl_weights
from fairbed.coordinator.algorithms.arrays import Floats

DIMENSIONS, LOSSES, POINTS = 4, 40, 5
POWERS = (0.0, 0.5, 1.0, 2.0, 5.0)
STEP = 1e-5


@dataclass(frozen=True)
class Smooth:
    """A positive loss whose gradient is L-Lipschitz."""

    value: Callable[[Floats], float]
    gradient: Callable[[Floats], Floats]
    lipschitz: float


def smooth(kind: str, rng: np.random.Generator) -> Smooth:
    """Return a random loss of a kind."""
    x = rng.normal(size=(12, DIMENSIONS))
    if kind == "quadratic":
        a = x.T @ x / len(x)
        centre = rng.normal(size=DIMENSIONS)
        return Smooth(
            lambda w: float(0.5 * (w - centre) @ a @ (w - centre) + 0.1),
            lambda w: a @ (w - centre),
            float(np.linalg.eigvalsh(a)[-1]),
        )
    if kind == "logistic":
        y = rng.choice([-1.0, 1.0], len(x))
        return Smooth(
            lambda w: float(np.logaddexp(0.0, -y * (x @ w)).mean()),
            lambda w: -((y / (1.0 + np.exp(y * (x @ w)))) @ x) / len(x),
            float(np.linalg.eigvalsh(x.T @ x / len(x))[-1]) / 4.0,
        )
    phase, height = rng.uniform(0.0, 6.28, len(x)), rng.uniform(0.1, 1.0, len(x))
    return Smooth(
        lambda w: float(height @ (1.01 - np.cos(x @ w + phase))),
        lambda w: (height * np.sin(x @ w + phase)) @ x,
        float(np.linalg.eigvalsh((x.T * height) @ x)[-1]),
    )


def curvature(loss: Smooth, w: Floats, q: float) -> float:
    """Return the largest |eigenvalue| of the Hessian of F^(q+1) / (q+1), by differences."""

    def gradient(at: Floats) -> Floats:
        slope: Floats = loss.value(at) ** q * loss.gradient(at)
        return slope

    rows = [
        (gradient(w + STEP * e) - gradient(w - STEP * e)) / (2.0 * STEP) for e in np.eye(w.size)
    ]
    hessian = np.array(rows)
    return float(np.abs(np.linalg.eigvalsh((hessian + hessian.T) / 2.0)).max())


def bound_of_the_rule(loss: Smooth, w: Floats, q: float) -> float:
    """Return the h by which q-FedAvg divides when one device makes one exact step at 1 / L."""
    squared_norm = float((loss.gradient(w) ** 2).sum()) / loss.lipschitz**2
    value = loss.value(w)
    (a,) = q_ffl_weights(np.array([squared_norm]), np.array([value]), np.ones(1), q, loss.lipschitz)
    return float(loss.lipschitz * value**q / a)


def without_the_gradient(loss: Smooth, w: Floats, q: float) -> float:
    """Return L F^q, the bound that forgets how steep the loss is."""
    return float(loss.lipschitz * loss.value(w) ** q)


def tightness(
    kind: str, q: float, bound: Callable[[Smooth, Floats, float], float] = bound_of_the_rule
) -> Floats:
    """Return curvature / bound at random points of random losses, shape (LOSSES * POINTS,)."""
    rng = np.random.default_rng(11)
    found = []
    for _ in range(LOSSES):
        loss = smooth(kind, rng)
        for w in rng.normal(0.0, 2.0, (POINTS, DIMENSIONS)):
            found.append(curvature(loss, w, q) / bound(loss, w, q))
    return np.array(found)


@pytest.mark.parametrize("kind", ["quadratic", "logistic", "wavy"])
@pytest.mark.parametrize("q", POWERS)
def test_the_curvature_stays_below_the_bound(kind: str, q: float) -> None:
    assert tightness(kind, q).max() <= 1.0 + 1e-6


def test_the_bound_is_met_where_it_is_tight() -> None:
    """One dimension, F = L w^2 / 2: at q = 1 the curvature is the bound itself."""
    loss = Smooth(lambda w: float(1.5 * w @ w), lambda w: 3.0 * w, 3.0)
    w = np.array([2.0])
    assert curvature(loss, w, 1.0) == pytest.approx(bound_of_the_rule(loss, w, 1.0), rel=1e-6)


@pytest.mark.parametrize("kind", ["quadratic", "logistic", "wavy"])
def test_without_the_gradient_the_bound_fails(kind: str) -> None:
    assert tightness(kind, 2.0, without_the_gradient).max() > 1.05
