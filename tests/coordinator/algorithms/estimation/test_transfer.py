"""Transfers: what the last one says by itself, as an agent's own rates have it."""

import math

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation.elasticity import Elasticities
from fairbed.coordinator.algorithms.estimation.phases import (
    MAX_RATIO,
    NEWEST_SHARE,
    Transfers,
    _rate_change,
)
from fairbed.device_agent.state.link_estimate import SMOOTHING, LinkEstimate

N_BYTES = 100_000
RHO = 0.8
"""Correlation of the logarithm of a link's rate from one transfer to the next."""


def rows(*of: int) -> Ints:
    return np.array(of, dtype=np.int64)


def numbers(*of: float) -> Floats:
    return np.array(of, dtype=np.float64)


class Device:
    """An agent that measures its link by its own transfers, one every 3 s."""

    def __init__(self, first_s: float) -> None:
        self.link, self.now = LinkEstimate(), 0.0
        self.link.on_transfer("up", N_BYTES, first_s, self.now)

    def nominal_s(self, n_bytes: int = N_BYTES) -> float:
        rate_bps = self.link.uplink_bps
        assert rate_bps is not None
        return 8.0 * n_bytes / rate_bps

    def sends(self, took_s: float) -> None:
        self.now += 3.0
        self.link.on_transfer("up", N_BYTES, took_s, self.now)


def moving(rng: np.random.Generator, n: int) -> list[float]:
    """Return how long transfers take on a link that moves, seconds."""
    score, times_s = float(rng.standard_normal()), []
    for _ in range(n):
        score = RHO * score + math.sqrt(1.0 - RHO**2) * float(rng.standard_normal())
        times_s.append(math.exp(0.6 * score))
    return times_s


def test_an_agent_counts_its_newest_transfer_as_is_assumed_here() -> None:
    assert NEWEST_SHARE == SMOOTHING


def test_one_transfer_by_hand() -> None:
    """The nominal time is thought to have been wrong by as much before, and will be again."""
    model = Transfers(1.0)
    model.observe(rows(0), numbers(2.0), numbers(4.0))
    said, width = model.predict(numbers(2.0))
    assert said == pytest.approx([4.0 / 2.0])
    assert width == pytest.approx([2.0 / math.sqrt(2.0)])
    assert model.predict(numbers(4.0))[0] == pytest.approx([8.0 / 2.0])


def test_news_are_what_the_newest_transfer_says_beside_the_mean_of_an_agent() -> None:
    """Whatever the agent has averaged: c e^q is how long its newest transfer took."""
    rng = np.random.default_rng(1)
    device, news = Device(1.0), list[float]()
    for _ in range(12):
        nominal_s = device.nominal_s()
        took_s = nominal_s * math.exp(float(rng.uniform(-1.3, 1.3)))
        device.sends(took_s)
        news.append(float(_rate_change(numbers(nominal_s / took_s))[0]))
        assert device.nominal_s() * math.exp(news[-1]) == pytest.approx(took_s)
    assert max(news) > 0.3, "they say something"
    assert min(news) < -0.3


def test_on_a_link_that_moves_the_last_transfer_says_more_than_the_mean_of_some() -> None:
    rng = np.random.default_rng(2)
    fleet = [moving(rng, 60) for _ in range(12)]
    devices = [Device(times_s[0]) for times_s in fleet]
    models: list[Transfers | Elasticities] = [Transfers(0.1), Elasticities(0.1)]
    errors: list[list[Floats]] = [[], []]
    for at in range(1, 60):
        c = numbers(*(device.nominal_s() for device in devices))
        y = numbers(*(times_s[at] for times_s in fleet))
        for model, found in zip(models, errors, strict=True):
            found.append(np.abs(model.predict(c)[0] / y - 1.0))
            model.observe(np.arange(12), c, y)
        for device, took_s in zip(devices, y.tolist(), strict=True):
            device.sends(took_s)
    newest, averaged = (float(np.median(found[20:])) for found in errors)
    assert newest < 0.93 * averaged


def test_a_link_that_never_moves_loses_nothing_by_it() -> None:
    rng = np.random.default_rng(3)
    device, model = Device(1.0), Transfers(1e-9)
    for took_s in np.exp(0.02 * rng.standard_normal(40)).tolist():
        model.observe(rows(0), numbers(device.nominal_s()), numbers(took_s))
        device.sends(took_s)
    assert model.predict(numbers(device.nominal_s()))[0] == pytest.approx([1.0], rel=0.03)


def test_a_transfer_that_met_a_hole_counts_as_four_times_its_nominal_time() -> None:
    """And one that was thought much slower, as a quarter: the rate may be another one by now."""
    for took_s, least_s in ((100.0, MAX_RATIO), (0.001, 1.0 / MAX_RATIO)):
        model, bounded = Transfers(1e-9), Transfers(1e-9)
        for one, second_s in ((model, took_s), (bounded, least_s)):
            one.observe(rows(0), numbers(1.0), numbers(1.0))
            one.observe(rows(0), numbers(1.0), numbers(second_s))
        lasts = [one.to_state()["last"]["ratio"] for one in (model, bounded)]
        assert lasts[0] == lasts[1]


def test_no_transfer_teaches_and_takes_nothing() -> None:
    model = Transfers()
    model.observe(rows(0, 1), numbers(0.0, 1.0), numbers(1.0, 0.0))
    assert model.to_state() == Transfers().to_state()
    model.observe(rows(0), numbers(1.0), numbers(1.0))
    assert model.predict(numbers(0.0, 1.0))[0].tolist() == [0.0, 0.0]


def test_a_checkpoint_predicts_the_same_bits() -> None:
    rng = np.random.default_rng(4)
    original, resumed = Transfers(0.5, 0.9), Transfers(0.5, 0.9)
    for _ in range(9):
        original.observe(rows(1, 4, 2), *np.exp(rng.standard_normal((2, 3))))
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state())))
    c = np.exp(rng.standard_normal(6))
    for mine, theirs in zip(original.predict(c), resumed.predict(c), strict=True):
        assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize(("lambda_", "discount"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0)])
def test_refuses_priors_that_are_none(lambda_: float, discount: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Transfers(lambda_, discount)
