"""Devices that join a run late, leave it and return: every rule with a state per device."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.aaggff import (
    ALPHA,
    CDFS,
    AAggFFD,
    AAggFFS,
    responses,
)
from fairbed.coordinator.algorithms.aggregation.afl import Afl
from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.base import Report, Updates
from fairbed.coordinator.algorithms.aggregation.quadratic import least_on_simplex
from fairbed.coordinator.algorithms.aggregation.weighting import RATIO_CAP, Participation
from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from tests.coordinator.algorithms.aggregation.rounds import Kept, vector
from tests.coordinator.algorithms.aggregation.test_every_aggregator import CONFIGS

SENT = vector(0.0, 0.0)
SEEDS = range(20)


def merge_shares(
    rule: Aggregator, rows: Ints, losses: Floats, not_drawn: Bools | None, registered: int
) -> Floats:
    """Return the shares of a round in which devices with equal examples report, shape (m,)."""
    merge = rule.begin(SENT, 2, 0.1, Kept, registered, 1, not_drawn)
    for row, loss in zip(rows.tolist(), losses.tolist(), strict=True):
        merge.add(Report(row=row, n_k=50, model=vector(1.0, float(row)), loss_before=loss))
    return merge.finish().shares


def resumed(rule: Aggregator, config: AggregationConfig) -> Aggregator:
    """Return a rule that continues from the checkpoint of another one."""
    other = make_aggregator(config, per_round=4)
    other.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(rule.to_state())))
    return other


def state_size(config: AggregationConfig, devices: int) -> int:
    rule = make_aggregator(config, per_round=4)
    merge_shares(rule, np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]), None, devices)
    return len(msgspec.msgpack.encode(rule.to_state()))


PER_DEVICE = [
    name for name, config in CONFIGS.items() if state_size(config, 60) > state_size(config, 20) + 30
]
"""All rules whose state grows with the fleet."""
BY_RATE = [name for name in PER_DEVICE if "n/pi" in name and not name.startswith("aaggff")]
"""Rules that weight an update by the rate of its device."""
BY_LOSS = [name for name in PER_DEVICE if name not in BY_RATE and "capped" not in name]
"""Rules with a weight for each device; a cap on top gives weights to others."""
STEADY = [name for name in BY_LOSS if "gamma=10" not in name]
"""Those whose step is smaller than a weight."""


def test_all_rules_with_a_state_per_device_are_found() -> None:
    assert {"afl", "aaggff-s", "aaggff-d"} <= set(BY_LOSS)
    assert {"fedavg, n/pi", "q-fedavg, n/pi", "corefed, n/pi"} == set(BY_RATE)


@dataclass
class Fleet:
    """A fleet whose devices have rows from the start, and join when they are first available."""

    config: AggregationConfig
    devices: int
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.rule = make_aggregator(self.config, per_round=4)

    def round(self, available: Ints, losses: Floats, m: int | None = None) -> dict[int, float]:
        """Return the shares by row of a round that draws `m` devices; None: all."""
        drawn = np.sort(self.rng.choice(available, len(available) if m is None else m, False))
        not_drawn = np.zeros(self.devices, dtype=np.bool_)
        not_drawn[available] = True
        not_drawn[drawn] = False
        shares = merge_shares(self.rule, drawn, losses[drawn], not_drawn, self.devices)
        return dict(zip(drawn.tolist(), shares.tolist(), strict=True))

    def restart(self) -> None:
        self.rule = resumed(self.rule, self.config)


LATE = np.array([1, 4])
"""Rows of devices that join late, in the middle of the others."""
EARLY = np.array([0, 2, 3, 5, 6])


def history(fleet: Fleet, *, equal: bool, rounds: int = 24) -> None:
    """Play rounds of the early devices; device 6 is away for a while, and the rule restarts."""
    level = np.ones(fleet.devices) if equal else fleet.rng.uniform(0.5, 1.5, fleet.devices)
    for t in range(rounds):
        available = EARLY if equal or not 6 <= t < 12 else EARLY[:-1]
        losses = level * fleet.rng.uniform(0.9, 1.1, fleet.devices)
        fleet.round(available, np.ones(fleet.devices) if equal else losses)
        if t == rounds // 2:
            fleet.restart()


@pytest.mark.parametrize("name", BY_LOSS)
@pytest.mark.parametrize("equal", [True, False], ids=["equal histories", "unequal histories"])
@pytest.mark.parametrize("joiners", [1, 2])
def test_a_joiner_has_an_equal_share_in_the_merge_of_its_first_round(
    name: str, equal: bool, joiners: int
) -> None:
    """Equal losses in that round change no weight."""
    for seed in range(3):
        fleet = Fleet(CONFIGS[name], 7, np.random.default_rng(seed))
        history(fleet, equal=equal)
        fleet.restart()
        available = np.sort(np.concatenate([EARLY, LATE[:joiners]]))
        shares = fleet.round(available, np.ones(7))
        for row in LATE[:joiners].tolist():
            assert shares[row] == pytest.approx(1.0 / len(available), rel=1e-9)


@pytest.mark.parametrize("name", STEADY)
def test_losses_with_noise_move_a_joiner_by_a_tenth_in_its_first_round(name: str) -> None:
    for seed in range(4):
        fleet = Fleet(CONFIGS[name], 7, np.random.default_rng(seed))
        history(fleet, equal=seed % 2 == 0)
        losses = fleet.rng.uniform(0.8, 1.2, 7)
        shares = fleet.round(np.sort(np.append(EARLY, 1)), losses)
        assert shares[1] == pytest.approx(1.0 / 6.0, rel=0.1)


@pytest.mark.parametrize("name", BY_RATE)
def test_a_joiner_counts_as_a_device_of_the_mean_rate(name: str) -> None:
    """Where all report in all rounds, that is an equal share."""
    fleet = Fleet(CONFIGS[name], 7, np.random.default_rng(0))
    for _ in range(30):
        fleet.round(EARLY, np.ones(7))
    fleet.restart()
    for _ in range(20):
        shares = fleet.round(np.sort(np.append(EARLY, 1)), np.ones(7))
        assert shares[1] == pytest.approx(1.0 / 6.0, rel=1e-9)


def mean_weight(rounds: int, rate: float) -> float:
    """Return E 1/rho of a device after some rounds, each with an update at this rate."""
    counts = np.arange(rounds + 1)
    pmf = [math.comb(rounds, a) * rate**a * (1.0 - rate) ** (rounds - a) for a in counts.tolist()]
    participation, many = Participation(), 10**9  # rounds of a fleet with this mean rate
    merged = [*counts.tolist(), int(rate * many)]
    participation.load_state({"merged": merged, "rounds": [rounds] * len(counts) + [many]})
    return float(pmf @ (1.0 / participation.relative_rates(counts)))


def test_a_device_with_few_rounds_counts_up_to_a_third_more_by_its_rate() -> None:
    rate = 0.02
    means = {rounds: mean_weight(rounds, rate) for rounds in (0, 20, 50, 100, 200, 500)}
    for rounds in (20, 50, 100):
        x = rate * rounds
        assert means[rounds] == pytest.approx((x + 1.0) * -math.expm1(-x) / x, rel=0.02)
    assert means[0] == 1.0
    assert 1.28 < max(means.values()) < 1.31
    assert means[500] == pytest.approx(1.1, abs=0.02)


@pytest.mark.parametrize("name", PER_DEVICE)
def test_a_device_with_a_row_that_has_not_joined_does_not_count(name: str) -> None:
    """A run that expects devices gives them rows before they join; another run does not."""
    expects = Fleet(CONFIGS[name], 7, np.random.default_rng(5))
    surprised = Fleet(CONFIGS[name], 7, np.random.default_rng(5))
    row_of = {row: at for at, row in enumerate([*EARLY.tolist(), *LATE.tolist()])}
    for t in range(30):
        losses, m = expects.rng.uniform(0.5, 2.0, 7), 4
        surprised.rng.uniform(0.5, 2.0, 7)
        available = EARLY if t < 20 else np.arange(7)
        drawn = np.sort(expects.rng.choice(available, m, False))
        not_drawn = np.isin(np.arange(7), available) & ~np.isin(np.arange(7), drawn)
        shares = merge_shares(expects.rule, drawn, losses[drawn], not_drawn, 7)
        order = np.argsort([row_of[row] for row in drawn.tolist()])
        appended = np.array([row_of[row] for row in drawn[order].tolist()])
        n = len(available)
        others = ~np.isin(np.arange(n), appended)
        theirs = merge_shares(surprised.rule, appended, losses[drawn[order]], others, n)
        np.testing.assert_allclose(theirs, shares[order], rtol=1e-9)


@pytest.mark.parametrize("name", STEADY)
def test_a_device_that_leaves_continues_with_its_weight_when_it_returns(name: str) -> None:
    """Losses are equal meanwhile, so its share is as if it had never left."""
    left, stayed = (Fleet(CONFIGS[name], 5, np.random.default_rng(3)) for _ in range(2))
    losses, others = np.array([1.2, 0.8, 1.1, 0.9, 1.0]), np.array([0, 1, 3, 4])
    for _ in range(3):
        left.round(np.arange(5), losses)
        stayed.round(np.arange(5), losses)
    for t in range(30):
        left.round(others, np.ones(5))
        stayed.round(np.arange(5), np.ones(5))
        if t == 20:
            left.restart()
    after, expected = (fleet.round(np.arange(5), np.ones(5)) for fleet in (left, stayed))
    assert after[2] > 0.2, "it had the largest loss but one"
    assert after == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", BY_RATE)
def test_a_device_that_was_away_counts_for_the_updates_that_it_missed(name: str) -> None:
    """The weight by its rate rises, and not above the cap."""
    fleet = Fleet(CONFIGS[name], 5, np.random.default_rng(1))
    for t in range(100):
        fleet.round(np.arange(5) if t < 5 else np.array([0, 1, 3, 4]), np.ones(5))
    shares = fleet.round(np.arange(5), np.ones(5))
    assert 2.0 < shares[2] / shares[0] < 1.3 * RATIO_CAP


def test_a_device_that_fails_keeps_its_weight_under_afl() -> None:
    """A drawn device without an update is not compared with those that have one."""
    fleet = Fleet(AggregationConfig(rule="afl", gamma=0.1), 4, np.random.default_rng(0))
    fleet.round(np.arange(4), np.ones(4))
    not_drawn = np.zeros(4, dtype=np.bool_)
    for _ in range(50):
        merge_shares(fleet.rule, np.array([0, 1, 3]), np.ones(3), not_drawn, 4)
    assert fleet.round(np.arange(4), np.ones(4))[2] == pytest.approx(0.25)


def test_devices_that_remain_without_any_weight_get_an_equal_share_under_afl() -> None:
    """The device with all weight leaves: the others are weighted by their losses again."""
    fleet = Fleet(AggregationConfig(rule="afl", gamma=0.05), 4, np.random.default_rng(0))
    for _ in range(60):
        fleet.round(np.arange(4), np.array([5.0, 1.0, 1.0, 1.0]))
    assert fleet.round(np.arange(4), np.ones(4))[0] == 1.0
    for _ in range(5):
        shares = fleet.round(np.array([1, 2, 3]), np.array([0.0, 1.0, 1.0, 2.0]))
    assert shares[3] > 2.0 * shares[1] > 0.0
    assert sum(fleet.rule.to_state()["rule"]["lambda"]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", PER_DEVICE)
def test_a_restart_changes_no_bit_although_devices_join_out_of_order(name: str) -> None:
    straight, cut = (Fleet(CONFIGS[name], 7, np.random.default_rng(4)) for _ in range(2))
    for t in range(30):
        available = np.array([0, 2, 3, 5]) if t < 8 else np.arange(6) if t < 16 else np.arange(7)
        for fleet in (straight, cut):
            losses = fleet.rng.uniform(0.2, 2.0, 7)
            fleet.round(available, losses, m=3)
        cut.restart()
        assert cut.rule.to_state() == straight.rule.to_state()


def unequal(rule: AAggFFS, rounds: int, rng: np.random.Generator, cdf: str = "weibull") -> None:
    level = np.exp(rng.normal(0.0, 0.5, len(rule.p)))
    for _ in range(rounds):
        losses = level * rng.uniform(0.8, 1.2, len(rule.p))
        rule.learn(responses(losses, cdf, rule.most))  # type: ignore[arg-type]


@pytest.mark.parametrize("joiners", [1, 3])
@pytest.mark.parametrize(("clients", "rounds"), [(1, 5), (4, 20), (6, 50), (10, 100)])
def test_the_history_of_a_new_silo_is_that_of_the_specification(
    clients: int, rounds: int, joiners: int
) -> None:
    """A' = M (A - alpha I) M^T + alpha I; c' is the value that a bisection finds."""
    rule = AAggFFS(clients)
    unequal(rule, rounds, np.random.default_rng(clients))
    before, n = rule.to_state(), clients + joiners
    rule.grow(n)
    after, p = rule.to_state(), np.array(before["p"])
    M = np.vstack([np.eye(clients), np.full((joiners, clients), 1.0 / clients)])
    A = M @ (np.array(before["A"]) - ALPHA * np.eye(clients)) @ M.T + ALPHA * np.eye(n)
    np.testing.assert_allclose(np.array(after["A"]), A, rtol=1e-9, atol=1e-12)
    low, high, c = -1e3, 1e3, np.array(before["c"])
    for _ in range(80):
        x = 0.5 * (low + high)
        found = least_on_simplex(A, np.append(c, [x] * joiners), np.full(n, 1.0 / n))
        low, high = (x, high) if found[-1] < 1.0 / n else (low, x)
    np.testing.assert_allclose(after["c"], np.append(c, [x] * joiners), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(rule.p, np.append(p * clients / n, [1.0 / n] * joiners), rtol=1e-12)
    least = least_on_simplex(np.array(after["A"]), np.array(after["c"]), rule.p)
    np.testing.assert_allclose(least[clients:], 1.0 / n, atol=1e-9)


@pytest.mark.parametrize("joiners", [1, 4])
@pytest.mark.parametrize("clients", [1, 2, 20])
def test_the_sum_of_a_new_device_keeps_its_share_in_the_next_update(
    clients: int, joiners: int
) -> None:
    rng, n = np.random.default_rng(2), clients + joiners
    rule = AAggFFD(clients, 5, "previous_mean")
    for _ in range(50):
        seen = np.sort(rng.choice(clients, min(5, clients), False))
        rule.learn(seen, rng.uniform(0.0, rule.inclusion(len(seen)), len(seen)))
    rule.grow(n)
    np.testing.assert_allclose(rule.p[clients:], 1.0 / n, rtol=1e-12)
    eta = np.sqrt(np.log(n) / (50 + 2)) / (2.0 + min(5, n) / n)
    p = np.exp(-eta * np.array(rule.to_state()["G"]))
    np.testing.assert_allclose(p[clients:] / p.sum(), 1.0 / n, rtol=1e-9)


def round_updates(rows: Ints, losses: Floats, registered: int) -> Updates:
    k = len(rows)
    ones = np.ones(k)
    return Updates(rows, np.full(k, 50), np.ones_like(rows), ones, losses, ones, 0.1, registered)


def weights_after_joining(
    rule: str, clients: int, rounds: int, seed: int, factor: float
) -> Iterator[float]:
    """Yield the weight of a joiner over an equal share, for 200 rounds of losses with noise.

    Silos all report; of the devices of `aaggff-d` five do.
    """
    rng, m = np.random.default_rng(seed), 5
    made: dict[str, AAggFFS | AAggFFD | Afl]
    made = {"s": AAggFFS(clients), "d": AAggFFD(clients, m), "afl": Afl(0.003)}
    silos = made[rule]

    def learn(level: Floats) -> float:
        k = len(level)
        losses = level * np.clip(1.0 + 0.2 * rng.standard_normal(k), 0.01, None)
        if isinstance(silos, Afl):
            return float(silos.decide(round_updates(np.arange(k), losses, k))[-1])
        silos.grow(k)
        if isinstance(silos, AAggFFS):
            silos.learn(responses(losses, "weibull", silos.most))
        else:
            rows = np.sort(rng.choice(k, m, replace=False))
            silos.learn(rows, responses(losses[rows], "weibull", silos.inclusion(m)))
        return float(silos.p[-1])

    for _ in range(rounds):
        learn(np.ones(clients))
    for _ in range(200):
        yield learn(np.append(np.ones(clients), factor)) * (clients + 1)


JOINS = [
    ("s", 4, 20),
    pytest.param("s", 6, 50, marks=pytest.mark.full),
    ("d", 20, 100),
    pytest.param("d", 20, 1000, marks=pytest.mark.full),
    ("afl", 6, 50),
]


@pytest.mark.parametrize(("rule", "clients", "rounds"), JOINS)
def test_equal_losses_keep_the_share_of_a_joiner_for_200_rounds(
    rule: str, clients: int, rounds: int
) -> None:
    runs = [list(weights_after_joining(rule, clients, rounds, seed, 1.0)) for seed in SEEDS]
    mean = np.mean(runs, axis=0)
    assert mean.min() > 0.88
    assert mean.max() < 1.12


@pytest.mark.parametrize(("rule", "clients", "rounds"), JOINS)
def test_three_times_the_mean_loss_raises_the_share_of_a_joiner(
    rule: str, clients: int, rounds: int
) -> None:
    runs = [list(weights_after_joining(rule, clients, rounds, seed, 3.0)) for seed in range(3)]
    mean = np.mean(runs, axis=0)
    assert mean[0] > 0.999
    assert mean[0] < mean[9] < mean[29] < mean[199]


def test_a_join_among_a_million_devices_costs_one_pass() -> None:
    n = 1_000_000
    rule = AAggFFD(n, 10)
    rule.learn(np.arange(10), np.linspace(0.0, 1e-5, 10))
    started = perf_counter()
    rule.grow(n + 1)
    assert perf_counter() - started < 1.0
    assert rule.p[-1] == pytest.approx(1.0 / (n + 1), rel=1e-12)


@pytest.mark.parametrize("cdf", CDFS)
def test_every_distribution_gives_a_joiner_its_share(cdf: str) -> None:
    rule = AAggFFS(5)
    unequal(rule, 30, np.random.default_rng(8), cdf)
    rule.grow(6)
    rule.learn(responses(np.ones(6), cdf, rule.most))  # type: ignore[arg-type]
    assert rule.p[-1] == pytest.approx(1.0 / 6.0, rel=1e-6)
