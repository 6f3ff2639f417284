"""Reads the rows of one device, and the costs of training, from the store of a run."""

import os
from pathlib import Path

import anyio
import msgspec
import numpy as np

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import TruthRow
from fairbed.profiles.load import near_names
from fairbed.testbed.emulation.work import LengthCosts, WorkCosts
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
        of_lengths = zip(
            replayed.shorter,
            replayed.train_of_lengths,
            replayed.evaluate_of_lengths,
            strict=False,  # the last costs are of the longest
        )
        costs = WorkCosts(
            train=replayed.train,
            evaluate=replayed.evaluate,
            memory=replayed.memory,
            shorter=tuple(
                LengthCosts(length=each.length, train=train, evaluate=evaluate)
                for each, train, evaluate in of_lengths
            ),
        )
        return training_settings(folder, experiment, costs, 1.0)
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
    return training_settings(folder, experiment, costs, speed)


def training_settings(
    folder: Path, experiment: Experiment, costs: WorkCosts, speed: float
) -> TrainingSettings:
    """Return the settings of training in a run.

    Its devices may choose their micro-batches, and have sequences of several lengths.

    Args:
        folder: Folder of the run.
        experiment: Its experiment.
        costs: Costs of its steps.
        speed: Speed of the machine that measured them, in cores of the reference machine.

    Raises:
        DatasetError: The data can no longer be loaded and divided.
        StoreError: The store cannot be read.
    """
    training, fitting = experiment.training, None
    if training.micro_batch == "auto" and costs.memory is not None:
        fitting = fitting_of(training, _artifact(experiment).spec, costs.memory)
    counts, counts_of = _counts(folder, experiment) if costs.shorter else ((), {})
    return TrainingSettings(
        training.personal_epochs + training.epochs,
        training.batch_size,
        costs,
        speed,
        training.part_size,
        fitting,
        counts,
        counts_of,
        training.gradients_per_step,
    )


def _counts(
    folder: Path, experiment: Experiment
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Return how many sequences have each padded length: of all data, and of each device.

    Devices with own data are left out, and all devices of a replay whose data are not divided.
    """
    from fairbed.testbed.experiment.shards import FleetData, StoredShards, load_examples

    dataset = load_examples(experiment, os.environ)
    places, n = dataset.bucket_places, len(dataset.buckets)
    of_all = tuple(np.bincount(places, minlength=n).tolist())
    with RunReader(folder) as reader:
        devices, is_replay = reader.devices(), reader.run().row.clock == "virtual"
    by_name = {device.name: device.row for device in devices}
    shards = by_name if is_replay else StoredShards.read(folder) or {}
    if experiment.replay.examples is not None or not shards:
        return of_all, {}
    data = FleetData(
        dataset,
        experiment.data,
        devices=experiment.shards,
        seed=experiment.seed_for("data"),
        fold=experiment.validation_fold,
        assignments=shards,
    )
    places = data.dataset.bucket_places
    found = {
        device.name: np.bincount(places[data.train_rows[shards[device.name]]], minlength=n)
        for device in devices
        if device.name in shards and not device.has_own_data
    }
    return of_all, {name: tuple(counts.tolist()) for name, counts in found.items()}


def _artifact(experiment: Experiment) -> Artifact:
    from fairbed.testbed.experiment.shards import load_examples, task_of

    dataset = load_examples(experiment, os.environ)
    return task_of(experiment, dataset)
