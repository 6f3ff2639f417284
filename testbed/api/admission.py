"""Chooses the dilation with which the exchanges of a live run can be timed.

Their times are those of a replay (`testbed.replay.expected`).
"""

import os

from fairbed.testbed.emulation.machine_delay import MachineDelay
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.fleet import fleet_names
from fairbed.testbed.experiment.shards import FleetData, load_examples, task_of
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.other_load import runnable_tasks
from fairbed.testbed.host.slow_steps import named_if_slow
from fairbed.testbed.host.speed import machine_costs_now
from fairbed.testbed.run.supervisor import Predict, PreparedTask


class PreparedDilation:
    """Chooses a dilation by predicted exchanges, and keeps what was loaded for that.

    Args:
        experiment: The experiment.
        predict: Predicts its exchanges.
        cores: Cores of this machine.
    """

    def __init__(self, experiment: Experiment, predict: Predict, cores: float) -> None:
        self._experiment, self._predict, self._cores = experiment, predict, cores
        self.task: PreparedTask | None = None
        """Data set and task, once they are loaded."""

    def sufficient(self, least: int) -> int:
        """Return the smallest integer dilation from `least` on that leaves few untimed exchanges.

        Raises:
            DatasetError: The data cannot be loaded or divided.
            TaskError: The model is not available.
            BackendError: The cost of training cannot be measured.
        """
        experiment, others = self._experiment, runnable_tasks()
        with named_if_slow("the data set and the model"):
            dataset = load_examples(experiment, os.environ)
            artifact = task_of(experiment, dataset)
        self.task = PreparedTask(dataset, artifact)
        with named_if_slow("the cost of a training step"):
            costs = machine_costs_now(Probe.of(artifact, experiment.training), os.environ)
        speed = experiment.emulation.host_core_speed
        assert speed != "auto", "the plan has measured it"
        data = FleetData.planned(experiment, dataset, fleet_names(experiment))
        times = self._predict(experiment, data, artifact, TaskCosts.of(costs, speed))
        if times is None:
            return least
        delay = MachineDelay.of(experiment.coordinator().cohort_size, self._cores, others)
        return delay.sufficient_dilation(times, least)
