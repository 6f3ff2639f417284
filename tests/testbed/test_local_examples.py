"""SCAFFOLD and FedDyn against float64 references that follow the papers, and their limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.feddyn import FedDyn
from examples.scaffold import Scaffold
from fairbed.coordinator.algorithms.aggregation.base import Report
from fairbed.coordinator.algorithms.local_training import LocalMerge, ServerHalf
from fairbed.coordinator.policy.config import AggregationConfig, TrainingConfig
from fairbed.coordinator.policy.factories import make_aggregator
from fairbed.device_agent.local_training import GuardedRule
from fairbed.device_agent.trainer import Descent
from fairbed.wire.local_training import Merged, Step, Trained
from fairbed.wire.messages import Hyperparameters

Array: TypeAlias = NDArray[np.float64]
ETA, ALPHA = 0.05, 0.3


@dataclass(frozen=True)
class Problem:
    """F_k(w) = (w - b_k)' A_k (w - b_k) / 2, with noise of the mini-batches, and cohorts."""

    a: Array
    """Shape (N, P, P)."""
    b: Array
    """Shape (N, P)."""
    noise: Array
    """Shape (rounds, N, steps, P)."""
    cohorts: list[list[int]]
    steps: list[int]
    """Mini-batches of each device, descending."""
    w0: Array

    def gradient(self, t: int, k: int, s: int, w: Array) -> Array:
        """Return the gradient of mini-batch s of device k in round t."""
        return np.asarray(self.a[k] @ (w - self.b[k]) + self.noise[t, k, s])

    def optimum(self) -> Array:
        """Return the minimum of the mean of all F_k, shape (P,)."""
        total = np.einsum("kij,kj->i", self.a, self.b)
        return np.asarray(np.linalg.solve(self.a.sum(0), total))


def problem(rounds: int, noise: float, per_round: int, n: int = 5, p: int = 4) -> Problem:
    rng = np.random.default_rng(7)
    roots = rng.normal(0.0, 1.0, (n, p, p))
    return Problem(
        a=0.3 * np.einsum("kij,klj->kil", roots, roots) + 0.2 * np.eye(p),
        b=rng.normal(0.0, 2.0, (n, p)),
        noise=noise * rng.normal(0.0, 1.0, (rounds, n, 6, p)),
        cohorts=[sorted(rng.permutation(n)[:per_round].tolist()) for _ in range(rounds)],
        steps=[6, 5, 5, 3, 2],
        w0=rng.normal(0.0, 1.0, p).astype(np.float32).astype(np.float64),
    )


def scaffold_of_the_paper(of: Problem) -> list[Array]:
    """Return x after each round: Karimireddy et al., Algorithm 1, option II, eta_g = 1."""
    n, p = of.b.shape
    x, c, models = of.w0.copy(), np.zeros(p), []
    c_i = [np.zeros(p) for _ in range(n)]
    for t, cohort in enumerate(of.cohorts):
        dx, dc = np.zeros(p), np.zeros(p)
        for i in cohort:
            y = x.copy()
            for s in range(of.steps[i]):
                y = y - ETA * (of.gradient(t, i, s, y) - c_i[i] + c)
            c_plus = c_i[i] - c + (x - y) / (of.steps[i] * ETA)
            dx, dc = dx + (y - x) / len(cohort), dc + (c_plus - c_i[i]) / len(cohort)
            c_i[i] = c_plus
        x, c = x + dx, c + len(cohort) / n * dc
        models.append(x)
    return models


def feddyn_of_the_paper(of: Problem) -> list[Array]:
    """Return theta after each round: Acar et al., Algorithm 1, with SGD steps."""
    n, p = of.b.shape
    theta, h, models = of.w0.copy(), np.zeros(p), []
    gradients = [np.zeros(p) for _ in range(n)]
    for t, cohort in enumerate(of.cohorts):
        ends = []
        for k in cohort:
            w = theta.copy()
            for s in range(of.steps[k]):
                w = w - ETA * (of.gradient(t, k, s, w) - gradients[k] + ALPHA * (w - theta))
            gradients[k] = gradients[k] - ALPHA * (w - theta)
            ends.append(w)
        h = h - ALPHA / n * sum((w - theta for w in ends), np.zeros(p))
        theta = sum(ends, np.zeros(p)) / len(ends) - h / ALPHA
        models.append(theta)
    return models


def fedavg_of_the_paper(of: Problem) -> Array:
    x: Array = of.w0.copy()
    for t, cohort in enumerate(of.cohorts):
        ends = []
        for k in cohort:
            y = x.copy()
            for s in range(of.steps[k]):
                y = y - ETA * of.gradient(t, k, s, y)
            ends.append(y)
        x = np.asarray(sum(ends, np.zeros(len(x))) / len(ends))
    return x


def by_the_rule(of: Problem, make: Callable[[], Any]) -> list[Array]:
    """Return the model after each round by the methods of a plug-in, in float64, cohort by cohort.

    A cohort is one stack; a device leaves it after its last step.
    """
    device, server = make(), make()
    n, p = of.b.shape
    w, models = of.w0.copy(), []
    kept = {name: np.zeros((n, p)) for name in device.kept}
    sent = {name: np.zeros(p) for name in device.sent}
    for t, cohort in enumerate(of.cohorts):
        params = np.tile(w, (len(cohort), 1))
        steps = np.array([of.steps[k] for k in cohort])
        vectors: Mapping[str, Any] = {**sent, **{name: kept[name][cohort] for name in kept}}
        for s in range(steps.max()):
            at = slice(0, int(np.count_nonzero(steps > s)))
            rows = cohort[at]
            gradient: Any = np.array(
                [of.gradient(t, k, s, v) for k, v in zip(rows, params[at], strict=True)]
            )
            step = Step(
                params=params[at],
                gradient=gradient,
                loss=np.zeros(len(rows)),
                anchor=w,
                buffers=np.zeros((len(rows), 0), dtype=np.float32),
                vectors=vectors | {name: vectors[name][at] for name in kept},  # type: ignore[operator]
                learning_rate=ETA,
                gradient_at=lambda other: (np.zeros(len(other)), other),
            )
            device.gradient(step)
            params[at] -= ETA * step.gradient
        ended = device.end(Trained(params, w, steps, vectors, ETA))
        assert all(vector.dtype == np.float64 for vector in ended.values())
        for name in kept:
            kept[name][cohort] = ended[name]
        after: Any = params.mean(0)
        returned = {name: ended[name].mean(0) for name in device.returned}
        merged = Merged(after, w, sent, returned, len(cohort), n, ETA)  # type: ignore[arg-type]
        sent |= server.merge(merged)
        w = merged.params.astype(np.float64)
        models.append(w)
    return models


def by_the_product(of: Problem, make: Callable[[], Any]) -> list[Array]:
    """Return the model after each round by descent, guards and aggregator, in float32."""
    device, half = GuardedRule("rule", make()), ServerHalf("rule", make())
    aggregator = make_aggregator(AggregationConfig(weights="equal"), TrainingConfig(), 2)
    n, p = of.b.shape
    w, models = of.w0.astype(np.float32), []
    zeros = np.zeros(p, dtype=np.float32)
    kept: list[Mapping[str, Any]] = [{name: zeros for name in device.kept} for _ in range(n)]
    training = Hyperparameters(epochs=1, batch_size=1, learning_rate=ETA)
    for t, cohort in enumerate(of.cohorts):
        sent = dict(zip(half.sent, half.vectors(p).reshape(-1, p), strict=True))
        begun = aggregator.begin(half.padded(w, p), p, ETA, list, n, t + 1)  # type: ignore[arg-type]
        before = w
        merge = LocalMerge(begun, lambda done, w=before: half.finish(done, w, p, n, ETA))  # type: ignore[misc]
        for k in cohort:
            params = w.copy()
            descent = Descent(params, training, w, device, {**sent, **kept[k]})
            for s in range(of.steps[k]):
                gradient = of.gradient(t, k, s, params.astype(np.float64)).astype(np.float32)
                descent.apply_rules(
                    gradient, np.array(0.0), zeros[:0], lambda other: (np.array(0.0), other)
                )
                descent.step(gradient)
            kept[k], returned = device.end(descent.trained(np.array(of.steps[k])))
            model = np.concatenate([params, *returned.values()])
            merge.add(Report(row=k, n_k=3 + k, model=model, loss_before=None))
        w = merge.finish().vector
        models.append(w.astype(np.float64))
    return models


RULES = [
    pytest.param(Scaffold, scaffold_of_the_paper, id="scaffold"),
    pytest.param(lambda: FedDyn(ALPHA), feddyn_of_the_paper, id="feddyn"),
]
every_rule = pytest.mark.parametrize(("make", "reference"), RULES)
Reference: TypeAlias = Callable[[Problem], list[Array]]


def farthest(got: list[Array], expected: list[Array]) -> float:
    """Return the largest distance of two models of a round, relative to their length."""
    pairs = zip(got, expected, strict=True)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


@every_rule
def test_the_arithmetic_is_that_of_the_paper(make: Callable[[], Any], reference: Reference) -> None:
    of = problem(rounds=60, noise=0.3, per_round=3)
    assert farthest(by_the_rule(of, make), reference(of)) < 1e-12


@every_rule
def test_a_run_stays_within_the_rounding_of_float32(
    make: Callable[[], Any], reference: Reference
) -> None:
    of = problem(rounds=60, noise=0.3, per_round=3)
    far = farthest(by_the_product(of, make), reference(of))
    assert far < 1e-6


@every_rule
def test_unlike_devices_reach_the_common_optimum(
    make: Callable[[], Any], reference: Reference
) -> None:
    of = problem(rounds=600, noise=0.0, per_round=5)
    optimum = of.optimum()
    far = np.linalg.norm(by_the_rule(of, make)[-1] - optimum) / np.linalg.norm(optimum)
    assert far < 1e-6
    drift = np.linalg.norm(fedavg_of_the_paper(of) - optimum) / np.linalg.norm(optimum)
    assert drift > 0.01


def test_a_device_without_a_step_keeps_its_control_variate() -> None:
    x, c = np.ones(3, dtype=np.float32), np.full(3, 2.0, dtype=np.float32)
    vectors = {"c": c, "c_k": -c}
    got = Scaffold().end(Trained(x, x, np.array(0), vectors, ETA))
    assert got["c_k"].tolist() == [-2.0] * 3
    assert got["change"].tolist() == [0.0] * 3


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), 1e4])
def test_an_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha must be above 0 and at most 1000, got"):
        FedDyn(alpha)
