"""The whole comparison: live runs, recording, replays, their distances, and the report."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import msgspec

from experiments.replay_fidelity import recorded as experiments
from experiments.replay_fidelity.distances import (
    Gap,
    PairErrors,
    RelativeErrors,
    RunTimes,
    errors,
    mean_gap,
    read_times,
)
from experiments.replay_fidelity.live import play_live
from experiments.replay_fidelity.recorded import (
    has_variable_link,
    record_fleet,
    replayed,
)
from experiments.replay_fidelity.replays import close_s, replay_forced, replay_free
from fairbed.coordinator.report.quantities import MISSING, percent
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.experiment.fleet import PlannedDevice, plan_fleet
from fairbed.testbed.host.speed import host_speed
from fairbed.testbed.replay.world.columns import loses_packets

TAU_LIMIT = 0.05
"""Greatest median error of the exchange times on constant links (issue 5), and greatest bias on
links that lose packets."""

LEAST_REPEATS, MOST_REPEATS = 2, 50
"""Limits of the number of predicted live runs; their distance needs two of them."""

GAP_FACTOR = 1.5
"""Greatest ratio of a replay's gap to the gap between live runs, on variable links."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit and whether it is met."""

    what: str
    achieved: float | None
    limit: float
    ok: bool | None
    """None if unknown."""


@dataclass(frozen=True, slots=True)
class FidelityComparison:
    """The result of a comparison."""

    name: str
    rounds: int
    devices: int
    has_moving_links: bool
    """Whether the rates of a link change over time."""
    loses_packets: bool
    """Whether a link loses packets."""
    counted: dict[str, int]
    """Valid exchanges of each live run."""
    forced: PairErrors
    """Of the replay with the cohorts of the live run."""
    repeat: PairErrors
    """Of the live run's repeat, over the exchanges of both."""
    replays: int
    """Number of replays with their own selections."""
    replay_gap: Gap
    """Mean gap over all pairs of such a replay and a live run."""
    live_gap: Gap
    """Mean gap over all pairs of live runs."""
    ratios: dict[str, float | None]
    """`replay_gap` over `live_gap`, by quantity; None if the latter is 0."""
    verdicts: list[Verdict]


def compare_live_replay(
    experiment: Experiment,
    folder: Path,
    log: Callable[[str], None],
    repeats: int = LEAST_REPEATS,
) -> FidelityComparison:
    """Run, record, run again, replay; completed parts in the folder are not repeated.

        a            live, policy uniform, seed 1        source of profiles/
        b-1 b-2 ...  live, rbcs-f, seed 2                to be predicted
        forced       replay of the profiles: b-1's cohorts, instants and contexts
        free-1 ...   replay of the profiles: starts like b-1 ..., selects its own cohorts

    Runs whose selections depend on measurements diverge after some rounds, by a random amount:
    with more repeats both gaps are means of more pairs.

    Args:
        experiment: Experiment with emulated devices that have profiles.
        folder: Receives all runs.
        log: Receives progress lines.
        repeats: Number of predicted live runs and of free replays, at least `LEAST_REPEATS`.

    Raises:
        ExperimentError: Its fleet cannot be run or replayed.
        ProfileError: A profile of the fleet is unknown, or breaks a rule.
        LiveRunError: A live run failed, or the folder holds another comparison.
        IncompleteProfile: The recorded run has too little data of a device.
        StoreError: A run cannot be read.
        ValueError: Too few exchanges are valid.
    """
    experiments.check_rounds(experiment)
    experiment = _numbered(experiment)
    planned = _planned(experiment)
    recorded, predicted = experiments.recorded(experiment), experiments.predicted(experiment)
    run_a = play_live(recorded, folder / "a", log)
    live = [
        play_live(predicted, folder / f"b-{number}", log, costs=run_a)
        for number in range(1, repeats + 1)
    ]
    files = record_fleet(run_a, planned, folder / "profiles")
    fleet = replayed(predicted, planned, files)
    forced = replay_forced(fleet, run_a, live[0], folder / "forced", log)
    free = [
        replay_free(fleet, run_a, run, folder / f"free-{number}", log)
        for number, run in enumerate(live, 1)
    ]
    between_s = close_s(run_a)
    return comparison_of(
        experiment,
        any(has_variable_link(device) for device in planned),
        any(loses_packets(device) for device in planned),
        [read_times(run_a), *map(read_times, live)],
        read_times(forced, between_s),
        [read_times(run, between_s) for run in free],
    )


def comparison_of(
    experiment: Experiment,
    has_moving_links: bool,
    has_loss: bool,
    live: list[RunTimes],
    forced: RunTimes,
    free: list[RunTimes],
) -> FidelityComparison:
    """Return the distances of the runs and the verdicts.

    Args:
        experiment: The compared experiment.
        has_moving_links: Whether a link of the fleet varies.
        has_loss: Whether a link of the fleet loses packets.
        live: A, B and its repeats.
        forced: The replay with the cohorts of B.
        free: The replays with their own selections.

    Raises:
        ValueError: Too few exchanges are valid.
    """
    _, first, repeat, *_ = live
    forced_errors = errors(first, forced)
    replay_gap = mean_gap(product(live[1:], free))
    live_gap = mean_gap(combinations(live[1:], 2))
    of_live, of_replay = live_gap.as_dict(), replay_gap.as_dict()
    ratios = {key: of_replay[key] / of_live[key] if of_live[key] else None for key in of_live}
    if has_moving_links:
        verdicts = [
            _verdict("gap of exchange times over the live gap", ratios["tau_ratio"], GAP_FACTOR),
            _verdict("gap of round times over the live gap", ratios["round_ratio"], GAP_FACTOR),
        ]
    elif not has_loss:
        what = "exchange times with imposed cohorts, median error"
        verdicts = [_verdict(what, forced_errors.tau.median, TAU_LIMIT)]
    else:
        verdicts = []
    if has_loss:  # which packets are lost differs from run to run: a single time is random
        bias = forced_errors.tau.bias
        what = "exchange times with imposed cohorts, bias"
        verdicts.append(_verdict(what, None if bias is None else abs(bias), TAU_LIMIT))
    return FidelityComparison(
        name=experiment.name,
        rounds=experiment.rounds,
        devices=experiment.devices,
        has_moving_links=has_moving_links,
        loses_packets=has_loss,
        counted={
            "a" if number == 0 else f"b-{number}": len(run.tau_s) for number, run in enumerate(live)
        },
        forced=forced_errors,
        repeat=errors(first, repeat),
        replays=len(free),
        replay_gap=replay_gap,
        live_gap=live_gap,
        ratios=ratios,
        verdicts=verdicts,
    )


def _verdict(what: str, achieved: float | None, limit: float) -> Verdict:
    return Verdict(what, achieved, limit, None if achieved is None else achieved <= limit)


def _numbered(experiment: Experiment) -> Experiment:
    """Return the experiment with a fixed speed of this machine, the same in every run."""
    if experiment.emulation.host_core_speed != "auto":
        return experiment
    speed = host_speed(os.environ).core_speed
    emulation = msgspec.structs.replace(experiment.emulation, host_core_speed=speed)
    return msgspec.structs.replace(experiment, emulation=emulation)


def _planned(experiment: Experiment) -> list[PlannedDevice]:
    """Return the devices of an experiment whose fleet can be run and replayed."""
    if not experiment.fleet:
        raise ExperimentError("fleet: must have devices to run and to record, got none")
    planned = plan_fleet(experiment, os.environ)
    for device in planned:
        if device.profile is None:
            raise ExperimentError(
                f"fleet: {device.spec.name} must have a profile for a comparison, got none: "
                "it is this machine; name a profile"
            )
    return planned


GAPS = {
    "tau_ratio": "exchange times, Wasserstein distance / mean",
    "round_ratio": "round times, Wasserstein distance / mean",
    "total_ratio": "total time",
    "rate": "selection rate, mean difference",
    "queue": "sum of queues, difference of the means",
}


def report(found: FidelityComparison) -> str:
    """Return a comparison as text."""
    links = "variable links" if found.has_moving_links else "constant links"
    links += " that lose packets" if found.loses_packets else ""
    gaps = f"mean distance of {len(found.counted) - 1} live runs and {found.replays} replays"
    counted = ", ".join(f"{count} in {run}" for run, count in found.counted.items())
    lines = [
        f"{found.name}: {found.devices} devices on {links}, {found.rounds} rounds; valid "
        f"exchanges: {counted}",
        "",
        f"{'relative errors':<46}{'count':>8}{'median':>10}{'p95':>10}{'bias':>10}",
        _error_line("replay with b-1's cohorts: exchange times", found.forced.tau),
        _error_line("replay with b-1's cohorts: round times", found.forced.round),
        _error_line("b-2, same exchanges: exchange times", found.repeat.tau),
        _error_line("b-2, same cohorts: round times", found.repeat.round),
        "",
        f"{gaps:<46}{'replay':>10}{'live':>10}{'ratio':>10}",
    ]
    of_replay, of_live = found.replay_gap.as_dict(), found.live_gap.as_dict()
    for key, title in GAPS.items():
        ratio = found.ratios[key]
        shown = MISSING if ratio is None else f"{ratio:.2f}"
        values = of_replay[key], of_live[key]
        cells = [f"{value:.2f}" if key == "queue" else percent(value) for value in values]
        lines.append(f"{title:<46}{cells[0]:>10}{cells[1]:>10}{shown:>10}")
    return "\n".join([*lines, "", *map(_verdict_line, found.verdicts)])


def _error_line(title: str, found: RelativeErrors) -> str:
    numbers = percent(found.median), percent(found.p95), percent(found.bias, is_signed=True)
    cells = "".join(f"{number:>10}" for number in numbers)
    return f"{title:<46}{found.count:>8}{cells}"


def _verdict_line(verdict: Verdict) -> str:
    word = {True: "ok", False: "missed", None: "unknown"}[verdict.ok]
    return f"{verdict.what}: {_number(verdict)}: {word}"


def _number(verdict: Verdict) -> str:
    if verdict.limit < 1.0:
        return f"{percent(verdict.achieved)}, at most {percent(verdict.limit)}"
    shown = MISSING if verdict.achieved is None else f"{verdict.achieved:.2f}"
    return f"{shown}, at most {verdict.limit:.2f}"
