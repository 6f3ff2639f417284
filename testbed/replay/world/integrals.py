"""Durations of transfers and work on a device whose rate or speed varies over time.

The integration is exact, step by step. The conditions at an instant come from the models of the
emulation (`testbed.emulation`).
"""

from dataclasses import dataclass
from math import floor, inf

from fairbed.coordinator.state.registry import OFF_GRACE_S, SILENT_S
from fairbed.testbed.emulation.cell import Direction
from fairbed.testbed.emulation.conditions import Shape
from fairbed.testbed.emulation.heat import Heat
from fairbed.testbed.emulation.schedule import LOAD_INTERVAL_S, Schedule
from fairbed.testbed.emulation.tcp import FIRST_WINDOW_BITS

_ROUNDING_S = 1e-9
"""Shorter times are rounding errors."""


@dataclass(frozen=True, slots=True)
class LinkIntegral:
    """The link of a device over time.

    Args:
        schedule: Conditions of the link, with all outages of the device.
        give_up_s: A transfer that takes longer never ends.
    """

    schedule: Schedule
    give_up_s: float

    def carry(self, start: float, bits: float, direction: Direction) -> float:
        """Return when `bits` that start at `start` have left the line; `inf` is never."""
        if start == inf:
            return inf
        t, deadline = start, start + self.give_up_s
        while t < deadline:
            rate_bps, until = self.rate_at(t, direction)
            if rate_bps == inf:
                return t
            if rate_bps > 0.0 and t + bits / rate_bps <= until:
                return t + bits / rate_bps
            bits = max(0.0, bits - (until - t) * rate_bps) if rate_bps > 0.0 else bits
            t = until
        return inf

    def rate_at(self, t: float, direction: Direction) -> tuple[float, float]:
        """Return the rate at `t`, bit/s, and until when it holds; `inf` is no limit and for ever.

        It is 0 in an outage.
        """
        now, change = self.schedule.conditions(t), self.schedule.next_change(t)
        rate_bps: float | None = 0.0
        if now.outage is None:
            shape = now.shape or Shape()
            rate_bps = shape.down_bps if direction == "down" else shape.up_bps
        return inf if rate_bps is None else rate_bps, inf if change is None else change

    def transfer(self, start: float, bits: float, direction: Direction) -> float:
        """Return when a transfer over TCP that starts at `start` has left the line.

        It follows `testbed.emulation.tcp`: window after window, until one keeps the line busy.
        """
        window, t = FIRST_WINDOW_BITS, start
        while t < inf and bits > window:
            carried, bits = self.carry(t, window, direction), bits - window
            acknowledged = t + 2.0 * self.delay_s(t)
            if carried >= acknowledged:
                return self.carry(carried, bits, direction)
            t, window = acknowledged, 2.0 * window
        return self.carry(t, bits, direction)

    def gone_at(self, start: float, end: float) -> float:
        """Return when the coordinator counts the device as lost, from `start` to `end`.

        A device is lost when it is silent for `SILENT_S`, or unplugged for `OFF_GRACE_S`; `inf` is
        never.
        """
        t, silent_since, off_since = start, inf, inf
        while t < end:
            outage, change = self.schedule.conditions(t).outage, self.schedule.next_change(t)
            silent_since = inf if outage is None else min(silent_since, t)
            off_since = min(off_since, t) if outage == "unplugged" else inf
            t = end if change is None else min(change, end)
            gone = min(silent_since + SILENT_S, off_since + OFF_GRACE_S)
            if gone < t:
                return gone
        return inf

    def delay_s(self, t: float) -> float:
        """Return the one-way delay of a message that is sent at `t`, seconds."""
        shape = self.schedule.conditions(t).shape
        return 0.0 if shape is None else shape.delay_s


@dataclass(slots=True)
class ComputeIntegral:
    """The processor of a device over time.

    Args:
        schedule: Speed in cores of the reference machine, with all outages of the device.
        heat: Heat of the device; None for a device that does not heat up.
        load: Share of all cores that one training step keeps busy.
        give_up_s: Work that takes longer never ends.
    """

    schedule: Schedule
    heat: Heat | None
    load: float
    give_up_s: float

    def work(self, start: float, work_s: float) -> float:
        """Return when work that starts at `start` is done; `inf` is never.

        As in the emulation, heat changes the clock every `LOAD_INTERVAL_S` of the run.

        Args:
            start: Seconds of the run.
            work_s: Seconds of one core of the reference machine.
        """
        if start == inf:
            return inf
        t, deadline = start, start + self.give_up_s
        if self.heat is not None:
            self.heat.advance(t, 0.0)
        while work_s > 0.0:
            if t >= deadline:
                return inf
            clock_ratio = 1.0 if self.heat is None else self.heat.clock_ratio
            now, change = self.schedule.conditions(t, clock_ratio), self.schedule.next_change(t)
            speed = 0.0 if now.outage == "frozen" else now.speed_ratio
            assert speed is not None, "a replayed device has a profile"
            until = inf if change is None else change
            if self.heat is not None:
                until = min(until, LOAD_INTERVAL_S * (floor(t / LOAD_INTERVAL_S + _ROUNDING_S) + 1))
            if speed > 0.0 and t + work_s / speed <= until:
                until, work_s = t + work_s / speed, 0.0
            else:
                work_s = max(0.0, work_s - (until - t) * speed) if speed > 0.0 else work_s
            if self.heat is not None and until < inf:
                self.heat.advance(until, self.load if speed > 0.0 else 0.0)
            t = until
        return t
