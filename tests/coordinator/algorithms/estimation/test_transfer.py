"""Transfers: predictions from the last transfer, with the rates that an agent reports."""

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
    """An agent that measures its link with its transfers, one every 3 s."""

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
    """Return the durations of transfers on a varying link, seconds."""
    score, times_s = float(rng.standard_normal()), []
    for _ in range(n):
        score = RHO * score + math.sqrt(1.0 - RHO**2) * float(rng.standard_normal())
        times_s.append(math.exp(0.6 * score))
    return times_s


def test_an_agent_weighs_its_newest_transfer_as_assumed_here() -> None:
    assert NEWEST_SHARE == SMOOTHING


def test_one_transfer_by_hand() -> None:
    """The ratio of measured and nominal time is assumed to be the same before and after."""
    model = Transfers(1.0)
    model.observe(rows(0), numbers(2.0), numbers(4.0))
    predicted, width = model.predict(numbers(2.0))
    assert predicted == pytest.approx([4.0])
    assert width == pytest.approx([2.0 / math.sqrt(2.0)])
    assert model.predict(numbers(4.0))[0] == pytest.approx([8.0])


def test_the_rate_change_corrects_the_mean_of_an_agent_to_its_newest_transfer() -> None:
    """For any average of the agent, c e^q is the duration of its newest transfer."""
    rng = np.random.default_rng(1)
    device, rate_change = Device(1.0), list[float]()
    for _ in range(12):
        nominal_s = device.nominal_s()
        took_s = nominal_s * math.exp(float(rng.uniform(-1.3, 1.3)))
        device.sends(took_s)
        rate_change.append(float(_rate_change(numbers(nominal_s / took_s))[0]))
        assert device.nominal_s() * math.exp(rate_change[-1]) == pytest.approx(took_s)
    assert max(rate_change) > 0.3, "the rate change is not 0"
    assert min(rate_change) < -0.3


def test_on_a_varying_link_the_last_transfer_predicts_better_than_the_mean() -> None:
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


def test_on_a_constant_link_the_last_transfer_costs_no_accuracy() -> None:
    rng = np.random.default_rng(3)
    device, model = Device(1.0), Transfers(1e-9)
    for took_s in np.exp(0.02 * rng.standard_normal(40)).tolist():
        model.observe(rows(0), numbers(device.nominal_s()), numbers(took_s))
        device.sends(took_s)
    assert model.predict(numbers(device.nominal_s()))[0] == pytest.approx([1.0], rel=0.03)


def test_a_transfer_during_an_outage_counts_as_four_times_its_nominal_time() -> None:
    """And a much faster one as a quarter: the rate may have been measured again since."""
    for took_s, least_s in ((100.0, MAX_RATIO), (0.001, 1.0 / MAX_RATIO)):
        model, bounded = Transfers(1e-9), Transfers(1e-9)
        for one, second_s in ((model, took_s), (bounded, least_s)):
            one.observe(rows(0), numbers(1.0), numbers(1.0))
            one.observe(rows(0), numbers(1.0), numbers(second_s))
        lasts = [one.to_state()["last"]["ratio"] for one in (model, bounded)]
        assert lasts[0] == lasts[1]


def test_an_exchange_without_a_transfer_is_ignored() -> None:
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
def test_refuses_bad_priors(lambda_: float, discount: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Transfers(lambda_, discount)
