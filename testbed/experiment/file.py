"""The experiment file: one TOML file, decoded strictly into one typed struct.

Each error is one line: file, key path, rule, value, what to do.
"""

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from glob import glob
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
import numpy as np
from msgspec import Meta

from fairbed.coordinator.policy.combinations import (
    alternating_problem,
    built_in_gradient,
    kept_problem,
    local_step_problem,
    weights_problem,
)
from fairbed.coordinator.policy.config import (
    ACCURACY,
    APP,
    EMULATED_JOIN_TIMEOUT_S,
    JOIN_TIMEOUT_S,
    AggregationConfig,
    ColdStartCoding,
    CoordinatorConfig,
    EvaluationConfig,
    ExchangeConfig,
    LimitsConfig,
    ModelConfig,
    NonNegativeFloat,
    OperatorConfig,
    PersonalisationConfig,
    PositiveFloat,
    PositiveInt,
    PrivacyConfig,
    Ratio,
    RoundConfig,
    Rounds,
    Section,
    SelectionConfig,
    TrainingConfig,
    merge_problem,
    misnamed_rule,
    rule_problem,
)
from fairbed.coordinator.policy.factories import defence_problem, privacy_problem, step_problem
from fairbed.coordinator.policy.plugins import (
    ESTIMATOR,
    LOCAL_RULE,
    PSEUDO_GRADIENT,
    RULE,
    SELECTOR,
    SERVER_STEP,
)
from fairbed.coordinator.task.recipes import MODEL_NAMES
from fairbed.device_agent.availability import parse_hours
from fairbed.device_agent.privacy import buffers_problem
from fairbed.profiles import link_names
from fairbed.profiles.schema import Discipline, QueueBytes, QueueMs
from fairbed.testbed import rooms
from fairbed.testbed.broker.configuration import BrokerChoice
from fairbed.testbed.emulation.cell import LOWEST_PRIORITY
from fairbed.testbed.emulation.conditions import Congestion, Outage
from fairbed.testbed.emulation.malicious import POISONS_LABELS
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.experiment.cells import CellConfig, CellName, cells_problem
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.explain import assign, explain, first_not_finite, override
from fairbed.testbed.experiment.malicious import MaliciousConfig
from fairbed.testbed.experiment.noise import NoiseConfig
from fairbed.wire.messages import NAME_PATTERN, DeviceName, HeldOut
from fairbed.wire.models import GROUP
from fairbed.wire.plugins import installed, is_path
from fairbed.wire.tensors import Layout
from fairbed.wire.text import NotText, TOMLDecodeError, text_of, toml_of
from fairbed.wire.transport.address import DEFAULT_CLIENT, Client, parse_url, redact

Range = tuple[PositiveFloat, PositiveFloat]
Seed = Annotated[int, Meta(ge=0, lt=1 << 32)]
CohortEngine: TypeAlias = Literal["auto", "batched", "device", "torch"]


class ExperimentError(Exception):
    """The experiment file breaks a rule; the message is one line."""


class SeedsConfig(Section, frozen=True, kw_only=True):
    """`[seeds]`: each key overrides the seed of the experiment for one purpose."""

    data: Seed | None = None
    """Partition of the data."""
    init: Seed | None = None
    """First model."""
    fleet: Seed | None = None
    """Devices drawn from populations and links."""
    traces: Seed | None = None
    """Offsets in traces, conditions that are drawn (rates, outages, loss windows), and jitter."""
    packets: Seed | None = None
    """Which packets are lost: in a replay exactly, in a live run as far as it repeats itself."""
    selection: Seed | None = None
    """Draws of the selector."""
    training: Seed | None = None
    """Order of the mini-batches."""
    malicious: Seed | None = None
    """Malicious devices, and their poisoned labels."""
    validation: Seed | None = None
    """Fold of devices with few validation examples (`data.validation_fraction`)."""


EMBEDDED = "embedded"
"""Value of `broker.url` for a broker of the run's own; a room may add further names."""


class BrokerConfig(Section, frozen=True, kw_only=True):
    """`[broker]`: the MQTT broker between coordinator and devices."""

    url: str = EMBEDDED
    """`embedded`: a broker for this run alone; `lab`: the broker of the lab on this machine
    (`fairbed lab up`); or `mqtt://user:password@host:port`, or `mqtts://...`; a cluster lists its
    nodes, `host:port,host:port`."""
    kind: BrokerChoice = "auto"
    """The broker to embed; auto takes the first that is installed, in this order."""
    tenant: Annotated[str, Meta(pattern=NAME_PATTERN)] = "main"
    """Name of the topic tree; one coordinator at a time can use it."""
    client: Client = DEFAULT_CLIENT
    """MQTT client of the coordinator and the emulated agents: `direct` or `aiomqtt`."""


class OutageConfig(Section, frozen=True, kw_only=True):
    """`[[fleet.outage]]`: an outage of all devices of a group, on the clock of the run."""

    kind: Outage = "coverage"
    """`coverage`: packets are lost, as without radio coverage; `unplugged`: the link is down, as in
    airplane mode; `frozen`: the device itself is stopped."""
    start_s: Annotated[float, Meta(ge=0.0, le=1e9)]
    """Start, on the clock of the run."""
    duration_s: PositiveFloat
    """Duration."""


class FleetConfig(Section, frozen=True, kw_only=True):
    """`[[fleet]]`: devices of one kind."""

    profile: str | None = None
    """Name of a device profile, or path of a `.toml`; not set: this machine, not throttled."""
    population: str | None = None
    """Name of a population, or path of a `.toml`, from which every device is drawn; excludes
    `profile`."""
    count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Number of devices; a fleet has at most 10,000 emulated or 1,000,000 replayed ones."""
    physical: tuple[DeviceName, ...] = ()
    """Names of physical devices, which join by themselves, each with its own shard; round 1 waits
    for them. Of the other keys only `profile` goes with it: their recorded profile, for replays."""
    link: str | Annotated[tuple[str, ...], Meta(min_length=1)] | None = None
    """Name of a link, or path of a `.toml`; of several, each device draws one with the seed
    `traces` and its name. `*` stands for any text: `trace-*`, `city-*.toml`. Not set: the
    profile's link."""
    trace: Annotated[str, Meta(min_length=1)] | None = None
    """Rates over time, from a file or `data:SET/TRACE`; they replace the rates of the link."""
    cell: CellName | None = None
    """Name of the `[[cell]]` whose rate the devices share with others; not set: none."""
    priority: Annotated[int, Meta(ge=0, le=LOWEST_PRIORITY)] | None = None
    """In a cell with `share = "priority"`: 0 takes its rate first, 7 last; not set: 0."""
    exchange_times: Annotated[str, Meta(min_length=1)] | None = None
    """A log of exchanges from which a replay draws their durations (`fairbed profiles import-log`);
    a live run takes those of profile and link."""
    queue_ms: QueueMs | None = None
    """Depth of the queue of each direction of the link, as time at its fastest rate, milliseconds;
    excludes `queue_bytes`; not set: that of the link, or 100 ms and at least 10 packets."""
    queue_bytes: QueueBytes | None = None
    """Depth of the queue of each direction of the link, bytes of Ethernet frames."""
    queue: Discipline | None = None
    """Discipline of the queues: `drop-tail` or `fq_codel`; not set: that of the link, or
    `drop-tail`."""
    congestion: Congestion = "cubic"
    """TCP congestion control of the devices, for their uploads."""
    ambient_celsius: Annotated[float, Meta(ge=-60.0, le=100.0)] | None = None
    """Temperature of the air around the devices; not set: that of the profile, 22 if it has none.
    Needs `[thermal]` with `rise_celsius` in the profile, like the next two."""
    case_resistance: Annotated[float, Meta(gt=0.0, le=20.0)] = 1.0
    """Thermal resistance from the processor to the air, relative to the case of the profile; a fan
    or heatsink is below 1, a closed case above."""
    case_constant_s: Annotated[float, Meta(gt=0.0, le=1e6)] | None = None
    """Time constant of the case, seconds; not set: `thermal.time_constant_s` of the profile."""
    outage: tuple[OutageConfig, ...] = ()
    malicious: MaliciousConfig | None = None
    """not set: all devices are honest."""
    name: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,26}$")] | None = None
    """Prefix of the device names; not set: the name of the profile or population."""
    available_hours: tuple[str, ...] = ()
    """Hours of the day at which the devices are available, such as `22:00-06:00`; empty takes the
    availability of the profile. The run begins at `emulation.start_time`."""
    always_available: bool = False
    """Ignore the availability of the profile."""
    model: Literal["linear"] | None = None
    """Devices of the simulation in the RBCS-F paper, for a replay only: their exchange times are
    linear in their context. The keys below are for such devices only."""
    theta: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] | None = None
    """Seconds of training on one core, of a cold start, and of transfer per nominal second."""
    mu: Range = (0.5, 2.0)
    """Free cores, drawn uniformly between these."""
    bandwidth_bps: Range = (2e6, 4e6)
    """Bandwidth, drawn uniformly between these, bit/s."""
    availability: Ratio = 0.8
    """Probability of being available, in each round."""
    noise: Ratio = 0.1
    """An exchange time deviates by up to this share, uniformly."""

    def __post_init__(self) -> None:
        self._check_physical()
        if twice := next((name for name in self.links if self.links.count(name) > 1), None):
            raise ValueError(f"link: links must differ, got {twice!r} twice; remove one")
        if (self.model is None) != (self.theta is None):
            raise ValueError(
                'theta must be given with model = "linear" and only then, got '
                f"{self.theta} with model {self.model!r}; give three numbers: [1.0, 1.0, 0.15]"
            )
        if self.model is not None and (
            self.profile or self.population or self.link or self.trace or self.exchange_times
        ):
            raise ValueError(
                "model excludes profile, population, link, trace and exchange_times, got both; "
                "remove model or the others"
            )
        if self.queue_ms is not None and self.queue_bytes is not None:
            raise ValueError(
                f"queue_ms and queue_bytes exclude each other, got {self.queue_ms:g} ms and "
                f"{self.queue_bytes} bytes; remove one"
            )
        has_queue = any(one is not None for one in (self.queue_ms, self.queue_bytes, self.queue))
        if self.model is not None and has_queue:
            raise ValueError(
                "model excludes queue_ms, queue_bytes and queue, got both; remove one: only "
                "devices with a profile have a link with a queue"
            )
        if self.model is not None and self.cell is not None:
            raise ValueError(
                f"model excludes cell, got both, with cell {self.cell!r}; remove one: only "
                "devices with a profile share a cell"
            )
        if self.exchange_times is not None and self.cell is not None:
            raise ValueError(
                f"exchange_times excludes cell, got both, with cell {self.cell!r}; remove one: a "
                "log has what its devices lost to each other"
            )
        for hours in self.available_hours:
            try:
                parse_hours(hours)
            except ValueError as exc:
                raise ValueError(f"available_hours {exc}") from None
        for key in ("mu", "bandwidth_bps"):
            low, high = getattr(self, key)
            if low > high:
                raise ValueError(f"{key} must be [low, high], got [{low:g}, {high:g}]; swap them")
        if self.profile is not None and self.population is not None:
            raise ValueError(
                "profile and population exclude each other, got "
                f"{self.profile!r} and {self.population!r}; remove one"
            )

    def _check_physical(self) -> None:
        """Check that a group of physical devices has no key of emulated ones.

        Raises:
            ValueError: It has one.
        """
        for field in msgspec.structs.fields(type(self)) if self.physical else ():
            value = getattr(self, field.name)
            if field.name not in ("physical", "profile") and value != field.default:
                raise ValueError(
                    f"{field.name} must not be set for physical devices, got {value!r}; remove "
                    "it, or put the devices to emulate into a [[fleet]] of their own"
                )

    @property
    def size(self) -> int:
        """Number of devices of the group."""
        return len(self.physical) or self.count

    @property
    def links(self) -> tuple[str, ...]:
        """Names of the links of which each device has one; empty takes those of the profiles."""
        return (self.link,) if isinstance(self.link, str) else self.link or ()

    @property
    def draws_link(self) -> bool:
        """Whether each device draws its link."""
        return isinstance(self.link, tuple)


class ReplayConfig(Section, frozen=True, kw_only=True):
    """`[replay]`: settings of `fairbed replay` alone."""

    update_bits: PositiveFloat = 2.0 * 2**20
    """Size of an update of `model = "linear"` devices, bits."""
    cold_start_coding: ColdStartCoding = "not_previous"
    """Devices with `model = "linear"` that have a cold start: those that did not train in the last
    round, or, by the other reading of the paper, those that were selected in it. `[selection]
    cold_start_coding` is what the coordinator assumes."""
    training: bool | None = None
    """Whether the replay trains models; not set: yes, except with a number of `examples`, or with
    `model = "linear"` devices in a file without `[data]`."""
    engine: CohortEngine = "auto"
    """Engine that trains the cohort: batched matrix products (softmax, mlp), the devices' own
    engine, or torch; auto takes the first that supports the model, torch before the devices'
    engine on a machine with a GPU."""
    costs_from: Annotated[str, Meta(min_length=1)] = "shipped"
    """Source of the cost of local training if `task_costs` is not given: `shipped` with the
    shipped models, `measured` on this machine at the start, or the folder of a run that measured
    it."""
    task_costs: TaskCosts | None = None
    """The cost of local training itself; a replay records here the cost from `costs_from`."""
    cohorts_from: Annotated[str, Meta(min_length=1)] | None = None
    """Folder of a finished replay of the same fleet: each round has its cohort, and the links and
    the availability of the instant at which it was dispatched; not set: the policy selects."""
    examples: PositiveInt | None = None
    """Training examples of every device, and no training; not set: the data are divided, as in
    a run."""
    noise: Annotated[float, Meta(ge=0.0, le=2.0)] = 0.0
    """The duration of every phase is multiplied by exp(noise z), z standard normal."""

    def __post_init__(self) -> None:
        if self.training and self.examples is not None:
            raise ValueError(
                "examples must not be set for a replay that trains, got "
                f"{self.examples}; remove it, or set training = false"
            )


class EmulationConfig(Section, frozen=True, kw_only=True):
    """`[emulation]`: how this machine emulates the fleet."""

    backend: Literal["auto", "namespace", "container", "process"] = "auto"
    """Backend that emulates the devices; auto takes namespace if it works here, else process."""
    image: str | None = None
    """Image of the containers, by its podman name; not set: the root file system of this
    machine."""
    host_core_speed: PositiveFloat | Literal["auto"] = 1.0
    """Speed of one core of this machine, in cores of the profiles' reference machine; auto
    measures it once per machine."""
    start_time: Annotated[str, Meta(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")] = "00:00"
    """Time of day at which the run begins, for `fleet.available_hours`."""
    unavailable_as: Literal["unwilling", "unplugged"] = "unwilling"
    """Behaviour of an unavailable device: report itself unwilling, or lose its link."""
    congestion: Congestion = "cubic"
    """TCP congestion control of the broker's machine, for the downloads of all devices."""
    dilation: Annotated[float, Meta(ge=1.0, le=1e4)] | Literal["auto"] = 1.0
    """Seconds of this machine in one second of the fleet; auto takes the smallest with which the
    devices of one round fit into this machine at the same time and at most 5 % of the exchanges
    are likely untimed, for these at most 64."""


class Experiment(Section, frozen=True, kw_only=True):
    """An experiment."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")]
    """Beginning of the run id."""
    seed: Seed = 0
    """Seed of everything random; two runs with one seed draw the same."""
    rounds: Rounds = 30
    """Number of rounds; empty ones, without an available device, come on top."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    selection: SelectionConfig = SelectionConfig()
    aggregation: AggregationConfig = AggregationConfig()
    round: RoundConfig = RoundConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    exchange: ExchangeConfig = ExchangeConfig()
    personalisation: PersonalisationConfig = PersonalisationConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    limits: LimitsConfig = LimitsConfig()
    operator: OperatorConfig = OperatorConfig()
    broker: BrokerConfig = BrokerConfig()
    fleet: tuple[FleetConfig, ...] = ()
    cell: tuple[CellConfig, ...] = ()
    noise: NoiseConfig = NoiseConfig()
    emulation: EmulationConfig = EmulationConfig()
    replay: ReplayConfig = ReplayConfig()
    seeds: SeedsConfig = SeedsConfig()

    def __post_init__(self) -> None:
        names = self.physical
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(
                f"fleet.physical: names must differ, got {twice!r} twice; list each device once"
            )
        devices = self.shards if self.fleet else 0
        is_selected_here = (
            self.selection.policy != APP and not self.round.is_buffered and not self.application
        )
        if devices and is_selected_here and self.selection.per_round > devices:
            raise ValueError(
                f"selection.per_round must be at most the {devices} devices of the fleet, "
                f"got {self.selection.per_round}; lower it or add devices"
            )
        weights = self.selection.weights
        if devices and weights is not None and len(weights) != devices:
            raise ValueError(
                f"selection.weights must have one number for each of the {devices} devices of the "
                f"fleet, got {len(weights)}; add or remove numbers"
            )
        if problem := cells_problem(self.cell, [group.cell for group in self.fleet]):
            raise ValueError(problem)
        if self.noise != NoiseConfig() and any(group.model is not None for group in self.fleet):
            raise ValueError(
                'noise must not be set with model = "linear" devices, whose deviation is '
                "fleet.noise; remove [noise]"
            )
        self._check_names()
        model = self.model.name
        if model not in MODEL_NAMES and not is_path(model) and model not in installed(GROUP):
            raise ValueError(
                f"model.name: must be {', '.join(MODEL_NAMES)} or package.module:Name, "
                f"got {self.model.name!r}"
            )
        if devices and self.round.is_buffered:
            for key, count in (("buffer", self._buffer), ("concurrency", self._concurrency)):
                if count > devices:
                    raise ValueError(
                        f"round.{key} must be at most the {devices} devices of the fleet, "
                        f"got {count}; lower it or add devices"
                    )
        if problem := (
            rule_problem(self.aggregation, self.selection, self.training, devices)
            or self.training.optimiser_problem()
            or step_problem(self.aggregation, self.training)
            or kept_problem(self.round, self.aggregation, self.training)
            or alternating_problem(self.model, self.aggregation, self.training)
            or merge_problem(self.round, self.aggregation, self.selection)
            or ("" if self.training.client else local_step_problem(self.training))
            or self._client_problem()
            or self._functions_problem()
        ):
            raise ValueError(problem)
        if problem := self.personalisation.problem(self.training):
            raise ValueError(problem)
        updates = self.round.buffer or self.selection.per_round
        if problem := defence_problem(self.aggregation, updates):
            raise ValueError(f"aggregation: {problem}")
        gradient = built_in_gradient(self.aggregation, self.training)
        if problem := weights_problem(self.aggregation, updates, gradient):
            raise ValueError(problem)
        problem = privacy_problem(self.selection, self.aggregation)
        if self.privacy.is_on and problem:
            raise ValueError(problem)
        if self.broker.url != EMBEDDED and rooms.broker(self.broker.url) is None:
            if room := rooms.absent("brokers", self.broker.url):
                raise ValueError(rooms.lacking(f'broker.url = "{self.broker.url}"', room))
            try:
                parse_url(self.broker.url)
            except ValueError as exc:
                raise ValueError(str(exc).replace("broker address", "broker.url", 1)) from None

    def _client_problem(self) -> str:
        """Return why the settings do not fit a client of the user, or its absence."""
        training, data = self.training, self.data
        if data.has_none and training.client is None:
            return (
                'data.dataset must not be "none" without training.client, which brings data of '
                "its own; choose a data set"
            )
        kinds = (one.malicious.attack_kind for one in self.fleet if one.malicious is not None)
        if data.has_none and any(kind in POISONS_LABELS for kind in kinds):
            return (
                'data.dataset must not be "none" with fleet.malicious that poisons labels: there '
                "are none; choose another kind of malicious device"
            )
        if training.client is None and not any(
            (
                training.client_folder,
                training.client_python,
                training.client_options,
                training.loss_metric,
            )
        ):
            return ""
        from fairbed.coordinator.policy.client import client_problem, keys_problem

        if training.client is None:
            return keys_problem(training)
        return client_problem(self.coordinator())

    def _functions_problem(self) -> str:
        """Return why a loss or metrics do not fit the other settings."""
        model, evaluation = self.model, self.evaluation
        if not (model.has_own_loss or evaluation.metrics or evaluation.worst != ACCURACY):
            return ""
        from fairbed.coordinator.policy.functions import functions_problem

        return functions_problem(model, evaluation, self.training.client)

    def _check_names(self) -> None:
        """Check the names of the parts that may be plug-ins.

        Raises:
            ValueError: There is no such part, or a built-in one has options.
        """
        selection, merge = self.selection, self.aggregation
        SELECTOR.check_name(selection.policy, selection.options)
        ESTIMATOR.check_name(selection.estimator, selection.estimator_options)
        problem = misnamed_rule(merge.rule)
        if problem and merge.rule not in RULE.installed():
            raise ValueError(problem)
        RULE.check_name(merge.rule, merge.rule_options)
        PSEUDO_GRADIENT.check_name(merge.pseudo_gradient, merge.pseudo_gradient_options)
        SERVER_STEP.check_name(merge.server, merge.server_options)
        LOCAL_RULE.check_name(self.training.rule, self.training.rule_options)

    @property
    def _buffer(self) -> int:
        return self.round.buffer or self.selection.per_round

    @property
    def _concurrency(self) -> int:
        return self.round.concurrency or self.selection.per_round

    @property
    def _cohort(self) -> int:
        if self.round.is_buffered:
            return self._concurrency
        return self.selection.per_round + self.round.over_select

    @property
    def room_tables(self) -> dict[str, Any]:
        """The tables that the file has and a room adds; they do not change the run."""
        own = Experiment.__struct_fields__
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in own}

    @property
    def application(self) -> str:
        """Key of the table of a room that names an application which drives the rounds.

        Such a table has the property `application`; empty without one.
        """
        return next(
            (
                f"{name}.{key}"
                for name, table in self.room_tables.items()
                if (key := getattr(table, "application", ""))
            ),
            "",
        )

    @property
    def replay_problem(self) -> str:
        """Why no replay of the experiment is possible; empty if one may be.

        Of a run, `ExperimentExcerpt.can_be_replayed` states whether its command is offered.
        """
        if not self.application:
            return ""
        return (
            f"{self.application}: must be left out of a replay, got an app: nothing is known of "
            "the times of its training but what a live run measures; use fairbed run"
        )

    @property
    def without_rooms(self) -> "Experiment":
        """The same experiment without the tables of rooms."""
        return self.with_tables_of({})

    def with_tables_of(self, tables: Mapping[str, Any]) -> "Experiment":
        """Return the same experiment with these tables of rooms and no others."""
        if tables.keys() == self.room_tables.keys():
            return self
        own = {name: getattr(self, name) for name in Experiment.__struct_fields__}
        return experiment_type(tables)(**own, **tables)

    @property
    def devices(self) -> int:
        """Number of devices of `[[fleet]]`, emulated and physical."""
        return sum(group.size for group in self.fleet)

    @property
    def physical(self) -> tuple[str, ...]:
        """Names of the physical devices of `[[fleet]]`."""
        return tuple(name for group in self.fleet for name in group.physical)

    @property
    def has_emulated(self) -> bool:
        """Whether `[[fleet]]` has a device to emulate."""
        return any(not group.physical for group in self.fleet)

    @property
    def shards(self) -> int:
        """Number of shards: one per device of the fleet, and enough for the first round."""
        return max(self.devices or self._cohort, self.round.min_devices or 0)

    @property
    def trains_in_replay(self) -> bool:
        """Whether a replay trains models, or studies selection alone."""
        if self.replay.training is not None:
            return self.replay.training
        if self.replay.examples is not None:
            return False
        return not any(group.model == "linear" for group in self.fleet)

    def seed_for(self, purpose: str) -> int:
        """Return the seed of one purpose of `[seeds]`."""
        own: int | None = getattr(self.seeds, purpose)
        return self.seed if own is None else own

    @property
    def validation_fold(self) -> int:
        """The fold that validates on devices with few validation examples; 0 without any."""
        return self.seed_for("validation") if self.data.validation_fraction else 0

    def coordinator(self, *, starts_fleet: bool = True, absent: int = 0) -> CoordinatorConfig:
        """Return the coordinator's part of the experiment.

        Args:
            starts_fleet: The devices of `[[fleet]]` are known: the testbed emulates them, or they
                are named physical ones. So the first round waits for all of them; otherwise an
                unknown number of devices join by themselves, and it waits for as many as a round
                selects.
            absent: Devices of the fleet that cannot join at first.
        """
        settings = self.round
        default, limit_s = min(self._cohort, self.shards), JOIN_TIMEOUT_S
        if self.fleet and starts_fleet:
            default = max(1, self.devices - absent)
            has_own_code = bool(
                self.training.client
            )  # a weak device imports its packages for minutes
            if not self.physical and self.shards == self.devices and not has_own_code:
                limit_s = EMULATED_JOIN_TIMEOUT_S
        min_linked = settings.min_devices or 1
        settings = msgspec.structs.replace(
            settings,
            min_devices=settings.min_devices or default,
            join_timeout_s=settings.join_timeout_s or limit_s,
        )
        return CoordinatorConfig(
            name=self.name,
            min_linked=min_linked,
            seed_init=self.seed_for("init"),
            seed_selection=self.seed_for("selection"),
            seed_training=self.seed_for("training"),
            rounds=self.rounds,
            model=self.model,
            training=self.training,
            selection=self.selection,
            aggregation=self.aggregation,
            round=settings,
            evaluation=self.evaluation,
            exchange=self.exchange,
            personalisation=self.personalisation,
            privacy=self.privacy,
            operator=self.operator,
            limits=self._limits,
            held_out=self._held_out,
        )

    @property
    def _limits(self) -> LimitsConfig:
        """`[limits]`, with `auto` decided."""
        if self.limits.check != "auto":
            return self.limits
        is_study = any(group.malicious is not None for group in self.fleet)
        return msgspec.structs.replace(self.limits, check="off" if is_study else "on")

    @property
    def _held_out(self) -> HeldOut | None:
        """How devices with own data hold out test examples; None: they send no test score."""
        may_score = self.privacy.scores or not self.privacy.is_on
        if self.evaluation.own_data != "devices" or not may_score:
            return None
        return HeldOut(
            fraction=self.data.test_fraction,
            seed=self.seed_for("data"),
            validation=self.data.validation_fraction,
            fold=self.validation_fold,
            evaluates=self.data.evaluated,
        )

    def check_layout(self, layout: Layout) -> None:
        """Check that the model of the experiment can be trained as configured.

        Raises:
            ExperimentError: Devices add noise, which needs a model of parameters alone; or they
                train personal parameters first, and there are none.
        """
        if self.training.personal_epochs and not (layout.local < layout.n_params).any():
            raise ExperimentError(
                "model.personal: must fit a parameter with training.personal_epochs, got buffers "
                "alone; correct the pattern"
            )
        problem = buffers_problem(layout)
        if self.privacy.is_on and problem:
            raise ExperimentError(f"model.name {self.model.name!r}: {problem}")

    def resolved_toml(self) -> str:
        """Return the experiment as TOML with every default; it decodes to an equal experiment.

        The password of the broker is hidden, because the text is stored with the run.
        """
        return msgspec.toml.encode(_without_none(msgspec.to_builtins(self._shown()))).decode()

    def hash(self) -> str:
        """Return a hash of the resolved experiment: equal experiments have equal hashes.

        Tables of rooms do not count: a resumed run may send other messages.
        """
        counted = self._shown().without_rooms
        return hashlib.sha256(msgspec.json.encode(counted, order="sorted")).hexdigest()

    def _shown(self) -> "Experiment":
        """Return the experiment without the broker's password."""
        broker = msgspec.structs.replace(self.broker, url=redact(self.broker.url))
        return msgspec.structs.replace(self, broker=broker)


def experiment_type(names: Iterable[str] | None = None) -> type[Experiment]:
    """Return the struct of an experiment file with the tables of rooms that it uses.

    Args:
        names: Its keys at the top; None: with the tables of all rooms.
    """
    if names is not None and not (names := set(names) - set(Experiment.__struct_fields__)):
        return Experiment
    found = rooms.tables()
    return _with_tables(
        tuple((name, kind) for name, kind in found.items() if names is None or name in names)
    )


@cache
def _with_tables(tables: tuple[tuple[str, type[Section]], ...]) -> type[Experiment]:
    if not tables:
        return Experiment
    kind: Any = msgspec.defstruct(
        "Experiment",
        [(name, kind, kind()) for name, kind in tables],
        bases=(Experiment,),
        namespace={"__doc__": Experiment.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast(type[Experiment], kind)


def read_document(path: Path) -> dict[str, Any]:
    """Return a parsed experiment file that is not yet checked.

    Raises:
        ExperimentError: The file cannot be read, or is not TOML.
    """
    try:
        return toml_of(text_of(path.read_bytes()))
    except FileNotFoundError as exc:
        raise ExperimentError(
            f"{path}: there is no such file; `fairbed init` writes one and `fairbed examples` has "
            "some"
        ) from exc
    except OSError as exc:
        raise ExperimentError(f"{path}: cannot be read: {exc.strerror or exc}") from exc
    except NotText as exc:
        raise ExperimentError(f"{path}: {exc}") from exc
    except TOMLDecodeError as exc:
        raise ExperimentError(f"{path}: not valid TOML: {exc}") from exc


Settings: TypeAlias = "Sequence[str] | Mapping[str, Any]"
"""Overrides of keys, applied in order: texts such as `selection.V=50`, or values by key."""


def load_experiment(path: Path, settings: Settings = (), seed: int | None = None) -> Experiment:
    """Return the experiment in a TOML file; the arguments are those of `make_experiment`.

    Raises:
        ExperimentError: The file cannot be read, or breaks a rule.
    """
    return make_experiment(read_document(path), str(path), settings, seed)


def make_experiment(
    document: Mapping[str, Any], where: str, settings: Settings = (), seed: int | None = None
) -> Experiment:
    """Return the experiment of a document.

    Args:
        document: Content of an experiment file; may have paths and numbers of numpy.
        where: Its name in errors.
        settings: Overrides of keys.
        seed: Overrides the `seed` of the document.

    Raises:
        ExperimentError: A setting or the document breaks a rule.
    """
    try:
        raw = plain_document(document)
    except ValueError as exc:
        raise ExperimentError(f"{where}: {exc}") from exc
    try:
        change(raw, settings)
    except ValueError as exc:
        raise ExperimentError(str(exc)) from exc
    if seed is not None:
        raw["seed"] = seed
    return parse_experiment(raw, where)


def change(raw: dict[str, Any], settings: Settings) -> None:
    """Override keys of a parsed document.

    Raises:
        ValueError: A setting cannot be applied; the message names it.
    """
    setting = ""
    try:
        if isinstance(settings, Mapping):
            for setting, value in settings.items():
                assign(raw, setting, plain_document({"": value}).get(""))
        else:
            for setting in settings:
                override(raw, setting)
    except ValueError as exc:
        raise ValueError(f"--set {setting}: {exc}") from exc


def plain_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document of a script as one of a TOML file: a copy, without None.

    Raises:
        ValueError: It has a value that no such file can have.
    """
    try:
        raw: dict[str, Any] = _without_none(msgspec.to_builtins(dict(document), enc_hook=_plain))
    except TypeError as exc:
        raise ValueError(str(exc)) from exc
    return raw


def _plain(value: Any) -> Any:
    """Return a value of a script as a value of a TOML file."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(
        f"must be numbers, texts, lists and tables as in an experiment file, got "
        f"{type(value).__name__}"
    )


def change_experiment(experiment: Experiment, settings: Settings, seed: int | None) -> Experiment:
    """Return an experiment with other values of some keys.

    Raises:
        ExperimentError: A value breaks a rule.
    """
    if settings or seed is not None:
        document = msgspec.to_builtins(experiment)
        return make_experiment(document, experiment.name, settings, seed)
    return experiment


def parse_experiment(raw: dict[str, Any], where: str) -> Experiment:
    """Return the experiment in a parsed TOML document; `where` is its name in errors.

    Raises:
        ExperimentError: The document breaks a rule.
    """
    problem = first_not_finite(raw)
    if problem is not None:
        raise ExperimentError(f"{where}: {problem}")
    for name in raw.keys() - set(Experiment.__struct_fields__):
        if room := rooms.absent("tables", name):
            raise ExperimentError(f"{where}: {rooms.lacking(name, room)}")
    try:
        experiment = msgspec.convert(raw, experiment_type(raw))
    except msgspec.ValidationError as exc:
        line = explain(exc, raw, experiment_type())
        raise ExperimentError(f"{where}: {line}") from exc
    used = {name: one for name, one in experiment.room_tables.items() if one != type(one)()}
    experiment = _with_links(experiment.with_tables_of(used), where)
    if experiment.replay.training is not None:
        return experiment
    # The resolved file always has `[data]`, so the meaning of its absence is recorded here.
    has_data = "data" in raw and experiment.replay.examples is None
    training = has_data or experiment.trains_in_replay
    replay = msgspec.structs.replace(experiment.replay, training=training)
    return msgspec.structs.replace(experiment, replay=replay)


def _with_links(experiment: Experiment, where: str) -> Experiment:
    """Return the experiment with the names of the links in place of patterns.

    So a stored experiment names its links, and a link that is added later changes no draw.

    Raises:
        ExperimentError: A pattern matches no link, or a link is named twice.
    """
    fleet = list(experiment.fleet)
    for number, group in enumerate(fleet):
        if not any(ANY in name for name in group.links):
            continue
        try:
            links = tuple(link for name in group.links for link in matching_links(name))
            fleet[number] = msgspec.structs.replace(group, link=links)
        except ValueError as exc:
            raise ExperimentError(f"{where}: fleet[{number}].{exc}") from exc
    return msgspec.structs.replace(experiment, fleet=tuple(fleet))


ANY = "*"
"""Any text in a pattern of links."""


def matching_links(pattern: str) -> list[str]:
    """Return the links of a pattern, sorted: files if it ends with `.toml`, or shipped ones.

    Raises:
        ValueError: There is none.
    """
    literal = re.sub(r"([?\[])", r"[\1]", pattern)
    if ANY not in pattern:
        return [pattern]
    is_file = pattern.endswith(".toml")
    found = sorted(glob(literal)) if is_file else fnmatch.filter(link_names(), literal)
    if not found:
        of_files = "" if is_file else '; a pattern of files ends with .toml: "city-*.toml"'
        raise ValueError(
            f"link: must match a link, got {pattern!r}, which matches "
            f"{'no file' if is_file else 'none of ' + ', '.join(link_names())}"
            f"{of_files or '; check the path'}"
        )
    return found


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value
