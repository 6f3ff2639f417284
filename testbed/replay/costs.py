"""The cost of local training in a replay, which is known before the first round.

    python -m fairbed.testbed.replay.costs          measures the shipped models on this machine,
    and prints the table

A replay must give the same bits on every machine, so `[replay] costs_from = "shipped"` takes the
numbers in this file. With the folder of a live run it takes those of the run, with `measured` those
of this machine. The replay writes the costs that it used into its `experiment.toml`.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fairbed.coordinator.policy.config import ExchangeConfig, TrainingConfig
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.tables import DeviceRow, ExchangeRow
from fairbed.coordinator.task.catalogue import load_task
from fairbed.coordinator.task.recipes import SHIPPED, default_recipe, find_shipped
from fairbed.testbed.emulation.work import TaskCosts, WorkCosts
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment
from fairbed.testbed.experiment.shards import task_of
from fairbed.testbed.host.calibration import BATCH, CLASSES, MODEL, SHAPE, Probe, measure
from fairbed.testbed.host.speed import REFERENCE_STEP_S, host_speed, machine_costs_now
from fairbed.testbed.recording.analysis.from_run import packing_of
from fairbed.testbed.recording.run_store import training_settings
from fairbed.testbed.run_folder import WORK
from fairbed.wire.artifact import encode_artifact
from fairbed.wire.console import print_line

SHIPPED_COSTS: Mapping[str, TaskCosts] = {
    "softmax-60-10": TaskCosts(
        step_s=0.00016,
        example_s=1.6e-06,
        evaluation_step_s=3.5e-05,
        evaluation_example_s=7.2e-07,
        load_s=0.002,
    ),
    "softmax-64-10": TaskCosts(
        step_s=0.00015,
        example_s=1.7e-06,
        evaluation_step_s=4.2e-05,
        evaluation_example_s=8.1e-07,
        load_s=0.0035,
    ),
    "softmax-784-10": TaskCosts(
        step_s=0.00018,
        example_s=3.6e-06,
        evaluation_step_s=4.8e-05,
        evaluation_example_s=1.2e-06,
        load_s=0.0036,
    ),
    "mlp-64-64-10": TaskCosts(
        step_s=0.00025,
        example_s=2.8e-06,
        evaluation_step_s=4.5e-05,
        evaluation_example_s=1.1e-06,
        load_s=0.0033,
    ),
    "mlp-784-318-10": TaskCosts(
        step_s=0.00039,
        example_s=2.3e-05,
        evaluation_step_s=0.00018,
        evaluation_example_s=1.2e-05,
        load_s=0.0057,
    ),
    "cnn-1x8x8-10": TaskCosts(
        step_s=0.0016,
        example_s=0.00027,
        evaluation_step_s=0.0003,
        evaluation_example_s=9.9e-05,
        load_s=0.023,
    ),
    "cnn-1x28x28-10": TaskCosts(
        step_s=0.0015,
        example_s=0.000775,
        evaluation_step_s=0.00018,
        evaluation_example_s=0.00023,
        load_s=0.023,
    ),
    "softmax-30-binary": TaskCosts(
        step_s=0.00017,
        example_s=1.4e-06,
        evaluation_step_s=1.2e-06,
        evaluation_example_s=1.2e-06,
        load_s=0.0024,
    ),
    "mlp-30-64-binary": TaskCosts(
        step_s=0.00026,
        example_s=2.4e-06,
        evaluation_step_s=7.1e-06,
        evaluation_example_s=1.7e-06,
        load_s=0.0037,
    ),
    "softmax-10-regression": TaskCosts(
        step_s=0.00014,
        example_s=1e-06,
        evaluation_step_s=1.5e-05,
        evaluation_example_s=6.9e-07,
        load_s=0.0015,
    ),
    "mlp-10-64-regression": TaskCosts(
        step_s=0.00022,
        example_s=1.8e-06,
        evaluation_step_s=2.6e-05,
        evaluation_example_s=1e-06,
        load_s=0.0028,
    ),
}
"""Seconds of one core of the reference machine, by name of a shipped task: medians of three
runs of this module on a virtual AMD EPYC at a load of 7, onnxruntime 1.31.1, to two digits. The
tasks with one output were measured later: their ratio to softmax-60-10 or mlp-64-64-10, of the
medians of three runs on a virtual Intel Xeon at a load of 5."""


def with_costs(experiment: Experiment, dataset: Dataset) -> Experiment:
    """Return the experiment with the costs of local training in `replay.task_costs`.

    Args:
        experiment: The experiment.
        dataset: Its data.

    Raises:
        ExperimentError: `replay.costs_from` names no source of these costs.
        TaskError: The model is not available.
        BackendError: The costs cannot be measured.
        PluginError: The local rule cannot be loaded, or breaks its contract.
    """
    if experiment.replay.task_costs is not None:
        return experiment
    found = _found(experiment, dataset)
    replay = msgspec.structs.replace(experiment.replay, task_costs=found)
    return msgspec.structs.replace(experiment, replay=replay)


def _found(experiment: Experiment, dataset: Dataset) -> TaskCosts:
    where, model = experiment.replay.costs_from, experiment.model.name
    recipe = find_shipped(model, dataset.x_shape, dataset.classes, dataset.kind)
    shipped = None if recipe is None else SHIPPED_COSTS[recipe.name]
    if where != "shipped":
        if where == "measured":
            return _measured(experiment, dataset)
        return _of_run(Path(where), experiment.exchange)
    if shipped is None:
        task_of(experiment, dataset)  # raises if there is no such model
        raise ExperimentError(
            f'replay.costs_from: must be a run that trained {model} or "measured", got "shipped", '
            f"which has the costs of {', '.join(SHIPPED_COSTS)} only"
        )
    return shipped


def _measured(experiment: Experiment, dataset: Dataset) -> TaskCosts:
    artifact = task_of(experiment, dataset)
    probe = Probe.of(artifact, experiment.training, experiment.exchange)
    speed = host_speed(os.environ).core_speed
    return TaskCosts.of(machine_costs_now(probe, os.environ), speed)


def _of_run(folder: Path, wanted: ExchangeConfig) -> TaskCosts:
    """Return the costs of a run: steps as charged, packing as measured.

    The cost of packing is 0 if the run used another codec than `wanted`.

    Raises:
        ExperimentError: The run has not measured its costs.
    """
    try:
        experiment = load_experiment(folder / "experiment.toml")
        if experiment.replay.task_costs is not None:
            return _packing_by(experiment.replay.task_costs, experiment.exchange, wanted)
        costs = msgspec.json.decode((folder / WORK).read_bytes(), type=WorkCosts)
        exchanges, devices = _rows(folder)
    except (ExperimentError, StoreError, OSError, msgspec.DecodeError) as exc:
        raise ExperimentError(
            f'replay.costs_from: must be "shipped", "measured" or the folder of a run of emulated '
            f"devices, got {str(folder)!r}: {exc}"
        ) from exc
    speed = experiment.emulation.host_core_speed
    if speed == "auto":
        speed = host_speed(os.environ).core_speed
    steps = TaskCosts.of(costs, speed)
    if not exchanges:
        return steps
    training = training_settings(folder, experiment, costs, speed)
    packing = packing_of(exchanges, devices, training, wanted)
    return msgspec.structs.replace(steps, decode_s=packing.decode_s, encode_s=packing.encode_s)


def _rows(folder: Path) -> tuple[list[ExchangeRow], list[DeviceRow]]:
    """Return the exchanges and devices of a run; none if the run has no store."""
    if not (folder / DATABASE).exists():
        return [], []
    with RunReader(folder) as reader:
        return reader.exchanges(), reader.devices()


def _packing_by(costs: TaskCosts, used: ExchangeConfig, wanted: ExchangeConfig) -> TaskCosts:
    """Return the costs without those of packing by codecs that are not `wanted`."""
    return msgspec.structs.replace(
        costs,
        decode_s=costs.decode_s if used.down == wanted.down else 0.0,
        encode_s=costs.encode_s if used.up == wanted.up else 0.0,
    )


def main() -> int:
    """Measure the shipped tasks on this machine; print them in the form of `SHIPPED_COSTS`.

    All costs are scaled so that a step of the default task takes `REFERENCE_STEP_S`.
    """
    hyperparameters = TrainingConfig(batch_size=BATCH).hyperparameters(1)
    measured_here = {}
    for recipe in SHIPPED:
        blob = encode_artifact(load_task(recipe.model, recipe.x_shape, recipe.classes, recipe.kind))
        probe = Probe(artifact=blob, hyperparameters=hyperparameters)
        measured_here[recipe.name] = measure(probe).costs
    default = measured_here[default_recipe(MODEL, SHAPE, CLASSES).name]
    speed = REFERENCE_STEP_S / default.train.seconds(BATCH)
    for name, costs in measured_here.items():
        numbers = msgspec.structs.asdict(TaskCosts.of(costs, speed))
        arguments = ", ".join(f"{key}={value:.3g}" for key, value in numbers.items())
        print_line(f'    "{name}": TaskCosts({arguments}),', sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
