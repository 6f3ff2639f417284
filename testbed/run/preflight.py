"""Checks before the first round of a run or a replay.

choose_dilation       the time dilation with which the fleet fits into this machine
infeasible_rate       why the guaranteed selection rate beta cannot hold for this fleet
counted_twice         why selection and aggregation both count the examples of a device
no_benign_device      why metrics on benign devices are unknown
defaults_of           numbers that a profile lacks, and the values that the emulation takes
settings_findings     the warnings and remarks that follow from the experiment alone
not_emulated          settings of profiles that the backend does not emulate
untimed_findings      which share of the exchanges will likely be untimed, and what helps
preflight_findings    the results for the event log of a run
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fairbed import profiles
from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.selection.feasibility import highest_rate, shortage
from fairbed.coordinator.policy.combinations import unread_keys, without_effect
from fairbed.coordinator.policy.config import RoundConfig, mini_batch_problem
from fairbed.coordinator.policy.factories import make_pseudo_gradient
from fairbed.coordinator.records.rows import CONTENDED_RATIO_LIMIT
from fairbed.coordinator.store.event_log import Level
from fairbed.coordinator.store.reader import GUARANTEEING
from fairbed.coordinator.task.recipes import MODELS
from fairbed.testbed.backends.choice import BackendChoice
from fairbed.testbed.emulation.capacity import (
    RESERVE_CORES,
    Demand,
    fits,
    fitting_dilation,
    has_enough_cores,
)
from fairbed.testbed.emulation.conditions import Congestion, LinkFeature
from fairbed.testbed.emulation.power import phase_power
from fairbed.testbed.experiment.file import Experiment, ExperimentError, FleetConfig
from fairbed.testbed.experiment.fleet import PlannedDevice, unlikely_numbers
from fairbed.testbed.inputs import Inputs
from fairbed.testbed.run.fleet_hosts import FleetHosts
from fairbed.wire.artifact import Artifact

if TYPE_CHECKING:
    from fairbed.testbed.emulation.machine_delay import ExchangeTimes

DRAW_BY_EXAMPLES = ("power-of-choice", "weighted")
"""Policies that draw devices, or candidates, in proportion to n_k."""


def not_emulated(
    devices: Sequence[PlannedDevice],
    backend: str,
    lacks: Mapping[LinkFeature, str],
    congestion: Congestion = "cubic",
) -> str | None:
    """Return one line with the keys that are not emulated, and their profiles; None if all are.

    Args:
        devices: The emulated devices.
        backend: Name of the backend.
        lacks: Features of links that it does not emulate, each with what to do, or nothing.
        congestion: Congestion control of this machine towards the devices.
    """
    profiles_by_key: dict[str, set[str]] = defaultdict(set)
    affected, advice = 0, dict[str, None]()
    for planned in devices:
        missing = [(key, lacks[one]) for key, one in _features(planned, congestion) if one in lacks]
        keys = [key for key, _ in missing]
        advice.update((line, None) for _, line in missing if line)
        affected += bool(keys)
        for key in keys:
            profiles_by_key[key].add(planned.profile.name if planned.profile else planned.spec.name)
    if not profiles_by_key:
        return None
    found = "; ".join(f"{key} ({_short(sorted(names))})" for key, names in profiles_by_key.items())
    return (
        f"{affected} of {len(devices)} devices have settings that the {backend} backend does not "
        f"emulate: {'; '.join([found, *advice])}"
    )


def _features(planned: PlannedDevice, congestion: Congestion) -> Iterator[tuple[str, LinkFeature]]:
    """Yield the keys of a device that need a feature of links, each with the feature."""
    link = planned.link
    if link is not None and link.loss is not None and link.loss.highest > 0.0:
        yield "link.loss_ratio", "loss"
    if link is not None and link.queue.discipline == "fq_codel":
        yield "link.queue", "fq_codel"
    if planned.spec.congestion == "bbr":
        yield "fleet.congestion", "bbr"
    if congestion == "bbr":
        yield "emulation.congestion", "bbr"


def _short(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def infeasible_rate(experiment: Experiment) -> str | None:
    """Return why beta cannot hold, with the first k whose inequality fails; None if it can.

    Devices with `model = "linear"` have a stated availability; others count as always available.
    """
    selection = experiment.selection
    if selection.policy not in GUARANTEEING or not experiment.devices:
        return None
    availability = np.concatenate(
        [
            np.full(group.size, group.availability if group.model else 1.0)
            for group in experiment.fleet
        ]
    )
    # In asynchronous mode, one device is selected per update of a version.
    per_round = experiment.coordinator().updates_per_version
    lacks = shortage(availability, per_round, selection.beta)
    if lacks is None:
        return None
    return (
        f"selection.beta {selection.beta:g} cannot be guaranteed: {lacks}; set beta to at most "
        f"{highest_rate(availability, per_round):.3f}, or raise selection.per_round"
    )


def counted_twice(experiment: Experiment) -> str | None:
    """Return why a device's examples count twice, in the draws and in the weights; else None."""
    selection, weights = experiment.selection, experiment.aggregation.weighting
    draws_by_examples = selection.policy in DRAW_BY_EXAMPLES and selection.weights is None
    if not draws_by_examples or weights != "n":
        return None
    return (
        f"selection.policy {selection.policy!r} draws devices in proportion to their examples "
        'n_k, and aggregation.weights "n" multiplies by n_k again, so that examples count twice; '
        'set aggregation.weights = "equal", or selection.policy = "uniform"'
    )


def no_benign_device(experiment: Experiment) -> str | None:
    """Return why benign metrics are unknown: all devices are malicious; else None."""
    malicious = [
        0 if group.malicious is None else group.malicious.size(group.size)
        for group in experiment.fleet
    ]
    if not malicious or sum(malicious) < experiment.devices:
        return None
    return (
        f"fleet.malicious: all {experiment.devices} devices are malicious, so metrics on benign "
        "devices are unknown; lower share or count to have some"
    )


def defaults_of(group: FleetConfig) -> str | None:
    """Return one line with the unknown numbers of a group's profile; None if all are known."""
    if group.profile is None:
        return None
    unknown = {
        key: number
        for key, number in profiles.unknown_numbers(profiles.load(group.profile)).items()
        if group.link is None or not key.startswith("link.")
    }
    if not unknown:
        return None
    values = ", ".join(
        f"{key} = {getattr(number, 'value', None):g}" for key, number in unknown.items()
    )
    return (
        f"{group.profile}: unknown numbers have default values: {values}; measure them with "
        "fairbed record, or take them from another profile with its --like"
    )


def mixed_speeds(experiment: Experiment) -> str | None:
    """Return one line if the speeds of some boards are measured and of others estimated.

    None for a shipped model, which needs `core_speed` only.
    """
    if experiment.model.name in MODELS and experiment.model.like is None:
        return None
    names = dict.fromkeys(group.profile for group in experiment.fleet if group.profile is not None)
    estimated, measured = list[str](), list[str]()
    for name in names:
        profile = profiles.load(name)
        rates = (profile.matrix, profile.core_matrix, profile.moved)
        is_estimated = any(rate is not None and rate.tag == "estimated" for rate in rates)
        (estimated if is_estimated else measured).append(name)
    if not estimated or not measured:
        return None
    return (
        f"{', '.join(estimated)}: some speeds are estimated from other boards, while those of "
        f"{', '.join(measured)} are measured, so devices of about the same speed may be in the "
        "wrong order; fairbed profiles show NAME states each error"
    )


def energy_interval(experiment: Experiment) -> str | None:
    """Return one line with the interval of joules of devices whose powers differ by source."""
    parts = []
    for name in dict.fromkeys(g.profile for g in experiment.fleet if g.profile is not None):
        profile = profiles.load(name)
        power = phase_power(profile)
        shares = [
            f"{phase} {100 * (ends[0] / watts - 1):+.0f} to {100 * (ends[1] / watts - 1):+.0f} %"
            for phase, watts, ends in (
                ("transfer", power.transfer_w, power.transfer_range_w),
                ("compute", power.compute_w, power.compute_range_w),
            )
            if watts and ends is not None
        ]
        if shares:
            parts.append(f"{name}: {', '.join(shares)}")
    if not parts:
        return None
    return (
        "published powers differ, so the joules of an exchange have these intervals: "
        f"{'; '.join(parts)}"
    )


def demand_of(experiment: Experiment, devices: Sequence[PlannedDevice]) -> Demand:
    """Return the processor demand of the `max_computing` devices that may compute at once.

    A device that is not throttled demands nothing, nor does a physical one.
    """
    emulated = (planned.spec.device for planned in devices if not planned.is_physical)
    speeds = ((d.speed_ratio, d.engine_threads) for d in emulated if d)
    return Demand.of(speeds, experiment.coordinator().max_computing)


def choose_dilation(
    experiment: Experiment,
    devices: Sequence[PlannedDevice],
    cores: float,
    earlier: float | None = None,
    hosts: FleetHosts | None = None,
    sufficient: Callable[[int], int] | None = None,
) -> float:
    """Return the dilation with which the fleet fits into a machine, or on hosts.

    Args:
        experiment: Has the number of devices that compute at once, and the configured dilation.
        devices: The fleet, not dilated.
        cores: Cores of this machine.
        earlier: Dilation of the run that is resumed; it is kept if the fleet fits.
        hosts: The hosts that emulate the devices in place of this machine.
        sufficient: Returns the dilation with which exchanges are long enough for this machine, from
            one with which the fleet fits; None: their times cannot be predicted.

    Raises:
        ExperimentError: The fleet does not fit with the configured dilation, or has devices
            without a profile, which a dilation cannot slow.
    """
    demand, configured = demand_of(experiment, devices), experiment.emulation.dilation
    if hosts is None:
        fitting, problem = fitting_dilation(demand, cores), None
    else:
        fitting, problem = hosts.fitting_dilation(experiment, devices)
    plain = (d.spec.name for d in devices if d.spec.device is None and not d.is_physical)
    unthrottled = next(plain, None)
    if configured == "auto":
        can_dilate = unthrottled is None and not experiment.physical
        if earlier is not None and earlier >= fitting:
            dilation = earlier
        elif sufficient is not None and can_dilate:
            dilation = float(sufficient(fitting))
        else:
            dilation = float(fitting)
    elif problem is not None:
        raise ExperimentError(
            f'{problem}; or set emulation.dilation to {fitting} or "auto", got {configured:g}'
        )
    elif hosts is not None or fits(demand, cores, configured):
        dilation = configured
    else:
        raise ExperimentError(
            f"emulation.dilation: the fleet must fit into this machine, got {configured:g}: "
            + _misfit(demand, cores, configured, experiment.round)
            + f', or set it to {fitting} or "auto"'
        )
    if dilation > 1.0 and unthrottled is not None:
        raise ExperimentError(
            f"emulation.dilation: must be 1 for devices without a profile, got {dilation:g}; "
            f"give {unthrottled} a profile, or slow the others with host_core_speed"
        )
    if dilation > 1.0 and experiment.physical:
        raise ExperimentError(
            f"emulation.dilation: must be 1 with physical devices such as "
            f"{experiment.physical[0]}, whose clocks cannot be slowed, got {dilation:g}; emulate "
            "fewer or slower devices, or select fewer per round"
        )
    return dilation


def _misfit(demand: Demand, cores: float, dilation: float, settings: RoundConfig) -> str:
    """Return why the fleet does not fit, and what to do apart from a larger dilation."""
    if has_enough_cores(demand, cores, dilation):
        return (
            f"one thread of a device needs {demand.thread_cores:.2f} cores of this machine; use "
            "slower devices"
        )
    rounds, remedy = "of one round", "select fewer devices per round"
    if settings.late_limit_s is not None:
        rounds += f" and the late devices of {settings.max_staleness} earlier rounds"
        remedy += " or lower round.max_staleness"
    return (
        f"the fastest devices {rounds} need {demand.concurrent_cores:.2f} cores at once, and this "
        f"machine has {cores:g}, {RESERVE_CORES:g} of them for broker and coordinator; {remedy}"
    )


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One event for the event log."""

    kind: str
    text: str
    level: Level = "info"


def settings_findings(
    experiment: Experiment, *, trains: bool, n_k: Ints | None = None
) -> Iterator[PreflightFinding]:
    """Yield warnings and remarks about settings, such as an infeasible rate or unread keys.

    Args:
        experiment: The experiment.
        trains: Whether models are trained and merged; a replay can do without.
        n_k: Training examples of each device, shape (N,); None if devices are still to report
            them: then the coordinator compares them with the mini-batch.
    """
    if (problem := infeasible_rate(experiment)) is not None:
        yield PreflightFinding("infeasible", problem, "warning")
    if trains and (problem := counted_twice(experiment)) is not None:
        yield PreflightFinding("counted-twice", problem, "warning")
    if trains and n_k is not None:
        problem = mini_batch_problem(experiment.aggregation, experiment.training, n_k)
        if problem:
            yield PreflightFinding("mini-batch", problem, "warning")
    training = experiment.training
    if trains and training.has_parts and training.micro_batch_statistics:
        size = training.micro_batch
        parts = "that fit into each device" if size == "auto" else f"of {size} examples"
        yield PreflightFinding(
            "micro-batch",
            "training.micro_batch_statistics: statistics of batch normalisation are those of parts "
            f"{parts}, not of the mini-batches of {training.batch_size}, so results differ from "
            "those without training.micro_batch",
            "warning",
        )
    if training.draws_work and any(
        group.theta is not None or group.exchange_times is not None for group in experiment.fleet
    ):
        yield PreflightFinding(
            "drawn work",
            "training.least_epochs and least_steps do not change how long the exchanges of devices "
            "with theta or exchange_times take: their times are given; use profiles",
            "warning",
        )
    config = experiment.coordinator()
    if trains:
        gradient = make_pseudo_gradient(config.aggregation, config.training)
        for problem in without_effect(config, gradient):
            yield PreflightFinding("no effect", problem, "warning")
    for remark in unread_keys(config):
        yield PreflightFinding("not read", remark)
    if (problem := no_benign_device(experiment)) is not None:
        yield PreflightFinding("all-malicious", problem, "warning")
    for line in dict.fromkeys(map(defaults_of, experiment.fleet)):
        if line is not None:
            yield PreflightFinding("unknown-numbers", line, "warning")
    if (mixed := mixed_speeds(experiment)) is not None:
        yield PreflightFinding("estimated-speeds", mixed, "warning")
    if (interval := energy_interval(experiment)) is not None:
        yield PreflightFinding("energy", interval)


def untimed_findings(
    experiment: Experiment,
    times: "ExchangeTimes",
    dilation: float,
    cores: float,
    others: float = 0.0,
) -> Iterator[PreflightFinding]:
    """Yield which share of the exchanges will likely be untimed, and what helps if it is large.

    Args:
        experiment: The experiment.
        times: Predicted times of the exchanges.
        dilation: Seconds of this machine in one second of the fleet.
        cores: Cores of this machine.
        others: Threads of other programs that run or wait for a core.
    """
    from fairbed.testbed.emulation.machine_delay import UNTIMED_TARGET, MachineDelay

    if not times.is_known:
        return
    at_once = experiment.coordinator().cohort_size
    delay = MachineDelay.of(at_once, cores, others)
    share, shortest_s = delay.untimed_share(times, dilation), times.shortest_s
    allowed_s = CONTENDED_RATIO_LIMIT * dilation * shortest_s
    low, median, high = (f"{1e3 * delay.quantile_s(z):.2g}" for z in (-1.0, 0.0, 1.0))
    found = (
        f"about {_percent(share)} of the exchanges will likely be untimed: the shortest takes "
        f"{shortest_s:.3g} s, so that it may be delayed by {1e3 * allowed_s:.2g} ms at dilation "
        f"{dilation:g}, and while {at_once} devices work at once, beside {others:.0f} threads of "
        f"other programs, {cores:g} cores delay an exchange by about {median} ms ({low} to {high})"
    )
    if share <= UNTIMED_TARGET:
        yield PreflightFinding("untimed-expected", found)
        return
    helps = ["select fewer devices per round", "train longer (training.epochs)"]
    enough = delay.sufficient_dilation(times, math.ceil(dilation))
    if enough > dilation and not experiment.physical:
        left = _percent(delay.untimed_share(times, enough))
        helps.insert(0, f"--set emulation.dilation={enough} leaves about {left}")
    yield PreflightFinding("untimed-expected", f"{found}; {', or '.join(helps)}", "warning")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "under 1 %"


def source_findings(inputs: Inputs) -> Iterator[PreflightFinding]:
    """Yield the source files of which this process has a former version."""
    for name in inputs.stale:
        yield PreflightFinding(
            "stale-source",
            f"{name} has changed since this program imported it, so this run has its former "
            "version; start the program again",
            "warning",
        )


def engine_findings(artifact: Artifact) -> Iterator[PreflightFinding]:
    """Yield why devices train a model with torch, and what they do otherwise than its module."""
    if artifact.module is not None and artifact.module.reason:
        yield PreflightFinding(
            "engine",
            f"{artifact.module.reason}; so devices train this model with torch, which takes the "
            "place of onnxruntime",
            "warning",
        )
    for remark in artifact.remarks:
        yield PreflightFinding("model", remark, "warning")


def preflight_findings(
    experiment: Experiment,
    devices: Sequence[PlannedDevice],
    backend: BackendChoice | None,
    dilation: float,
) -> Iterator[PreflightFinding]:
    """Yield events of a live run: settings, the backend, what it does not emulate, the dilation.

    Args:
        experiment: The experiment.
        devices: The emulated devices.
        backend: The chosen backend; None if no device is emulated.
        dilation: Seconds of this machine in one second of the fleet.
    """
    fleet = tuple(  # the profile of a physical device is for replays
        msgspec.structs.replace(g, profile=None) if g.physical else g for g in experiment.fleet
    )
    found = settings_findings(msgspec.structs.replace(experiment, fleet=fleet), trains=True)
    # The coordinator examines the rate itself, again and again: it is an alert.
    yield from (finding for finding in found if finding.kind != "infeasible")
    for problem in unlikely_numbers(devices):
        yield PreflightFinding("magnitude", problem, "warning")
    if backend is not None:
        others = "".join(f"; {name} was rejected: {why}" for name, why in backend.rejected.items())
        yield PreflightFinding(
            "backend", f"devices are emulated by the {backend.name} backend{others}"
        )
        congestion = experiment.emulation.congestion
        line = not_emulated(devices, backend.name, backend.lacks, congestion)
        if line is not None:
            yield PreflightFinding("not-emulated", line, "warning")
    if experiment.noise.varies_exchanges:
        yield PreflightFinding(
            "not-emulated",
            "noise.*.exchange: only a replay varies single exchanges; this run has the levels of "
            "its devices (noise.*.device); a clock_ratio or rate with a schedule varies over time",
            "warning",
        )
    logs = [group.exchange_times for group in experiment.fleet if group.exchange_times is not None]
    if logs:
        yield PreflightFinding(
            "not-emulated",
            f"fleet.exchange_times: only a replay draws durations from a log, got {_short(logs)}; "
            "this run has those of its profiles and links",
            "warning",
        )
    if dilation != 1.0:
        yield PreflightFinding(
            "dilated",
            f"a second of the fleet lasts {dilation:g} s of this machine; all durations of this "
            "run are in seconds of the fleet",
        )
