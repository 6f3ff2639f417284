"""One trace: columns of numbers with common times."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.profiles.series import Series

Floats: TypeAlias = NDArray[np.float64]

COLUMNS = (
    "down_bps",
    "up_bps",
    "delay_s",
    "jitter_s",
    "loss_ratio",
    "clock_ratio",
    "background_load",
    "available",
)
"""Columns of a trace, with the names of the numbers of a profile."""

ONE_WAY = "bps"
"""Column of a rate without a direction."""

MAX_BINS = 10_000_000
"""Maximum number of rows after binning, which fit into memory several times."""

MAX_BPS, MAX_DELAY_S, MAX_CORES = 1e12, 60.0, 4096.0

MAX_CLOCK_RATIO = 100.0
"""Clock relative to that of `core_speed`, perhaps measured on a throttled board: in the logs
of sbc-bench are Raspberry Pis at 600 MHz, for lack of voltage, and overclocked ones at 3,000.

The bound is that of the reports of devices (`wire.messages.Context`)."""

RANGES = {
    "delay_s": (0.0, MAX_DELAY_S),
    "jitter_s": (0.0, MAX_DELAY_S),
    "loss_ratio": (0.0, 1.0),
    "clock_ratio": (1e-3, MAX_CLOCK_RATIO),
    "background_load": (0.0, MAX_CORES),
    "available": (0.0, 1.0),
}
"""Smallest and largest value of columns; rates are from 0 to `MAX_BPS`."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded values: row `i` holds from `t_s[i]` to the next; repeats after `period_s`.

    Values are finite and not negative; times start at 0 and increase.
    """

    t_s: Floats
    """Start of each row, seconds, shape (R,)."""
    columns: Mapping[str, Floats]
    """Values by a name of `COLUMNS` or `ONE_WAY`, each of shape (R,). Rates are TCP payload."""
    period_s: float

    def has(self, column: str) -> bool:
        """Return whether the trace has this column, or a rate without direction for it."""
        return column in self.columns or (column.endswith("_bps") and ONE_WAY in self.columns)

    def series(self, column: str) -> Series:
        """Return one column; a rate without a direction is used for both directions.

        Raises:
            KeyError: The trace has no such column.
        """
        values = self.columns[column if column in self.columns or not self.has(column) else ONE_WAY]
        return Series(tuple(self.t_s.tolist()), tuple(values.tolist()), float(self.period_s))

    def mean(self, column: str) -> float:
        """Return the mean of a column over time."""
        return float(np.dot(self.columns[column], self.durations_s) / self.period_s)

    def quantile(self, column: str, share: float) -> float:
        """Return the quantile of a column over time."""
        order = np.argsort(self.columns[column], kind="stable")
        until = np.cumsum(self.durations_s[order])
        row = int(np.searchsorted(until, share * until[-1]))
        return float(self.columns[column][order[min(row, len(order) - 1)]])

    @property
    def durations_s(self) -> Floats:
        """Duration of each row, seconds, shape (R,)."""
        return np.diff(self.t_s, append=self.period_s)

    def binned(self, step_s: float) -> "Trace":
        """Return the means over steps of `step_s`; the last step may be shorter.

        The integral of each column over time does not change.

        Raises:
            ValueError: `step_s` is not positive, or gives more than `MAX_BINS` steps.
        """
        edges = bin_edges(self.period_s, step_s)
        ends = np.append(self.t_s, self.period_s)
        binned = {}
        for name, values in self.columns.items():
            area = np.concatenate([[0.0], np.cumsum(values * self.durations_s)])
            binned[name] = np.maximum(np.diff(np.interp(edges, ends, area)), 0.0) / np.diff(edges)
        return Trace(edges[:-1], binned, self.period_s)


def bin_edges(period_s: float, step_s: float) -> Floats:
    """Return the edges of steps that cover a period; the last step may be shorter.

    Raises:
        ValueError: `step_s` is not positive, or gives more than `MAX_BINS` steps.
    """
    if not step_s > 0.0:
        raise ValueError(f"steps must be longer than 0 s, got {step_s:g} s; 1 s is usual")
    if period_s / step_s > MAX_BINS:
        raise ValueError(
            f"must be at most {MAX_BINS} steps, got {period_s:g} s in steps of {step_s:g} s; "
            "take longer steps"
        )
    count = max(1, int(np.ceil(period_s / step_s - 1e-9)))
    edges: Floats = np.append(np.arange(count) * step_s, period_s)
    return edges
