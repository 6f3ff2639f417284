"""Readings of a machine, and loads and transfers between consecutive readings. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fairbed.testbed.recording.analysis.findings import Sampled
from fairbed.testbed.recording.analysis.rates import Transfer

HEADER_BYTES = 66
"""Headers of a packet on Ethernet: 14 of the frame, 20 of IPv4, 32 of TCP with time stamps."""

BUSY_BPS = 256e3
"""An interface with a lower rate is idle: background traffic of services."""

MIN_TRANSFER_S = 1.0
MIN_TRANSFER_BYTES = 64 * 1024
"""Least duration and size of a transfer that shows the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceCounters:
    """Counters of one direction of an interface."""

    n_bytes: int
    packets: int

    @property
    def payload_bytes(self) -> int:
        """Bytes without headers, as TCP counts them."""
        return max(0, self.n_bytes - HEADER_BYTES * self.packets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of the machine; None for a value that cannot be read."""

    t_s: float
    """Seconds since the recording began."""
    busy_s: float | None
    """Processor time of all processes on all cores since the machine started."""
    own_s: float
    """Processor time of the recorder and its children."""
    clock_ratio: float | None
    celsius: float | None
    throttled: tuple[str, ...] | None
    down: InterfaceCounters | None
    up: InterfaceCounters | None
    is_linked: bool | None
    """The interface has a link."""
    free_bytes: int | None
    """Memory available to programs."""


def others_load(readings: Sequence[Reading]) -> Sampled:
    """Return the cores that other processes used between readings, at the later reading."""
    t_s, cores = [], []
    for one, after in pairwise(readings):
        if one.busy_s is None or after.busy_s is None or not after.t_s > one.t_s:
            continue
        others_s = after.busy_s - one.busy_s - (after.own_s - one.own_s)
        t_s.append(after.t_s)
        cores.append(max(0.0, others_s / (after.t_s - one.t_s)))
    return Sampled(t_s, cores)


def busy_transfers(readings: Sequence[Reading], direction: str) -> list[Transfer]:
    """Return the transfers of an interface while it was busy.

    The first and the last interval between readings of each busy time are left out, because the
    transfer began and ended within them.

    Args:
        readings: Readings in order of time.
        direction: `down` or `up`.
    """
    found: list[Transfer] = []
    busy: list[Transfer] = []
    for one, after in pairwise(readings):
        transfer = _transfer_between(one, after, direction)
        if transfer is not None and transfer.rate_bps >= BUSY_BPS:
            busy.append(transfer)
            continue
        found += _joined(busy[1:-1])
        busy = []
    return found + _joined(busy[1:-1])


def _transfer_between(one: Reading, after: Reading, direction: str) -> Transfer | None:
    first: InterfaceCounters | None = getattr(one, direction)
    last: InterfaceCounters | None = getattr(after, direction)
    if first is None or last is None or not after.t_s > one.t_s:
        return None
    n_bytes = last.payload_bytes - first.payload_bytes  # negative after a reset of the counter
    return Transfer(one.t_s, after.t_s, n_bytes) if n_bytes >= 0 else None


def _joined(busy: Sequence[Transfer]) -> list[Transfer]:
    """Join adjacent transfers until each is long and large enough; drop the rest."""
    found: list[Transfer] = []
    start_s, n_bytes = 0.0, 0
    for transfer in busy:
        start_s = transfer.start_s if n_bytes == 0 else start_s
        n_bytes += transfer.n_bytes
        if transfer.end_s - start_s >= MIN_TRANSFER_S and n_bytes >= MIN_TRANSFER_BYTES:
            found.append(Transfer(start_s, transfer.end_s, n_bytes))
            n_bytes = 0
    return found
