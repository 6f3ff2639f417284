"""Exact time averages of a device's conditions over an interval."""

from dataclasses import dataclass

from fairbed.testbed.emulation.conditions import Conditions


@dataclass(frozen=True, slots=True)
class ConditionMeans:
    """Mean conditions from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    speed_ratio: float | None
    """None is not slowed."""
    clock_ratio: float
    down_bps: float | None
    """Mean rate; an outage counts as 0. None is not limited."""
    up_bps: float | None
    delay_s: float
    jitter_s: float
    loss_ratio: float
    outage_s: float
    """Total time without a link, or frozen."""
    unwilling_s: float
    """Total time in which the owner did not let the device take part."""
    celsius: float | None
    """Temperature at the end."""


class ConditionLog:
    """Integrates the conditions of one device over time.

    Args:
        start: Begin of the first interval, seconds.
        conditions: The conditions from `start` on.
    """

    def __init__(self, start: float, conditions: Conditions) -> None:
        self._now = conditions
        self._begin(start)

    @property
    def start(self) -> float:
        """Begin of the current interval, seconds."""
        return self._start

    def record(self, t: float, conditions: Conditions) -> None:
        """Record the conditions from `t` on."""
        self._integrate(t)
        self._now = conditions

    def take(self, t: float) -> ConditionMeans | None:
        """Return the means up to `t` and begin a new interval; None if no time has passed."""
        self._integrate(t)
        lasted_s = t - self._start
        if lasted_s <= 0.0:
            return None
        speed, clock, down, up, delay, jitter, loss, outage, unwilling = self._sums
        now, shape = self._now, self._now.shape
        means = ConditionMeans(
            start_s=self._start,
            end_s=t,
            speed_ratio=None if now.speed_ratio is None else speed / lasted_s,
            clock_ratio=clock / lasted_s,
            down_bps=None if shape is None or shape.down_bps is None else down / lasted_s,
            up_bps=None if shape is None or shape.up_bps is None else up / lasted_s,
            delay_s=delay / lasted_s,
            jitter_s=jitter / lasted_s,
            loss_ratio=loss / lasted_s,
            outage_s=outage,
            unwilling_s=unwilling,
            celsius=now.temperature_celsius,
        )
        self._begin(t)
        return means

    def _begin(self, start: float) -> None:
        self._start = self._noted = start
        self._sums = [0.0] * 9

    def _integrate(self, t: float) -> None:
        passed_s, self._noted = t - self._noted, t
        now, sums = self._now, self._sums
        has_link = now.outage is None
        sums[0] += (now.speed_ratio or 0.0) * (0.0 if now.outage == "frozen" else passed_s)
        sums[1] += now.clock_ratio * passed_s
        if (shape := now.shape) is not None:
            if has_link:
                sums[2] += (shape.down_bps or 0.0) * passed_s
                sums[3] += (shape.up_bps or 0.0) * passed_s
            if shape.delay_s or shape.jitter_s or shape.loss_ratio:
                sums[4] += shape.delay_s * passed_s
                sums[5] += shape.jitter_s * passed_s
                sums[6] += shape.loss_ratio * passed_s
        if not has_link:
            sums[7] += passed_s
        if not now.is_willing:
            sums[8] += passed_s
