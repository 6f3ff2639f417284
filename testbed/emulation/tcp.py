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


def slow_start_s(bits: float | Floats, transmission_s: Floats, round_trip_s: Floats) -> Floats:
    """Return the duration of a transfer minus its transmission time.

    Args:
        bits: Size of the transfer, more than 0, shape (K,) or one for all.
        transmission_s: Transmission time, bits / rate, seconds, shape (K,).
        round_trip_s: Shape (K,).

    Returns:
        Seconds, shape (K,).
    """
    total_s = np.zeros_like(transmission_s)
    window = sent = FIRST_WINDOW_BITS
    while True:
        idle_s = round_trip_s - transmission_s * (window / bits)
        waits = (idle_s > 0.0) & (bits > sent)
        if not waits.any():
            return total_s
        total_s += np.where(waits, idle_s, 0.0)
        window *= 2.0
        sent += window


def transmission_s(bits: float, took_s: float, round_trip_s: float) -> float:
    """Return the transmission time of a transfer: the inverse of `slow_start_s`.

    Args:
        bits: Size of the transfer.
        took_s: Duration of the transfer since its first bit was sent, seconds.
        round_trip_s: Seconds.

    Returns:
        Seconds; `took_s` if slow start cannot explain so short a duration.
    """
    window, sent, waits, link_s = FIRST_WINDOW_BITS, 0.0, 0, took_s
    while sent + window < bits and link_s * window / bits < round_trip_s:
        sent, waits, window = sent + window, waits + 1, 2.0 * window
        link_s = (took_s - waits * round_trip_s) / (1.0 - sent / bits)
        if link_s <= 0.0:
            return took_s
    return link_s
