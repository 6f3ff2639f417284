"""What the links of a replayed fleet carried in the last seconds before each selection.

A replay keeps what it expects of each device at the instant of a selection (`known_s`). Who knows
the last `RECENT_S` of its link expects other times of the two transfers: those of the mean rates,
8 M / mean B and the waiting of TCP at its start, instead of those of the rates of the instant.

No device can tell these rates: it knows its link from its last transfers. So there is also what the
`RECENT_S` before the ends of those say, which bounds what anybody can make of what devices tell.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from coordinator.algorithms.arrays import Floats
from coordinator.store.records import ExchangeRow
from profiles.errors import ProfileError
from profiles.series import Series
from testbed.emulation.tcp import waiting_s
from testbed.emulation.timeline import ROUNDING_S
from testbed.experiment import ExperimentError, load_experiment
from testbed.fleet import MAX_EMULATED, plan_fleet
from testbed.hindsight.known import LEAST_BPS, RECENT_S
from testbed.recording.run_store import CONFIG


class RecentRate:
    """The rate of one direction of a link, at an instant and in the last seconds before it.

    Args:
        series: Bit/s over the time of the run.
        round_trip_s: Of the link, for the waiting of TCP.
    """

    def __init__(self, series: Series, round_trip_s: float) -> None:
        self._series = series
        self._round_trip_s = np.array([round_trip_s])
        self._t_s: Floats = np.array([*series.t_s, series.period_s])
        steps = np.array(series.values) * np.diff(self._t_s)
        self._bits: Floats = np.concatenate([[0.0], np.cumsum(steps)])

    @property
    def moves(self) -> bool:
        """It changes."""
        return not self._series.is_constant

    def longer_s(self, n_bytes: int, now: float, told_at: float) -> float:
        """Return how much longer a transfer takes by some seconds than by this instant.

        In a hole the instant counts as the mean of the whole, as in a replay (`ProfileWorld`).

        Args:
            n_bytes: Payload.
            now: The instant, seconds of the run.
            told_at: End of those seconds, `RECENT_S` or all since the run began.
        """
        since = max(told_at - RECENT_S, 0.0)
        if not self.moves or told_at <= since:
            return 0.0
        at_once_bps = self._series.at(now + ROUNDING_S) or self._series.mean
        recent_bps = (self._carried(told_at) - self._carried(since)) / (told_at - since)
        return self._takes_s(n_bytes, max(recent_bps, LEAST_BPS)) - self._takes_s(
            n_bytes, at_once_bps
        )

    def _takes_s(self, n_bytes: int, bps: float) -> float:
        """Return what a transfer takes at one rate."""
        line_s = np.array([8.0 * n_bytes / bps])
        return float(line_s[0] + waiting_s(8.0 * n_bytes, line_s, self._round_trip_s)[0])

    def _carried(self, t: float) -> float:
        """Return the bits from the beginning of the run to `t`."""
        laps, into = divmod(t, self._series.period_s)
        return float(laps * self._bits[-1] + np.interp(into, self._t_s, self._bits))


@dataclass(frozen=True, slots=True)
class RecentLink:
    """Both directions of the link of one device."""

    down: RecentRate
    up: RecentRate

    def longer_s(self, x: ExchangeRow, last: ExchangeRow | None = None) -> float:
        """Return how much longer an exchange is expected to take than by the instant it began at.

        Args:
            x: The exchange.
            last: One before, at the ends of whose transfers the rates are told; None tells them
                at the beginning of `x`.
        """
        now = down_at = up_at = x.dispatched_at_s
        if last is not None:
            down_at = last.dispatched_at_s + (last.signal_s or 0.0) / 2.0 + (last.download_s or 0.0)
            up_at = last.dispatched_at_s + (last.tau_wall_s or 0.0)
        down_s = self.down.longer_s(x.bytes_down, now, down_at)
        return down_s + self.up.longer_s(x.bytes_up, now, up_at)


def recent_links(folder: Path) -> dict[str, RecentLink]:
    """Return the links of a replayed fleet that move, by device.

    Of a linear fleet there are none, and of a very large one nobody looks.

    Args:
        folder: Of the replay.

    Raises:
        ExperimentError: Its experiment, or a profile or trace of it, cannot be read any more.
    """
    experiment = load_experiment(folder / CONFIG)
    is_linear = any(group.model is not None for group in experiment.fleet)
    if is_linear or experiment.devices > MAX_EMULATED:
        return {}
    # Only links are asked for: how fast the emulating machine is does not matter.
    emulation = msgspec.structs.replace(experiment.emulation, host_core_speed=1.0)
    try:
        devices = plan_fleet(msgspec.structs.replace(experiment, emulation=emulation), os.environ)
    except ProfileError as exc:
        raise ExperimentError(str(exc)) from exc
    links = {
        device.spec.name: RecentLink(
            RecentRate(link.down_bps, 2.0 * link.delay_s.mean),
            RecentRate(link.up_bps, 2.0 * link.delay_s.mean),
        )
        for device in devices
        if (link := device.tracks.link) is not None
    }
    return {name: link for name, link in links.items() if link.down.moves or link.up.moves}
