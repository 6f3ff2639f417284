"""The rates that a probe of 64 KB measures, worked by hand."""

import numpy as np
import pytest

from fairbed.profiles.series import Series
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.emulation.schedule import OutageWindow, Schedule
from fairbed.testbed.replay.world.columns import MeanConditions, VaryingConditions
from fairbed.testbed.replay.world.measured_rates import GIVE_UP_S, Probes
from fairbed.testbed.replay.world.tcp_links import TcpLinks

BITS = 8.0 * 65_536
FIRST = np.array([0, 1])


def probes(up_bps: float, *outages: OutageWindow) -> Probes:
    """Return the probes of a constant link, and of the same link with outages."""
    down, none = Series.constant(20e6), Series.constant(0.0)
    tracks = LinkTracks(down, Series.constant(up_bps), Series.constant(0.05), none, none)
    columns = {name: np.ones(2) for name in MeanConditions.__dataclass_fields__}
    columns |= {"down_bps": np.full(2, 20e6), "up_bps": np.full(2, up_bps)}
    columns |= {"delay_s": np.full(2, 0.05)}
    links = {1: Schedule(link=tracks, outages=outages)}
    varying = VaryingConditions(links=links)
    return Probes(MeanConditions(**columns), varying, TcpLinks(varying))


def test_a_probe_finds_less_than_a_fast_link_has() -> None:
    """Two windows of ten and twenty segments are waited for, 0.1 s from first bit to last."""
    rates, over = probes(20e6).measure("down", FIRST, np.array([3.0, 3.0]))
    windows = 8.0 * 1448 * (10 + 20)
    took_s = 2 * 0.1 + (BITS - windows) / 20e6
    assert rates == pytest.approx(np.full(2, BITS / took_s))
    assert rates[0] == pytest.approx(2.51e6, rel=1e-3)
    assert over == pytest.approx(np.full(2, 3.0 + 2 * 0.1 + took_s)), "and two round trips"


def test_a_probe_measures_the_rate_of_a_slow_link() -> None:
    rates, _ = probes(1e6).measure("up", FIRST, np.zeros(2))
    assert rates == pytest.approx(np.full(2, 1e6))


def test_an_outage_during_a_probe_lowers_the_rate() -> None:
    found = probes(1e6, OutageWindow(0.2, 10.2, "coverage"))
    rates, over = found.measure("up", FIRST, np.zeros(2))
    assert rates == pytest.approx([1e6, BITS / (10.0 + BITS / 1e6)])
    assert over[1] - over[0] == pytest.approx(10.0)


def test_a_probe_without_a_reply_has_no_rate() -> None:
    found = probes(1e6, OutageWindow(0.2, 60.0, "coverage"))
    rates, over = found.measure("up", FIRST, np.zeros(2))
    assert rates[1] == 0.0
    assert over[1] == pytest.approx(0.1 + GIVE_UP_S)
