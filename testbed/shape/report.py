"""The report: configured conditions beside the resources that the command received."""

import signal

from msgspec import Struct

from fairbed.coordinator.records.rows import CONTENDED_RATIO_LIMIT
from fairbed.testbed.backends.network.counters import LinkCounters
from fairbed.testbed.emulation.condition_log import ConditionMeans
from fairbed.testbed.shape.device import ReceivedShare


class CpuReport(Struct, frozen=True, kw_only=True):
    """The processor."""

    configured_cores: float | None
    """Mean over the time; None is not slowed."""
    used_cores: float | None
    """Mean over the time: less than was asked for if the command did not always want it."""
    used_s: float | None
    throttled_s: float | None
    """Held back by the emulation, on purpose."""
    contended_s: float | None
    """Wanted to run and was allowed to, but this machine was busy; None is unknown."""


class LinkReport(Struct, frozen=True, kw_only=True):
    """The link; bytes are those of packets with their headers."""

    down_bps: float | None
    """Mean over the time that it was configured to have, TCP payload; None is not limited."""
    up_bps: float | None
    delay_s: float
    """One way."""
    jitter_s: float
    loss_ratio: float
    outage_s: float
    down_bytes: int
    up_bytes: int
    dropped_packets: int
    """By a full queue, in an outage, or on purpose."""
    contended_s: float
    """For how long the relay of packets waited because this machine was busy."""


class ShapeReport(Struct, frozen=True, kw_only=True):
    """All of it."""

    command: list[str]
    status: int
    """Of the command as a shell has it: 128 + n if signal n killed it."""
    wall_s: float
    cpu: CpuReport
    link: LinkReport | None
    """None is this machine's own."""
    memory_limit_bytes: int | None
    memory_kills: int
    """Processes of the command that were killed because that was full."""
    contended_ratio: float | None
    """Share of the time that the command or its packets waited, whichever is more.

    None is unknown, or a device that is neither slowed nor shaped."""
    is_valid: bool
    """This machine kept them waiting for no more than 5 % of the time."""


def make_report(
    command: list[str],
    status: int,
    memory_limit_bytes: int | None,
    configured: ConditionMeans,
    received: ReceivedShare,
) -> ShapeReport:
    """Return the report of a command.

    Args:
        command: With its arguments.
        status: As in a shell.
        memory_limit_bytes: None is not limited.
        configured: Means of the configured conditions.
        received: The resources that the command received.
    """
    used = received.group
    contended_s = _contended_s(received, is_slowed=configured.speed_ratio is not None)
    contended_ratio = None if contended_s is None else contended_s / received.wall_s
    return ShapeReport(
        command=command,
        status=status,
        wall_s=received.wall_s,
        cpu=CpuReport(
            configured_cores=configured.speed_ratio,
            used_cores=None if used is None else used.cpu_s / received.wall_s,
            used_s=None if used is None else used.cpu_s,
            throttled_s=None if used is None else used.throttled_s,
            contended_s=None if used is None else used.contended_s,
        ),
        link=None
        if received.link is None
        else _link(received.link, received.path_contended_s, configured),
        memory_limit_bytes=memory_limit_bytes,
        memory_kills=0 if used is None else used.memory_kills,
        contended_ratio=contended_ratio,
        is_valid=contended_ratio is None or contended_ratio <= CONTENDED_RATIO_LIMIT,
    )


def _contended_s(received: ReceivedShare, *, is_slowed: bool) -> float | None:
    """Return the longer one of what the command and its packets have waited; None is unknown.

    A command without a quota competes with all processes, on purpose, and does not count.
    """
    waits = []
    if received.link is not None:
        waits.append(received.path_contended_s)
    if is_slowed and received.group is not None and received.group.contended_s is not None:
        waits.append(received.group.contended_s)
    return max(waits, default=None)


NOTABLE_S = 0.05
"""Shorter waits give no warning: the command hardly ran."""


def warnings_of(report: ShapeReport) -> list[str]:
    """Return the warnings that are printed in any case, one line each."""
    found = []
    if report.memory_kills and report.memory_limit_bytes is not None:
        what = "process was" if report.memory_kills == 1 else "processes were"
        found.append(
            f"{report.memory_kills} {what} killed: the memory of the device, "
            f"{report.memory_limit_bytes / 2**20:.0f} MiB, was full; --memory gives more"
        )
    contended_ratio = report.contended_ratio or 0.0
    if not report.is_valid and contended_ratio * report.wall_s > NOTABLE_S:
        found.append(
            f"not valid: this machine kept the command or its packets waiting for "
            f"{100 * contended_ratio:.0f} % of the time, over "
            f"{100 * CONTENDED_RATIO_LIMIT:.0f} %; the emulated device was too slow; "
            "run it again while less else runs"
        )
    return found


def report_lines(report: ShapeReport) -> list[str]:
    """Return the report as lines of text."""
    cpu, link = report.cpu, report.link
    used = "unknown" if cpu.used_cores is None else f"{cpu.used_cores:.3f} cores"
    configured = "not slowed" if cpu.configured_cores is None else f"of {cpu.configured_cores:.3f}"
    lines = [
        f"{_ending(report.status)} after {report.wall_s:.2f} s",
        f"processor: {used} used, {configured}; held back for {_s(cpu.throttled_s)}, "
        f"waited for this machine {_s(cpu.contended_s)}",
    ]
    if link is not None:
        lines.append(
            f"link: {_mbit(link.down_bps)} down, {_mbit(link.up_bps)} up, "
            f"{1e3 * link.delay_s:.1f} ms, loss {100 * link.loss_ratio:.2f} %; "
            f"{link.down_bytes} bytes down, {link.up_bytes} up, "
            f"{link.dropped_packets} packets dropped; "
            f"waited for this machine {_s(link.contended_s)}"
        )
    return lines


def _link(counted: LinkCounters, contended_s: float, configured: ConditionMeans) -> LinkReport:
    return LinkReport(
        down_bps=_unless_unlimited(configured.down_bps),
        up_bps=_unless_unlimited(configured.up_bps),
        delay_s=configured.delay_s,
        jitter_s=configured.jitter_s,
        loss_ratio=configured.loss_ratio,
        outage_s=configured.outage_s,
        down_bytes=counted.down_bytes,
        up_bytes=counted.up_bytes,
        dropped_packets=counted.dropped_packets,
        contended_s=contended_s,
    )


UNLIMITED_FROM_BPS = 50e9
"""Means above this are those of a direction without a limit."""


def _unless_unlimited(rate_bps: float | None) -> float | None:
    return None if rate_bps is None or rate_bps >= UNLIMITED_FROM_BPS else rate_bps


def _ending(status: int) -> str:
    if status <= 128:
        return f"ended with status {status}"
    try:
        return f"ended by {signal.Signals(status - 128).name}"
    except ValueError:
        return f"ended with status {status}"


def _s(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else f"{seconds:.2f} s"


def _mbit(rate_bps: float | None) -> str:
    return "any rate" if rate_bps is None else f"{rate_bps / 1e6:.3g} Mbit/s"
