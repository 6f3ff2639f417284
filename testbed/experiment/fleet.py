"""The emulated fleet of an experiment: which devices there are, and what each is meant to be.

Hours of the day at which devices take part, as a series on the run's clock. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from fairbed import profiles
from fairbed.coordinator.store.tables import TruthRow
from fairbed.device_agent.availability import DAY_S, parse_hours, parse_time
from fairbed.profiles import DeviceTracks, Link, Profile, Varying, device_tracks
from fairbed.profiles.errors import TraceError
from fairbed.profiles.series import Series
from fairbed.profiles.traces import TraceReader
from fairbed.testbed.backends.base import DeviceSpec, device_spec, without_loss
from fairbed.testbed.emulation.schedule import (
    OutageWindow,
    Schedule,
    ScheduleFollower,
    UnavailableAs,
    device_schedule,
)
from fairbed.testbed.experiment.file import Experiment, ExperimentError, FleetConfig


def hours_series(hours: Sequence[str], start_time: str) -> Series:
    """Return 1 while hours such as `22:00-06:00` hold and 0 otherwise, day after day.

    Args:
        hours: At least one.
        start_time: Time of day at which the run begins, such as `18:00`.

    Raises:
        ValueError: These are no hours, or this is no time of day.
    """
    known = [parse_hours(text) for text in hours]
    edges = sorted({0, *(edge % DAY_S for one in known for edge in (one.begin_s, one.end_s))})
    values = [float(any(one.hold_at(edge) for one in known)) for edge in edges]
    day = Series(tuple(float(edge) for edge in edges), tuple(values), float(DAY_S))
    return day.starting_at(parse_time(start_time))


MAX_EMULATED = 10_000
"""Devices of a fleet that are planned one by one; a replay plays larger ones as columns."""

MAX_NAME = 32
"""Characters of a device name (`wire.messages`)."""


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """One device to start."""

    spec: DeviceSpec
    profile: Profile | None
    """None is this machine, not throttled."""
    link: Link | None
    tracks: DeviceTracks
    """What both become over time."""
    host_core_speed: float = 1.0
    unavailable_as: UnavailableAs = "unwilling"
    outages: tuple[OutageWindow, ...] = ()

    @property
    def timeline(self) -> Schedule:
        """Its conditions over time, in cores of this machine; time not dilated."""
        return device_schedule(
            self.profile,
            self.tracks,
            self.host_core_speed,
            unavailable_as=self.unavailable_as,
            outages=self.outages,
        )

    def course(self, start_s: float) -> ScheduleFollower:
        """Return the course of this device, cold at `start_s` seconds of the run."""
        profile = self.profile
        if profile is None:
            return ScheduleFollower(self.timeline)
        return ScheduleFollower(
            self.timeline,
            self.tracks.thermal,
            cores=profile.cores,
            threads=profile.engine_threads,
            start=start_s,
        )

    def driven(self) -> "PlannedDevice":
        """Return the same; its spec says whether its conditions change while it runs."""
        is_driven = not self.timeline.is_constant or self.tracks.thermal is not None
        return replace(self, spec=replace(self.spec, is_driven=is_driven))

    def without_loss(self) -> "PlannedDevice":
        """Return the same on a link that loses nothing, for a backend that cannot lose."""
        link = self.tracks.link
        if link is None:
            return self
        steady = replace(link, loss_ratio=Series.constant(0.0))
        tracks = replace(self.tracks, link=steady)
        return replace(self, spec=without_loss(self.spec), tracks=tracks).driven()

    def dilated(self, dilation: float) -> "PlannedDevice":
        """Return the device as this machine has to emulate it; what it is meant to be stays."""
        return replace(self, spec=self.spec.dilated(dilation))

    def truth(self) -> TruthRow:
        """Return what the testbed configured, for the analysis only."""
        profile, link = self.profile, self.link
        return TruthRow(
            name=self.spec.name,
            profile=profile.name if profile else "this-machine",
            cpu_speed=profile.training_speed if profile else 1.0,
            cores=profile.cores if profile else 1,
            down_bps=link.down_bps if link else None,
            up_bps=link.up_bps if link else None,
            delay_s=link.delay_s if link else 0.0,
            details=msgspec.json.encode({"profile": profile, "link": link}).decode(),
        )


def plan_fleet(experiment: Experiment, environ: Mapping[str, str]) -> list[PlannedDevice]:
    """Return the devices of `[[fleet]]` in order; a name is its group's and a number from 1.

    What a device draws does not depend on which devices come after it.

    Args:
        experiment: Its fleet; its seed `fleet`, which draws the devices of populations; and its
            seed `traces`, which moves every device to a moment of its own in its traces, and
            draws the courses of numbers that are known as distributions.
        environ: Read for `FAIRBED_DATA` only, where traces may be.

    Raises:
        ProfileError: A profile, link or trace is unknown, or breaks a rule.
        ExperimentError: There are too many devices, or a name would be too long.
        ValueError: The speed of this machine is still to be measured.
    """
    if experiment.devices > MAX_EMULATED:
        raise ExperimentError(
            f"fleet: at most {MAX_EMULATED:,} devices can be emulated, got "
            f"{experiment.devices:,}; fairbed replay plays more"
        )
    devices: list[PlannedDevice] = []
    counts: dict[str, int] = {}
    read_trace = TraceReader(environ)
    speed = experiment.emulation.host_core_speed
    if speed == "auto":
        raise ValueError("host_core_speed must be a number when a fleet is planned, got auto")
    for number, group in enumerate(experiment.fleet):
        if group.model is not None:
            raise ExperimentError(
                f'fleet[{number}].model: must not be "{group.model}" for devices to emulate; '
                "fairbed replay plays such a fleet"
            )
        kinds = _kinds(group, stream(experiment.seed_for("fleet"), number))
        own_link = None if group.link is None else profiles.load_link(group.link).link
        outages = tuple(
            OutageWindow(o.start_s, o.start_s + o.duration_s, o.kind) for o in group.outage
        )
        prefix = group.name or (kinds[0].name if kinds[0] is not None else "device")
        if len(f"{prefix}-{counts.get(prefix, 0) + group.count}") > MAX_NAME:
            raise ExperimentError(
                f"fleet[{number}].name: must leave room for the device's number, got {prefix!r}; "
                "give a shorter name"
            )
        for profile in kinds:
            counts[prefix] = counts.get(prefix, 0) + 1
            link = own_link or (profile.link if profile is not None else None)
            if group.trace is not None:
                link = _traced(link, group.trace, read_trace)
            spec = device_spec(f"{prefix}-{counts[prefix]}", profile, link, speed)
            rng = stream(experiment.seed_for("traces"), len(devices))
            tracks = device_tracks(profile, link, read_trace, rng, float(rng.random()))
            if group.available_hours:
                there = hours_series(group.available_hours, experiment.emulation.start_time)
                tracks = replace(tracks, available=there)
            unavailable_as = experiment.emulation.unavailable_as
            planned = PlannedDevice(spec, profile, link, tracks, speed, unavailable_as, outages)
            devices.append(planned.driven())
    return devices


def _kinds(group: FleetConfig, rng: np.random.Generator) -> list[Profile | None]:
    """Return what each device of a group is; None is this machine."""
    if group.population is not None:
        kinds = profiles.sample(profiles.load_population(group.population), group.count, rng)
    elif group.profile is not None:
        kinds = [profiles.load(group.profile)] * group.count
    else:
        return [None] * group.count
    if not group.always_available:
        return [*kinds]
    return [msgspec.structs.replace(kind, availability=None) for kind in kinds]


def _traced(link: Link | None, name: str, read_trace: TraceReader) -> Link:
    """Return a link whose rates follow a trace.

    Raises:
        TraceError: There is no such trace, or it breaks a rule or carries nothing.
    """

    def rate(column: str) -> Varying[float, float]:
        series = read_trace(name, column)
        if series.highest == 0.0:
            raise TraceError(
                f"{name}: {column} must be above 0 somewhere, got only zeros; name another trace"
            )
        words = f"mean of the trace {name}"
        return Varying(value=series.mean, tag="measured", source=words, trace=name)

    rates = {"down": rate("down_bps"), "up": rate("up_bps")}
    if link is not None:
        return msgspec.structs.replace(link, **rates)
    none = "no link was named beside the trace"
    return Link(**rates, delay=Varying(value=0.0, tag="literature", source=none))


def stream(seed: int, number: int) -> np.random.Generator:
    """Return the randomness of one group, or of one device."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(number,))))
