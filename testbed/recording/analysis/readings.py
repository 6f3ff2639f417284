"""What a machine tells of itself at one moment, and what two moments tell together. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fairbed.testbed.recording.analysis.findings import Sampled
from fairbed.testbed.recording.analysis.rates import Transfer

HEADER_BYTES = 66
"""Of a packet on Ethernet: 14 of the frame, 20 of IPv4, 32 of TCP with its time stamps."""

BUSY_BPS = 256e3
"""An interface that moves less is idle: chatter of services."""

PIECE_S = 1.0
PIECE_BYTES = 64 * 1024
"""A piece of a transfer that tells of the rate lasts and holds at least this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceCounters:
    """Counters of one direction of an interface."""

    n_bytes: int
    packets: int

    @property
    def payload_bytes(self) -> int:
        """Less headers, as TCP counts."""
        return max(0, self.n_bytes - HEADER_BYTES * self.packets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at the machine; None is what it does not tell."""

    t_s: float
    """Since the recording began."""
    busy_s: float | None
    """Processor time that was used on all cores, by anybody, since the machine started."""
    own_s: float
    """Of that, by the recorder and what it started."""
    clock_ratio: float | None
    celsius: float | None
    throttled: tuple[str, ...] | None
    down: InterfaceCounters | None
    up: InterfaceCounters | None
    is_linked: bool | None
    """The interface has a link."""
    free_bytes: int | None
    """Memory that programs could still have."""


def others_load(readings: Sequence[Reading]) -> Sampled:
    """Return the cores that others used between one reading and the next, at the later one."""
    t_s, cores = [], []
    for one, after in pairwise(readings):
        if one.busy_s is None or after.busy_s is None or not after.t_s > one.t_s:
            continue
        others_s = after.busy_s - one.busy_s - (after.own_s - one.own_s)
        t_s.append(after.t_s)
        cores.append(max(0.0, others_s / (after.t_s - one.t_s)))
    return Sampled(t_s, cores)


def pieces(readings: Sequence[Reading], way: str) -> list[Transfer]:
    """Return what an interface carried while it was in the middle of transfers.

    The first and the last interval of each busy stretch are left out, since the transfer began
    and ended somewhere in them.

    Args:
        readings: In order of time.
        way: `down` or `up`.
    """
    found: list[Transfer] = []
    stretch: list[Transfer] = []
    for one, after in pairwise(readings):
        moved = _moved(one, after, way)
        if moved is not None and moved.rate_bps >= BUSY_BPS:
            stretch.append(moved)
            continue
        found += _whole(stretch[1:-1])
        stretch = []
    return found + _whole(stretch[1:-1])


def _moved(one: Reading, after: Reading, way: str) -> Transfer | None:
    first: InterfaceCounters | None = getattr(one, way)
    last: InterfaceCounters | None = getattr(after, way)
    if first is None or last is None or not after.t_s > one.t_s:
        return None
    n_bytes = last.payload_bytes - first.payload_bytes  # negative when a counter began anew
    return Transfer(one.t_s, after.t_s, n_bytes) if n_bytes >= 0 else None


def _whole(stretch: Sequence[Transfer]) -> list[Transfer]:
    """Return adjoining transfers put together until each is large enough; the rest is dropped."""
    found: list[Transfer] = []
    start_s, n_bytes = 0.0, 0
    for moved in stretch:
        start_s = moved.start_s if n_bytes == 0 else start_s
        n_bytes += moved.n_bytes
        if moved.end_s - start_s >= PIECE_S and n_bytes >= PIECE_BYTES:
            found.append(Transfer(start_s, moved.end_s, n_bytes))
            n_bytes = 0
    return found
