"""Idle time of a link during TCP slow start, at the beginning of a transfer.

    windows    w_i = 10 * 1448 bytes * 2^i           doubled in every round trip
    waiting    sum of (round trip - w_i / rate)      over all windows but the last that are sent in
                                                     less than a round trip

A connection that was idle restarts with the first window, and the connections of a fleet are idle
between transfers. From the first window that takes a round trip or more, the link is always busy.

Source:
    RFC 5681, section 3.1 (slow start) and 4.1 (restarting idle connections); RFC 6928 (ten
    segments). Segments carry 1448 bytes, as everywhere in the emulation.
"""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats

FIRST_WINDOW_BITS = 8.0 * 10 * 1448


def waiting_s(bits: float | Floats, line_s: Floats, round_trip_s: Floats) -> Floats:
    """Return the duration of a transfer minus its transmission time.

    Args:
        bits: Size of the transfer, more than 0, shape (K,) or one for all.
        line_s: Transmission time, bits / rate, seconds, shape (K,).
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
    """Return the transmission time of a transfer: the inverse of `waiting_s`.

    Args:
        bits: Size of the transfer.
        took_s: Duration of the transfer since its first bit was sent, seconds.
        round_trip_s: Seconds.

    Returns:
        Seconds; `took_s` if slow start cannot explain so short a duration.
    """
    window, sent, waits, line = FIRST_WINDOW_BITS, 0.0, 0, took_s
    while sent + window < bits and line * window / bits < round_trip_s:
        sent, waits, window = sent + window, waits + 1, 2.0 * window
        line = (took_s - waits * round_trip_s) / (1.0 - sent / bits)
        if line <= 0.0:
            return took_s
    return line
