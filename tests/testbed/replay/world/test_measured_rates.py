"""Columns of measured rates equal the measurements of agents, one by one."""

import numpy as np
import pytest

from fairbed.device_agent.state.link_estimate import LinkEstimate
from fairbed.testbed.replay.world.measured_rates import MeasuredRates


def test_columns_agree_with_the_agents_own_estimate() -> None:
    rng = np.random.default_rng(5)
    first = np.array([1e6, 2e6, 3e6])
    rates, agents = MeasuredRates(first, np.zeros(3)), [LinkEstimate() for _ in first]
    for agent, bps in zip(agents, first.tolist(), strict=True):
        agent.on_transfer("down", 1 << 16, 8.0 * (1 << 16) / bps, 0.0)
        agent.on_round_trip(0.05)
    now = 0.0
    for _ in range(300):
        now += float(rng.exponential(20.0))
        rows = np.sort(rng.choice(3, 2, replace=False))
        sizes = rng.integers(1_000, 100_000, 2)
        elapsed_s = rng.uniform(0.04, 3.0, 2)
        rates.on_transfers(rows, sizes, elapsed_s, np.full(2, 0.05), np.full(2, now))
        for at, row in enumerate(rows.tolist()):
            agents[row].on_transfer("down", int(sizes[at]), float(elapsed_s[at]), now)
        measured = [agent.downlink_bps or 0.0 for agent in agents]
        np.testing.assert_allclose(rates.bps(), measured, rtol=1e-12)


def test_a_device_probes_a_minute_after_it_measured_last() -> None:
    rates = MeasuredRates(np.array([1e6, 1e6]), np.zeros(2))
    assert not rates.stale(60.0).any()
    assert rates.stale(60.5).all()
    rows = np.array([0, 1])
    assert rates.probed_at(200.0, rows).tolist() == [180.0, 180.0]
    rates.on_probe(200.0, rows, np.array([5e6, 0.0]), np.array([180.0, 180.0]))
    np.testing.assert_allclose(rates.bps(), [5e6, 1e6])
    assert rates.age_s(200.0).tolist() == [20.0, 200.0], "a probe during an outage has no rate"
    rates.on_probe(200.0, np.array([1]), np.array([9e6]), np.array([200.5]))
    assert rates.bps()[1] == pytest.approx(1e6), "the probe is not over yet"


def test_a_state_is_restored() -> None:
    rates = MeasuredRates(np.array([1e6, 2e6]), np.zeros(2))
    other = MeasuredRates(np.array([1.0, 1.0]), np.zeros(2))
    rates.on_probe(70.0, np.array([1]), np.array([7e6]), np.array([61.0]))
    other.load_state(rates.to_state())
    assert other.bps().tolist() == rates.bps().tolist()
    assert other.age_s(70.0).tolist() == rates.age_s(70.0).tolist()
