"""How a run ended, in a few lines: result, guarantee, slowest device and why, energy, what next."""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from fairbed.coordinator.report.facts import fairness_of
from fairbed.coordinator.report.measures import device_measure
from fairbed.coordinator.report.quality import (
    counted_tests,
    measure,
    noise_mark,
    noise_of,
    worst_tenth,
)
from fairbed.coordinator.report.quantities import (
    LEAST,
    SampleCount,
    clock,
    energy,
    of_enough,
    percent,
    ratio,
    seconds,
)
from fairbed.coordinator.report.summary_schema import Fairness
from fairbed.coordinator.report.summary_table import counted_rate, guarantee
from fairbed.coordinator.store.connection import CONFIG
from fairbed.coordinator.store.reader import DeviceTimes, RunInfo, RunReader


@dataclass(frozen=True, slots=True)
class SlowestDevice:
    """The device with the longest median exchange, and its longest phase."""

    device: str
    tau_s: float
    """Median over its timed exchanges."""
    sample: SampleCount
    """These, of all its exchanges."""
    phase: str
    phase_s: float
    """Median likewise."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a person asks first when a run has ended."""

    info: RunInfo
    worst_metric: str
    """Metric of `evaluation.worst`; empty: accuracy, or the error of regression."""
    worst10: float | None
    """Its mean over the worst tenth of the devices."""
    worst10_noise: float | None
    """Share of noise of the test sets in it; None if it is not known."""
    fairness: Fairness
    slowest: SlowestDevice | None
    """None without a device of enough timed exchanges."""
    has_exchanges: bool
    energy_j: float | None
    """Known energy of all exchanges; None if it is unknown."""
    energy_sample: SampleCount | None
    """Exchanges whose energy it is, of all; None if that is not known here."""
    alerts: tuple[str, ...]
    """Kinds of alerts with which the run ended."""
    is_emulated: bool
    """No device was physical."""


def result_of(reader: RunReader) -> RunResult:
    """Read how a run ended; the work grows with its devices, not with its rounds x devices."""
    with reader.snapshot():
        info = reader.run()
        newest = reader.newest_metric()
        joules = reader.energy_j(0, reader.newest_round())
        known, times = None if info.is_replica else reader.known_energy(), reader.device_times()
        noise = noise_of(counted_tests(reader.device_metrics()))
        worst_metric, worst10 = worst_tenth(newest, info.plan.evaluation.worst)
        return RunResult(
            info=info,
            worst_metric=worst_metric,
            worst10=worst10,
            worst10_noise=noise.worst10_share if noise and not worst_metric else None,
            fairness=fairness_of(reader),
            slowest=slowest_device(reader, times),
            has_exchanges=bool(times),
            energy_j=known.total_j if known else sum(joules.values()) if joules else None,
            energy_sample=None if known is None else SampleCount(known.known, known.exchanges),
            alerts=tuple(alert.kind for alert in reader.standing_alerts()),
            is_emulated=all(device.kind == "emulated" for device in reader.devices()),
        )


def slowest_device(reader: RunReader, times: Sequence[DeviceTimes]) -> SlowestDevice | None:
    """Return the device with the longest median exchange, of those with enough timed ones."""
    medians = [
        (tau_s, x.device, sample)
        for x in times
        if (tau_s := of_enough(x.tau_s, sample := SampleCount(x.timed, x.exchanges))) is not None
    ]
    if not medians:
        return None
    tau_s, device, sample = max(medians, key=lambda one: one[:2])
    phases_s = reader.phase_medians(device)
    phase = max(phases_s, key=phases_s.__getitem__)
    return SlowestDevice(device, tau_s, sample, phase, phases_s[phase])


def result_lines(result: RunResult) -> list[tuple[str, str]]:
    """Return labels and texts about the end of a run."""
    info, slowest = result.info, result.slowest
    planned = f" of {info.last_round}" if info.last_round else ""
    empty = f" ({info.rounds_empty} empty)" if info.rounds_empty else ""
    reason = f": {info.row.reason}" if info.row.reason else ""
    of = f"of {result.worst_metric} " if result.worst_metric else ""
    lines = [
        ("result", f"{info.status}{reason}"),
        ("rounds", f"{info.rounds_completed}{planned}{empty} in {clock(info.elapsed_s)}"),
        (
            measure(info.row.task),
            f"{ratio(info.quality)}, worst 10 % {of}{ratio(result.worst10)}"
            f"{noise_mark(result.worst10_noise)}",
        ),
    ]
    if result.fairness.beta is not None:
        lowest = f", lowest rate {ratio(counted_rate(result.fairness))}"
        kept = guarantee(result.fairness).removeprefix("guarantee of ")
        lines.append(("guarantee", f"{kept}{lowest}"))
    if slowest is not None:
        share = percent(slowest.phase_s / slowest.tau_s)
        text = (
            f"{slowest.device}: {device_measure('tau_s_median').name} {seconds(slowest.tau_s)} s "
            f"({slowest.sample} timed), {share} of it {slowest.phase}"
        )
        lines.append(("slowest", text))
    elif result.has_exchanges:
        text = f"unknown: no device has {LEAST} timed exchanges, and half of its own"
        lines.append(("slowest", text))
    if result.energy_j is not None:
        lines.append(("energy", _energy(result.energy_j, result.energy_sample)))
    if result.alerts:
        lines.append(("alerts", f"at the end: {', '.join(result.alerts)}"))
    return lines


def _energy(value_j: float, sample: SampleCount | None) -> str:
    if sample is None:
        return f"{energy(value_j)} in exchanges, as far as it is known"
    if sample.why_no_total:
        return f"unknown: {sample} exchanges have it, {sample.why_no_total}"
    return f"{energy(value_j)} in {sample} exchanges"


def next_commands(result: RunResult) -> list[tuple[str, str, str]]:
    """Return what can be done next: a key, a word, and the command of the shell."""
    info = result.info
    folder = quote(str(info.folder))
    if info.is_replica:  # its folder is removed with the view
        return [("s", "show all numbers, on the machine of the run", f"fairbed show {info.run_id}")]
    found = [("s", "show all numbers", f"fairbed show {folder}")]
    if info.resume_command:
        found.append(("n", "continue", info.resume_command))
    if info.status == "done" and info.row.clock == "real" and info.plan.can_be_replayed:
        if result.is_emulated:
            file = quote(str(info.folder / CONFIG))
            source = quote(f"replay.costs_from={info.folder}")
            found.append(("r", "replay", f"fairbed replay {file} --set {source}"))
        else:
            record = f"fairbed record --all --run {folder} --out {quote(info.folder.name)}-recorded"
            found.append(("r", "record, to replay", record))
    if info.row.clock == "real":
        found.append(("e", "compare estimators", f"fairbed show {folder} --estimators"))
    return found
