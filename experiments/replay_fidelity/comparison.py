"""The whole comparison: runs, recording, replays, and what they say of each other.

A comparison as lines for people.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import msgspec

from experiments.replay_fidelity import recorded as experiments
from experiments.replay_fidelity.distances import (
    Gap,
    Off,
    PairErrors,
    RunTimes,
    errors,
    mean_gap,
    read_times,
)
from experiments.replay_fidelity.live import play_live
from experiments.replay_fidelity.recorded import moves, record_fleet, replayed
from experiments.replay_fidelity.replays import close_s, replay_forced, replay_free
from fairbed.coordinator.report.quantities import MISSING, percent
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.experiment.fleet import PlannedDevice, plan_fleet
from fairbed.testbed.host.speed import host_speed

TAU_LIMIT = 0.05
"""Median error of an exchange time on links that never move (issue 5)."""

LEAST_REPEATS, MOST_REPEATS = 2, 50
"""Of the live run that is predicted: with one there is nothing to hold a replay against."""

GAP_FACTOR = 1.5
"""A replay is at most so much farther from a live run than its repeat is, on links that move."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A promise and whether it was kept."""

    what: str
    achieved: float | None
    limit: float
    ok: bool | None
    """None is not known."""


@dataclass(frozen=True, slots=True)
class FidelityComparison:
    """What a comparison found."""

    name: str
    rounds: int
    devices: int
    has_moving_links: bool
    counted: dict[str, int]
    """Exchanges that count in each of the live runs."""
    forced: PairErrors
    """Of a replay that did what the live run did."""
    repeat: PairErrors
    """Of the live run's repeat, where it happened to make the same exchanges."""
    replays: int
    """That chose themselves."""
    replay_gap: Gap
    """Of these to the live runs, on average over all pairs."""
    live_gap: Gap
    """Of the live runs to each other, on average over all pairs."""
    ratios: dict[str, float | None]
    """The first gap over the second, by what was compared; None where the second is 0."""
    verdicts: list[Verdict]


def compare_live_replay(
    experiment: Experiment,
    folder: Path,
    tell: Callable[[str], None],
    repeats: int = LEAST_REPEATS,
) -> FidelityComparison:
    """Run, record, run again, replay; what is done already in the folder is not repeated.

        a            live, policy uniform, seed 1        profiles/ are recorded of it
        b-1 b-2 ...  live, rbcs-f, seed 2                what is to be predicted
        forced       replay of the profiles: b-1's cohorts, instants and contexts
        free-1 ...   replay of the profiles: begins when b-1 ... did, and chooses itself

    A run that chooses by what it has measured takes a course of its own after some rounds, and how
    far two courses are apart is chance: with more repeats both gaps are means of more pairs.

    Args:
        experiment: Of emulated devices that have profiles.
        folder: Receives all of it.
        tell: Given a line for people, now and then.
        repeats: Of the live run, and of the replay that chooses itself; from `LEAST_REPEATS`.

    Raises:
        ExperimentError: Its fleet cannot be run or replayed.
        ProfileError: A profile of the fleet is unknown, or breaks a rule.
        LiveRunError: A live run failed, or the folder holds another comparison.
        NotEnough: The recorded run tells too little of a device.
        StoreError: A run cannot be read.
        ValueError: Too few exchanges count to compare anything.
    """
    experiments.check_rounds(experiment)
    experiment = _numbered(experiment)
    planned = _planned(experiment)
    recorded, predicted = experiments.recorded(experiment), experiments.predicted(experiment)
    run_a = play_live(recorded, folder / "a", tell)
    live = [
        play_live(predicted, folder / f"b-{number}", tell, costs=run_a)
        for number in range(1, repeats + 1)
    ]
    files = record_fleet(run_a, planned, folder / "profiles")
    fleet = replayed(predicted, planned, files)
    forced = replay_forced(fleet, run_a, live[0], folder / "forced", tell)
    free = [
        replay_free(fleet, run_a, run, folder / f"free-{number}", tell)
        for number, run in enumerate(live, 1)
    ]
    between_s = close_s(run_a)
    return judged(
        experiment,
        any(moves(device) for device in planned),
        [read_times(run_a), *map(read_times, live)],
        read_times(forced, between_s),
        [read_times(run, between_s) for run in free],
    )


def judged(
    experiment: Experiment,
    has_moving_links: bool,
    live: list[RunTimes],
    forced: RunTimes,
    free: list[RunTimes],
) -> FidelityComparison:
    """Return what the runs say of each other.

    Args:
        experiment: What was compared.
        has_moving_links: Some link of the fleet has a course.
        live: A, B and its repeats.
        forced: The replay that did what B did.
        free: The replays that chose themselves.

    Raises:
        ValueError: Too few exchanges count to compare anything.
    """
    _, one, again, *_ = live
    forced_errors = errors(one, forced)
    replay_gap = mean_gap(product(live[1:], free))
    live_gap = mean_gap(combinations(live[1:], 2))
    theirs, ours = live_gap.as_dict(), replay_gap.as_dict()
    ratios = {key: ours[key] / theirs[key] if theirs[key] else None for key in theirs}
    if has_moving_links:
        verdicts = [
            _verdict("gap of the exchange times, of the live gap", ratios["tau_ratio"], GAP_FACTOR),
            _verdict("gap of the round times, of the live gap", ratios["round_ratio"], GAP_FACTOR),
        ]
    else:
        what = "exchange times when the cohorts are given, median error"
        verdicts = [_verdict(what, forced_errors.tau.median, TAU_LIMIT)]
    return FidelityComparison(
        name=experiment.name,
        rounds=experiment.rounds,
        devices=experiment.devices,
        has_moving_links=has_moving_links,
        counted={
            "a" if number == 0 else f"b-{number}": len(run.tau_s) for number, run in enumerate(live)
        },
        forced=forced_errors,
        repeat=errors(one, again),
        replays=len(free),
        replay_gap=replay_gap,
        live_gap=live_gap,
        ratios=ratios,
        verdicts=verdicts,
    )


def _verdict(what: str, achieved: float | None, limit: float) -> Verdict:
    return Verdict(what, achieved, limit, None if achieved is None else achieved <= limit)


def _numbered(experiment: Experiment) -> Experiment:
    """Return the experiment with the speed of this machine as a number, the same in every run."""
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
                f"fleet: {device.spec.name} must have a profile to be compared with, got none: "
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
    """Return what a comparison found."""
    links = "links that move" if found.has_moving_links else "links that never move"
    wholes = f"as wholes, mean distance of {len(found.counted) - 1} live, {found.replays} replays"
    counted = ", ".join(f"{count} in {run}" for run, count in found.counted.items())
    lines = [
        f"{found.name}: {found.devices} devices on {links}, {found.rounds} rounds; exchanges that "
        f"count: {counted}",
        "",
        f"{'one by one, relative':<46}{'count':>8}{'median':>10}{'p95':>10}{'bias':>10}",
        *_off("replay with b-1's cohorts: exchange times", found.forced.tau),
        *_off("replay with b-1's cohorts: round times", found.forced.round),
        *_off("b-2, where it did the same: exchange times", found.repeat.tau),
        *_off("b-2, where it did the same: round times", found.repeat.round),
        "",
        f"{wholes:<46}{'replay':>10}{'live':>10}{'ratio':>10}",
    ]
    ours, theirs = found.replay_gap.as_dict(), found.live_gap.as_dict()
    for key, title in GAPS.items():
        ratio = found.ratios[key]
        shown = MISSING if ratio is None else f"{ratio:.2f}"
        cells = [f"{v:.2f}" if key == "queue" else percent(v) for v in (ours[key], theirs[key])]
        lines.append(f"{title:<46}{cells[0]:>10}{cells[1]:>10}{shown:>10}")
    return "\n".join([*lines, "", *map(_verdict_line, found.verdicts)])


def _off(title: str, off: Off) -> Iterable[str]:
    numbers = percent(off.median), percent(off.p95), percent(off.bias, is_signed=True)
    cells = "".join(f"{number:>10}" for number in numbers)
    yield f"{title:<46}{off.count:>8}{cells}"


def _verdict_line(verdict: Verdict) -> str:
    word = {True: "ok", False: "missed", None: "not known"}[verdict.ok]
    return f"{verdict.what}: {_number(verdict)}: {word}"


def _number(verdict: Verdict) -> str:
    if verdict.limit < 1.0:
        return f"{percent(verdict.achieved)}, at most {percent(verdict.limit)}"
    shown = MISSING if verdict.achieved is None else f"{verdict.achieved:.2f}"
    return f"{shown}, at most {verdict.limit:.2f}"
