"""Checks before the first round of a run or a replay.

choose_dilation       does the fleet fit into this machine, and with which time dilation?
infeasible_rate       can the guaranteed selection rate beta hold for this fleet?
not_emulated          what do profiles ask for that the backend does not emulate?
preflight_findings    the results for the event log of a run
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.selection.feasibility import first_infeasible_k
from fairbed.coordinator.policy.config import RoundConfig
from fairbed.coordinator.store.event_log import Level
from fairbed.coordinator.store.reader import GUARANTEEING
from fairbed.profiles import Link
from fairbed.testbed.backends.choice import BackendChoice, BackendName
from fairbed.testbed.emulation.capacity import (
    RESERVE_CORES,
    Demand,
    fits,
    fitting_dilation,
    has_enough_cores,
)
from fairbed.testbed.experiment.file import Experiment, ExperimentError
from fairbed.testbed.experiment.fleet import PlannedDevice


def not_emulated(devices: Sequence[PlannedDevice], backend: BackendName) -> str | None:
    """Return one line with the keys that are not emulated, and their profiles; None if all are."""
    owners: dict[str, set[str]] = defaultdict(set)
    concerned = 0
    for planned in devices:
        keys = list(_unsupported_keys(planned.link, backend))
        concerned += bool(keys)
        for key in keys:
            owners[key].add(planned.profile.name if planned.profile else planned.spec.name)
    if not owners:
        return None
    found = "; ".join(f"{key} ({_some(sorted(names))})" for key, names in owners.items())
    return (
        f"{concerned} of {len(devices)} devices have settings that the {backend} backend does not "
        f"emulate: {found}"
    )


def _unsupported_keys(link: Link | None, backend: BackendName) -> Iterator[str]:
    loses = link is not None and link.loss is not None and link.loss.highest > 0.0
    if loses and backend == "process":
        yield "link.loss_ratio"


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def infeasible_rate(experiment: Experiment) -> str | None:
    """Return why beta cannot hold, with the first k whose inequality fails; None if it can.

    Devices of a linear world have a stated availability; the others count as always available.
    """
    selection = experiment.selection
    if selection.policy not in GUARANTEEING or not experiment.devices:
        return None
    availability = np.concatenate(
        [
            np.full(group.count, group.availability if group.model else 1.0)
            for group in experiment.fleet
        ]
    )
    # In asynchronous mode, as many devices are selected for a version as updates make one.
    chosen = experiment.coordinator().updates_per_version
    k = first_infeasible_k(availability, chosen, selection.beta)
    if k is None:
        return None
    most = chosen / experiment.devices
    return (
        f"beta {selection.beta:g} cannot hold for the {k} least available of "
        f"{experiment.devices} devices with {chosen} per round; lower it: even if all "
        f"were always available, at most {most:.3f} is possible"
    )


def demand_of(experiment: Experiment, devices: Sequence[PlannedDevice]) -> Demand:
    """Return the processor demand of the devices that may compute at the same time.

    That number is `CoordinatorConfig.at_work`. A device that is not slowed demands nothing.
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
        experiment: Gives the number of devices at work at the same time, and the allowed dilation.
        devices: The fleet, its time not dilated.
        cores: Of this machine.
        earlier: Dilation of the run that is resumed; it is kept if it is enough.

    Raises:
        ExperimentError: It does not fit with the dilation that the experiment names, or devices
            without a profile cannot be slowed with the others.
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
    if has_enough_cores(demand, cores, dilation):
        return (
            f"one thread of a device is as fast as {demand.thread_cores:.2f} cores of this machine"
        )
    which, fewer = "of one round", "select fewer devices per round"
    if settings.late_limit_s is not None:
        which += f" and of {settings.max_staleness} rounds before it, whose late devices continue,"
        fewer += ", or a smaller round.max_staleness"
    return (
        f"the fastest devices {which} need {demand.concurrent_cores:.2f} cores at once, and this "
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
    backend: BackendChoice | None,
    dilation: float,
) -> Iterator[PreflightFinding]:
    """Yield the events: an infeasible rate, the backend, what it does not emulate, the dilation.

    Args:
        experiment: The experiment.
        devices: The emulated fleet.
        backend: Where it runs; None has no fleet.
        dilation: Seconds of this machine in one second of the fleet.
    """
    if (problem := infeasible_rate(experiment)) is not None:
        yield PreflightFinding("infeasible", problem, "warning")
    if backend is not None:
        others = "".join(f"; {name} was rejected: {why}" for name, why in backend.rejected.items())
        yield PreflightFinding(
            "backend", f"devices are emulated by the {backend.name} backend{others}"
        )
        if (line := not_emulated(devices, backend.name)) is not None:
            yield PreflightFinding("not-emulated", line, "warning")
    if dilation != 1.0:
        yield PreflightFinding(
            "dilated",
            f"a second of the fleet lasts {dilation:g} s of this machine; all durations of "
            "this run are the fleet's",
        )
