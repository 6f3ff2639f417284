"""Plans the device: its conditions at every moment while the command runs.

    profile      processor, memory and link, each unless an option says otherwise
    --trace      the rates of the link, and whatever else the trace has a column for
    options      constants instead of the values of the profile, the link or the trace

The device is always available, whatever its profile says of availability.
"""

from dataclasses import dataclass, replace

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

NOTHING_TO_EMULATE = (
    "there is nothing to emulate; name a profile (fairbed profiles list), or give "
    "--cpu, --memory, --link, --down, --up, --delay or --trace"
)


@dataclass(frozen=True, slots=True)
class ShapePlan:
    """The device of a command."""

    follower: ScheduleFollower
    is_slowed: bool
    """Its processor has a speed of its own."""
    has_link: bool
    """It has a network of its own; else it stays on this machine's."""
    is_delayed: bool
    """Its link has delay, jitter or loss, now or later."""
    memory_bytes: int | None
    """None is not limited."""
    threads: int | None
    """That libraries should start: more would wait for each other. None is any number."""
    is_steady: bool
    """Nothing changes while the command runs."""
    seed: int
    is_paced: bool = False
    """Slowed by SIGSTOP and SIGCONT, instead of by control groups."""

    @property
    def is_limited(self) -> bool:
        """Its processor or its memory is."""
        return self.is_slowed or self.memory_bytes is not None


def make_plan(
    request: DeviceRequest, read_trace: ReadTrace, host_cores: float, host_memory_bytes: int
) -> ShapePlan:
    """Return the plan of the requested device.

    Args:
        request: The requested device.
        read_trace: Called for traces.
        host_cores: Of this machine.
        host_memory_bytes: Of this machine.

    Raises:
        ProfileError: A profile, a link or a trace is unknown or breaks a rule.
        RequestError: Options contradict each other, or this machine is too small.
        ValueError: The speed of this machine is not a number yet.
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
        memory_bytes=memory_bytes,
        threads=None if speed is None else _threads_for(request, speed),
        is_steady=schedule.is_constant and thermal is None,
        seed=request.seed,
        is_paced=request.is_paced,
    )
    _check_backend(plan)
    return plan


def _check_backend(plan: ShapePlan) -> None:
    """Refuse a device without limits, or one that the backend cannot emulate.

    Raises:
        RequestError: It is.
    """
    if not plan.is_limited and not plan.has_link:
        raise RequestError(NOTHING_TO_EMULATE)
    if not plan.is_paced:
        return
    too_much = []
    if plan.has_link:
        too_much.append(("a link", "--link host, without other options of links"))
    if plan.memory_bytes is not None:
        too_much.append(("a memory limit", "--memory none"))
    if too_much:
        got, instead = (" and ".join(words) for words in zip(*too_much, strict=True))
        raise RequestError(
            f"--backend process: slows the processor and nothing else, got {got} to emulate too; "
            f"be root and leave --backend out, or use {instead}"
        )


def _link_of(request: DeviceRequest, profile: Profile | None) -> Link | None:
    """Return the named link; None is none, or this machine's own."""
    if request.link == HOST_LINK:
        if request.link_options:
            raise RequestError(
                f"--link: host is not shaped, got {' and '.join(request.link_options)} besides; "
                "leave one of them out"
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
    given = {
        "down_bps": request.down_bps,
        "up_bps": request.up_bps,
        "delay_s": request.delay_s,
        "jitter_s": request.jitter_s,
        "loss_ratio": request.loss_ratio,
    }
    constants = {key: Series.constant(value) for key, value in given.items() if value is not None}
    return replace(found, **constants)


def _is_delayed(link: LinkTracks) -> bool:
    return max(link.delay_s.highest, link.jitter_s.highest, link.loss_ratio.highest) > 0.0


def _check_link(request: DeviceRequest) -> None:
    """Refuse rates and delays that cannot be emulated.

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
    """Return a link that follows a trace in all that the trace has a column for."""
    found: dict[str, Series] = {}
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
        raise TraceError(f"{name}: rates must be above 0 somewhere, got only zeros; name another")
    return replace(link, **found)


def _speed_of(
    request: DeviceRequest, profile: Profile | None, clock_ratio: Series, background_load: Series
) -> Speed | None:
    if request.threads is not None and (profile is None or request.cpu is not None):
        raise RequestError(
            "--threads: counts cores of a profile whose speed is taken, got none; "
            "name a profile and no --cpu, or give --cpu for all threads together"
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
        raise ValueError("host_core_speed must be a number when a device is planned, got auto")
    return Speed(
        per_core=profile.core_speed / request.host_core_speed,
        threads=threads,
        cores=profile.cores,
        clock_ratio=clock_ratio,
        background_load=background_load,
    )


def _check_speed(request: DeviceRequest, speed: Speed, hot: float, host_cores: float) -> None:
    """Refuse a speed that this machine cannot emulate.

    Raises:
        RequestError: It would have to be faster than it is, or slower than its kernel can make it.
    """
    option = "--cpu" if request.cpu is not None else f"{request.profile}"
    clock = speed.clock_ratio.highest
    fastest = _total(speed, speed.background_load.lowest) * clock
    if fastest > host_cores + ROUNDING:
        raise RequestError(
            f"{option}: must be at most the {host_cores:g} cores of this machine, got "
            f"{fastest:.3g}; ask for less{_instead(request)}"
        )
    if request.cpu is None and speed.per_core * clock > 1.0 + ROUNDING:
        raise RequestError(
            f"{option}: one core of it must not be faster than one of this machine, got "
            f"{speed.per_core * clock:.3g} times; take a slower profile{_instead(request)}"
        )
    slowest = _total(speed, speed.background_load.highest) * speed.clock_ratio.lowest * hot
    if slowest < MIN_SHARE:
        raise RequestError(
            f"{option}: must be at least {MIN_SHARE:g} of a core at all times, got {slowest:.3g}; "
            "the kernel can give no less"
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
                f"got {request.memory_bytes >> 20}M; ask for less, or none"
            )
        return request.memory_bytes
    return None if profile is None else profile.memory_bytes


def _threads_for(request: DeviceRequest, speed: Speed) -> int:
    return threads_for(speed.per_core) if request.cpu is not None else speed.threads
