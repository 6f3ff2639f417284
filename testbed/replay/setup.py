"""Sets up a replay: the world of an experiment, its decisions and the records of its devices."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Sample, TwoStepSelector
from fairbed.coordinator.policy.config import LOCAL_RULES
from fairbed.coordinator.policy.decisions import Decisions, make_decisions
from fairbed.coordinator.policy.factories import make_selector
from fairbed.coordinator.store.tables import DeviceRow, Record
from fairbed.device_agent.installed import agent_version
from fairbed.profiles import Profile
from fairbed.testbed.emulation.conditions import Congestion
from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.emulation.power import PhasePower, phase_power
from fairbed.testbed.emulation.work import TaskCosts, share_of
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import Experiment, ExperimentError, FleetConfig
from fairbed.testbed.experiment.fleet import (
    MAX_EMULATED,
    MAX_NAME,
    PlannedDevice,
    attacks_of,
    exchange_log_of,
    plan_fleet,
    unlikely_numbers,
)
from fairbed.testbed.experiment.shards import FleetData, load_examples, task_of
from fairbed.testbed.host.memory import fitting_of
from fairbed.testbed.inputs import InputReader, Inputs
from fairbed.testbed.replay.checkpointer import DeviceRecords
from fairbed.testbed.replay.costs import SHIPPED_COSTS, with_costs
from fairbed.testbed.replay.engine.rows import device_rows, linear_rows
from fairbed.testbed.replay.vector_fleet import DeviceNames, is_vector_fleet, vector_fleet_of
from fairbed.testbed.replay.world.columns import (
    MeanConditions,
    VaryingConditions,
    columns_of,
    is_interrupted,
    loses_packets,
)
from fairbed.testbed.replay.world.linear import LinearLaw, LinearWorld
from fairbed.testbed.replay.world.profile_world import ProfileWorld
from fairbed.testbed.replay.world.recorded_times import LoggedGroup, RecordedTimes
from fairbed.testbed.replay.world.work import Sizes, Work
from fairbed.testbed.replay.world.world import World
from fairbed.testbed.run.memory import part_sizes, unknown_memory
from fairbed.testbed.run.preflight import (
    PreflightFinding,
    engine_findings,
    settings_findings,
    source_findings,
)
from fairbed.wire.artifact import Artifact
from fairbed.wire.messages import CODECS, Capabilities
from fairbed.wire.tensors import Layout

FORWARD_RATIO = 1 / 3
"""Cost of a forward pass relative to a training pass, counted in matrix products: a backward pass
takes two for each one of the forward pass. The shipped models have 0.3 to 0.5
(`testbed.replay.costs`)."""


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    """A world with its decisions, and the records of its devices before the first round."""

    experiment: Experiment
    """The experiment with all measured settings resolved: it gives the same world again."""
    names: Sequence[str]
    """Names of the devices, by row."""
    world: World
    decisions: Decisions
    rows: Sequence[Record]
    """Reported and true values of the devices; empty for a vector fleet."""
    data: FleetData | None = None
    """Partition of the data set; None if the number of examples per device is fixed."""
    device_records: DeviceRecords | None = None
    """Of a vector fleet, the records of the device of a row; None for other fleets."""
    attacks: Mapping[int, Attack] = field(default_factory=dict)
    """Behaviour of each malicious device, by its row."""
    powers: Sequence[PhasePower] = ()
    """Power of each device, by its row; empty if it is unknown."""
    artifact: Artifact | None = None
    """The task; None if the world does not depend on it."""
    left_out: str | None = None
    """What this replay leaves out of the fleet's links, as a line; None is nothing."""
    unlikely: Sequence[str] = ()
    """Numbers of links that are likely those of another unit, as lines."""
    inputs: Inputs = field(default_factory=Inputs)
    """Hashes of what was read."""
    part_sizes: Ints | None = None
    """Examples that each device computes at once, shape (N,), where its memory decides it."""
    costs_of: str = ""
    """Where the times of a client come from, as a line."""

    def findings(self) -> Iterator[PreflightFinding]:
        """Yield the warnings about settings before the first round."""
        data, trains = self.data, self.experiment.trains_in_replay
        n_k = None if data is None else np.array([len(rows) for rows in data.train_rows])
        yield from settings_findings(self.experiment, trains=trains, n_k=n_k)
        yield from source_findings(self.inputs)
        if self.left_out is not None:
            yield PreflightFinding("not-replayed", self.left_out, "warning")
        if (costs := self.experiment.replay.task_costs) is not None:
            yield from unknown_memory(self.experiment.model.name, costs.work, costs.memory)
        if self.costs_of:
            yield PreflightFinding("costs", self.costs_of, "warning")
        for line in self.unlikely:
            yield PreflightFinding("magnitude", line, "warning")
        if self.artifact is not None:
            yield from engine_findings(self.artifact)
        replay, rule = self.experiment.replay, self.experiment.training.rule
        if replay.task_costs in SHIPPED_COSTS.values() and rule not in LOCAL_RULES:
            yield PreflightFinding(
                "costs",
                f'replay.costs_from: the costs "shipped" are without the local rule {rule}; take '
                '"measured", or the folder of a run with this rule',
                "warning",
            )


@dataclass(frozen=True, slots=True)
class LinearFleet:
    """Devices of a linear world, one entry per device, in the order of rows."""

    names: DeviceNames
    groups: tuple[str, ...]
    laws: tuple[LinearLaw, ...]


def setup_of(experiment: Experiment, dataset: Dataset | None = None) -> ReplaySetup:
    """Set up the replay of an experiment.

    Args:
        experiment: The experiment.
        dataset: Its examples, if they are loaded already.

    Raises:
        ExperimentError: Its fleet cannot be replayed.
        ProfileError: A profile, link or trace is unknown, or breaks a rule.
        DatasetError: Its data cannot be loaded or partitioned.
        TaskError: Its model is not available.
        BackendError: The cost of training cannot be measured.
    """
    reader = InputReader(experiment)
    with reader.reading():
        setup = _setup_of(experiment, dataset)
    read = None if setup.data is None else setup.data.dataset
    return replace(setup, inputs=reader.read(read, setup.experiment))


def _setup_of(experiment: Experiment, dataset: Dataset | None) -> ReplaySetup:
    _check(experiment)
    has_profiles = all(group.model is None for group in experiment.fleet)
    setup = (_profile_fleet_setup if has_profiles else _linear_fleet_setup)(experiment, dataset)
    cohorts_from = experiment.replay.cohorts_from
    if cohorts_from is None:
        return setup
    from fairbed.testbed.replay.imposed import impose_cohorts

    world, folder = setup.world, Path(cohorts_from)
    world = impose_cohorts(setup.decisions, world, setup.names, experiment.rounds, folder)
    return replace(setup, world=world)


def check_setup(experiment: Experiment, worlds: set[bytes]) -> None:
    """Check that a replay can be set up, without a round.

    Args:
        experiment: The experiment.
        worlds: What was set up before, which is extended. Experiments that differ only in
            `[selection]` and `[aggregation]` have the same data, devices and costs: of these, the
            first is set up, and for the others the decisions.

    Raises:
        ExperimentError: As for `setup_of`; likewise the other errors.
    """
    sections = msgspec.to_builtins(experiment)
    world = msgspec.json.encode(
        {key: sections[key] for key in sections if key not in ("name", "selection", "aggregation")}
    )
    if world not in worlds:
        setup_of(experiment)
        worlds.add(world)
        return
    _check(experiment)
    make_decisions(experiment.coordinator())


def _check(experiment: Experiment) -> None:
    """Check the settings of a replay by themselves.

    Raises:
        ExperimentError: They do not fit together.
    """
    if problem := experiment.replay_problem:
        raise ExperimentError(problem)
    if experiment.training.client is not None:
        from fairbed.testbed.replay.client_run import client_problem

        if problem := client_problem(experiment):
            raise ExperimentError(problem)
    if not experiment.fleet:
        raise ExperimentError(
            "fleet: a replay needs devices, got none; add [[fleet]] with a profile, a population "
            'or model = "linear"'
        )
    if not experiment.trains_in_replay and (
        experiment.selection.selects_by_losses
        or isinstance(make_selector(experiment.selection), TwoStepSelector)
    ):
        raise ExperimentError(
            "selection.policy: a policy that selects by losses needs a model that is trained, "
            f"got {experiment.selection.policy!r} in a replay without training; set "
            "replay.training = true (without replay.examples and --no-training), or use a policy "
            "that needs no loss, such as uniform"
        )
    _check_attacks(experiment)


def _check_attacks(experiment: Experiment) -> None:
    """Check that a replay without training has no attack on it.

    Raises:
        ExperimentError: It has one.
    """
    for number, group in enumerate(experiment.fleet):
        attack = group.malicious
        needs_training = attack is not None and attack.attack(1).needs_training
        if attack is not None and needs_training and not experiment.trains_in_replay:
            raise ExperimentError(
                f'fleet[{number}].malicious.kind: must be "lying-context" in a replay without '
                f'training, got "{attack.kind}"; set replay.training = true (without '
                "replay.examples and --no-training)"
            )


def linear_fleet_of(experiment: Experiment) -> LinearFleet:
    """Return the devices of a linear fleet.

    Raises:
        ExperimentError: A group is of another kind, or a name would be too long.
    """
    named, groups, laws = list[tuple[str, int]](), list[str](), list[LinearLaw]()
    for number, group in enumerate(experiment.fleet):
        if group.model is None or group.theta is None:
            raise ExperimentError(
                f'fleet[{number}].model: must be "linear" for all groups or for none, got a '
                "group with a profile; replay them apart"
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
    return LinearFleet(DeviceNames(named), tuple(groups), tuple(laws))


def _law(group: FleetConfig, theta: tuple[float, float, float]) -> LinearLaw:
    return LinearLaw(
        theta=theta,
        mu=group.mu,
        bandwidth_bps=group.bandwidth_bps,
        availability=group.availability,
        noise=group.noise,
    )


def _linear_fleet_setup(experiment: Experiment, dataset: Dataset | None) -> ReplaySetup:
    fleet, data = linear_fleet_of(experiment), None
    attacks = _attacks_by_row(experiment, fleet.names)
    examples: Ints = np.ones(len(fleet.names), dtype=np.int64)
    if experiment.trains_in_replay:
        dataset = dataset or load_examples(experiment, os.environ)
        data, examples = _examples(experiment, dataset, fleet.names, attacks)
    seed = experiment.seed_for("traces")

    def records(row: int) -> list[Record]:
        law, n_k = fleet.laws[row], int(examples[row])
        return linear_rows(row, fleet.names[row], fleet.groups[row], law, n_k, attacks.get(row))

    is_listed = not is_vector_fleet(experiment)
    decisions = make_decisions(experiment.coordinator(), experiment.devices)
    ratio, settings = _query_ratio(experiment, decisions, examples), experiment.replay
    bits, coding = settings.update_bits, settings.cold_start_coding
    return ReplaySetup(
        experiment=experiment,
        names=fleet.names,
        world=LinearWorld(fleet.laws, bits, seed, examples, ratio, coding),
        decisions=decisions,
        rows=device_rows(fleet.names, fleet.groups, fleet.laws, examples, attacks)
        if is_listed
        else (),
        data=data,
        device_records=None if is_listed else records,
        attacks=attacks,
    )


def _attacks_by_row(experiment: Experiment, names: DeviceNames) -> dict[int, Attack]:
    """Return the behaviour of each malicious device of a linear fleet, by its row."""
    if all(group.malicious is None for group in experiment.fleet):
        return {}
    members = [list[str]() for _ in experiment.fleet]
    for row, name in enumerate(names):
        members[names.group(row)].append(name)
    attacks = attacks_of(experiment, members)
    return {row: attacks[name] for row, name in enumerate(names) if name in attacks}


def _profile_fleet_setup(experiment: Experiment, dataset: Dataset | None) -> ReplaySetup:
    if experiment.replay.cold_start_coding != "not_previous":
        raise ExperimentError(
            'replay.cold_start_coding: must be "not_previous" for devices with profiles, got '
            f'{experiment.replay.cold_start_coding!r}; only a fleet with model = "linear" has it'
        )
    for number, group in enumerate(experiment.fleet):
        if group.physical and group.profile is None:
            raise ExperimentError(
                f"fleet[{number}].profile: must be given for a replay of physical devices, got "
                f"none for {group.physical[0]}; fairbed record --all --run RUN --out DIR writes "
                "their profiles and an experiment with them"
            )
        if group.profile is None and group.population is None:
            raise ExperimentError(
                f"fleet[{number}].profile: must be given for a replay, got none; create a profile "
                "of this machine with fairbed record"
            )
    if experiment.training.client is not None:
        return _client_fleet_setup(experiment)
    if is_vector_fleet(experiment):
        return _vector_fleet_setup(experiment, dataset)
    devices = plan_fleet(in_reference_cores(experiment), os.environ)
    names = [device.spec.name for device in devices]
    dataset = dataset or load_examples(experiment, os.environ)
    experiment = with_costs(experiment, dataset)
    costs = experiment.replay.task_costs
    assert costs is not None, "with_costs has set it"
    devices = [device.at_task(experiment, costs) for device in devices]
    attacks = {row: d.spec.attack for row, d in enumerate(devices) if d.spec.attack is not None}
    data, examples = _examples(experiment, dataset, names, attacks)
    artifact = task_of(experiment, dataset if data is None else data.dataset)
    memory = [0 if d.profile is None else d.profile.memory_bytes for d in devices]
    sizes = fitting_part_sizes(experiment, artifact, names, np.array(memory), examples)
    conditions = columns_of(devices)
    lengths = lengths_of(dataset, data, examples, costs)
    layout, example_bytes = artifact.spec.layout, dataset.example_bytes
    world, decisions = world_of(
        experiment,
        layout,
        example_bytes,
        conditions,
        examples,
        sizes,
        lengths,
        evaluation_speed=evaluation_speeds(devices),
    )
    base = _base_downloads(artifact, world)
    rows = [*_device_rows(devices, examples, base), *(device.truth_row() for device in devices)]
    powers = [phase_power(device.profile) for device in devices]
    return ReplaySetup(
        experiment,
        names,
        world,
        decisions,
        rows,
        data,
        attacks=attacks,
        powers=powers,
        artifact=artifact,
        left_out=not_replayed(devices, experiment.emulation.congestion),
        unlikely=unlikely_numbers(devices),
        part_sizes=sizes if experiment.training.micro_batch == "auto" else None,
    )


def _client_fleet_setup(experiment: Experiment) -> ReplaySetup:
    """Return the setup of a replay without training whose times are those of a client."""
    from fairbed.testbed.replay.client_run import read_client_run, with_costs_of

    devices = plan_fleet(in_reference_cores(experiment), os.environ)
    names = [device.spec.name for device in devices]
    run = read_client_run(experiment)
    experiment = with_costs_of(experiment, run)
    examples = run.examples(names)
    sizes = np.full(len(names), experiment.training.part_size, dtype=np.int64)
    world, decisions = world_of(
        experiment, run.layout, 0, columns_of(devices), examples, sizes, raw_bytes=run.raw_bytes
    )
    return ReplaySetup(
        experiment,
        names,
        world,
        decisions,
        [*_device_rows(devices, examples, None), *(device.truth_row() for device in devices)],
        attacks={row: d.spec.attack for row, d in enumerate(devices) if d.spec.attack is not None},
        powers=[phase_power(device.profile) for device in devices],
        left_out=not_replayed(devices, experiment.emulation.congestion),
        unlikely=unlikely_numbers(devices),
        costs_of=run.line,
    )


def not_replayed(devices: Sequence[PlannedDevice], congestion: Congestion = "cubic") -> str | None:
    """Return a line about the parts of links that a replay leaves out, or None.

    Devices with loss have the TCP of Linux. Without loss a transfer continues at once after a
    hole; a real one waits for its next retransmission, which the hole has delayed.

    Args:
        devices: The fleet.
        congestion: Congestion control of the broker's machine.
    """
    in_cells = [d.spec.name for d in devices if loses_packets(d) and d.spec.cells]
    holes = [
        d.spec.name for d in devices if is_interrupted(d) and (d.spec.cells or not loses_packets(d))
    ]
    parts = []
    if in_cells:
        parts.append(f"packet loss of devices in a cell ({_first_and_more(in_cells)})")
    if holes:
        parts.append(
            f"waits of TCP after a coverage hole ({_first_and_more(holes)}; a transfer continues "
            "at once, a real one up to as long after the hole as the hole lasted)"
        )
    for what, is_used in (
        ("the queue discipline fq_codel", _uses_codel),
        ("the congestion control bbr, replayed as cubic,", lambda d: d.spec.congestion == "bbr"),
    ):
        names = [d.spec.name for d in devices if is_used(d)]
        if names:
            parts.append(f"{what} of {_first_and_more(names)}")
    if congestion == "bbr":
        parts.append("the congestion control bbr, replayed as cubic, of the broker's machine")
    return f"left out of this replay: {', '.join(parts)}" if parts else None


def _uses_codel(device: PlannedDevice) -> bool:
    link = device.tracks.link
    return link is not None and link.queue.discipline == "fq_codel"


def _first_and_more(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _vector_fleet_setup(experiment: Experiment, dataset: Dataset | None) -> ReplaySetup:
    if experiment.cell:
        raise ExperimentError(
            f"cell: must not be given for {experiment.devices:,} devices, got "
            f"{experiment.cell[0].name!r}; remove it, or replay a fleet of at most "
            f"{MAX_EMULATED:,} devices"
        )
    if experiment.replay.examples is None:
        raise ExperimentError(
            f"replay.examples: must be given for {experiment.devices:,} devices, got none: no data "
            "set can be divided among them; 200 is usual"
        )
    fleet = vector_fleet_of(experiment)
    dataset = dataset or load_examples(experiment, os.environ)
    experiment = with_costs(experiment, dataset)
    data, examples = _examples(experiment, dataset, fleet.names, {})
    conditions = fleet.means, fleet.varying
    artifact = task_of(experiment, dataset if data is None else data.dataset)
    assert experiment.replay.task_costs is not None, "with_costs has set it"
    lengths = lengths_of(dataset, data, examples, experiment.replay.task_costs)
    sizes = fitting_part_sizes(experiment, artifact, fleet.names, fleet.memory_bytes, examples)
    layout, example_bytes = artifact.spec.layout, dataset.example_bytes
    world, decisions = world_of(
        experiment, layout, example_bytes, conditions, examples, sizes, lengths
    )
    world.slots = None  # a coordinator of so large a fleet has slots for a whole cohort
    base = _base_downloads(artifact, world)
    records = partial(fleet.device_records, examples=examples, base=base)
    return ReplaySetup(
        experiment,
        fleet.names,
        world,
        decisions,
        (),
        data,
        records,
        powers=fleet.powers,
        left_out=fleet.left_out,
    )


def fitting_part_sizes(
    experiment: Experiment,
    artifact: Artifact,
    names: Sequence[str],
    memory_bytes: Ints,
    n_k: Ints,
) -> Ints:
    """Return `part_sizes` by the memory of training in the costs, which are known."""
    costs = experiment.replay.task_costs
    assert costs is not None, "with_costs has set it"
    fitting = fitting_of(experiment.training, artifact.spec, costs.memory)
    return part_sizes(experiment, fitting, names, memory_bytes, n_k)


def world_of(
    experiment: Experiment,
    layout: Layout,
    example_bytes: int,
    conditions: tuple[MeanConditions, VaryingConditions],
    examples: Ints,
    sizes: Ints,
    lengths: Ints | None = None,
    raw_bytes: int = 0,
    evaluation_speed: Floats | float = 1.0,
) -> tuple[ProfileWorld, Decisions]:
    """Return the world and the decisions of a fleet whose costs of training are known."""
    config = experiment.coordinator()
    decisions = make_decisions(config, experiment.devices)
    costs = experiment.replay.task_costs
    assert costs is not None, "with_costs has set it"
    world = ProfileWorld(
        *conditions,
        Sizes.of(config, layout, decisions.vector_counts, raw_bytes),
        Work.of(
            config,
            costs,
            examples,
            examples * example_bytes,
            needs_loss=decisions.aggregator.needs_loss,
            sample=_sample(decisions),
            part_size=sizes,
            lengths=lengths,
            evaluation_speed=evaluation_speed,
        ),
        seed=experiment.seed_for("traces"),
        packet_seed=experiment.seed_for("packets"),
        noise=experiment.replay.noise,
        deadline_s=experiment.round.late_limit_s or experiment.round.deadline_s,
        limit_s=experiment.selection.loss_query_timeout_s,
        own_noise=experiment.noise,
        recorded=_recorded_times(experiment),
    )
    return world, decisions


def evaluation_speeds(devices: Sequence[PlannedDevice]) -> Floats:
    """Return the speed of each device in an evaluation, relative to that in training, (N,)."""
    planned = [device.spec.device for device in devices]
    return np.array([1.0 if each is None else each.evaluation_speed for each in planned])


def lengths_of(
    dataset: Dataset, data: FleetData | None, examples: Ints, costs: TaskCosts
) -> Ints | None:
    """Return the training examples of each device at each padded length, shape (N, L).

    Args:
        dataset: All examples.
        data: Their division; None: each device has the lengths of all examples.
        examples: Training examples of each device, shape (N,).
        costs: Costs of the steps at each length.

    Returns:
        None without buckets.

    Raises:
        ExperimentError: The costs are of other lengths.
    """
    if not dataset.buckets:
        return None
    known = [each.length for each in costs.shorter]
    if known != [*dataset.buckets[:-1]]:
        raise ExperimentError(
            "replay.task_costs: must have the cost of a step at each length of data.buckets, "
            f"{[*dataset.buckets[:-1]]} and the longest, got {known} and the longest; remove "
            'task_costs and set replay.costs_from = "measured"'
        )
    places = (dataset if data is None else data.dataset).bucket_places
    n = len(dataset.buckets)
    if data is None:
        of_all = np.tile(np.bincount(places, minlength=n), (len(examples), 1))
        return share_of(of_all, examples)
    return np.array([np.bincount(places[rows], minlength=n) for rows in data.train_rows])


def _recorded_times(experiment: Experiment) -> RecordedTimes | None:
    """Return the durations of the groups with a log of exchanges; None without any.

    Raises:
        TraceError: A log cannot be read, or violates a rule.
    """
    groups, first = list[LoggedGroup](), 0
    for group in experiment.fleet:
        if (log := exchange_log_of(group)) is not None:
            groups.append(LoggedGroup(first, group.size, log))
        first += group.size
    seed = experiment.seed_for("traces")
    return RecordedTimes(groups, first, seed) if groups else None


def _sample(decisions: Decisions) -> Sample | None:
    """Return the examples that a loss query evaluates; None if the selection queries no losses."""
    selector = decisions.selector
    return selector.sample if isinstance(selector, TwoStepSelector) else None


def _query_ratio(experiment: Experiment, decisions: Decisions, examples: Ints) -> Floats:
    """Return the duration of a loss query relative to training in a linear world, shape (N,)."""
    sample, training = _sample(decisions), experiment.training
    if sample is None:
        return np.zeros(len(examples))
    evaluated = np.minimum(examples, training.batch_size) if sample == "batch" else examples
    ratio: Floats = (
        FORWARD_RATIO * evaluated / ((training.epochs + training.personal_epochs) * examples)
    )
    return ratio


def in_reference_cores(experiment: Experiment) -> Experiment:
    """Return the experiment with speeds in cores of the reference machine."""
    emulation = msgspec.structs.replace(experiment.emulation, host_core_speed=1.0)
    return msgspec.structs.replace(experiment, emulation=emulation)


def _examples(
    experiment: Experiment,
    dataset: Dataset,
    names: Sequence[str],
    attacks: Mapping[int, Attack],
) -> tuple[FleetData | None, Ints]:
    """Return the partition of the data, and the number of examples per device, shape (N,)."""
    fixed = experiment.replay.examples
    if fixed is not None:
        return None, np.full(len(names), fixed, dtype=np.int64)
    data = FleetData(
        dataset,
        experiment.data,
        devices=len(names),
        seed=experiment.seed_for("data"),
        fold=experiment.validation_fold,
        names=names,
        poisoned=[row for row, attack in attacks.items() if attack.poisons_labels],
        poison_seed=experiment.seed_for("malicious"),
    )
    return data, np.array([len(rows) for rows in data.train_rows], dtype=np.int64)


def _base_downloads(artifact: Artifact, world: ProfileWorld) -> tuple[int, Floats] | None:
    """Return the size of the frozen part of a model, and how long each device downloads it."""
    if artifact.base is None:
        return None
    size = artifact.base.layout.size_bytes
    return size, world.download_once_s(size)


def _device_rows(
    devices: Sequence[PlannedDevice], examples: Ints, base: tuple[int, Floats] | None
) -> list[Record]:
    """Return the rows that devices would have after joining a live run."""
    return [
        DeviceRow(
            name=device.spec.name,
            row=row,
            first_seen_s=0.0,
            n_k=int(examples[row]),
            capabilities=msgspec.json.encode(_capabilities(device.profile)).decode(),
            has_own_data=False,
            kind="replayed",
            base_bytes=None if base is None else base[0],
            base_s=None if base is None else float(base[1][row]),
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
        agent=agent_version(),
        model=profile.title,
        codecs=tuple(CODECS),
    )
