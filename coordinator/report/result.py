"""How a run ended, in a few lines: result, guarantee, slowest device and why, energy, what next."""

from dataclasses import dataclass

from fairbed.coordinator.report.quality import measure, noise_mark, noise_of, spread_of
from fairbed.coordinator.report.quantities import clock, energy, percent, ratio, seconds
from fairbed.coordinator.report.summary import fairness_of
from fairbed.coordinator.report.summary_schema import Fairness
from fairbed.coordinator.report.summary_table import counted_rate, guarantee
from fairbed.coordinator.store.reader import RunInfo, RunReader, SlowestDevice


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a person asks first when a run has ended."""

    info: RunInfo
    worst10: float | None
    """Mean accuracy over the worst tenth of the devices, or their error in regression."""
    worst10_noise: float | None
    """Share of noise of the test sets in it; None if it is not known."""
    fairness: Fairness
    slowest: SlowestDevice | None
    """None without a valid exchange."""
    energy_j: float | None
    """Known energy of all exchanges; None if it is unknown."""
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
        noise = noise_of((row.n, row.accuracy) for row in reader.device_metrics())
        return RunResult(
            info=info,
            worst10=spread_of(newest).worst10,
            worst10_noise=noise.worst10_share if noise else None,
            fairness=fairness_of(reader),
            slowest=reader.slowest_device(),
            energy_j=sum(joules.values()) if joules else None,
            alerts=tuple(alert.kind for alert in reader.standing_alerts()),
            is_emulated=all(device.kind == "emulated" for device in reader.devices()),
        )


def result_lines(result: RunResult) -> list[tuple[str, str]]:
    """Return labels and texts about the end of a run."""
    info, slowest = result.info, result.slowest
    planned = f" of {info.last_round}" if info.last_round else ""
    empty = f" ({info.rounds_empty} empty)" if info.rounds_empty else ""
    reason = f": {info.row.reason}" if info.row.reason else ""
    lines = [
        ("result", f"{info.status}{reason}"),
        ("rounds", f"{info.rounds_completed}{planned}{empty} in {clock(info.elapsed_s)}"),
        (
            measure(info.row.task),
            f"{ratio(info.quality)}, worst 10 % {ratio(result.worst10)}"
            f"{noise_mark(result.worst10_noise)}",
        ),
    ]
    if result.fairness.beta is not None:
        lowest = f", lowest rate {ratio(counted_rate(result.fairness))}"
        kept = guarantee(result.fairness).removeprefix("guarantee of ")
        lines.append(("guarantee", f"{kept}{lowest}"))
    if slowest is not None:
        share = percent(slowest.phase_s / slowest.tau_s)
        lines.append(
            (
                "slowest",
                f"{slowest.device}: {seconds(slowest.tau_s)} s per exchange on average, "
                f"{share} of it {slowest.phase}",
            )
        )
    if result.energy_j is not None:
        lines.append(("energy", f"{energy(result.energy_j)} in exchanges, as far as it is known"))
    if result.alerts:
        lines.append(("alerts", f"at the end: {', '.join(result.alerts)}"))
    return lines


def next_commands(result: RunResult) -> list[tuple[str, str, str]]:
    """Return what can be done next: a key, a word, and the command of the shell."""
    info = result.info
    folder = info.folder
    if info.is_replica:  # its folder is removed with the view
        return [("s", "show all numbers, on the machine of the run", f"fairbed show {info.run_id}")]
    found = [("s", "show all numbers", f"fairbed show {folder}")]
    if info.resume_command:
        found.append(("n", "continue", info.resume_command))
    if info.status == "done" and info.row.clock == "real":
        if result.is_emulated:
            source = f"--set replay.costs_from={folder}"
            found.append(
                ("r", "replay", f"fairbed replay {folder}/experiment.toml {source}"),
            )
        else:
            record = f"fairbed record --all --run {folder} --out {folder.name}-recorded"
            found.append(("r", "record, to replay", record))
    if info.row.clock == "real":
        found.append(("e", "compare estimators", f"fairbed show {folder} --estimators"))
    return found
