"""A measurement window, and whether it is valid. Pure.

A measurement on a busy machine shows the machine, not the emulation. So each window has evidence
of the machine's state, independent of the result. A quantity without a valid window is unknown,
never ok.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MAX_STOLEN = 0.01
"""Greatest share of a window that the host may take from this virtual machine."""

MAX_WAITED = 0.05
"""Greatest share of a window for which a process on the path may be ready and not run: the rule by
which a run marks an exchange invalid."""

MAX_CONTENDED = 0.01
"""The same for a device whose processor is measured: its waiting time is missing in the result."""

SPARE = 1.3
"""Least rate of the link without limits, relative to the requested rate."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The state of the machine during one window; None is not measured."""

    wall_s: float
    stolen_s: float = 0.0
    """Time taken by the host of this virtual machine, mean of its cores."""
    waited_s: float | None = None
    """Longest waiting time of a process on the path of the bytes."""
    max_waited: float = MAX_WAITED
    """Limit of it, as a share of the window."""
    contended_s: float | None = None
    """Time for which the device was ready and permitted to run and did not."""
    carried_ratio: float | None = None
    """Rate of the same path without limits / requested rate."""
    drift_ratio: float | None = None
    """Relative difference of the same work without limits, before and after."""
    max_drift: float = 0.0
    lateness_s: float | None = None
    """Delay of the same path without configured delays, 95th percentile."""
    max_lateness_s: float = 0.0
    failure: str | None = None
    """Why there is no measurement at all."""


@dataclass(frozen=True, slots=True)
class Window:
    """One measurement."""

    value: float
    evidence: Evidence


def why_invalid(evidence: Evidence) -> str | None:
    """Return why a window is invalid; None if it is valid."""
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
    """Return a window without a measurement."""
    return Window(math.nan, Evidence(wall_s=0.0, failure=reason))


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the windows of one quantity."""

    value: float | None
    """Median of the valid windows; None without any."""
    low: float | None
    high: float | None
    valid: int
    attempts: int
    reason: str | None
    """Why the last invalid window was invalid."""


def find(windows: Sequence[Window]) -> Finding:
    """Combine the windows of one quantity."""
    reasons = [why_invalid(window.evidence) for window in windows]
    good = [window.value for window, reason in zip(windows, reasons, strict=True) if reason is None]
    known_reasons = [reason for reason in reasons if reason is not None]
    return Finding(
        value=statistics.median(good) if good else None,
        low=min(good, default=None),
        high=max(good, default=None),
        valid=len(good),
        attempts=len(windows),
        reason=known_reasons[-1] if known_reasons else None,
    )
