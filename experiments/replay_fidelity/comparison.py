"""The whole comparison: live runs, recording, replays, and their distances."""

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
    RunTimes,
    errors,
    mean_gap,
    pooled_errors,
    read_times,
)
from experiments.replay_fidelity.live import play_live
from experiments.replay_fidelity.pooled import Exchanges, Pooled, pooled, timed
from experiments.replay_fidelity.recorded import (
    has_variable_link,
    record_fleet,
    replayed,
    with_packets,
)
from experiments.replay_fidelity.replays import close_s, replay_forced, replay_free
from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.experiment.fleet import PlannedDevice, plan_fleet
from fairbed.testbed.host.speed import host_speed
from fairbed.testbed.replay.world.columns import loses_packets

TAU_LIMIT = 0.05
"""Greatest median error of the exchange times on constant links (issue 5), and greatest bias on
links that lose packets."""

REPLAYED = 1000
"""Added to the number of a live run for the packets that its replays lose."""

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
    """Of the replays with the cohorts of the live runs, over all of them."""
    pooled: Pooled
    """The same pairs, with the repeats as clusters."""
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

        a             live, policy uniform, seed 1        source of profiles/
        b-1 b-2 ...   live, rbcs-f, seed 2                to be predicted
        forced-1 ...  replay of the profiles: cohorts, instants and contexts of b-1 ...
        free-1 ...    replay of the profiles: starts like b-1 ..., selects its own cohorts

    Live runs and replays have the same loss windows, and each has its own lost packets. Replays
    are repeated by each call, so that they are of the present model.

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
    numbers = range(1, repeats + 1)
    live = [
        play_live(with_packets(predicted, number), folder / f"b-{number}", log, costs=run_a)
        for number in numbers
    ]
    files = record_fleet(run_a, planned, folder / "profiles")
    fleet = replayed(predicted, planned, files)
    forced, free = (
        [
            replay(with_packets(fleet, REPLAYED + n), run_a, run, folder / f"{name}-{n}", log)
            for n, run in zip(numbers, live, strict=True)
        ]
        for name, replay in (("forced", replay_forced), ("free", replay_free))
    )
    between_s = close_s(run_a)
    losses = {
        device.spec.name: device.tracks.link.loss_ratio
        for device in planned
        if device.tracks.link is not None
    }
    return comparison_of(
        experiment,
        any(has_variable_link(device) for device in planned),
        any(loses_packets(device) for device in planned),
        [read_times(run_a), *map(read_times, live)],
        [read_times(run, between_s) for run in forced],
        [read_times(run, between_s) for run in free],
        pooled(
            [
                (run.name, _timed(run), _timed(replay))
                for run, replay in zip(live, forced, strict=True)
            ],
            losses,
        ),
    )


def _timed(folder: Path) -> Exchanges:
    with RunReader(folder) as reader:
        return timed(reader.exchanges())


def comparison_of(
    experiment: Experiment,
    has_moving_links: bool,
    has_loss: bool,
    live: list[RunTimes],
    forced: list[RunTimes],
    free: list[RunTimes],
    pairs: Pooled,
) -> FidelityComparison:
    """Return the distances of the runs and the verdicts.

    Args:
        experiment: The compared experiment.
        has_moving_links: Whether a link of the fleet varies.
        has_loss: Whether a link of the fleet loses packets.
        live: A, B and its repeats.
        forced: The replay with the cohorts of B, and those of its repeats.
        free: The replays with their own selections.
        pairs: The exchanges of B and its repeats beside those of `forced`.

    Raises:
        ValueError: Too few exchanges are valid.
    """
    _, first, repeat, *_ = live
    forced_errors = pooled_errors(list(zip(live[1:], forced, strict=True)))
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
        bias = None if pairs.ratio is None else abs(pairs.ratio - 1.0)
        what = "exchange times with imposed cohorts, bias over all repeats"
        verdicts.append(_verdict(what, bias, TAU_LIMIT))
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
        pooled=pairs,
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
