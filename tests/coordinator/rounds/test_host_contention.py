"""Waits are charged to the phase of an exchange in which they matter."""

from collections.abc import Sequence

import numpy as np
import pytest

from fairbed.coordinator.records.rows import invalid_reason
from fairbed.coordinator.rounds.executor import HostContention
from fairbed.coordinator.state.exchange import Contention, Exchange, ExchangeState
from tests.coordinator.builders import offer


class FakeHost:
    """A host whose path delays every span by a hundredth of it."""

    def __init__(self) -> None:
        self.device_s: float | None = 5.0
        self.counts: dict[str, float] = {}
        self.spans: list[tuple[float, float]] = []
        self.network_ratio = 0.0

    def waited_s(self, device: str) -> float | None:
        return self.device_s

    def counted(self, device: str) -> dict[str, float]:
        return dict(self.counts)

    def path_delay_s(self, device: str, spans: Sequence[tuple[float, float]]) -> float:
        self.spans += spans
        return sum(end - start for start, end in spans) / 100.0

    def network_delay_s(self, device: str, spans: Sequence[tuple[float, float]]) -> float:
        return self.network_ratio * sum(end - start for start, end in spans)


def lag_s(instants: Sequence[float]) -> float:
    """A millisecond for each message."""
    return 1e-3 * len(instants)


def offered(at: float) -> Exchange:
    """An exchange of 10 s until its offer."""
    exchange = Exchange("pi-1", dispatched=10.0, signal_s=0.04)
    exchange.offer, exchange.offered = offer(3), at
    return exchange


def test_each_phase_is_charged_its_own_waits() -> None:
    host = FakeHost()
    charged, exchange = HostContention(host, lag_s), offered(20.0)
    charged.begin("pi-1")
    host.device_s = 5.25
    charged.on_offer(exchange, 20.0)
    assert exchange.offer is not None
    phases = exchange.offer.phases
    rest_s = phases.load_s + phases.evaluate_s + phases.train_s + phases.encode_s + phases.decode_s
    assert np.allclose(host.spans, [(10.0, 20.0 - rest_s)])
    host.device_s = 9.0  # the personal model is evaluated during the upload
    exchange.granted = 30.0
    charged.on_end(exchange, 34.0)
    assert np.allclose(host.spans[1:], [(19.96, 20.0), (30.0, 34.0)])
    assert exchange.contention is not None
    assert exchange.contention.download_s == pytest.approx((10.0 - rest_s) / 100.0)
    assert exchange.contention.compute_s == 0.25
    assert exchange.contention.upload_s == pytest.approx(0.0404)
    assert exchange.lag_s == pytest.approx(4e-3)


def test_the_network_to_another_host_is_charged_in_both_directions() -> None:
    host = FakeHost()
    host.network_ratio = 0.5
    charged, exchange = HostContention(host, lag_s), offered(20.0)
    charged.begin("pi-1")
    charged.on_offer(exchange, 20.0)
    assert exchange.contention is not None
    down_s = exchange.contention.network_s
    exchange.granted = 30.0
    charged.on_end(exchange, 34.0)
    assert down_s > 0.0
    assert exchange.contention.network_s == pytest.approx(down_s + 0.5 * 4.04)
    exchange.state, exchange.arrived = ExchangeState.DONE, 34.0
    reason = invalid_reason(exchange)
    assert reason.startswith("the network to the host of the device was too slow: it delayed")


def test_an_exchange_without_an_offer_is_charged_until_it_was_abandoned() -> None:
    host = FakeHost()
    charged, exchange = HostContention(host, lag_s), Exchange("pi-1", dispatched=10.0)
    charged.begin("pi-1")
    host.device_s = 8.0
    charged.on_end(exchange, 70.0)
    assert exchange.contention == Contention(download_s=0.6, compute_s=3.0)


def test_an_exchange_without_a_grant_is_not_charged_for_its_place_in_the_queue() -> None:
    host = FakeHost()
    charged, exchange = HostContention(host, lag_s), offered(20.0)
    charged.begin("pi-1")
    charged.on_offer(exchange, 20.0)
    charged.on_end(exchange, 70.0)
    assert np.allclose(host.spans[1:], [(19.96, 20.0)])


def test_a_device_that_is_not_emulated_is_charged_the_lag_only() -> None:
    host = FakeHost()
    host.device_s = None
    charged, exchange = HostContention(host, lag_s), offered(20.0)
    charged.begin("pi-1")
    charged.on_offer(exchange, 20.0)
    exchange.granted = 30.0
    charged.on_end(exchange, 34.0)
    assert exchange.contention is None
    assert exchange.lag_s == pytest.approx(4e-3)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"cell_wait_s": 2.0}, {"cell_wait_s": 2.5}, {"cell_wait_s": 0.5}),
        ({}, {}, {}),
        ({}, {"cell_wait_s": 2.5}, {}),
        ({"cell_wait_s": 2.0}, {"cell_wait_s": 0.5}, {}),
    ],
    ids=["counted", "not counted", "counted since a later instant only", "counted anew"],
)
def test_an_exchange_has_what_its_host_counted_from_its_dispatch_to_its_end(
    before: dict[str, float], after: dict[str, float], expected: dict[str, float]
) -> None:
    host = FakeHost()
    charged, exchange = HostContention(host, lag_s), offered(20.0)
    host.counts = before
    charged.begin("pi-1")
    charged.on_offer(exchange, 20.0)
    exchange.granted, host.counts = 21.0, after
    charged.on_end(exchange, 24.0)
    assert exchange.measured == expected
