"""From an experiment to the world that is replayed, and what is known of its devices."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Sample, TwoStepSelector
from fairbed.coordinator.policy.decisions import Decisions, make_decisions
from fairbed.coordinator.policy.factories import make_selector
from fairbed.coordinator.store.tables import DeviceRow, Record
from fairbed.coordinator.task.catalogue import load_task
from fairbed.profiles import Profile
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.datasets.loading import load
from fairbed.testbed.experiment.file import Experiment, ExperimentError, FleetConfig
from fairbed.testbed.experiment.fleet import MAX_NAME, PlannedDevice, plan_fleet
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.replay.checkpointer import Told
from fairbed.testbed.replay.costs import with_costs
from fairbed.testbed.replay.engine.rows import device_rows, linear_rows
from fairbed.testbed.replay.vector_fleet import DeviceNames, is_vector_fleet, vector_fleet_of
from fairbed.testbed.replay.world.columns import Moving, Steady, columns_of
from fairbed.testbed.replay.world.linear import LinearLaw, LinearWorld
from fairbed.testbed.replay.world.profile_world import ProfileWorld
from fairbed.testbed.replay.world.work import Sizes, Work
from fairbed.testbed.replay.world.world import World
from fairbed.wire.codecs import CODECS
from fairbed.wire.messages import Capabilities

FORWARD_RATIO = 1 / 3
"""A pass forward, of a pass forward and back: what counts is products, and back takes two for each
one forward. Of the shipped models it is 0.3 to 0.5 (`testbed.replay.costs`)."""

_LABEL_BYTES = 8
"""Of a label in a shard."""


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    """A world with its decisions, and what is known of it before the first round."""

    experiment: Experiment
    """With all that had to be found out written in: it gives the same world again."""
    names: Sequence[str]
    """Of the devices, by row."""
    world: World
    decisions: Decisions
    rows: Sequence[Record]
    """Devices, and what is true of them; of a crowd none."""
    data: FleetData | None = None
    """Who holds which examples; None where nobody asked."""
    told: Told | None = None
    """Of a crowd, the rows of one device."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part in a linear world: one entry a device, in the order of rows."""

    names: DeviceNames
    groups: tuple[str, ...]
    laws: tuple[LinearLaw, ...]


def setup_of(experiment: Experiment) -> ReplaySetup:
    """Return the world of an experiment.

    Raises:
        ExperimentError: Its fleet cannot be replayed.
        ProfileError: A profile, link or trace is unknown, or breaks a rule.
        DatasetError: Its data cannot be had, or not be divided so.
        TaskError: Its model cannot be had.
        BackendError: The cost of training was to be measured and cannot be.
    """
    if not experiment.fleet:
        raise ExperimentError(
            "fleet: a replay needs devices, got none; add [[fleet]] with a profile, a population "
            'or model = "linear"'
        )
    if (
        isinstance(make_selector(experiment.selection), TwoStepSelector)
        and not experiment.trains_in_replay
    ):
        raise ExperimentError(
            "selection: a policy that asks devices for the loss of the model needs one that is "
            f"trained, got {experiment.selection.policy!r} in a replay without training; leave out "
            'what keeps it from training, or use variant = "rpow-d"'
        )
    if all(group.model is None for group in experiment.fleet):
        return _profile_stage(experiment)
    return _linear_stage(experiment)


def cast_of(experiment: Experiment) -> Cast:
    """Return the devices of an experiment whose fleet is linear.

    Raises:
        ExperimentError: A group is of another kind, or a name would be too long.
    """
    named, groups, laws = list[tuple[str, int]](), list[str](), list[LinearLaw]()
    for number, group in enumerate(experiment.fleet):
        if group.model is None or group.theta is None:
            raise ExperimentError(
                f'fleet[{number}].model: must be "linear" for all groups or for none, got a '
                "profile beside it; replay them one by one"
            )
        prefix = group.name or f"linear-{number + 1}"
        if len(f"{prefix}-{group.count}") > MAX_NAME:
            raise ExperimentError(
                f"fleet[{number}].name: must leave room for the device's number, got {prefix!r}; "
                "give a shorter name"
            )
        named.append((prefix, group.count))
        groups += [prefix] * group.count
        laws += [_law(group, group.theta)] * group.count
    if len({prefix for prefix, _ in named}) < len(named):
        raise ExperimentError("fleet: names must differ, got a name twice; name the groups apart")
    return Cast(DeviceNames(named), tuple(groups), tuple(laws))


def _law(group: FleetConfig, theta: tuple[float, float, float]) -> LinearLaw:
    return LinearLaw(
        theta=theta,
        mu=group.mu,
        bandwidth_bps=group.bandwidth_bps,
        availability=group.availability,
        noise=group.noise,
    )


def _linear_stage(experiment: Experiment) -> ReplaySetup:
    cast, data = cast_of(experiment), None
    examples: Ints = np.ones(len(cast.names), dtype=np.int64)
    if experiment.trains_in_replay:
        dataset = load(experiment.data, experiment.seed_for("data"), os.environ)
        data, examples = _examples(experiment, dataset, cast.names)
    seed = experiment.seed_for("traces")

    def told(row: int) -> list[Record]:
        law, n_k = cast.laws[row], int(examples[row])
        return linear_rows(row, cast.names[row], cast.groups[row], law, n_k)

    is_listed, decisions = not is_vector_fleet(experiment), make_decisions(experiment.coordinator())
    ratio, bits = _answer_ratio(experiment, decisions, examples), experiment.replay.update_bits
    return ReplaySetup(
        experiment=experiment,
        names=cast.names,
        world=LinearWorld(cast.laws, bits, seed, examples, ratio),
        decisions=decisions,
        rows=device_rows(cast.names, cast.groups, cast.laws, examples) if is_listed else (),
        data=data,
        told=None if is_listed else told,
    )


def _profile_stage(experiment: Experiment) -> ReplaySetup:
    for number, group in enumerate(experiment.fleet):
        if group.profile is None and group.population is None:
            raise ExperimentError(
                f"fleet[{number}].profile: must be given for a replay, got none: what this machine "
                "is nobody wrote down; fairbed record does"
            )
    if is_vector_fleet(experiment):
        return _crowd_stage(experiment)
    devices = plan_fleet(_in_reference_cores(experiment), os.environ)
    names = [device.spec.name for device in devices]
    dataset = load(experiment.data, experiment.seed_for("data"), os.environ)
    experiment = with_costs(experiment, dataset)
    data, examples = _examples(experiment, dataset, names)
    world, decisions = _world(experiment, dataset, columns_of(devices), examples)
    rows = [*_told(devices, examples), *(device.truth_row() for device in devices)]
    return ReplaySetup(experiment, names, world, decisions, rows, data)


def _crowd_stage(experiment: Experiment) -> ReplaySetup:
    if experiment.replay.examples is None:
        raise ExperimentError(
            f"replay.examples: must be given for {experiment.devices:,} devices, got none: no data "
            "set can be divided among so many; 200 is usual"
        )
    crowd = vector_fleet_of(experiment)
    dataset = load(experiment.data, experiment.seed_for("data"), os.environ)
    experiment = with_costs(experiment, dataset)
    data, examples = _examples(experiment, dataset, crowd.names)
    world, decisions = _world(experiment, dataset, (crowd.steady, crowd.moving), examples)
    world.slots = None  # a coordinator of so many has room for the uploads of a whole cohort
    told = partial(crowd.told, examples=examples)
    return ReplaySetup(experiment, crowd.names, world, decisions, (), data, told)


def _world(
    experiment: Experiment, dataset: Dataset, columns: tuple[Steady, Moving], examples: Ints
) -> tuple[ProfileWorld, Decisions]:
    """Return the world of a fleet whose costs of training are known, and who decides in it."""
    config, decisions = experiment.coordinator(), make_decisions(experiment.coordinator())
    artifact = load_task(experiment.model.name, dataset.x_shape, dataset.classes)
    costs = experiment.replay.task_costs
    assert costs is not None, "with_costs gave it"
    world = ProfileWorld(
        *columns,
        Sizes.of(config, artifact.spec.layout),
        Work.of(
            config,
            costs,
            examples,
            examples * (dataset.x[:1].nbytes + _LABEL_BYTES),
            needs_loss=decisions.aggregator.needs_loss,
            sample=_sample(decisions),
        ),
        seed=experiment.seed_for("traces"),
        noise=experiment.replay.noise,
        deadline_s=experiment.round.late_limit_s or experiment.round.deadline_s,
        limit_s=experiment.selection.loss_query_timeout_s,
    )
    return world, decisions


def _sample(decisions: Decisions) -> Sample | None:
    """Return what a selection has evaluated beforehand; None if it asks nobody."""
    selector = decisions.selector
    return selector.sample if isinstance(selector, TwoStepSelector) else None


def _answer_ratio(experiment: Experiment, decisions: Decisions, examples: Ints) -> Floats:
    """Return what finding a loss takes of training in a linear world, shape (N,)."""
    sample, training = _sample(decisions), experiment.training
    if sample is None:
        return np.zeros(len(examples))
    looked_at = np.minimum(examples, training.batch_size) if sample == "batch" else examples
    ratio: Floats = FORWARD_RATIO * looked_at / (training.epochs * examples)
    return ratio


def _in_reference_cores(experiment: Experiment) -> Experiment:
    """Return an experiment that emulates on the reference machine: on none of this world."""
    emulation = msgspec.structs.replace(experiment.emulation, host_core_speed=1.0)
    return msgspec.structs.replace(experiment, emulation=emulation)


def _examples(
    experiment: Experiment, dataset: Dataset, names: Sequence[str]
) -> tuple[FleetData | None, Ints]:
    """Return who holds which examples, and how many each has, shape (N,)."""
    fixed = experiment.replay.examples
    if fixed is not None:
        return None, np.full(len(names), fixed, dtype=np.int64)
    data = FleetData(
        dataset,
        experiment.data,
        devices=len(names),
        seed=experiment.seed_for("data"),
        names=names,
    )
    return data, np.array([len(rows) for rows in data.train_rows], dtype=np.int64)


def _told(devices: Sequence[PlannedDevice], examples: Ints) -> list[Record]:
    """Return what the devices would say when they join."""
    return [
        DeviceRow(
            name=device.spec.name,
            row=row,
            first_seen_s=0.0,
            n_k=int(examples[row]),
            capabilities=msgspec.json.encode(_capabilities(device.profile)).decode(),
            has_own_data=False,
        )
        for row, device in enumerate(devices)
        if device.profile is not None
    ]


def _capabilities(profile: Profile) -> Capabilities:
    return Capabilities(
        cores=profile.cores,
        memory_bytes=profile.memory_bytes,
        machine="replayed",
        python="",
        engine="none",
        engine_threads=profile.engine_threads,
        agent=version("fairbed"),
        model=profile.title,
        codecs=tuple(CODECS),
    )
