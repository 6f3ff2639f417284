"""What probes find of the links of a fleet: `device_agent.link_probe`, a row a device.

    elapsed  = round trip + waiting of TCP + 8 bytes / rate       of 64 KB
    measured = 8 bytes / (elapsed - round trip)

TCP begins anew for so little (`testbed.emulation.tcp`): of a link of 20 Mbit/s with 50 ms each way
a probe finds 2.5. A link that moves is measured as it is meanwhile, holes included.
"""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.device_agent.config import Timeouts
from fairbed.device_agent.state.link_estimate import MAX_BPS, MIN_TRANSFER_RATIO, PROBE_BYTES
from fairbed.testbed.emulation.tcp import waiting_s
from fairbed.testbed.replay.columns import Moving, Steady
from fairbed.testbed.replay.walk import Direction, Way

GIVE_UP_S = Timeouts().probe_s

_BITS = 8.0 * PROBE_BYTES


class Probes:
    """Measures links of a fleet.

    Args:
        steady: What never moves.
        moving: What does.
    """

    def __init__(self, steady: Steady, moving: Moving) -> None:
        self._trip_s: Floats = 2.0 * steady.delay_s
        self._took_s = {
            "down": _steadily(steady.down_bps, self._trip_s),
            "up": _steadily(steady.up_bps, self._trip_s),
        }
        self._links = moving.links
        self._moves: Bools = np.zeros(len(steady), dtype=np.bool_)
        self._moves[list(moving.links)] = True

    def measure(self, direction: Direction, rows: Ints, t: Floats) -> tuple[Floats, Floats]:
        """Return what probes find that begin at `t`, and when they are over, each of shape (K,).

        Args:
            direction: As seen from the device.
            rows: Of K devices.
            t: Of each, seconds, shape (K,).

        Returns:
            Rates, bit/s, 0 where nobody answered; and moments, seconds.
        """
        trip_s, took_s = self._trip_s[rows], self._took_s[direction][rows]
        for at in np.flatnonzero(self._moves[rows]).tolist():
            way, begun = Way(self._links[int(rows[at])], GIVE_UP_S), float(t[at] + trip_s[at])
            took_s[at] = way.transfer(begun, _BITS, direction) - begun
        elapsed_s = took_s + trip_s
        least_s = np.maximum(MIN_TRANSFER_RATIO * elapsed_s, _BITS / MAX_BPS)
        rates: Floats = _BITS / np.maximum(took_s, least_s)
        over: Floats = t + trip_s + np.minimum(elapsed_s, GIVE_UP_S)
        return np.where(elapsed_s <= GIVE_UP_S, rates, 0.0), over


def _steadily(rate_bps: Floats, trip_s: Floats) -> Floats:
    """Return what a probe takes beyond the round trip where nothing moves, seconds, shape (N,)."""
    line_s = _BITS / rate_bps
    took_s: Floats = line_s + waiting_s(_BITS, line_s, trip_s)
    return took_s
