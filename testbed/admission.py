"""Lets a fleet into this machine, or says what would make it fit."""

from collections.abc import Sequence

from coordinator.config import RoundConfig
from testbed.emulation.admission import RESERVE_CORES, Demand, fits, fitting_dilation, has_room
from testbed.experiment import Experiment, ExperimentError
from testbed.fleet import PlannedDevice


def demand_of(experiment: Experiment, devices: Sequence[PlannedDevice]) -> Demand:
    """Return what devices may want of this machine at the same time: `CoordinatorConfig.at_work`.

    A device that is not throttled takes what it gets and wants nothing.
    """
    emulated = (planned.spec.device for planned in devices)
    speeds = ((d.speed_ratio, d.engine_threads) for d in emulated if d)
    return Demand.of(speeds, experiment.coordinator().at_work)


def admit(
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
