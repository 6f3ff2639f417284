"""Plan the fleet of an experiment: the devices and the profile, link and seed of each."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fairbed import profiles
from fairbed.coordinator.store.tables import DRAWN_LINK, TruthRow
from fairbed.coordinator.task.recipes import MODELS, model_path
from fairbed.device_agent.availability import DAY_S, parse_hours, parse_time
from fairbed.profiles import DeviceTracks, Link, Profile, Quantity, Varying, device_tracks
from fairbed.profiles.errors import TraceError
from fairbed.profiles.series import Series
from fairbed.profiles.traces import TraceReader
from fairbed.profiles.traces.files import read_file
from fairbed.profiles.traces.units import magnitude_faults
from fairbed.profiles.tracks import LinkTracks
from fairbed.testbed.backends.base import DeviceSpec, device_spec, without
from fairbed.testbed.emulation.cell import Cell, lines_of
from fairbed.testbed.emulation.conditions import LinkFeature
from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.emulation.queues import queue_bytes
from fairbed.testbed.emulation.schedule import (
    OutageWindow,
    Schedule,
    ScheduleFollower,
    UnavailableAs,
    device_schedule,
)
from fairbed.testbed.emulation.step_speed import AtTask, at_task
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.experiment.cells import make_cells
from fairbed.testbed.experiment.file import Experiment, ExperimentError, FleetConfig
from fairbed.testbed.experiment.malicious import draw_attacks
from fairbed.testbed.experiment.noise import NoiseConfig, device_levels
from fairbed.wire.artifact import Artifact
from fairbed.wire.models import package_of
from fairbed.wire.plugins import is_path


def hours_series(hours: Sequence[str], start_time: str) -> Series:
    """Return availability on the clock of the run: 1 in hours such as `22:00-06:00`, 0 otherwise.

    Args:
        hours: At least one range.
        start_time: Time of day at which the run begins, such as `18:00`.

    Raises:
        ValueError: A range of hours, or the time of day, is not valid.
    """
    ranges = [parse_hours(text) for text in hours]
    edges = sorted({0, *(edge % DAY_S for one in ranges for edge in (one.begin_s, one.end_s))})
    values = [float(any(one.contains(edge) for one in ranges)) for edge in edges]
    day = Series(tuple(float(edge) for edge in edges), tuple(values), float(DAY_S))
    return day.starting_at(parse_time(start_time))


if TYPE_CHECKING:
    from fairbed.device_agent.config import AllowedClient
    from fairbed.profiles.exchange_log import ExchangeLog

MAX_EMULATED = 10_000
"""Maximum number of devices that are planned one by one; a replay stores more as columns."""

MAX_NAME = 32
"""Characters of a device name (`wire.messages`)."""


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """One device of the fleet, not started yet."""

    spec: DeviceSpec
    profile: Profile | None
    """None is this machine, not throttled."""
    link: Link | None
    tracks: DeviceTracks
    """Profile and link over time."""
    host_core_speed: float = 1.0
    unavailable_as: UnavailableAs = "unwilling"
    outages: tuple[OutageWindow, ...] = ()
    is_physical: bool = False
    """It joins a live run by itself; a replay takes its recorded profile."""
    levels: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Factors on the durations of download, computing and upload (`testbed.experiment.noise`);
    the tracks and the `spec` have those of the link already."""
    drawn_link: str | None = None
    """Name of its link, if its group has several; else None."""

    def served_by(self, address: str) -> "PlannedDevice":
        """Return the device whose client is a fork of a server at a socket of this machine."""
        return replace(self, spec=replace(self.spec, client_server=address))

    @property
    def schedule(self) -> Schedule:
        """The device's conditions over time, in cores of this machine; time not dilated."""
        return device_schedule(
            self.profile,
            self.tracks,
            self.host_core_speed * self.levels[1],
            unavailable_as=self.unavailable_as,
            outages=self.outages,
        )

    def follower(self, start_s: float) -> ScheduleFollower:
        """Return a follower of the schedule, with a cold device at `start_s` seconds of the run."""
        profile = self.profile
        if profile is None:
            return ScheduleFollower(self.schedule)
        return ScheduleFollower(
            self.schedule,
            self.tracks.thermal,
            cores=profile.cores,
            threads=profile.engine_threads,
            start=start_s,
        )

    def with_is_driven(self) -> "PlannedDevice":
        """Return the device with `spec.is_driven`: whether its conditions change during a run."""
        is_driven = not self.schedule.is_constant or self.tracks.thermal is not None
        link = self.tracks.link
        has_jitter = is_driven and link is not None and link.jitter_s.highest > 0.0
        return replace(self, spec=replace(self.spec, is_driven=is_driven, has_jitter=has_jitter))

    def with_attack(self, attack: Attack | None) -> "PlannedDevice":
        """Return the device with this behaviour; None is honest."""
        return replace(self, spec=replace(self.spec, attack=attack))

    def without(self, lacking: Collection[LinkFeature]) -> "PlannedDevice":
        """Return the device without features that its backend lacks; profile and link stay."""
        link = self.tracks.link
        if link is not None and "loss" in lacking:
            link = replace(link, loss_ratio=Series.constant(0.0))
        if link is not None and "fq_codel" in lacking:
            link = replace(link, queue=replace(link.queue, discipline="drop-tail"))
        tracks = replace(self.tracks, link=link)
        return replace(self, spec=without(self.spec, lacking), tracks=tracks).with_is_driven()

    def dilated(self, dilation: float) -> "PlannedDevice":
        """Return the device as this machine must emulate it; profile and link are unchanged."""
        return replace(self, spec=self.spec.dilated(dilation))

    def without_models(self) -> "PlannedDevice":
        """Return the device for a task with graphs: it imports no module with models."""
        return replace(self, spec=replace(self.spec, models=()))

    def with_base(self, artifact: Artifact) -> "PlannedDevice":
        """Return the device with the frozen part of a model in its memory."""
        if artifact.base is None:
            return self
        spec = replace(self.spec, shared_bytes=artifact.base.layout.size_bytes)
        return replace(self, spec=spec)

    def at_task(self, experiment: Experiment, costs: TaskCosts) -> "PlannedDevice":
        """Return the device at the speed that it has at the task of an experiment."""
        profile = self.profile
        if profile is None or self.spec.device is None:
            return self
        found = device_at_task(profile, experiment, costs)
        if found == AtTask(profile):
            return self
        factor = found.profile.core_speed / profile.core_speed
        device = msgspec.structs.replace(
            self.spec.device,
            speed_ratio=self.spec.device.speed_ratio * factor,
            evaluation_speed=found.evaluation_speed,
        )
        return replace(self, profile=found.profile, spec=replace(self.spec, device=device))

    def truth_row(self) -> TruthRow:
        """Return the configured numbers for the store; only the analysis reads them."""
        profile, link = self.profile, self.link
        return TruthRow(
            name=self.spec.name,
            profile=profile.name if profile else "this-machine",
            cpu_speed=profile.training_speed / self.levels[1] if profile else 1.0,
            cores=profile.cores if profile else 1,
            down_bps=link.down_bps / self.levels[0] if link else None,
            up_bps=link.up_bps / self.levels[2] if link else None,
            delay_s=link.delay_s if link else 0.0,
            malicious=None if self.spec.attack is None else self.spec.attack.kind,
            details=msgspec.json.encode(
                {
                    DRAWN_LINK: self.drawn_link,
                    "profile": profile,
                    "link": link,
                    "attack": self.spec.attack,
                }
            ).decode(),
        )


def device_at_task(profile: Profile, experiment: Experiment, costs: TaskCosts) -> AtTask:
    """Return a device with the speeds that it has at the task of an experiment.

    A shipped model has the `core_speed` of the profile, unless `model.like` is given.

    Args:
        profile: The device.
        experiment: Names the model, its class and the batch size.
        costs: Costs of the task.
    """
    model, batch_size = experiment.model, experiment.training.part_size
    if model.name in MODELS and model.like is None:
        return AtTask(profile)
    from fairbed.device_agent.trainer import EVALUATION_BATCH

    return at_task(profile, costs, batch_size, EVALUATION_BATCH, model.like)


def check_fleet(experiment: Experiment, environ: Mapping[str, str]) -> None:
    """Check that every profile, population, link and trace of the fleet can be used.

    The speed of this machine has no part in that: it may be unmeasured.

    Raises:
        ExperimentError: A rule of the fleet is broken.
        ProfileError: A profile, link or trace cannot be used.
    """
    emulation = msgspec.structs.replace(experiment.emulation, host_core_speed=1.0)
    plan_fleet(msgspec.structs.replace(experiment, emulation=emulation), environ)
    for group in experiment.fleet:
        exchange_log_of(group)


def exchange_log_of(group: FleetConfig) -> "ExchangeLog | None":
    """Return the log from which a replay draws the durations of a group; None without one.

    Raises:
        TraceError: It cannot be read, or violates a rule.
    """
    if group.exchange_times is None:
        return None
    from fairbed.profiles.exchange_log import read_exchange_log

    return read_exchange_log(read_file(Path(group.exchange_times)), group.exchange_times)


def cells_of(experiment: Experiment) -> dict[str, Cell]:
    """Return the cells of an experiment, by name.

    Raises:
        ProfileError: The profile of a cell is unknown, or breaks a rule.
        ExperimentError: The rule of a cell does not fit the groups or the other cells.
    """
    groups = [(group.cell, group.priority) for group in experiment.fleet]
    try:
        return make_cells(experiment.cell, groups)
    except ValueError as exc:
        raise ExperimentError(str(exc)) from None


def _clients(experiment: Experiment) -> "tuple[tuple[str, AllowedClient], ...]":
    """Return the client that emulated devices may run: that of the experiment."""
    training = experiment.training
    if training.client is None:
        return ()
    from fairbed.device_agent.config import AllowedClient
    from fairbed.testbed.experiment.client_task import folder_of, name_of

    folder = folder_of(training, Path())
    allowed = AllowedClient(folder=str(folder), python=training.client_python)
    return ((name_of(folder), allowed),)


def plan_fleet(experiment: Experiment, environ: Mapping[str, str]) -> list[PlannedDevice]:
    """Return the devices of `[[fleet]]` in order, named by their group and a number from 1.

    A live run does not start the physical ones among them. The random draws of a device do not
    depend on the devices after it.

    Args:
        experiment: Provides the fleet and two seeds. `fleet` draws devices from populations;
            `traces` draws the start of each device in its traces, and time series of numbers that
            are given as distributions.
        environ: Read for `FAIRBED_DATA` only, the folder of traces.

    Raises:
        ProfileError: A profile, link or trace is unknown, or breaks a rule.
        ExperimentError: There are too many devices, a name is too long, or an emulated device has
            the name of a physical one.
        ValueError: The speed of this machine has not been measured.
    """
    if experiment.devices > MAX_EMULATED:
        raise ExperimentError(
            f"fleet: at most {MAX_EMULATED:,} devices can be emulated, got "
            f"{experiment.devices:,}; use fairbed replay for a larger fleet"
        )
    cells = cells_of(experiment)
    devices: list[PlannedDevice] = []
    members: list[Sequence[str]] = []
    counts: dict[str, int] = {}
    read_trace = TraceReader(environ)
    rule, speed = experiment.training.rule, experiment.emulation.host_core_speed
    local_rules = (*((rule,) if is_path(rule) else ()), *experiment.training.own_augmentations)
    model = model_path(experiment.model.name)
    code = [model, experiment.model.loss, *experiment.evaluation.metrics] if is_path(model) else []
    models = tuple(dict.fromkeys(package_of(path) for path in code if is_path(path)))
    clients = _clients(experiment)
    if speed == "auto":
        raise ValueError("host_core_speed must be measured before a fleet is planned, got auto")
    for number, group in enumerate(experiment.fleet):
        if group.model is not None:
            raise ExperimentError(
                f"fleet[{number}].model: must not be set for emulated devices, got "
                f'"{group.model}"; use fairbed replay'
            )
        device_profiles = _profiles(group, stream(experiment.seed_for("fleet"), number))
        own_links = [profiles.load_link(link).link for link in group.links]
        outages = tuple(
            OutageWindow(o.start_s, o.start_s + o.duration_s, o.kind) for o in group.outage
        )
        prefix, names = _names(group, device_profiles[0], counts)
        if not group.physical:
            _check_names(number, prefix, names, experiment.physical)
        members.append(names)
        for name, profile in zip(names, device_profiles, strict=True):
            own = drawn_link(experiment.seed_for("traces"), name, len(own_links) or 1)
            link = own_links[own] if own_links else None if profile is None else profile.link
            if group.trace is not None:
                link = _traced(link, group.trace, read_trace)
            link = _queued(link, group, number)
            levels = (1.0, 1.0, 1.0) if group.physical else _levels(experiment, len(devices))
            spec = _on_levels(device_spec(name, profile, link, speed * levels[1]), levels)
            spec = replace(
                spec,
                local_rules=local_rules,
                models=models,
                clients=clients,
                cells=tuple(cells[one] for one in lines_of(group.cell or "", cells)),
                priority=group.priority or 0,
                congestion=group.congestion,
            )
            rng = stream(experiment.seed_for("traces"), len(devices))
            tracks = device_tracks(profile, link, read_trace, rng, float(rng.random()))
            if tracks.link is not None and levels != (1.0, 1.0, 1.0):
                tracks = replace(tracks, link=_track_on_levels(tracks.link, levels))
            spec = _with_queues(spec, tracks.link)
            if group.available_hours:
                hours = hours_series(group.available_hours, experiment.emulation.start_time)
                tracks = replace(tracks, available=hours)
            unavailable_as = experiment.emulation.unavailable_as
            planned = PlannedDevice(
                spec,
                profile,
                link,
                tracks,
                speed,
                unavailable_as,
                outages,
                is_physical=bool(group.physical),
                levels=levels,
                drawn_link=group.links[own] if group.draws_link else None,
            )
            devices.append(planned.with_is_driven())
    attacks = attacks_of(experiment, members)
    return [device.with_attack(attacks.get(device.spec.name)) for device in devices]


MOST_LINES = 5
"""Most numbers of links that a run lists as unlikely."""


def unlikely_numbers(devices: Sequence[PlannedDevice]) -> list[str]:
    """Return the numbers of links that are likely those of another unit, one line each."""
    lines = list[str]()
    for device in {device.link: device for device in reversed(devices)}.values():
        link = device.tracks.link
        for column in () if link is None else ("down_bps", "up_bps", "delay_s", "loss_ratio"):
            for fault in magnitude_faults(column, getattr(link, column), has_rows=False):
                lines.append(f"{device.spec.name}: {fault}; check the unit in its link")
    more = [f"and {len(lines) - MOST_LINES} more such numbers"] if len(lines) > MOST_LINES else []
    return [*lines[:MOST_LINES], *more]


def drawn_link(seed: int, device: str, count: int) -> int:
    """Return the place of the link that a device draws of `count`; other devices do not matter.

    Args:
        seed: The seed `traces`.
        device: Name of the device.
        count: Number of links.
    """
    digest = hashlib.sha256(f"{seed}:link:{device}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % count


def _levels(experiment: Experiment, row: int) -> tuple[float, float, float]:
    """Return the levels of the device of a row: download, compute, upload."""
    if experiment.noise == NoiseConfig():
        return (1.0, 1.0, 1.0)
    rows = np.array([row], dtype=np.int64)
    found = device_levels(experiment.noise, experiment.seed_for("traces"), rows)[:, 0].tolist()
    return (found[0], found[1], found[2])


def _on_levels(spec: DeviceSpec, levels: tuple[float, float, float]) -> DeviceSpec:
    """Return a device whose rates have their levels."""
    shape = spec.shape
    if shape is None or levels == (1.0, 1.0, 1.0):
        return spec
    return replace(
        spec,
        shape=msgspec.structs.replace(
            shape,
            down_bps=None if shape.down_bps is None else shape.down_bps / levels[0],
            up_bps=None if shape.up_bps is None else shape.up_bps / levels[2],
        ),
    )


def _track_on_levels(link: LinkTracks, levels: tuple[float, float, float]) -> LinkTracks:
    """Return the schedules of a link whose rates have their levels."""
    return replace(
        link,
        down_bps=link.down_bps.scaled(1.0 / levels[0]),
        up_bps=link.up_bps.scaled(1.0 / levels[2]),
    )


def _with_queues(spec: DeviceSpec, link: LinkTracks | None) -> DeviceSpec:
    """Return a device whose queues have the size that the schedules of its link give them."""
    if spec.shape is None or link is None:
        return spec
    shape = msgspec.structs.replace(
        spec.shape,
        down_queue_bytes=queue_bytes(link, "down"),
        up_queue_bytes=queue_bytes(link, "up"),
    )
    return replace(spec, shape=shape)


def _check_names(number: int, prefix: str, names: Sequence[str], physical: Sequence[str]) -> None:
    """Check the names of the emulated devices of a group.

    Raises:
        ExperimentError: One is too long, or is the name of a physical device.
    """
    if len(names[-1]) > MAX_NAME:
        raise ExperimentError(
            f"fleet[{number}].name: name and device number must have at most {MAX_NAME} "
            f"characters, got {prefix!r} for {len(names)} devices; give a shorter name"
        )
    if taken := set(names).intersection(physical):
        raise ExperimentError(
            f"fleet[{number}].name: an emulated device must not have the name of a physical one, "
            f"got {min(taken)!r} for both; give this group another name"
        )


def attacks_of(experiment: Experiment, members: Sequence[Sequence[str]]) -> dict[str, Attack]:
    """Return the behaviour of each malicious device, by its name.

    Args:
        experiment: Provides the fleet, the seed `malicious`, and the size of a cohort.
        members: Names of the devices of each `[[fleet]]`.

    Raises:
        ExperimentError: A group lacks a device.
    """
    config = experiment.coordinator()
    groups = [group.malicious for group in experiment.fleet]
    try:
        return draw_attacks(
            groups, members, experiment.seed_for("malicious"), config.updates_per_version
        )
    except ValueError as exc:
        raise ExperimentError(str(exc)) from None


def fleet_names(experiment: Experiment) -> list[str]:
    """Return the names of the devices of `[[fleet]]` alone, as `plan_fleet` gives them.

    Raises:
        ProfileError: A profile or population is unknown, or breaks a rule.
    """
    counts: dict[str, int] = {}
    return [
        name
        for number, group in enumerate(experiment.fleet)
        for name in _names(
            group, _profiles(group, stream(experiment.seed_for("fleet"), number))[0], counts
        )[1]
    ]


def _names(
    group: FleetConfig, first: Profile | None, counts: dict[str, int]
) -> tuple[str, Sequence[str]]:
    """Return the prefix of a group, and the names of its devices.

    Args:
        group: The group.
        first: Profile of its first device.
        counts: Devices with each prefix in the groups before; changed.
    """
    prefix = group.name or (first.name if first is not None else "device")
    if group.physical:
        return prefix, group.physical
    before = counts.get(prefix, 0)
    counts[prefix] = before + group.count
    return prefix, [f"{prefix}-{before + k + 1}" for k in range(group.count)]


def _profiles(group: FleetConfig, rng: np.random.Generator) -> list[Profile | None]:
    """Return the profile of each device of a group; None is this machine."""
    if group.population is not None:
        found = profiles.sample(profiles.load_population(group.population), group.count, rng)
    elif group.profile is not None:
        found = [profiles.load(group.profile)] * group.size
    else:
        return [None] * group.size
    found = [_in_case(profile, group) for profile in found]
    if not group.always_available:
        return [*found]
    return [msgspec.structs.replace(profile, availability=None) for profile in found]


def _in_case(profile: Profile, group: FleetConfig) -> Profile:
    """Return the profile in the case and the air of its group.

    Raises:
        ExperimentError: The profile has no temperatures.
    """
    changed = (group.case_resistance, group.case_constant_s, group.ambient_celsius)
    if changed == (1.0, None, None):
        return profile
    if profile.thermal is None:
        raise ExperimentError(
            f"fleet: ambient_celsius and the keys of the case need [thermal] in {profile.name}, "
            "got none; remove them, or add the section to the profile"
        )
    try:
        return msgspec.structs.replace(profile, thermal=profile.thermal.in_case(*changed))
    except ValueError as exc:
        raise ExperimentError(f"fleet: {profile.name}: {exc}") from None


def _traced(link: Link | None, name: str, read_trace: TraceReader) -> Link:
    """Return a link whose rates follow a trace.

    Raises:
        TraceError: The trace does not exist, breaks a rule, or has only zeros.
    """

    def rate(column: str) -> Varying[float, float]:
        series = read_trace(name, column)
        if series.highest == 0.0:
            raise TraceError(
                f"{name}: {column} must be above 0 somewhere, got only zeros; name another trace"
            )
        source = f"mean of the trace {name}"
        return Varying(value=series.mean, tag="measured", source=source, trace=name)

    if link is None:
        source = "no link was named beside the trace"
        link = Link(delay=Varying(value=0.0, tag="literature", source=source))
    return msgspec.structs.replace(
        link,
        down=rate("down_bps"),
        up=rate("up_bps"),
        outages=None,
        degraded=None,
        coupling=None,
    )


def _queued(link: Link | None, group: FleetConfig, number: int) -> Link | None:
    """Return a link with the queue of its group.

    Raises:
        ExperimentError: There is no link that could have a queue.
    """
    given = {
        "queue_depth": group.queue_ms,
        "queue_size": group.queue_bytes,
        "discipline": group.queue,
    }
    if not any(value is not None for value in given.values()):
        return link
    if link is None:
        raise ExperimentError(
            f"fleet[{number}]: a queue needs a link, got none; give the group a link or a profile"
        )
    if group.queue is None:
        del given["discipline"]
    if group.queue_ms is None and group.queue_bytes is None:
        del given["queue_depth"], given["queue_size"]
    source = f"fleet[{number}] of the experiment"
    numbers = {
        key: None if value is None else Quantity(value=value, tag="literature", source=source)
        for key, value in given.items()
    }
    return msgspec.structs.replace(link, **numbers)


def stream(seed: int, number: int) -> np.random.Generator:
    """Return the random generator of one group or one device."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(number,))))
