"""The rate of a link, from its transfers.

    rate = 8 bytes / elapsed                                    of the part after the first chunk
    rate = 8 bytes / (elapsed - round trip - TCP slow start)    of a whole transfer

After a pause TCP begins with ten packets and needs some round trips to reach the rate of a link: 1
MB over 20 Mbit/s and 40 ms takes a fifth longer than the link needs. The TCP of an emulated device
and that of a replay (`testbed.emulation.tcp`) do the same, so the first chunk does not count.

A transfer that takes hardly longer than a round trip shows the latency, not the rate, and is
skipped. The rate of a steady link is the median of its transfers. A varying link gets a series:
each rate holds until halfway to the next transfer, which keeps the volume of every transfer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fairbed.profiles.series import Series
from fairbed.testbed.emulation.tcp import transmission_s
from fairbed.testbed.recording.analysis.findings import VARYING_RATIO, Finding, NotMeasured, merged

MIN_BYTES = 16 * 1024
"""Smaller transfers show the latency, not the rate."""

MIN_LINE_RATIO = 0.2
"""Least share of a transfer's time on the line; below it the transfer shows the latency."""

MIN_TRANSFERS = 3
"""Fewer transfers are not representative."""

MIN_VARYING = 8
"""With fewer transfers a varying link cannot be distinguished from noise."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes transferred over a link without retransmitted chunks."""

    start_s: float
    """When the line began to carry the bytes, seconds from the beginning of the recording."""
    end_s: float
    n_bytes: int
    """TCP payload."""

    @property
    def duration_s(self) -> float:
        """Time on the line, seconds."""
        return self.end_s - self.start_s

    @property
    def rate_bps(self) -> float:
        """Bit/s."""
        return 8.0 * self.n_bytes / self.duration_s


def transfer(end_s: float, elapsed_s: float, round_trip_s: float, n_bytes: int) -> Transfer | None:
    """Return a requested transfer without the round trip of the request.

    None if the transfer does not show the rate.
    """
    lasted_s = elapsed_s - round_trip_s
    if n_bytes < MIN_BYTES or not lasted_s >= MIN_LINE_RATIO * elapsed_s > 0.0:
        return None
    return Transfer(end_s - lasted_s, end_s, n_bytes)


def whole_transfer(
    end_s: float, elapsed_s: float, round_trip_s: float, n_bytes: int
) -> Transfer | None:
    """Return a transfer after a pause, also without TCP slow start."""
    took_s = elapsed_s - round_trip_s
    slow_start_s = 0.0
    if n_bytes > 0:
        slow_start_s = took_s - transmission_s(8.0 * n_bytes, took_s, round_trip_s)
    return transfer(end_s, elapsed_s, round_trip_s + slow_start_s, n_bytes)


def steady_transfer(
    end_s: float, lasted_s: float | None, n_bytes: int | None, n_whole: int
) -> Transfer | None:
    """Return the part of a transfer after its first chunk; None if it does not show the rate.

    Args:
        end_s: When the last chunk arrived, seconds from the beginning of the recording.
        lasted_s: Time from the end of the first chunk to `end_s`, seconds; None is unknown.
        n_bytes: Payload of the part, as reported; None is unknown.
        n_whole: Payload of the whole transfer, bytes.
    """
    if lasted_s is None or n_bytes is None or not lasted_s > 0.0:
        return None
    if not MIN_BYTES <= n_bytes <= n_whole:
        return None
    return Transfer(end_s - lasted_s, end_s, n_bytes)


def link_rate(transfers: Iterable[Transfer | None], length_s: float, what: str) -> Finding:
    """Return the rate of one direction.

    Args:
        transfers: Transfers in order of time; None is one that does not show the rate.
        length_s: Length of the recording, seconds.
        what: Plural noun for the transfers, such as `uploads`.

    Raises:
        NotMeasured: There are too few transfers.
    """
    all_transfers = list(transfers)
    useful = [item for item in all_transfers if item is not None]
    if len(useful) < MIN_TRANSFERS:
        raise NotMeasured(
            f"needs {MIN_TRANSFERS} {what} of {MIN_BYTES // 1024} kB or more that take longer than "
            f"a round trip, got {len(useful)} of {len(all_transfers)}; send more or larger models"
        )
    rates = np.array([item.rate_bps for item in useful])
    low, middle, high = np.quantile(rates, (0.1, 0.5, 0.9)).tolist()
    size = np.median([item.n_bytes for item in useful]) / 1e3
    basis = f"{len(useful)} {what} of {size:.0f} kB"
    if len(useful) < MIN_VARYING or high - low <= VARYING_RATIO * middle:
        return Finding(middle, f"median of {basis}, the middle 80 % from {low:.3g} to {high:.3g}")
    series = rate_series(useful, length_s)
    covered = sum(item.duration_s for item in useful) / series.period_s
    return Finding(
        series.mean,
        f"mean over time of {basis}, which cover {100 * covered:.0f} % of the recording; between "
        "them the rate of the nearest one holds",
        series,
    )


def rate_series(transfers: Sequence[Transfer], length_s: float) -> Series:
    """Return the rate over time: that of a transfer holds until halfway to the next one."""
    starts = [0.0]
    for one, after in pairwise(transfers):
        halfway = (one.end_s + after.start_s) / 2.0
        starts.append(max(halfway, starts[-1] + 1e-6))
    period_s = max(length_s, transfers[-1].end_s, starts[-1] + 1e-6)
    return merged(starts, [item.rate_bps for item in transfers], period_s)


def one_way_delay(round_trips_s: Sequence[float], what: str) -> Finding:
    """Return the one-way delay of the idle link: half of the shortest round trips.

    Raises:
        NotMeasured: There are too few round trips.
    """
    if len(round_trips_s) < MIN_TRANSFERS:
        raise NotMeasured(f"needs {MIN_TRANSFERS} {what}, got {len(round_trips_s)}; record longer")
    shortest_s = float(np.quantile(round_trips_s, 0.1))
    return Finding(
        shortest_s / 2.0,
        f"half of the 10th percentile of the round trips of {len(round_trips_s)} {what}",
    )
