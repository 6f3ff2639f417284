"""Plans the device: its conditions at every moment while the command runs.

    profile      processor, memory and link; options override each of them
    --trace      link rates over time, and delay, jitter and loss if the trace has these columns
    options      constants that replace values of the profile, the link or the trace

The device is always available: the availability of the profile is ignored.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairbed import profiles
from fairbed.profiles import Link, LinkTracks, Profile, device_tracks
from fairbed.profiles.errors import TraceError
from fairbed.profiles.series import Series
from fairbed.profiles.tracks import ReadTrace
from fairbed.testbed.backends.network.plan.change import MAX_DELAY_S
from fairbed.testbed.backends.network.plan.htb import MIN_BPS, UNLIMITED_BPS
from fairbed.testbed.emulation.quota import MIN_SHARE, threads_for
from fairbed.testbed.emulation.schedule import LEAST_FREE_CORES, Schedule, ScheduleFollower, Speed
from fairbed.testbed.shape.request import HOST_LINK, NONE, DeviceRequest, RequestError

ROUNDING = 1e-9
"""Tolerance for floating-point rounding."""

NOTHING_TO_EMULATE = (
    "there is nothing to emulate; name a profile (fairbed profiles list), or give "
    "--cpu, --memory, --link, --down, --up, --delay or --trace"
)


@dataclass(frozen=True, slots=True)
class ShapePlan:
    """The device of a command."""

    follower: ScheduleFollower
    is_slowed: bool
    """Whether the speed of the processor is emulated."""
    has_link: bool
    """Whether the device has an emulated network; otherwise it uses this machine's."""
    is_delayed: bool
    """Whether the link has delay, jitter or loss at any time."""
    has_jitter: bool
    """Whether the link has jitter at any time."""
    memory_bytes: int | None
    """None is not limited."""
    threads: int | None
    """Threads that numerical libraries should start; None leaves it to them."""
    is_steady: bool
    """Whether the conditions are constant while the command runs."""
    seed: int
    is_paced: bool = False
    """Whether SIGSTOP and SIGCONT slow the processor, instead of control groups."""

    @property
    def is_limited(self) -> bool:
        """Whether processor or memory is limited."""
        return self.is_slowed or self.memory_bytes is not None


def make_plan(
    request: DeviceRequest, read_trace: ReadTrace, host_cores: float, host_memory_bytes: int
) -> ShapePlan:
    """Return the plan of the requested device.

    Args:
        request: The requested device.
        read_trace: Reads a column of a trace.
        host_cores: Cores of this machine.
        host_memory_bytes: Memory of this machine.

    Raises:
        ProfileError: A profile, a link or a trace is unknown or breaks a rule.
        RequestError: Options contradict each other, or this machine is too small.
        ValueError: The speed of this machine was not measured yet.
    """
    profile = None if request.profile is None else profiles.load(request.profile)
    link = _link_of(request, profile)
    rng = np.random.Generator(np.random.PCG64(request.seed))
    tracks = device_tracks(profile, link, read_trace, rng)
    speed = _speed_of(request, profile, tracks.clock_ratio, tracks.background_load)
    thermal = tracks.thermal if request.cpu is None else None
    if speed is not None:
        slowest = thermal.sustained_clock_ratio if thermal is not None else 1.0
        _check_speed(request, speed, min(slowest, 1.0), host_cores)
    link_tracks = _link_tracks(request, tracks.link, read_trace)
    memory_bytes = _memory_of(request, profile, host_memory_bytes)
    schedule = Schedule(speed=speed, link=link_tracks)
    plan = ShapePlan(
        follower=ScheduleFollower(
            schedule,
            thermal,
            cores=1 if profile is None else profile.cores,
            threads=1 if speed is None else speed.threads,
        ),
        is_slowed=speed is not None,
        has_link=link_tracks is not None,
        is_delayed=link_tracks is not None and _is_delayed(link_tracks),
        has_jitter=link_tracks is not None and link_tracks.jitter_s.highest > 0.0,
        memory_bytes=memory_bytes,
        threads=None if speed is None else _threads_for(request, speed),
        is_steady=schedule.is_constant and thermal is None,
        seed=request.seed,
        is_paced=request.is_paced,
    )
    _check_backend(plan)
    return plan


def _check_backend(plan: ShapePlan) -> None:
    """Check that there is something to emulate, and that the backend can emulate it.

    Raises:
        RequestError: There is nothing to emulate, or the backend cannot emulate it.
    """
    if not plan.is_limited and not plan.has_link:
        raise RequestError(NOTHING_TO_EMULATE)
    if not plan.is_paced:
        return
    unsupported = []
    if plan.has_link:
        unsupported.append(("a link", "--link host, without other options of links"))
    if plan.memory_bytes is not None:
        unsupported.append(("a memory limit", "--memory none"))
    if unsupported:
        got, instead = (" and ".join(words) for words in zip(*unsupported, strict=True))
        raise RequestError(
            f"--backend process: emulates the processor only, got {got} too; "
            f"be root and leave --backend out, or use {instead}"
        )


def _link_of(request: DeviceRequest, profile: Profile | None) -> Link | None:
    """Return the requested link; None is this machine's own network."""
    if request.link == HOST_LINK:
        if request.link_options:
            raise RequestError(
                f"--link: host is not shaped and allows no options of a link, got "
                f"{' and '.join(request.link_options)}; leave --link or these out"
            )
        return None
    if request.link is not None:
        return profiles.load_link(request.link).link
    return None if profile is None else profile.link


def _link_tracks(
    request: DeviceRequest, named: LinkTracks | None, read_trace: ReadTrace
) -> LinkTracks | None:
    if named is None and not request.link_options:
        return None
    found = named or LinkTracks(
        down_bps=Series.constant(UNLIMITED_BPS),
        up_bps=Series.constant(UNLIMITED_BPS),
        delay_s=Series.constant(0.0),
        jitter_s=Series.constant(0.0),
        loss_ratio=Series.constant(0.0),
    )
    if request.trace is not None:
        found = _traced(found, request.trace, read_trace)
    _check_link(request)
    is_limited = min(found.down_bps.lowest, found.up_bps.lowest) < UNLIMITED_BPS
    if request.queue is not None and not (is_limited or request.down_bps or request.up_bps):
        raise RequestError(
            "--queue: needs a rate, got a link without limits; add --down and --up, or a link"
        )

    def given(value: float | None, otherwise: Series) -> Series:
        return otherwise if value is None else Series.constant(value)

    return LinkTracks(
        down_bps=given(request.down_bps, found.down_bps),
        up_bps=given(request.up_bps, found.up_bps),
        delay_s=given(request.delay_s, found.delay_s),
        jitter_s=given(request.jitter_s, found.jitter_s),
        loss_ratio=given(request.loss_ratio, found.loss_ratio),
        queue=replace(
            request.queue or found.queue,
            discipline=request.discipline or found.queue.discipline,
        ),
    )


def _is_delayed(link: LinkTracks) -> bool:
    return max(link.delay_s.highest, link.jitter_s.highest, link.loss_ratio.highest) > 0.0


def _check_link(request: DeviceRequest) -> None:
    """Check that the requested rates and delays can be emulated.

    Raises:
        RequestError: A rate is too low, or a time too long.
    """
    for option, rate in (("--down", request.down_bps), ("--up", request.up_bps)):
        if rate is not None and rate < MIN_BPS:
            raise RequestError(f"{option}: must be at least {MIN_BPS:g} bit/s, got {rate:g}")
    for option, time in (("--delay", request.delay_s), ("--jitter", request.jitter_s)):
        if time is not None and time > MAX_DELAY_S:
            raise RequestError(f"{option}: must be at most {MAX_DELAY_S:g} s, got {time:g}")


def _traced(link: LinkTracks, name: str, read_trace: ReadTrace) -> LinkTracks:
    """Return the link with every column of a trace in place of its own values."""
    found: dict[str, Any] = {}
    problem: TraceError | None = None
    for column in ("down_bps", "up_bps", "delay_s", "jitter_s", "loss_ratio"):
        try:
            found[column] = read_trace(name, column)
        except TraceError as exc:  # no such trace, or no such column
            problem = problem or exc
    rates = [found[column] for column in ("down_bps", "up_bps") if column in found]
    if not rates and problem is not None:
        raise problem
    if any(series.highest == 0.0 for series in rates):
        raise TraceError(
            f"{name}: each rate must be above 0 at some time, got only zeros; use another trace"
        )
    return replace(link, **found)


def _speed_of(
    request: DeviceRequest, profile: Profile | None, clock_ratio: Series, background_load: Series
) -> Speed | None:
    if request.threads is not None and (profile is None or request.cpu is not None):
        raise RequestError(
            "--threads: needs a profile and no --cpu; "
            "name a profile, or give --cpu for all threads together"
        )
    if request.cpu == NONE:
        return None
    if request.cpu is not None:
        steady = Series.constant(1.0), Series.constant(0.0)
        return Speed(request.cpu, 1, 1, *steady)
    if profile is None:
        return None
    threads = request.threads or profile.engine_threads
    if threads > profile.cores:
        raise RequestError(
            f"--threads: must be at most the {profile.cores} cores of {profile.name}, got {threads}"
        )
    if request.host_core_speed == "auto":
        raise ValueError("host_core_speed must be measured before a device is planned, got auto")
    return Speed(
        per_core=profile.core_speed / request.host_core_speed,
        threads=threads,
        cores=profile.cores,
        clock_ratio=clock_ratio,
        background_load=background_load,
    )


def _check_speed(request: DeviceRequest, speed: Speed, hot: float, host_cores: float) -> None:
    """Check that this machine can emulate a speed.

    Raises:
        RequestError: The device is faster than this machine, or slower than the kernel's minimum.
    """
    option = "--cpu" if request.cpu is not None else f"{request.profile}"
    clock = speed.clock_ratio.highest
    fastest = _total(speed, speed.background_load.lowest) * clock
    if fastest > host_cores + ROUNDING:
        raise RequestError(
            f"{option}: must be at most the {host_cores:g} cores of this machine, got "
            f"{fastest:.3g}; request less{_instead(request)}"
        )
    if request.cpu is None and speed.per_core * clock > 1.0 + ROUNDING:
        raise RequestError(
            f"{option}: one of its cores must not be faster than a core of this machine, got "
            f"{speed.per_core * clock:.3g} times the speed; use a slower profile{_instead(request)}"
        )
    slowest = _total(speed, speed.background_load.highest) * speed.clock_ratio.lowest * hot
    if slowest < MIN_SHARE:
        raise RequestError(
            f"{option}: must be at least {MIN_SHARE:g} of a core at all times, which is the "
            f"kernel's minimum, got {slowest:.3g}; request more"
        )


def _total(speed: Speed, busy: float) -> float:
    return speed.per_core * min(float(speed.threads), max(speed.cores - busy, LEAST_FREE_CORES))


def _instead(request: DeviceRequest) -> str:
    return "" if request.cpu is not None else ", or set the share with --cpu"


def _memory_of(
    request: DeviceRequest, profile: Profile | None, host_memory_bytes: int
) -> int | None:
    if request.memory_bytes == NONE:
        return None
    if request.memory_bytes is not None:
        if request.memory_bytes > host_memory_bytes:
            raise RequestError(
                f"--memory: must be at most the {host_memory_bytes >> 20}M of this machine, "
                f"got {request.memory_bytes >> 20}M; request less, or none"
            )
        return request.memory_bytes
    return None if profile is None else profile.memory_bytes


def _threads_for(request: DeviceRequest, speed: Speed) -> int:
    return threads_for(speed.per_core) if request.cpu is not None else speed.threads
