"""What devices in a cell lose to each other, from the bytes that they carried."""

import pytest

from fairbed.testbed.backends.network.cell_waits import CellWaits, parse_net_dev
from fairbed.testbed.backends.network.plan.htb import wire_bps
from fairbed.testbed.emulation.cell import Cell
from fairbed.testbed.emulation.queues import FRAME_BYTES

CELL = Cell(name="ap", down_bps=10e6, up_bps=10e6)
FULL_BYTES = wire_bps(10e6, FRAME_BYTES) / 8.0
"""Bytes of a full cell in one second."""


def lost(shares: dict[str, float], seconds: int = 10) -> dict[str, float | None]:
    """Return what devices lost that carried shares of a cell downwards for some tenths of it."""
    waits = CellWaits({name: ((CELL,), 0) for name in shares})
    for step in range(seconds + 1):
        carried = {
            name: (round(share * FULL_BYTES * step / 10), 0) for name, share in shares.items()
        }
        waits.add(step / 10, carried)
    return {name: waits.counted(name)["cell_wait_s"] for name in shares}


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}),
        ({"a": 0.25, "b": 0.75}, {"a": 0.75, "b": 0.25}),
        ({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.0}),
        ({"a": 0.3, "b": 0.3}, {"a": 0.0, "b": 0.0}),  # the cell is not busy: nothing waits
    ],
)
def test_a_device_loses_what_others_take_of_a_busy_cell(
    shares: dict[str, float], expected: dict[str, float]
) -> None:
    assert lost(shares) == pytest.approx(expected, abs=1e-3)


def test_a_device_without_a_cell_has_no_such_time() -> None:
    assert CellWaits({}).counted("pi") == {}


def test_the_bytes_towards_a_device_are_those_that_the_hub_sends() -> None:
    text = """Inter-|   Receive                     |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo
    d0: 300 3 0 0 0 0 0 0 700 7 0 0 0 0 0 0
"""
    assert parse_net_dev(text) == {"d0": (700, 300)}
