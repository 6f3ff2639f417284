"""A window of measurement, and whether this machine let it be one. Pure.

What is measured while the machine was busy with something else tells of the machine, not of the
emulation. So each window brings evidence of what the machine gave meanwhile, gathered without
looking at the result; what has no valid window is unknown, never fine.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_STOLEN = 0.01
"""Share of a window that the host of this virtual machine took for others."""

MAX_WAITED = 0.05
"""Share of a window for which a process that bytes pass was ready to run and did not: the rule by
which a run marks an exchange invalid."""

MAX_CONTENDED = 0.01
"""The same for a device whose processor is measured: what it waits is missing in the result."""

SPARE = 1.3
"""How much more than spec of it a link must carry without limits, just before."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the machine gave during one window; None was not looked at."""

    wall_s: float
    stolen_s: float = 0.0
    """By the host of this virtual machine, mean of its cores."""
    waited_s: float | None = None
    """The process on the path of the bytes that waited most."""
    max_waited: float = MAX_WAITED
    """Share of the window."""
    contended_s: float | None = None
    """The device itself was allowed to run and did not."""
    carried_ratio: float | None = None
    """What the same path carries without limits / what is spec of it."""
    drift_ratio: float | None = None
    """How far the same work without limits, before and after, differs, relative."""
    max_drift: float = 0.0
    lateness_s: float | None = None
    """How late the same path is without delays, at the 95th percentile."""
    max_lateness_s: float = 0.0
    failure: str | None = None
    """Why there is no measurement at all."""


@dataclass(frozen=True, slots=True)
class Window:
    """One measurement."""

    value: float
    evidence: Evidence


def why_invalid(evidence: Evidence) -> str | None:
    """Return why a window says nothing; None if it does."""
    wall_s = evidence.wall_s
    if evidence.failure is not None:
        return evidence.failure
    if evidence.stolen_s > MAX_STOLEN * wall_s:
        return f"{evidence.stolen_s / wall_s:.1%} of the time was stolen by the host"
    if evidence.contended_s is not None and evidence.contended_s > MAX_CONTENDED * wall_s:
        return f"the device was contended for {evidence.contended_s / wall_s:.1%} of the time"
    if evidence.waited_s is not None and evidence.waited_s > evidence.max_waited * wall_s:
        return f"a process on the path waited for {evidence.waited_s / wall_s:.1%} of the time"
    if evidence.carried_ratio is not None and evidence.carried_ratio < SPARE:
        return f"without limits the path carries only {evidence.carried_ratio:.2f} of it"
    if evidence.drift_ratio is not None and evidence.drift_ratio > evidence.max_drift:
        return f"the control differs by {evidence.drift_ratio:.1%} between before and after"
    if evidence.lateness_s is not None and evidence.lateness_s > evidence.max_lateness_s:
        return f"without delays the path is {1e3 * evidence.lateness_s:.1f} ms late"
    return None


def failed(reason: str) -> Window:
    """Return a window in which nothing could be measured."""
    return Window(math.nan, Evidence(wall_s=0.0, failure=reason))


@dataclass(frozen=True, slots=True)
class Finding:
    """What the windows of one quantity come to."""

    value: float | None
    """Median of the valid windows; None without any."""
    low: float | None
    high: float | None
    valid: int
    attempts: int
    reason: str | None
    """Why the last invalid window was invalid."""


def find(windows: Sequence[Window]) -> Finding:
    """Put the windows of one quantity together."""
    reasons = [why_invalid(window.evidence) for window in windows]
    good = [window.value for window, reason in zip(windows, reasons, strict=True) if reason is None]
    told = [reason for reason in reasons if reason is not None]
    return Finding(
        value=statistics.median(good) if good else None,
        low=min(good, default=None),
        high=max(good, default=None),
        valid=len(good),
        attempts=len(windows),
        reason=told[-1] if told else None,
    )
