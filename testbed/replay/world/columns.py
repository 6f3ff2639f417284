"""Conditions of a fleet as columns: means as arrays, values that vary over time as series."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.profiles import Profile
from fairbed.profiles.schema import DROP_TAIL, Thermal
from fairbed.profiles.series import Series
from fairbed.testbed.emulation.cell import Cell, Sharer, alone_bps
from fairbed.testbed.emulation.queues import queue_bytes
from fairbed.testbed.emulation.schedule import ROUNDING_S, OutageWindow, Schedule, UnavailableAs
from fairbed.testbed.emulation.tcp import idles_after_overflow
from fairbed.testbed.experiment.fleet import PlannedDevice


@dataclass(frozen=True, slots=True)
class AvailabilityCycles:
    """Availability of a large fleet: one session per cycle, without a series for each device.

        available at t  <=>  (t / cycle + phase) mod 1 < share

    It is what `profiles.tracks.draw_sessions` draws for a population with one session a day. Where
    a population states a mean session length, all sessions have that length.
    """

    share: Floats
    """Share of the time in which each device is available, shape (N,)."""
    cycle_s: Floats
    """One session and one absence, seconds, shape (N,)."""
    phase: Floats
    """In [0, 1), shape (N,)."""

    @property
    def varies(self) -> bool:
        """Whether some device is not always available."""
        return bool((self.share < 1.0).any())

    def at(self, t: Floats | float) -> Floats:
        """Return 1 for available devices and 0 for others, shape (N,).

        Args:
            t: Instants, seconds since the run began, shape (N,) or one for all.
        """
        cycles = t / self.cycle_s + self.phase
        available: Floats = (cycles - np.floor(cycles) < self.share).astype(np.float64)
        return available

    def next_positive(self, t: float) -> Floats:
        """Return when each device is available next, from `t` on, shape (N,); `inf` is never."""
        cycles = t / self.cycle_s + self.phase
        at: Floats = t + (np.floor(cycles) + 1.0 - cycles) * self.cycle_s
        return np.where(self.at(t) > 0.0, t, np.where(self.share > 0.0, at, np.inf))


class VaryingColumn:
    """One number of each device over time; for most devices it is constant.

    Args:
        constant: Value of the rows without a series, shape (N,).
        series: Values over time of the rows in which the number varies.
    """

    def __init__(self, constant: Floats, series: Mapping[int, Series]) -> None:
        self._constant: Floats = constant
        self._rows = np.array(sorted(series), dtype=np.int64)
        self._series = varying = [series[row] for row in self._rows.tolist()]
        self._period_s = np.array([one.period_s for one in varying])
        # All series lie end to end, so that one search finds the step of each.
        self._begin = np.concatenate([[0.0], np.cumsum(self._period_s)])[:-1]
        self._starts = np.concatenate(
            [np.zeros(0), *(np.array(s.t_s) + b for s, b in zip(varying, self._begin, strict=True))]
        )
        self._values = np.concatenate([np.zeros(0), *(np.array(one.values) for one in varying)])

    @property
    def varies(self) -> bool:
        """Whether the number of some device varies."""
        return self._rows.size > 0

    def at(self, t: Floats | float) -> Floats:
        """Return the number of each device, shape (N,); the caller must not change it.

        Args:
            t: Instants, seconds since the run began, shape (N,) or one for all.
        """
        if not self.varies:
            return self._constant
        instants = t if isinstance(t, float) else t[self._rows]
        offset_s = (instants + ROUNDING_S) % self._period_s + self._begin
        column: Floats = self._constant.copy()
        column[self._rows] = self._values[np.searchsorted(self._starts, offset_s, side="right") - 1]
        return column

    def next_positive(self, t: float) -> Floats:
        """Return when each number is above 0 next, from `t` on, shape (N,); `inf` is never."""
        found = np.where(self._constant > 0.0, t, np.inf)
        for row, series in zip(self._rows.tolist(), self._series, strict=True):
            value, until = series.held(t + ROUNDING_S)
            found[row] = t if value > 0.0 else until
        return found


class Outages:
    """Outages of all devices, on the clock of the run."""

    def __init__(self, windows: Mapping[int, tuple[OutageWindow, ...]], n: int) -> None:
        listed = [(row, o) for row in sorted(windows) for o in windows[row]]
        self._n = n
        self._rows = np.array([row for row, _ in listed], dtype=np.int64)
        self._start_s = np.array([o.start_s for _, o in listed])
        self._end_s = np.array([o.end_s for _, o in listed])
        self._is_unplugged = np.array([o.kind == "unplugged" for _, o in listed], dtype=np.bool_)

    def __len__(self) -> int:
        """Return the number of outages."""
        return len(self._rows)

    def at(self, t: Floats, *, unplugged_only: bool = False) -> Bools:
        """Return which devices have an outage, each at its own instant `t`, both (N,)."""
        is_out = np.zeros(self._n, dtype=np.bool_)
        instants = t[self._rows] + ROUNDING_S
        is_active = (self._start_s <= instants) & (instants < self._end_s)
        is_out[self._rows[is_active & (self._is_unplugged | (not unplugged_only))]] = True
        return is_out

    def end_s(self, t: float) -> Floats:
        """Return when the outage of each device at `t` ends, shape (N,); `t` without one."""
        ends = np.full(self._n, t)
        is_active = (self._start_s <= t + ROUNDING_S) & (t + ROUNDING_S < self._end_s)
        np.maximum.at(ends, self._rows[is_active], self._end_s[is_active])
        return ends


UNLIMITED_BPS = np.inf
"""Rate of a device without a link model: its transfers take no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanConditions:
    """Conditions of each device, as means where they vary; every column has shape (N,)."""

    per_core: Floats
    """Speed of one core at its nominal clock, in cores of the reference machine."""
    cores: Floats
    threads: Floats
    """Threads of one training step."""
    busy_cores: Floats
    """Cores that other work uses."""
    clock_ratio: Floats
    storage_bytes_per_s: Floats
    cold_start_s: Floats
    """Extra time of a cold round, seconds; NaN: it follows from storage and processor."""
    down_bps: Floats
    up_bps: Floats
    delay_s: Floats
    """One way."""
    jitter_s: Floats

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self.per_core)


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingConditions:
    """Conditions that vary over time, by row; empty for a fleet whose conditions are constant."""

    available: Mapping[int, Series] | AvailabilityCycles = field(default_factory=dict)
    """Series by row; cycles of all devices for a large fleet."""
    clock_ratio: Mapping[int, Series] = field(default_factory=dict)
    busy_cores: Mapping[int, Series] = field(default_factory=dict)
    down_bps: Mapping[int, Series] = field(default_factory=dict)
    up_bps: Mapping[int, Series] = field(default_factory=dict)
    outages: Mapping[int, tuple[OutageWindow, ...]] = field(default_factory=dict)
    thermal: Mapping[int, Thermal] = field(default_factory=dict)
    links: Mapping[int, Schedule] = field(default_factory=dict)
    """Link with all outages, for every row with a condition that varies."""
    speeds: Mapping[int, Schedule] = field(default_factory=dict)
    """Speed without throttling by heat, for the same rows."""
    unavailable_as: UnavailableAs = "unwilling"
    lossy: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Queues towards and away from each device whose link loses packets, bytes; such rows are in
    `links` and `speeds`, too."""
    interrupted: frozenset[int] = frozenset()
    """Rows whose link is down at times."""
    cells: Mapping[str, Cell] = field(default_factory=dict)
    """All cells, by name."""
    sharers: Mapping[int, Sharer] = field(default_factory=dict)
    """Cell and priority of the rows that share one; each of them is in `links`, too."""


class FleetConditions:
    """Conditions of all devices at given instants."""

    def __init__(self, means: MeanConditions, varying: VaryingConditions) -> None:
        n = len(means)
        self.busy_cores = VaryingColumn(means.busy_cores, varying.busy_cores)
        self.clock_ratio = VaryingColumn(means.clock_ratio, varying.clock_ratio)
        self.down_bps = VaryingColumn(means.down_bps, varying.down_bps)
        self.up_bps = VaryingColumn(means.up_bps, varying.up_bps)
        available = varying.available
        self._available = (
            available
            if isinstance(available, AvailabilityCycles)
            else VaryingColumn(np.ones(n), available)
        )
        self._outages = Outages(varying.outages, n)
        self._is_unplugged_when_unavailable = varying.unavailable_as == "unplugged"
        self._n = n

    @property
    def has_link_outages(self) -> bool:
        """Whether the link of some device can be down."""
        unplugs = self._available.varies and self._is_unplugged_when_unavailable
        varies = self.down_bps.varies or self.up_bps.varies
        return varies or unplugs or len(self._outages) > 0

    def is_link_down(self, t: Floats) -> Bools:
        """Return which links carry nothing, each at its own instant `t`, both of shape (N,)."""
        down = self._outages.at(t) | (self.down_bps.at(t) == 0.0) | (self.up_bps.at(t) == 0.0)
        is_link_down: Bools = down | self._is_away(t)
        return is_link_down

    def is_unplugged(self, t: Floats) -> Bools:
        """Return which devices lose their connections, each at its own instant `t`, (N,)."""
        unplugged: Bools = self._outages.at(t, unplugged_only=True) | self._is_away(t)
        return unplugged

    def is_willing(self, t: Floats) -> Bools:
        """Return which devices may take part, each at its own instant `t`, both of shape (N,)."""
        if self._is_unplugged_when_unavailable:
            return np.ones(self._n, dtype=np.bool_)
        willing: Bools = self._available.at(t) > 0.0
        return willing

    def available_from_s(self, t: float) -> float:
        """Return an instant from `t` on before which no device is available; `inf` is never."""
        columns = (self._available, self.down_bps, self.up_bps)
        later = [self._outages.end_s(t), *(column.next_positive(t) for column in columns)]
        return float(np.maximum.reduce(later).min(initial=np.inf))

    def _is_away(self, t: Floats) -> Bools:
        """Return which devices are unplugged because they are not available."""
        if not self._is_unplugged_when_unavailable:
            return np.zeros(self._n, dtype=np.bool_)
        away: Bools = self._available.at(t) <= 0.0
        return away


def columns_of(devices: Sequence[PlannedDevice]) -> tuple[MeanConditions, VaryingConditions]:
    """Return the conditions of a planned fleet; speeds are in cores of the reference machine.

    The link of a device in a cell is at most as fast as the cell.

    Raises:
        ValueError: A device has no profile.
    """
    devices = [_within_cells(device) for device in devices]
    profiles = [device.profile for device in devices if device.profile is not None]
    if len(profiles) < len(devices):
        raise ValueError("devices: each must have a profile to be replayed, got one without")

    def of_profile(number: Callable[[Profile], float | None]) -> Floats:
        return np.array([number(profile) for profile in profiles], dtype=np.float64)

    def of_link(name: str, default: float) -> Floats:
        tracks = [device.tracks.link for device in devices]
        means = [default if t is None else getattr(t, name).mean for t in tracks]
        return np.array(means, dtype=np.float64)

    means = MeanConditions(
        per_core=of_profile(lambda p: p.core_speed) / [device.levels[1] for device in devices],
        cores=of_profile(lambda p: p.cores),
        threads=of_profile(lambda p: p.engine_threads),
        busy_cores=of_profile(lambda p: p.background_load),
        clock_ratio=np.array([device.tracks.clock_ratio.mean for device in devices]),
        storage_bytes_per_s=of_profile(lambda p: p.storage_read_bytes_per_s),
        cold_start_s=of_profile(lambda p: None if p.cold_start is None else p.cold_start.value),
        down_bps=of_link("down_bps", UNLIMITED_BPS),
        up_bps=of_link("up_bps", UNLIMITED_BPS),
        delay_s=of_link("delay_s", 0.0),
        jitter_s=of_link("jitter_s", 0.0),
    )
    return means, _varying(devices)


def _varying(devices: Sequence[PlannedDevice]) -> VaryingConditions:
    def series_by_row(name: str, *, of_link: bool = False) -> dict[int, Series]:
        found = {}
        for row, device in enumerate(devices):
            tracks = device.tracks.link if of_link else device.tracks
            series = None if tracks is None else getattr(tracks, name)
            if series is not None and not (series.is_constant and _equals_mean(name, series)):
                found[row] = series
        return found

    links, speeds, lossy = {}, {}, {}
    for row, device in enumerate(devices):
        link, speed = link_and_speed_schedules(device)
        tracks = device.tracks.link
        if tracks is not None and loses_packets(device) and not device.spec.cells:
            lossy[row] = queue_bytes(tracks, "down"), queue_bytes(tracks, "up")
        is_steady = link.is_constant and speed.is_constant and device.tracks.thermal is None
        if not is_steady or row in lossy or device.spec.cells:
            links[row], speeds[row] = link, speed
    return VaryingConditions(
        available=series_by_row("available"),
        clock_ratio=series_by_row("clock_ratio"),
        busy_cores=series_by_row("background_load"),
        down_bps=series_by_row("down_bps", of_link=True),
        up_bps=series_by_row("up_bps", of_link=True),
        outages={row: device.outages for row, device in enumerate(devices) if device.outages},
        thermal={
            row: device.tracks.thermal
            for row, device in enumerate(devices)
            if device.tracks.thermal is not None
        },
        links=links,
        speeds=speeds,
        lossy=lossy,
        unavailable_as=devices[0].unavailable_as if devices else "unwilling",
        interrupted=frozenset(row for row in links if is_interrupted(devices[row])),
        cells={cell.name: cell for device in devices for cell in device.spec.cells},
        sharers={
            row: Sharer(device.spec.cells[0].name, np.inf, device.spec.priority)
            for row, device in enumerate(devices)
            if device.spec.cells
        },
    )


def _within_cells(device: PlannedDevice) -> PlannedDevice:
    """Return a device whose link is at most as fast as its cell, and those in front of it."""
    link, cells = device.tracks.link, {cell.name: cell for cell in device.spec.cells}
    if link is None or not cells:
        return device
    unlimited = Sharer(device.spec.cells[0].name, np.inf)
    link = replace(
        link,
        down_bps=link.down_bps.at_most(alone_bps(unlimited, cells, "down")),
        up_bps=link.up_bps.at_most(alone_bps(unlimited, cells, "up")),
    )
    return replace(device, tracks=replace(device.tracks, link=link))


def loses_packets(device: PlannedDevice) -> bool:
    """Return whether the link of a device loses packets: at random, or at a short queue.

    A queue counts if the link states it: the usual one keeps the link busy up to a round trip of
    0.23 s.
    """
    link = device.tracks.link
    if link is None or link.loss_ratio.highest > 0.0 or link.queue == DROP_TAIL:
        return link is not None and link.loss_ratio.highest > 0.0
    trip_s = 2.0 * link.delay_s.highest
    return idles_after_overflow(
        queue_bytes(link, "down"), link.down_bps.highest, trip_s
    ) or idles_after_overflow(queue_bytes(link, "up"), link.up_bps.highest, trip_s)


def is_interrupted(device: PlannedDevice) -> bool:
    """Return whether the link of a device is down at times."""
    link, leaves = device.tracks.link, device.tracks.available.lowest == 0.0
    has_gaps = link is not None and 0.0 in (link.down_bps.lowest, link.up_bps.lowest)
    return has_gaps or bool(device.outages) or (leaves and device.unavailable_as == "unplugged")


def _equals_mean(name: str, series: Series) -> bool:
    """Return whether a constant series only repeats the mean of its column."""
    return name != "available" or series.values[0] > 0.0


def link_and_speed_schedules(device: PlannedDevice) -> tuple[Schedule, Schedule]:
    """Return the schedules of link and speed apart, so that each lists only its own changes."""
    tracks, always = device.tracks, Series.constant(1.0)
    link = Schedule(
        link=tracks.link,
        available=tracks.available if device.unavailable_as == "unplugged" else always,
        unavailable_as=device.unavailable_as,
        outages=device.outages,
    )
    speed_only = replace(
        device,
        tracks=replace(tracks, link=None, available=always),
        outages=tuple(outage for outage in device.outages if outage.kind == "frozen"),
    )
    return link, speed_only.schedule
