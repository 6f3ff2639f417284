"""RBCS-F: rate >= beta - Z_T / T, exactly, for every device at the end of every round."""

from typing import get_args

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.policy.config import Policy, SelectionConfig
from fairbed.coordinator.policy.factories import make_estimator, make_selector
from tests.theory.rounds import Lived, World, live

BETA = 0.125
"""A power of two: every queue is a multiple of 1/8, so that nothing is rounded and the bound can
be held without any tolerance."""
ROUNDS = 120
WORLD = World(failures=0.1, gone=(3, 37))

PROMISING = {
    "rbcs-f": SelectionConfig(),
    "rbcs-f, phases": SelectionConfig(estimator="phases"),
    "rbcs-f, V=0": SelectionConfig(V=0.0),
    "rbcs-f, V=1000": SelectionConfig(V=1000.0),
    "rbcs-f, theory": SelectionConfig(alpha="theory", lcb_floor="none"),
    "rbcs-f-known": SelectionConfig(policy="rbcs-f-known"),
}


def lived(config: SelectionConfig, world: World = WORLD, rounds: int = ROUNDS) -> Lived:
    selector = make_selector(config)
    return live(selector, make_estimator(config), world, seed=3, rounds=rounds)


def with_beta(config: SelectionConfig, **others: object) -> SelectionConfig:
    return msgspec.structs.replace(config, **{"beta": BETA, "per_round": 8, **others})


def slack(x: Bools, queues: Floats) -> Floats:
    """Return sum x - (beta T - Z_T) after each round: multiples of 1/8, shape (T, N)."""
    rounds = np.arange(1, len(x) + 1)[:, None]
    exact: Floats = np.cumsum(x, axis=0) - (BETA * rounds - queues)
    return exact


def recursion(x: Bools, *, sign: float = 1.0, only: Bools | None = None) -> Floats:
    """Return Z after each round by Z <- max(Z + beta - x, 0), written down a second time."""
    z, after = np.zeros(x.shape[1]), np.zeros(x.shape)
    for t in range(len(x)):
        moved = np.maximum(z + sign * (BETA - x[t]), 0.0)
        z = moved if only is None else np.where(only[t], moved, z)
        after[t] = z
    return after


@pytest.mark.parametrize("counts", ["selected", "aggregated"])
@pytest.mark.parametrize("name", PROMISING)
def test_holds_exactly_after_every_round(name: str, counts: str) -> None:
    """Also for devices that are never there, and whichever x counts."""
    one = lived(with_beta(PROMISING[name], queue_counts=counts))
    x = one.is_selected if counts == "selected" else one.is_merged
    assert not one.is_selected[:, list(WORLD.gone)].any()
    assert slack(x, one.queues).min() >= 0.0
    assert one.queues[-1, WORLD.gone[0]] == BETA * ROUNDS


@pytest.mark.parametrize("policy", get_args(Policy))
def test_holds_for_any_selection(policy: Policy) -> None:
    """It follows from the recursion alone; policies with a guarantee keep their own queues."""
    one = lived(SelectionConfig(policy=policy, beta=BETA, per_round=8, deadline_s=3.0))
    assert slack(one.is_selected, recursion(one.is_selected)).min() >= 0.0
    if policy.startswith("rbcs-f"):
        np.testing.assert_array_equal(one.queues, recursion(one.is_selected))
    else:
        assert slack(one.is_selected, one.queues).min() < 0.0, "no queue, so no guarantee"


def test_a_frozen_queue_gives_it_up_for_its_device_only() -> None:
    """Row 0 fails for good: its queue stands still after five failures, the others hold."""
    world = World(failures=1.0)
    one = lived(with_beta(SelectionConfig(), queue_counts="aggregated"), world, rounds=80)
    short = slack(one.is_merged, one.queues)[-1]
    assert (short < 0.0).any()
    is_frozen = one.queues[-1] == one.queues[-2]
    assert (short[~is_frozen] >= 0.0).all()


def test_a_cap_breaks_it() -> None:
    one = lived(with_beta(SelectionConfig(), z_max=1.0))
    assert slack(one.is_selected, one.queues).min() <= -10.0
    assert one.queues.max() == 1.0


@pytest.mark.parametrize("wrong", ["the sign of the queue", "absent devices left out"])
def test_a_wrong_recursion_breaks_it(wrong: str) -> None:
    x = lived(with_beta(SelectionConfig())).is_selected
    if wrong == "the sign of the queue":
        queues = recursion(x, sign=-1.0)
    else:
        there = np.random.default_rng(0).random(x.shape) < 0.5
        queues = recursion(x, only=there | x)
    assert slack(x, queues).min() < 0.0
