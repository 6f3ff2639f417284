"""The configured conditions of one device over time.

`Schedule` maps a time to conditions and to the time of the next change, and an interval to the
means of its conditions. Heat is an argument, because it depends on the load of the device.
`ScheduleFollower` adds the heat of one device, computed from the processor time that it used.

Times are seconds of the fleet since the run began. Conditions are in seconds of the device; under
time dilation the caller converts them for this machine (`Conditions.dilated`).
"""

from dataclasses import dataclass
from math import floor, inf, nan
from typing import Literal, TypeAlias

from fairbed.profiles import DeviceTracks
from fairbed.profiles.schema import Profile, Thermal
from fairbed.profiles.series import Series
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.emulation.conditions import Conditions, Outage, Shape
from fairbed.testbed.emulation.heat import Heat
from fairbed.testbed.emulation.queues import codel_target_s, queue_bytes

UnavailableAs: TypeAlias = Literal["unwilling", "unplugged"]
"""A device that is not available either reports that, or cannot be reached."""

MIN_BPS = 1e3
"""Positive rates below this one are raised to it; a rate of 0 is an outage."""

LEAST_FREE_CORES = 0.05
"""Cores that background load leaves free at least, as in `device_agent.sensors`."""

ROUNDING_S = 1e-6
"""Tolerance for rounding: a change this shortly after `t` counts as a change at `t`."""

_SEVERITY: dict[Outage, int] = {"coverage": 1, "unplugged": 2, "frozen": 3}


@dataclass(frozen=True, slots=True)
class OutageWindow:
    """An outage from `start_s` to `end_s` of the run.

    Raises:
        ValueError: The outage begins before 0 s, or ends before it begins.
    """

    start_s: float
    end_s: float
    kind: Outage

    def __post_init__(self) -> None:
        if not 0.0 <= self.start_s < self.end_s:
            raise ValueError(
                f"outage: must begin at 0 s or later and end after that, "
                f"got {self.start_s} to {self.end_s} s"
            )


@dataclass(frozen=True, slots=True)
class Speed:
    """Processor speed of a device over time."""

    per_core: float
    """Speed of one core at its nominal clock, in cores of this machine."""
    threads: int
    """Threads of one training step."""
    cores: int
    clock_ratio: Series
    background_load: Series
    """Cores busy with other work."""

    def of(self, clock_ratio: float, background_load: float) -> float:
        """Return the training speed at a clock under a load, in cores of this machine."""
        free = max(self.cores - background_load, LEAST_FREE_CORES)
        return self.per_core * min(float(self.threads), free) * clock_ratio


class Schedule:
    """The conditions of one device over time.

    Args:
        speed: Processor speed; None is not slowed.
        link: The access link; None is this machine's own.
        available: Above 0 while the device is available.
        unavailable_as: How the device behaves while it is not available.
        outages: Outages, in seconds since the run began.
    """

    def __init__(
        self,
        *,
        speed: Speed | None = None,
        link: LinkTracks | None = None,
        available: Series | None = None,
        unavailable_as: UnavailableAs = "unwilling",
        outages: tuple[OutageWindow, ...] = (),
    ) -> None:
        self._speed, self._unavailable_as = speed, unavailable_as
        self._queues: tuple[int, int] | None = None
        self._codel_target_s: float | None = None
        if link is not None:
            self._queues = queue_bytes(link, "down"), queue_bytes(link, "up")
            self._codel_target_s = codel_target_s(link.queue)
        self._outages = outages
        self._edges = sorted(edge for o in outages for edge in (o.start_s, o.end_s))
        series = _series(available, speed, link)
        self._varying = [(at, each) for at, each in enumerate(series) if not each.is_constant]
        self._values = [each.values[0] for each in series]
        """Values at `_read_at`, in the order of `_series`."""
        self._steps = [0] * len(series)
        """Position in each series at `_read_at`."""
        self._read_at, self._change = nan, inf
        self._next = nan, inf
        """The last argument of `next_change`, and its result."""

    @property
    def is_constant(self) -> bool:
        """Whether nothing changes except by heat."""
        return not self._varying and not self._edges

    def conditions(
        self, t: float, heat_clock_ratio: float = 1.0, celsius: float | None = None
    ) -> Conditions:
        """Return the configured conditions at `t`.

        Args:
            t: Seconds since the run began.
            heat_clock_ratio: Clock / nominal clock that heat allows.
            celsius: Temperature of the device; None is unknown.
        """
        t += ROUNDING_S
        self._read(t)
        available, clock, load, down_bps, up_bps, delay_s, jitter_s, loss_ratio = self._values
        is_available, is_outage = available > 0.0, False
        speed = None
        if self._speed is not None:
            speed = self._speed.of(clock, load) * heat_clock_ratio
        shape = self._shape(down_bps, up_bps, delay_s, jitter_s, loss_ratio)
        if shape is not None:
            is_outage = down_bps == 0.0 or up_bps == 0.0
        return Conditions(
            speed_ratio=speed,
            shape=shape,
            outage=self._outage(t, is_outage, is_available),
            clock_ratio=clock * heat_clock_ratio,
            temperature_celsius=celsius,
            is_willing=is_available or self._unavailable_as != "unwilling",
        )

    def mean_conditions(
        self,
        t: float,
        lasting_s: float,
        heat_clock_ratio: float = 1.0,
        celsius: float | None = None,
    ) -> Conditions:
        """Return the configured conditions as means over the time from `t` to `t + lasting_s`.

        A coverage hole has the rates 0 in the means, in both directions, so the mean rate times
        `lasting_s` is the volume of the link in that time. A hole that lasts the whole time is an
        outage. Speed, clock, delay, jitter and loss are means over time. Other outages, and
        whether the device is available, are states: those at `t`.

        Args:
            t: Seconds since the run began.
            lasting_s: Length of the time, seconds.
            heat_clock_ratio: Clock / nominal clock that heat allows.
            celsius: Temperature of the device; None is unknown.
        """
        now, end = self.conditions(t, heat_clock_ratio, celsius), t + lasting_s
        change = self.next_change(t)
        if change is None or change >= end - ROUNDING_S:
            return now
        covered_s, sums, begin = 0.0, [0.0] * 7, t
        while begin < end - ROUNDING_S:
            until = min(self._change_after(begin + ROUNDING_S), end)
            passed_s, begin = until - begin, until
            _, clock, load, down_bps, up_bps, *others = self._values
            if self._speed is not None:
                sums[0] += self._speed.of(clock, load) * passed_s
            sums[1] += clock * passed_s
            if not self._is_hole(until - ROUNDING_S, down_bps, up_bps):
                covered_s += passed_s
                sums[2] += down_bps * passed_s
                sums[3] += up_bps * passed_s
            for place, value in enumerate(others, 4):
                sums[place] += value * passed_s
        speed, clock, down_bps, up_bps, *others = (total / lasting_s for total in sums)
        outage = now.outage
        if outage is None or outage == "coverage":
            outage = None if covered_s > ROUNDING_S else "coverage"
        return Conditions(
            speed_ratio=None if self._speed is None else speed * heat_clock_ratio,
            shape=self._shape(down_bps, up_bps, *others),
            outage=outage,
            clock_ratio=clock * heat_clock_ratio,
            temperature_celsius=celsius,
            is_willing=now.is_willing,
        )

    def next_change(self, t: float) -> float | None:
        """Return the first time after `t` at which conditions may change; None is never."""
        if t != self._next[0]:
            self._next = t, self._change_after(t + ROUNDING_S)
        change = self._next[1]
        return None if change == inf else change

    def _change_after(self, t: float) -> float:
        """Update the values to `t`; return the first change after it, `inf` for never."""
        self._read(t)
        if self._edges:
            return min([self._change, *(edge for edge in self._edges if edge > t)])
        return self._change

    def _is_hole(self, t: float, down_bps: float, up_bps: float) -> bool:
        """Return whether there is no coverage at `t`, with these rates."""
        if self._queues is not None and (down_bps == 0.0 or up_bps == 0.0):
            return True
        return any(o.kind == "coverage" and o.start_s <= t < o.end_s for o in self._outages)

    def _shape(
        self, down_bps: float, up_bps: float, delay_s: float, jitter_s: float, loss_ratio: float
    ) -> Shape | None:
        """Return the link with these numbers; None is this machine's own."""
        if self._queues is None:
            return None
        return Shape(
            down_bps=max(down_bps, MIN_BPS),
            up_bps=max(up_bps, MIN_BPS),
            delay_s=delay_s,
            jitter_s=jitter_s,
            loss_ratio=loss_ratio,
            down_queue_bytes=self._queues[0],
            up_queue_bytes=self._queues[1],
            codel_target_s=self._codel_target_s,
        )

    def _read(self, t: float) -> None:
        """Update values and next change of all series to `t`; the last `t` is cached."""
        if t == self._read_at:
            return
        change, values, steps = inf, self._values, self._steps
        for at, series in self._varying:
            values[at], until, steps[at] = series.followed(t, steps[at])
            if until < change:
                change = until
        self._read_at, self._change = t, change

    def _outage(self, t: float, is_outage: bool, is_available: bool) -> Outage | None:
        if is_available and not is_outage and not self._outages:
            return None
        found: list[Outage] = [o.kind for o in self._outages if o.start_s <= t < o.end_s]
        if is_outage:
            found.append("coverage")
        if not is_available and self._unavailable_as == "unplugged":
            found.append("unplugged")
        return max(found, key=_SEVERITY.__getitem__, default=None)


def _series(
    available: Series | None, speed: Speed | None, link: LinkTracks | None
) -> tuple[Series, ...]:
    """Return all series of a device; a part that is None has neutral constants."""
    one, none = Series.constant(1.0), Series.constant(0.0)
    return (
        available or one,
        *((one, none) if speed is None else (speed.clock_ratio, speed.background_load)),
        *(
            (none,) * 5
            if link is None
            else (link.down_bps, link.up_bps, link.delay_s, link.jitter_s, link.loss_ratio)
        ),
    )


def device_schedule(
    profile: Profile | None,
    tracks: DeviceTracks,
    host_core_speed: float = 1.0,
    *,
    unavailable_as: UnavailableAs = "unwilling",
    outages: tuple[OutageWindow, ...] = (),
) -> Schedule:
    """Return the schedule of a device of a fleet.

    Args:
        profile: The device model; None is this machine, not slowed.
        tracks: Profile and link over time.
        host_core_speed: Speed of one core of this machine, in cores of the reference machine.
        unavailable_as: How the device behaves while it is not available.
        outages: Outages, in seconds since the run began.
    """
    speed = None
    if profile is not None:
        speed = Speed(
            per_core=profile.core_speed / host_core_speed,
            threads=profile.engine_threads,
            cores=profile.cores,
            clock_ratio=tracks.clock_ratio,
            background_load=tracks.background_load,
        )
    return Schedule(
        speed=speed,
        link=tracks.link,
        available=tracks.available,
        unavailable_as=unavailable_as,
        outages=outages,
    )


LOAD_INTERVAL_S = 2.0
"""The load of devices that heat up is read at multiples of this interval, seconds. All devices
share these times, because one reading costs about as much as reading all; thermal time constants
are minutes."""


class ScheduleFollower:
    """Follows the schedule of one device; times are seconds of the fleet since the run began.

    Args:
        schedule: The schedule of the device.
        thermal: Its thermal model; None is a device without heat.
        cores: Cores of the device: heat follows the load of all of them.
        threads: Threads of one training step.
        start: The first time; the device is cold then.
    """

    def __init__(
        self,
        schedule: Schedule,
        thermal: Thermal | None = None,
        *,
        cores: int = 1,
        threads: int = 1,
        start: float = 0.0,
    ) -> None:
        self._schedule = schedule
        self._heat = None if thermal is None else Heat(thermal, start)
        self._share = threads / cores
        self._update_at = -inf if thermal is not None else inf
        self._last_reading: tuple[float, float] | None = None
        self._speed: float | None = None

    @property
    def is_constant(self) -> bool:
        """Whether the conditions never change."""
        return self._heat is None and self._schedule.is_constant

    def needs_cpu_time(self, t: float) -> bool:
        """Return whether `update_heat` must be called with the processor time of the device."""
        return t >= self._update_at - ROUNDING_S

    def conditions(self, t: float, lasting_s: float = 0.0) -> Conditions:
        """Return the configured conditions at `t`, or their means over `lasting_s` from `t` on."""
        if self._heat is None:
            return self._schedule.mean_conditions(t, lasting_s)
        heat = self._heat
        celsius = None if heat.celsius is None else round(heat.celsius)
        now = self._schedule.mean_conditions(t, lasting_s, heat.clock_ratio, celsius)
        self._speed = now.speed_ratio
        return now

    def update_heat(self, t: float, cpu_s: float | None) -> None:
        """Update the heat from the processor time that the device used.

            load = used / (elapsed * speed) * threads / cores

        The load does not depend on dilation k: the device has k times the time at 1 / k of the
        speed.

        Args:
            t: The current time.
            cpu_s: Processor time of this machine that the device used so far; None is a device
                that is not alive, which cools.
        """
        if self._heat is None:
            return
        before, self._last_reading = self._last_reading, None if cpu_s is None else (t, cpu_s)
        self._update_at = LOAD_INTERVAL_S * (floor(t / LOAD_INTERVAL_S + ROUNDING_S) + 1)
        load = 0.0
        if before is not None and cpu_s is not None and self._speed and t > before[0]:
            load = (cpu_s - before[1]) / ((t - before[0]) * self._speed) * self._share
        self._heat.advance(t, load)

    def next_update(self, t: float) -> float:
        """Return the time of the first update after `t`; `inf` is never."""
        change = self._schedule.next_change(t)
        return self._update_at if change is None else min(change, self._update_at)
