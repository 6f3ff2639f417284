"""The report: configured conditions beside the resources that the command received."""

import signal

from msgspec import Struct, field

from fairbed.coordinator.records.rows import CONTENDED_RATIO_LIMIT
from fairbed.testbed.backends.network.counters import LinkCounters
from fairbed.testbed.emulation.condition_log import ConditionMeans
from fairbed.testbed.shape.device import ReceivedShare


class CpuReport(Struct, frozen=True, kw_only=True):
    """Processor time of the command; None is unknown unless stated otherwise."""

    configured_cores: float | None = field(name="asked_cores")
    """Mean of the configured speed; None is not slowed."""
    used_cores: float | None
    """Mean over the run time; less than configured if the command was idle at times."""
    used_s: float | None
    throttled_s: float | None
    """Time for which the emulation stopped the command, on purpose."""
    contended_s: float | None
    """Time for which the command was ready and allowed to run, but this machine was busy."""


class LinkReport(Struct, frozen=True, kw_only=True):
    """Configured means and counters of the link; bytes count packets with their headers."""

    down_bps: float | None
    """Mean of the configured rate, TCP payload; None is not limited."""
    up_bps: float | None
    delay_s: float
    """One way."""
    jitter_s: float
    loss_ratio: float
    outage_s: float
    down_bytes: int
    up_bytes: int
    dropped_packets: int
    """Dropped by a full queue, in an outage, or as emulated loss."""
    contended_s: float
    """Time for which the packet relay waited because this machine was busy."""


class ShapeReport(Struct, frozen=True, kw_only=True):
    """The report of one command."""

    command: list[str]
    status: int
    """Exit status as in a shell: 128 + n if signal n killed the command."""
    wall_s: float
    cpu: CpuReport
    link: LinkReport | None
    """None is this machine's own."""
    memory_limit_bytes: int | None
    memory_kills: int
    """Processes of the command that were killed because the memory was full."""
    contended_ratio: float | None
    """Share of the run time for which the command or its packets waited, the larger of the two.

    None is unknown, or a device that is neither slowed nor shaped."""
    is_valid: bool
    """Whether `contended_ratio` is at most 5 %."""


def make_report(
    command: list[str],
    status: int,
    memory_limit_bytes: int | None,
    configured: ConditionMeans,
    received: ReceivedShare,
) -> ShapeReport:
    """Return the report of a command.

    Args:
        command: The command with its arguments.
        status: Exit status as in a shell.
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
    """Return the longer of the waits of the command and of its packets; None is unknown.

    A command that is not slowed competes with all processes on purpose: its wait does not count.
    """
    waits = []
    if received.link is not None:
        waits.append(received.path_contended_s)
    if is_slowed and received.group is not None and received.group.contended_s is not None:
        waits.append(received.group.contended_s)
    return max(waits, default=None)


NOTABLE_S = 0.05
"""Shorter waits give no warning, because the command hardly ran; seconds."""


def warnings_of(report: ShapeReport) -> list[str]:
    """Return the warnings that are printed even without `--verbose`, one line each."""
    found = []
    if report.memory_kills and report.memory_limit_bytes is not None:
        what = "process was" if report.memory_kills == 1 else "processes were"
        found.append(
            f"{report.memory_kills} {what} killed because the memory of the device, "
            f"{report.memory_limit_bytes / 2**20:.0f} MiB, was full; set more with --memory"
        )
    contended_ratio = report.contended_ratio or 0.0
    if not report.is_valid and contended_ratio * report.wall_s > NOTABLE_S:
        found.append(
            f"not valid: the command or its packets waited for this machine "
            f"{100 * contended_ratio:.0f} % of the time, over "
            f"{100 * CONTENDED_RATIO_LIMIT:.0f} %, so the emulated device was too slow; "
            "run it again while the machine is less busy"
        )
    return found


def report_lines(report: ShapeReport) -> list[str]:
    """Return the report as lines of text."""
    cpu, link = report.cpu, report.link
    used = "unknown" if cpu.used_cores is None else f"{cpu.used_cores:.3f} cores"
    configured = "not slowed" if cpu.configured_cores is None else f"of {cpu.configured_cores:.3f}"
    lines = [
        f"{_ending(report.status)} after {report.wall_s:.2f} s",
        f"processor: {used} used, {configured}; throttled for {_s(cpu.throttled_s)}, "
        f"waited for this machine for {_s(cpu.contended_s)}",
    ]
    if link is not None:
        lines.append(
            f"link: {_mbit(link.down_bps)} down, {_mbit(link.up_bps)} up, "
            f"{1e3 * link.delay_s:.1f} ms, loss {100 * link.loss_ratio:.2f} %; "
            f"{link.down_bytes} bytes down, {link.up_bytes} up, "
            f"{link.dropped_packets} packets dropped; "
            f"waited for this machine for {_s(link.contended_s)}"
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
"""A mean rate of at least this is reported as not limited."""


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
