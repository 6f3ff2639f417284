"""The waiting time of TCP slow start at the beginning of a transfer.

    windows    w_i = 10 * 1448 bytes * 2^i           doubled with every round trip (slow start)
    waiting    sum of (round trip - w_i / rate)      over the windows, but the last, that the line
                                                     carries before they are acknowledged

A connection that has been idle begins anew, and those of a fleet are idle between transfers. Where
a full window takes the line a round trip or more, it is busy from then on.

Source:
    RFC 5681, section 3.1 (slow start) and 4.1 (restarting idle connections); RFC 6928 (ten
    segments). Segments carry 1448 bytes, as everywhere in the emulation.
"""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats

FIRST_WINDOW_BITS = 8.0 * 10 * 1448


def waiting_s(bits: float | Floats, line_s: Floats, round_trip_s: Floats) -> Floats:
    """Return the time of a transfer beyond its time on the line.

    Args:
        bits: To carry, more than 0, shape (K,) or one for all.
        line_s: That the line takes for them, seconds, shape (K,).
        round_trip_s: Shape (K,).

    Returns:
        Seconds, shape (K,).
    """
    waiting = np.zeros_like(line_s)
    window = sent = FIRST_WINDOW_BITS
    while True:
        spare_s = round_trip_s - line_s * (window / bits)
        waits = (spare_s > 0.0) & (bits > sent)
        if not waits.any():
            return waiting
        waiting += np.where(waits, spare_s, 0.0)
        window *= 2.0
        sent += window


def line_s(bits: float, took_s: float, round_trip_s: float) -> float:
    """Return the time on the line of a transfer with waiting: the inverse of `waiting_s`.

    Args:
        bits: That it carried.
        took_s: From the first bit sent on, seconds.
        round_trip_s: Seconds.

    Returns:
        Seconds; `took_s` if that is less than a connection that begins anew can do.
    """
    window, sent, waits, line = FIRST_WINDOW_BITS, 0.0, 0, took_s
    while sent + window < bits and line * window / bits < round_trip_s:
        sent, waits, window = sent + window, waits + 1, 2.0 * window
        line = (took_s - waits * round_trip_s) / (1.0 - sent / bits)
        if line <= 0.0:
            return took_s
    return line
