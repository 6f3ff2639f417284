"""The emulated twins of the physical devices of a run: its exchanges, replayed under a profile.

Each exchange of the device is replayed with its own bytes, codecs, steps and cold start, at its own
instant of the run. So the two differ by the profile alone.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.profiles import Profile, device_tracks
from fairbed.profiles.traces import TraceReader
from fairbed.testbed.backends.base import device_spec
from fairbed.testbed.emulation.heat import Heat
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.errors import RunError
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.experiment.fleet import PlannedDevice
from fairbed.testbed.experiment.shards import load_examples
from fairbed.testbed.recording.analysis.from_run import (
    TrainingSettings,
    findings_of_run,
    packing_of,
    valid,
)
from fairbed.testbed.recording.analysis.twin import PHASES, PhaseTimes, PhaseTwin, compare_phases
from fairbed.testbed.recording.run_store import CONFIG, is_emulated, read_device, read_training
from fairbed.testbed.replay.world.columns import columns_of
from fairbed.testbed.replay.world.phases import MESSAGES, NOISY, CohortRequest, PhaseModel
from fairbed.testbed.replay.world.tcp_links import TcpLinks
from fairbed.testbed.replay.world.work import Sizes, Work

MIN_EXCHANGES = 3
"""Fewer valid exchanges have no meaningful median."""

GIVE_UP_S = 3600.0
"""A phase of a twin that takes longer never ends."""


class DeviceTwin(Struct, frozen=True, kw_only=True):
    """One device beside its twin."""

    device: str
    profile: str
    """File of the profile."""
    exchanges: int
    """Valid exchanges that were compared."""
    phases: list[PhaseTwin]


class Task(Struct, frozen=True, kw_only=True):
    """The task of a run: what an exchange costs, whatever the device."""

    config: CoordinatorConfig
    training: TrainingSettings
    costs: TaskCosts
    example_bytes: int
    """Size of one example on the storage."""


def physical_devices(folder: Path) -> list[str]:
    """Return the physical devices of a run; without any, those that the testbed did not slow down.

    Raises:
        StoreError: The store cannot be read.
    """
    with RunReader(folder) as reader:
        emulated = {row.name for row in reader.truths() if is_emulated(row)}
        devices = reader.devices()
    physical = [row.name for row in devices if row.kind == "physical"]
    return physical or [row.name for row in devices if row.name not in emulated]


def read_task(folder: Path) -> Task:
    """Return the task of a run; the costs of its steps are measured here if it has none.

    Raises:
        BackendError: The costs cannot be measured.
        DatasetError: The data cannot be loaded.
        ExperimentError: The experiment cannot be read.
        StoreError: The store cannot be read.
    """
    experiment, training = load_experiment(folder / CONFIG), read_training(folder)
    dataset = load_examples(experiment, os.environ)
    costs = TaskCosts.of(training.costs, training.core_speed)
    with RunReader(folder) as reader:
        exchanges, devices = reader.exchanges(), reader.devices()
    packing = packing_of(exchanges, devices, training, experiment.exchange)
    return Task(
        config=experiment.coordinator(),
        training=training,
        costs=msgspec.structs.replace(costs, decode_s=packing.decode_s, encode_s=packing.encode_s),
        example_bytes=dataset.example_bytes,
    )


def compare_device(folder: Path, name: str, path: Path, profile: Profile, task: Task) -> DeviceTwin:
    """Return a device of a run beside the twin of this profile.

    Raises:
        NoSuchDevice: The device never joined the run.
        RunError: The device has too few valid exchanges.
        StoreError: The store cannot be read.
    """
    device = read_device(folder, name)
    training = task.training.of_device(device.row)
    of_device = msgspec.structs.replace(task, training=training)
    exchanges = [
        x
        for x in valid(device.exchanges)
        if x.tau_s is not None and training.reference_s(x.n_k, x.steps) is not None
    ]
    if len(exchanges) < MIN_EXCHANGES:
        raise RunError(
            f"{name}: needs {MIN_EXCHANGES} valid exchanges in {folder}, got {len(exchanges)} of "
            f"{len(device.exchanges)}; run more rounds"
        )
    findings = findings_of_run(device, task.training)
    rows = compare_phases(
        exchanges, profile, findings, lambda candidate: twin_phases(candidate, exchanges, of_device)
    )
    return DeviceTwin(device=name, profile=str(path), exchanges=len(exchanges), phases=rows)


def twin_phases(
    profile: Profile,
    exchanges: Sequence[ExchangeRow],
    task: Task,
    environ: Mapping[str, str] = os.environ,
) -> PhaseTimes:
    """Return the phases of exchanges under a profile, without random noise.

    A trace begins with the run, and a device that heats up is cool at each dispatch.

    Raises:
        TraceError: A trace of the profile cannot be read.
    """
    rng = np.random.Generator(np.random.PCG64(0))
    tracks = device_tracks(profile, profile.link, TraceReader(environ), rng)
    spec = device_spec(profile.name, profile, profile.link)
    conditions = columns_of([PlannedDevice(spec, profile, profile.link, tracks)])
    tcp = TcpLinks(conditions[1])
    found: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for x in exchanges:
        model = PhaseModel(*conditions, _sizes(x), _work(x, task), GIVE_UP_S, tcp)
        heat = None if profile.thermal is None else Heat(profile.thermal, x.dispatched_at_s)
        replayed = model.exchanges(_request(x, profile), {} if heat is None else {0: heat})
        for phase, times in found.items():
            times.append(float(getattr(replayed, phase)[0]))
    return {phase: np.array(times) for phase, times in found.items()}


def _request(x: ExchangeRow, profile: Profile) -> CohortRequest:
    return CohortRequest(
        now=x.dispatched_at_s,
        rows=np.zeros(1, dtype=np.int64),
        is_cold=np.array([bool(x.was_cold)]),
        is_packed=np.array([x.codec_down != "float32"]),
        has_model=np.array([x.bytes_down == 0]),
        up_bps=np.array([profile.link.up_bps]),
        noise_factors=np.ones((len(NOISY), 1)),
        delay_noise=np.zeros((MESSAGES, 1)),
        tcp_seeds=np.array([x.round]),
    )


def _sizes(x: ExchangeRow) -> Sizes:
    """Return the sizes of an exchange as it was."""
    down_bytes = max(x.bytes_down, 1)  # 0 for a device that holds the model
    return Sizes(
        whole_bytes=down_bytes,
        packed_bytes=down_bytes,
        codec_down=x.codec_down,
        is_delta=False,
        up_bytes=max(x.bytes_up, 1),
        codec_up=x.codec_up,
        slots=1,
    )


def _work(x: ExchangeRow, task: Task) -> Work:
    """Return the work of an exchange: the steps that the device made."""
    examples, steps = np.array([x.n_k]), np.array([x.steps])
    work = Work.of(
        task.config,
        task.costs,
        examples,
        examples * task.example_bytes,
        needs_loss=x.loss_before is not None,
        lengths=task.training.lengths_of(x.n_k),
    )
    train_s = task.training.reference_s(x.n_k, x.steps)
    assert train_s is not None, "the exchanges were chosen so"
    return replace(work, steps=steps, train_s=np.array([train_s]))
