"""What a person should know of a run before its first round, one event each.

What profiles ask for that a backend leaves out: never in silence.

Whether the fleet of an experiment can have the rate that its policy promises.

Lets a fleet into this machine, or says what would make it fit.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.selection.feasibility import first_infeasible_k
from fairbed.coordinator.policy.config import RoundConfig
from fairbed.coordinator.server.event_log import Level
from fairbed.coordinator.store.reader import PROMISING
from fairbed.profiles import Link
from fairbed.testbed.backends.choice import BackendChoice, BackendName
from fairbed.testbed.emulation.capacity import (
    RESERVE_CORES,
    Demand,
    fits,
    fitting_dilation,
    has_room,
)
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.experiment.fleet import PlannedDevice


def not_emulated(devices: Sequence[PlannedDevice], backend: BackendName) -> str | None:
    """Return one line that says what is not emulated, and of which profiles; None if all is."""
    owners: dict[str, set[str]] = defaultdict(set)
    concerned = 0
    for planned in devices:
        wishes = list(_unsupported_keys(planned.link, backend))
        concerned += bool(wishes)
        for wish in wishes:
            owners[wish].add(planned.profile.name if planned.profile else planned.spec.name)
    if not owners:
        return None
    found = "; ".join(f"{wish} ({_some(sorted(names))})" for wish, names in owners.items())
    return (
        f"{concerned} of {len(devices)} devices ask for what the {backend} backend does not "
        f"emulate, and do not have it: {found}"
    )


def _unsupported_keys(link: Link | None, backend: BackendName) -> Iterator[str]:
    loses = link is not None and link.loss is not None and link.loss.highest > 0.0
    if loses and backend == "process":
        yield "link.loss_ratio"


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def infeasible_rate(experiment: Experiment) -> str | None:
    """Return why beta cannot hold, with the first k whose inequality fails; None if it can.

    Devices of a linear world are there as often as their law says; of others nobody knows it
    beforehand, and they count as always there.
    """
    selection = experiment.selection
    if selection.policy not in PROMISING or not experiment.devices:
        return None
    availability = np.concatenate(
        [
            np.full(group.count, group.availability if group.model else 1.0)
            for group in experiment.fleet
        ]
    )
    # Of asynchronous rounds: as many are chosen for a version as updates make one.
    chosen = experiment.coordinator().wanted
    k = first_infeasible_k(availability, chosen, selection.beta)
    if k is None:
        return None
    most = chosen / experiment.devices
    return (
        f"beta {selection.beta:g} cannot hold for the {k} least available of "
        f"{experiment.devices} devices with {chosen} per round; lower it: even if all "
        f"were always there, {most:.3f} would be the most"
    )


def demand_of(experiment: Experiment, devices: Sequence[PlannedDevice]) -> Demand:
    """Return what devices may want of this machine at the same time: `CoordinatorConfig.at_work`.

    A device that is not throttled takes what it gets and wants nothing.
    """
    emulated = (planned.spec.device for planned in devices)
    speeds = ((d.speed_ratio, d.engine_threads) for d in emulated if d)
    return Demand.of(speeds, experiment.coordinator().at_work)


def choose_dilation(
    experiment: Experiment,
    devices: Sequence[PlannedDevice],
    cores: float,
    earlier: float | None = None,
) -> float:
    """Return the dilation with which the fleet fits into a machine.

    Args:
        experiment: Says how many devices work at the same time, and which dilation is allowed.
        devices: The fleet, its time not dilated.
        cores: Of this machine.
        earlier: Dilation of the run that goes on; it is kept if it is enough.

    Raises:
        ExperimentError: It does not fit with the dilation that the experiment names, or devices
            that are not throttled cannot be slowed with the others.
    """
    demand, wanted = demand_of(experiment, devices), experiment.emulation.dilation
    fitting = fitting_dilation(demand, cores)
    if wanted == "auto":
        dilation = earlier if earlier is not None and earlier >= fitting else float(fitting)
    elif fits(demand, cores, wanted):
        dilation = wanted
    else:
        raise ExperimentError(
            f"emulation.dilation: must make room for the fleet, got {wanted:g}; "
            + _why(demand, cores, wanted, experiment.round)
            + f'; use {fitting}, or "auto"'
        )
    unthrottled = next((d.spec.name for d in devices if d.spec.device is None), None)
    if dilation > 1.0 and unthrottled is not None:
        raise ExperimentError(
            f"emulation.dilation: must be 1 for devices without a profile, got {dilation:g}; "
            f"give {unthrottled} a profile, or make the others slower with host_core_speed"
        )
    return dilation


def _why(demand: Demand, cores: float, dilation: float, settings: RoundConfig) -> str:
    if has_room(demand, cores, dilation):
        return (
            f"one thread of a device is as fast as {demand.one_thread:.2f} cores of this machine, "
            "however many it has"
        )
    who, fewer = "of one round", "choose fewer devices per round"
    if settings.patience_s is not None:
        who += f" and of {settings.max_staleness} before it, which may be late and go on,"
        fewer += ", or a smaller round.max_staleness"
    return (
        f"the fastest devices {who} want {demand.together:.2f} cores at once, and this "
        f"machine has {cores:g}, {RESERVE_CORES:g} of which are for broker and coordinator: {fewer}"
    )


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One event."""

    kind: str
    text: str
    level: Level = "info"


def preflight_findings(
    experiment: Experiment,
    devices: Sequence[PlannedDevice],
    stage: BackendChoice | None,
    dilation: float,
) -> Iterator[PreflightFinding]:
    """Tell what cannot be had, where the devices are, and whose seconds are counted.

    Args:
        experiment: What is asked for.
        devices: The emulated fleet.
        stage: Where it is; None has no fleet.
        dilation: Seconds of this machine in one second of the fleet.
    """
    if (promise := infeasible_rate(experiment)) is not None:
        yield PreflightFinding("infeasible", promise, "warning")
    if stage is not None:
        why = "".join(f"; {name} was passed over: {it}" for name, it in stage.passed_over.items())
        yield PreflightFinding("backend", f"devices are emulated by the {stage.name} backend{why}")
        if (words := not_emulated(devices, stage.name)) is not None:
            yield PreflightFinding("not-emulated", words, "warning")
    if dilation != 1.0:
        yield PreflightFinding(
            "dilated",
            f"a second of the fleet lasts {dilation:g} s of this machine; all durations of "
            "this run are the fleet's",
        )
