"""Reads the rows of one device, and the costs of training, from the store of a run."""

import os
from pathlib import Path

import anyio
import msgspec

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import TruthRow
from fairbed.profiles.load import near_names
from fairbed.testbed.emulation.work import WorkCosts
from fairbed.testbed.errors import BackendError
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.memory import fitting_of
from fairbed.testbed.host.speed import host_speed, work_costs
from fairbed.testbed.recording.analysis.from_run import DeviceOfRun, TrainingSettings
from fairbed.wire.artifact import Artifact
from fairbed.wire.messages import Capabilities

CONFIG = "experiment.toml"


class NoSuchDevice(Exception):
    """The run has no device of this name; the message lists similar names."""


def read_device(folder: Path, name: str) -> DeviceOfRun:
    """Return the rows of a device in the store of a run.

    Raises:
        NoSuchDevice: The device never joined.
        StoreError: The store cannot be read.
    """
    with RunReader(folder) as reader:
        rows = {row.name: row for row in reader.devices()}
        row = rows.get(name)
        if row is None:
            near = near_names(name, sorted(rows))
            hint = f"similar names: {', '.join(near)}; " if near else ""
            joined = ", ".join(sorted(rows)[:20]) or "no devices"
            raise NoSuchDevice(f"{name}: no such device in {folder}; {hint}there are {joined}")
        info, telemetry = reader.run(), reader.telemetry_of(name)
        return DeviceOfRun(
            row=row,
            capabilities=msgspec.json.decode(row.capabilities, type=Capabilities),
            exchanges=reader.exchanges_of(name, limit=-1),
            telemetry=telemetry,
            # The elapsed time ends with the last closed round; contexts may be later.
            length_s=max([info.elapsed_s, *(row.at_s for row in telemetry[-1:])]),
            run_created=info.row.created,
        )


def is_emulated(truth: TruthRow) -> bool:
    """Return whether the testbed slowed a device down, to the speed of a profile."""
    return truth.profile != "this-machine"


def read_training(folder: Path) -> TrainingSettings:
    """Return the settings of local training in a run, and the costs of its steps.

    A run with emulated devices stores the costs; a replay has them in its configuration. A run of
    physical devices has no costs: its steps are run on this machine for about a second, and the
    result is stored in the folder.

    Raises:
        BackendError: The costs cannot be measured.
        ExperimentError: The experiment cannot be read.
        StoreError: The store cannot be read.
    """
    experiment = load_experiment(folder / CONFIG)
    if (replayed := experiment.replay.task_costs) is not None:
        costs = WorkCosts(train=replayed.train, evaluate=replayed.evaluate, memory=replayed.memory)
        return training_settings(experiment, costs, 1.0)
    speed = experiment.emulation.host_core_speed
    with RunReader(folder) as reader:
        has_emulated = any(map(is_emulated, reader.truths()))
    if speed == "auto" or not has_emulated:
        speed = host_speed(os.environ).core_speed
    try:
        probe = Probe.of(_artifact(experiment), experiment.training)
        costs = anyio.run(work_costs, folder, probe)
    except OSError as exc:
        raise BackendError(f"{folder}: must be writable to keep what steps cost: {exc}") from exc
    return training_settings(experiment, costs, speed)


def training_settings(experiment: Experiment, costs: WorkCosts, speed: float) -> TrainingSettings:
    """Return the settings of training in a run, whose devices may choose their micro-batches."""
    training, fitting = experiment.training, None
    if training.micro_batch == "auto" and costs.memory is not None:
        fitting = fitting_of(training, _artifact(experiment).spec, costs.memory)
    return TrainingSettings(
        training.epochs, training.batch_size, costs, speed, training.part_size, fitting
    )


def _artifact(experiment: Experiment) -> Artifact:
    from fairbed.testbed.experiment.shards import load_examples, task_of

    dataset = load_examples(experiment, os.environ)
    return task_of(experiment.model, dataset)
