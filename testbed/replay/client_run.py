"""A client in a replay: sizes and times are those of a finished live run of it.

Only devices have the code of a client, so nothing is trained. Of the run come the cost of an
example, the medians of loading and coding, the examples of each device, and the size of a model.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.connection import CONFIG
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.emulation.work import StepCost, TaskCosts, passes_s
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment
from fairbed.testbed.host.speed import host_speed
from fairbed.testbed.recording.run_store import is_emulated
from fairbed.testbed.replay.vector_fleet import is_vector_fleet
from fairbed.testbed.replay.world.work import steps_of
from fairbed.wire.tensors import Layout, Tensor

ELSEWHERE = ("shipped", "measured")
"""Values of `replay.costs_from` that are no run."""


@dataclass(frozen=True, slots=True)
class ClientRun:
    """What a live run has measured of a client."""

    layout: Layout
    """The floats of the client as one tensor."""
    raw_bytes: int
    """Of the last model, beside its floats."""
    costs: TaskCosts
    n_k: dict[str, int]
    """Examples by device."""
    line: str
    """Where the times come from, for people."""

    def examples(self, names: Sequence[str]) -> Ints:
        """Return the examples of devices, shape (N,): the median of the run for others."""
        typical = round(median(self.n_k.values()))
        return np.array([self.n_k.get(name, typical) for name in names], np.int64)


def client_problem(experiment: Experiment) -> str:
    """Return why a client cannot be replayed; empty if it can, or if there is none."""
    client, replay = experiment.training.client, experiment.replay
    if client is None:
        return ""
    if experiment.trains_in_replay or replay.costs_from in ELSEWHERE:
        return (
            f"training.client: must be left out of a replay that trains, got {client!r}, whose "
            "code only devices have; for selection and times alone, name a finished live run of "
            "it: fairbed replay RUN/experiment.toml --no-training --set replay.costs_from=RUN"
        )
    if is_vector_fleet(experiment) or any(group.model is not None for group in experiment.fleet):
        return (
            "fleet: must be devices with profiles, planned one by one, in a replay of a client, "
            f"got {experiment.devices:,} others; replay a smaller fleet with profiles"
        )
    return ""


def read_client_run(experiment: Experiment) -> ClientRun:
    """Return what the run in `replay.costs_from` has measured of the client of an experiment.

    Raises:
        ExperimentError: It is no finished run of this client with emulated devices.
    """
    folder, client = Path(experiment.replay.costs_from), experiment.training.client or ""
    where = f"replay.costs_from {str(folder)!r}: must be a live run of {client} on emulated devices"
    try:
        live = load_experiment(folder / CONFIG)
        with RunReader(folder) as reader:
            model, raw = reader.final_model(), reader.final_raw()
            devices = {row.name: row for row in reader.devices()}
            exchanges = [x for x in reader.exchanges() if x.outcome == "done"]
            slowed = {row.name: row.cpu_speed for row in reader.truths() if is_emulated(row)}
    except (ExperimentError, StoreError) as exc:
        raise ExperimentError(f"{where}, got {exc}") from exc
    if live.training.client != client:
        raise ExperimentError(f"{where}, got one of {live.training.client or live.model.name}")
    measured = [x for x in exchanges if devices[x.device].kind == "emulated" and x.train_cpu_s]
    if not measured or model is None:
        raise ExperimentError(f"{where}, got one without a finished exchange of such a device")
    speed = live.emulation.host_core_speed
    if speed == "auto":
        speed = host_speed(os.environ).core_speed
    n_k = {name: row.n_k for name, row in devices.items()}
    n_k |= {x.device: x.n_k for x in measured}
    n_values = len(model[1])
    tensors = (Tensor(name="floats", shape=(n_values,), offset=0),) if n_values else ()
    return ClientRun(
        layout=Layout(tensors=tensors),
        raw_bytes=len(raw),
        costs=experiment.replay.task_costs or _costs(live, measured, speed, slowed),
        n_k={name: n for name, n in n_k.items() if n > 0},
        line=f"nothing is trained: the times of {client} are medians of {len(measured)} exchanges "
        f"of {len({x.device for x in measured})} devices in {folder} (replay.costs_from), per "
        "example and scaled to the speed of each device",
    )


def _costs(
    live: Experiment,
    exchanges: Sequence[ExchangeRow],
    speed: float,
    slowed: Mapping[str, float],
) -> TaskCosts:
    """Return medians over exchanges, in reference seconds.

    Args:
        live: Experiment of the run.
        exchanges: Its finished exchanges, with the processor time of training.
        speed: Speed of the machine of the run, in cores of the reference machine.
        slowed: Speeds of devices that have not that of the machine, by name.
    """
    n_k = np.array([x.n_k for x in exchanges], np.int64)
    steps = steps_of(live.training.hyperparameters(1), n_k)
    passed = passes_s(
        StepCost(fixed_s=0.0, per_example_s=1.0), n_k, steps, live.training.batch_size
    )
    work_s = speed * np.array([x.train_cpu_s for x in exchanges], np.float64)

    def reference_s(times: Iterable[tuple[str, float | None]]) -> float:
        """Return the median of times of devices."""
        found = [slowed.get(name, speed) * time_s for name, time_s in times if time_s is not None]
        return median(found) if found else 0.0

    return TaskCosts(
        step_s=0.0,
        example_s=float(np.median(work_s / np.maximum(passed, 1.0))),
        evaluation_step_s=0.0,
        evaluation_example_s=0.0,
        load_s=reference_s((x.device, x.load_s) for x in exchanges if x.was_cold),
        decode_s=reference_s((x.device, x.decode_s) for x in exchanges),
        encode_s=reference_s((x.device, x.encode_s) for x in exchanges),
    )


def with_costs_of(experiment: Experiment, run: ClientRun) -> Experiment:
    """Return the experiment with the costs of a client in `replay.task_costs`."""
    replay = msgspec.structs.replace(experiment.replay, task_costs=run.costs)
    return msgspec.structs.replace(experiment, replay=replay)
