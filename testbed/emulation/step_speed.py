"""The speed of a device at one task: arithmetic, memory and threads beside one speed per core.

One speed per core is right for tasks that resemble the reference step. A larger model keeps the
wide vectors of this machine busy, which a board does not have, or moves more bytes than a board
can. So a training step takes at least as long as its arithmetic and its memory traffic need:

    k          = min(engine threads, free cores)
    one speed  = reference cost / (core_speed k e(k))
    several    = conv flop / (CONVOLUTION r) + matrix flop / (MATRIX r) + bytes / memory rate
    r          = matrix_flops k / cores
    step       = max(one speed, several)

or as long as the published measurement of its class of model. The result is one number per task
and device, the speed of a core at this task, so that nothing else of the emulation changes.

Source:
    Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; here the two times add up, as
    layers of a small model are bound by one or the other.
"""

from collections.abc import Sequence

from msgspec import structs

from fairbed.profiles import Profile, Quantity, StepTime
from fairbed.testbed.emulation.work import StepWork

CONVOLUTION, MATRIX = 0.51, 0.9
"""Shares of the rate of large matrix products that convolutions and products of a training step
reach: `fairbed bench boards` and docs/profiles.md."""


def several_speeds_s(profile: Profile, work: StepWork, batch_size: int) -> float | None:
    """Return the least time of a step by arithmetic and memory, seconds.

    Returns:
        None if the profile has no `matrix_flops`.
    """
    if profile.matrix is None:
        return None
    threads = min(float(profile.engine_threads), profile.free_cores)
    rate = profile.matrix.value * threads / profile.cores
    arithmetic_s = work.convolutions / (CONVOLUTION * rate) + work.products / (MATRIX * rate)
    moved = work.moved_bytes * batch_size + work.fixed_bytes
    memory_s = 0.0 if profile.moved is None else moved / profile.moved.value
    return arithmetic_s * batch_size + memory_s


def one_speed_s(profile: Profile, reference_s: float) -> float:
    """Return the time of a step by `core_speed` alone, seconds.

    Args:
        profile: The device.
        reference_s: Cost of the step in seconds of one core of the reference machine.
    """
    return reference_s / (profile.training_speed * thread_efficiency(profile))


def thread_efficiency(profile: Profile) -> float:
    """Return the speed of the engine's threads, relative to as many single ones.

    It falls linearly from 1 with one thread to `thread_scaling` with one per core.
    """
    if profile.scaling is None or profile.cores == 1:
        return 1.0
    return 1.0 - (1.0 - profile.scaling.value) * (profile.engine_threads - 1) / (profile.cores - 1)


def published_step(profile: Profile, like: str | None) -> StepTime | None:
    """Return the measurement of a class of model on this device; None if there is none."""
    return _find(profile.train_s, like)


def _find(times: Sequence[StepTime], like: str | None) -> StepTime | None:
    return next((time for time in times if time.model == like), None)


def step_s(
    profile: Profile,
    reference_s: float,
    work: StepWork | None,
    batch_size: int,
    like: str | None = None,
) -> float:
    """Return the time of a training step on a device, seconds.

    Args:
        profile: The device.
        reference_s: Cost of the step in seconds of one core of the reference machine.
        work: Its arithmetic and memory traffic; None is unknown.
        batch_size: Examples of the step.
        like: Class of model; the profile's measurement of it, if any, is scaled by the batch size.
    """
    known = published_step(profile, like)
    if known is not None:
        return known.step.value * batch_size / known.batch_size
    one_s = one_speed_s(profile, reference_s)
    several_s = None if work is None else several_speeds_s(profile, work, batch_size)
    return one_s if several_s is None else max(one_s, several_s)


def at_task(
    profile: Profile,
    reference_s: float,
    work: StepWork | None,
    batch_size: int,
    like: str | None = None,
) -> Profile:
    """Return the profile with the `core_speed` that it has at a task; arguments as of `step_s`."""
    took_s = step_s(profile, reference_s, work, batch_size, like)
    if took_s <= 0.0 or reference_s <= 0.0:
        return profile
    speed = profile.core_speed * reference_s / profile.training_speed / took_s
    if speed == profile.core_speed:
        return profile
    here = f"at this task, a step of {batch_size} examples in {took_s:.4g} s"
    source = f"{here}; {profile.one_core.source}"
    found = Quantity(value=speed, tag=profile.one_core.tag, source=source)
    return structs.replace(profile, one_core=found)
