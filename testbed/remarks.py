"""What a person should know of a run before its first round, one event each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coordinator.journal import Level
from testbed.backends.choice import Stage
from testbed.experiment import Experiment
from testbed.fleet import PlannedDevice
from testbed.promise import broken_promise
from testbed.unmet import unmet


@dataclass(frozen=True, slots=True)
class Remark:
    """One event."""

    kind: str
    text: str
    level: Level = "info"


def remarks(
    experiment: Experiment,
    devices: Sequence[PlannedDevice],
    stage: Stage | None,
    dilation: float,
) -> Iterator[Remark]:
    """Tell what cannot be had, where the devices are, and whose seconds are counted.

    Args:
        experiment: What is asked for.
        devices: The emulated fleet.
        stage: Where it is; None has no fleet.
        dilation: Seconds of this machine in one second of the fleet.
    """
    if (promise := broken_promise(experiment)) is not None:
        yield Remark("infeasible", promise, "warning")
    if stage is not None:
        why = "".join(f"; {name} was passed over: {it}" for name, it in stage.passed_over.items())
        yield Remark("backend", f"devices are emulated by the {stage.name} backend{why}")
        if (words := unmet(devices, stage.name)) is not None:
            yield Remark("not-emulated", words, "warning")
    if dilation != 1.0:
        yield Remark(
            "dilated",
            f"a second of the fleet lasts {dilation:g} s of this machine; all durations of "
            "this run are the fleet's",
        )
