"""A fleet of profiles as columns: constants as arrays, and what changes over time as series."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.profiles import Profile
from fairbed.profiles.schema import Thermal
from fairbed.profiles.series import Series
from fairbed.testbed.emulation.schedule import ROUNDING_S, OutageWindow, Schedule, UnavailableAs
from fairbed.testbed.experiment.fleet import PlannedDevice


@dataclass(frozen=True, slots=True)
class AvailabilityCycles:
    """Availability of a large fleet: one stay per cycle, without a series for each device.

        there at t  <=>  (t / cycle + phase) mod 1 < share

    It is what `profiles.tracks.draw_sessions` draws where a population tells of one stay a day.
    Where it tells the mean length of stays, all stays of a crowd have that length.
    """

    share: Floats
    """Of the time that each device is there, shape (N,)."""
    cycle_s: Floats
    """One stay and one absence, seconds, shape (N,)."""
    phase: Floats
    """In [0, 1), shape (N,)."""

    @property
    def moves(self) -> bool:
        """Some device comes and goes, or is never available."""
        return bool((self.share < 1.0).any())

    def at(self, t: Floats | float) -> Floats:
        """Return 1 for available devices and 0 for others, shape (N,).

        Args:
            t: When, seconds since the run began, shape (N,) or one for all.
        """
        cycles = t / self.cycle_s + self.phase
        there: Floats = (cycles - np.floor(cycles) < self.share).astype(np.float64)
        return there


class MovingNumbers:
    """One number of each device over time; most devices' never moves.

    Args:
        constant: What it is where nothing else is said, shape (N,).
        series: Of those rows where it moves.
    """

    def __init__(self, constant: Floats, series: Mapping[int, Series]) -> None:
        self._constant: Floats = constant
        self._rows = np.array(sorted(series), dtype=np.int64)
        chosen = [series[row] for row in self._rows.tolist()]
        self._period_s = np.array([one.period_s for one in chosen])
        # Laid end to end, so that one search finds the place in all of them.
        self._begin = np.concatenate([[0.0], np.cumsum(self._period_s)])[:-1]
        self._starts = np.concatenate(
            [np.zeros(0), *(np.array(s.t_s) + b for s, b in zip(chosen, self._begin, strict=True))]
        )
        self._values = np.concatenate([np.zeros(0), *(np.array(one.values) for one in chosen)])

    @property
    def moves(self) -> bool:
        """Some device's number changes."""
        return self._rows.size > 0

    def at(self, t: Floats | float) -> Floats:
        """Return the number of each device, shape (N,), not to be changed.

        Args:
            t: When, seconds since the run began, shape (N,) or one for all.
        """
        if not self.moves:
            return self._constant
        when = t if isinstance(t, float) else t[self._rows]
        into = (when + ROUNDING_S) % self._period_s + self._begin
        column: Floats = self._constant.copy()
        column[self._rows] = self._values[np.searchsorted(self._starts, into, side="right") - 1]
        return column


class Outages:
    """Outages by the clock of the run, of all devices."""

    def __init__(self, windows: Mapping[int, tuple[OutageWindow, ...]], n: int) -> None:
        listed = [(row, o) for row in sorted(windows) for o in windows[row]]
        self._n = n
        self._rows = np.array([row for row, _ in listed], dtype=np.int64)
        self._start_s = np.array([o.start_s for _, o in listed])
        self._end_s = np.array([o.end_s for _, o in listed])
        self._is_unplugged = np.array([o.kind == "unplugged" for _, o in listed], dtype=np.bool_)

    def __len__(self) -> int:
        """Return how many there are in all."""
        return len(self._rows)

    def at(self, t: Floats, *, unplugged_only: bool = False) -> Bools:
        """Return who cannot be reached at its own moment `t`, both of shape (N,)."""
        is_out = np.zeros(self._n, dtype=np.bool_)
        when = t[self._rows] + ROUNDING_S
        now = (self._start_s <= when) & (when < self._end_s)
        is_out[self._rows[now & (self._is_unplugged | (not unplugged_only))]] = True
        return is_out


NOWHERE = np.inf
"""Rate of a link that takes no time: this machine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """What each device is, in means where it moves; every column has shape (N,)."""

    per_core: Floats
    """Speed of one core at its nominal clock, in cores of the reference machine."""
    cores: Floats
    threads: Floats
    """Of one training step."""
    busy_cores: Floats
    """With other work."""
    clock_ratio: Floats
    storage_bytes_per_s: Floats
    cold_start_s: Floats
    """Of a cold round beside a warm one, seconds; NaN follows from storage and processor."""
    down_bps: Floats
    up_bps: Floats
    delay_s: Floats
    """One way."""
    jitter_s: Floats

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self.per_core)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """What changes in time, row by row; empty for a fleet that never changes."""

    available: Mapping[int, Series] | AvailabilityCycles = field(default_factory=dict)
    """Of a crowd, all its stays together."""
    clock_ratio: Mapping[int, Series] = field(default_factory=dict)
    busy_cores: Mapping[int, Series] = field(default_factory=dict)
    down_bps: Mapping[int, Series] = field(default_factory=dict)
    up_bps: Mapping[int, Series] = field(default_factory=dict)
    outages: Mapping[int, tuple[OutageWindow, ...]] = field(default_factory=dict)
    thermal: Mapping[int, Thermal] = field(default_factory=dict)
    links: Mapping[int, Schedule] = field(default_factory=dict)
    """Of every row of which anything changes, its link with all outages."""
    speeds: Mapping[int, Schedule] = field(default_factory=dict)
    """Of the same rows, their speed without heat."""
    unavailable_as: UnavailableAs = "unwilling"
    cut: frozenset[int] = frozenset()
    """Rows whose link carries nothing at times."""


class Tracks:
    """Everything of a fleet that can be looked up for all devices at once."""

    def __init__(self, steady: Steady, moving: Moving) -> None:
        n = len(steady)
        self.busy_cores = MovingNumbers(steady.busy_cores, moving.busy_cores)
        self.clock_ratio = MovingNumbers(steady.clock_ratio, moving.clock_ratio)
        self.down_bps = MovingNumbers(steady.down_bps, moving.down_bps)
        self.up_bps = MovingNumbers(steady.up_bps, moving.up_bps)
        stays = moving.available
        self._available = (
            stays if isinstance(stays, AvailabilityCycles) else MovingNumbers(np.ones(n), stays)
        )
        self._outages = Outages(moving.outages, n)
        self._is_unplugged_when_unavailable = moving.unavailable_as == "unplugged"
        self._n = n

    @property
    def can_be_cut(self) -> bool:
        """Some device's link is gone at times."""
        goes_away = self._available.moves and self._is_unplugged_when_unavailable
        moves = self.down_bps.moves or self.up_bps.moves
        return moves or goes_away or len(self._outages) > 0

    def is_cut(self, t: Floats) -> Bools:
        """Return whose link carries nothing at its own moment `t`, both of shape (N,)."""
        cut = self._outages.at(t) | (self.down_bps.at(t) == 0.0) | (self.up_bps.at(t) == 0.0)
        gone: Bools = cut | self._is_gone(t)
        return gone

    def is_unplugged(self, t: Floats) -> Bools:
        """Return who has no link at all at its own moment `t`: its connections are broken."""
        unplugged: Bools = self._outages.at(t, unplugged_only=True) | self._is_gone(t)
        return unplugged

    def is_willing(self, t: Floats) -> Bools:
        """Return whose owner lets it take part at its own moment `t`, both of shape (N,)."""
        if self._is_unplugged_when_unavailable:
            return np.ones(self._n, dtype=np.bool_)
        willing: Bools = self._available.at(t) > 0.0
        return willing

    def _is_gone(self, t: Floats) -> Bools:
        if not self._is_unplugged_when_unavailable:
            return np.zeros(self._n, dtype=np.bool_)
        gone: Bools = self._available.at(t) <= 0.0
        return gone


def columns_of(devices: Sequence[PlannedDevice]) -> tuple[Steady, Moving]:
    """Return a planned fleet as columns, its speeds in cores of the reference machine.

    Raises:
        ValueError: A device has no profile: what this machine is nobody has written down.
    """
    known = [device.profile for device in devices if device.profile is not None]
    if len(known) < len(devices):
        raise ValueError("devices: each must have a profile to be replayed, got one without")

    def of_profile(number: Callable[[Profile], float | None]) -> Floats:
        return np.array([number(profile) for profile in known], dtype=np.float64)

    def of_link(name: str, otherwise: float) -> Floats:
        tracks = [device.tracks.link for device in devices]
        means = [otherwise if t is None else getattr(t, name).mean for t in tracks]
        return np.array(means, dtype=np.float64)

    steady = Steady(
        per_core=of_profile(lambda p: p.core_speed),
        cores=of_profile(lambda p: p.cores),
        threads=of_profile(lambda p: p.engine_threads),
        busy_cores=of_profile(lambda p: p.background_load),
        clock_ratio=np.array([device.tracks.clock_ratio.mean for device in devices]),
        storage_bytes_per_s=of_profile(lambda p: p.storage_read_bytes_per_s),
        cold_start_s=of_profile(lambda p: None if p.cold_start is None else p.cold_start.value),
        down_bps=of_link("down_bps", NOWHERE),
        up_bps=of_link("up_bps", NOWHERE),
        delay_s=of_link("delay_s", 0.0),
        jitter_s=of_link("jitter_s", 0.0),
    )
    return steady, _moving(devices)


def _moving(devices: Sequence[PlannedDevice]) -> Moving:
    def moving(name: str, *, of_link: bool = False) -> dict[int, Series]:
        found = {}
        for row, device in enumerate(devices):
            tracks = device.tracks.link if of_link else device.tracks
            series = None if tracks is None else getattr(tracks, name)
            if series is not None and not (series.is_constant and _says_nothing(name, series)):
                found[row] = series
        return found

    links, speeds = {}, {}
    for row, device in enumerate(devices):
        link, speed = timelines(device)
        if not (link.is_constant and speed.is_constant and device.tracks.thermal is None):
            links[row], speeds[row] = link, speed
    return Moving(
        available=moving("available"),
        clock_ratio=moving("clock_ratio"),
        busy_cores=moving("background_load"),
        down_bps=moving("down_bps", of_link=True),
        up_bps=moving("up_bps", of_link=True),
        outages={row: device.outages for row, device in enumerate(devices) if device.outages},
        thermal={
            row: device.tracks.thermal
            for row, device in enumerate(devices)
            if device.tracks.thermal is not None
        },
        links=links,
        speeds=speeds,
        unavailable_as=devices[0].unavailable_as if devices else "unwilling",
        cut=frozenset(row for row in links if _is_cut_at_times(devices[row])),
    )


def _is_cut_at_times(device: PlannedDevice) -> bool:
    link, goes = device.tracks.link, device.tracks.available.lowest == 0.0
    has_holes = link is not None and 0.0 in (link.down_bps.lowest, link.up_bps.lowest)
    return has_holes or bool(device.outages) or (goes and device.unavailable_as == "unplugged")


def _says_nothing(name: str, series: Series) -> bool:
    """Tell whether a constant course is what the column says already."""
    return name != "available" or series.values[0] > 0.0


def timelines(device: PlannedDevice) -> tuple[Schedule, Schedule]:
    """Return the link of a device and its speed apart: neither waits for changes of the other."""
    tracks, always = device.tracks, Series.constant(1.0)
    link = Schedule(
        link=tracks.link,
        available=tracks.available if device.unavailable_as == "unplugged" else always,
        unavailable_as=device.unavailable_as,
        outages=device.outages,
    )
    alone = replace(
        device,
        tracks=replace(tracks, link=None, available=always),
        outages=tuple(outage for outage in device.outages if outage.kind == "frozen"),
    )
    return link, alone.schedule
