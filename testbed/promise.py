"""Whether the fleet of an experiment can have the rate that its policy promises."""

import numpy as np

from coordinator.algorithms.selection.feasibility import first_infeasible_k
from coordinator.store.plan import PROMISING
from testbed.experiment import Experiment


def broken_promise(experiment: Experiment) -> str | None:
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
