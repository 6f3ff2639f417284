"""The speed of a device at one task: arithmetic, memory and threads beside one speed per core.

One speed per core is right for tasks that resemble the reference step. A larger model keeps the
wide vectors of this machine busy, which a board does not have, or moves more bytes than a board
can. So a training step takes at least as long as its arithmetic and its memory traffic need:

    k          = min(engine threads, free cores)
    one speed  = reference cost / (core_speed k e(k))
    r          = core_matrix_flops k (1 - (1 - s) (k - 1) / (cores - 1))
    s          = matrix_flops / (cores core_matrix_flops)
    several    = sum over kinds of operations: flop / (share r)  +  bytes / (share memory rate)
    step       = max(one speed, several)

or as long as the published measurement of its class of model. The result is one number per task
and device, the speed of a core at this task, and the factor by which it is faster at an evaluation.

A step reads and writes main memory far below the rate of a copy: a framework passes over all
activations for each small operation. Inference libraries join these operations, so a forward pass
alone has other shares: an evaluation, and the layers of a training step below all trained ones.

Source:
    Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; here the times add up, as
    layers of a small model are bound by one or the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from fairbed.profiles import Profile, Quantity, StepTime
from fairbed.testbed.emulation.work import StepWork, TaskCosts


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the rates of large matrix products, and of copying, that an engine reaches."""

    convolution: float
    """Dense convolutions."""
    grouped: float
    """Convolutions of several groups, estimated between dense and depthwise ones, since no time of
    them is published."""
    depthwise: float
    """Convolutions of one group per channel."""
    matrix: float
    """Matrix products, those of attention included."""
    recurrent: float
    """Products that follow each other with the same parameters, small ones one after the other."""
    memory: float
    """Bytes of all operations, as if none stayed in a cache."""


TRAINING = Shares(
    convolution=0.66, grouped=0.063, depthwise=0.006, matrix=2.0, recurrent=0.15, memory=0.17
)
"""Training with PyTorch, recurrent layers with DL4J: docs/profiles.md. Above 1 because
`matrix_flops` is from Linpack, which the memory of a board slows."""

INFERENCE = Shares(
    convolution=1.36, grouped=0.27, depthwise=0.052, matrix=2.0, recurrent=2.0, memory=2.96
)
"""A forward pass of an inference library: fast algorithms multiply less than is counted, and
joined operations stay in the caches."""


def matrix_rate(profile: Profile, threads: float) -> float | None:
    """Return the rate of threads in large matrix products, operations per second.

    Returns:
        None if the profile has no `matrix_flops`.
    """
    if profile.matrix is None:
        return None
    all_cores, cores = profile.matrix.value, profile.cores
    if profile.core_matrix is None or cores == 1:
        return all_cores * threads / cores
    one = profile.core_matrix.value
    scaling = all_cores / (cores * one)
    return one * threads * (1.0 - (1.0 - scaling) * max(0.0, threads - 1.0) / (cores - 1))


def several_speeds_s(
    profile: Profile, work: StepWork, batch_size: int, shares: Shares = TRAINING
) -> float | None:
    """Return the least time of a step by arithmetic and memory, seconds.

    Args:
        profile: The device.
        work: Arithmetic and memory traffic of the step.
        batch_size: Examples of the step.
        shares: Of the engine.

    Returns:
        None if the profile has no `matrix_flops`.
    """
    rate = matrix_rate(profile, min(float(profile.engine_threads), profile.free_cores))
    if rate is None:
        return None
    arithmetic_s = (
        work.conv_flops / shares.convolution
        + work.grouped_flops / shares.grouped
        + work.depthwise_flops / shares.depthwise
        + (work.matrix_flops + work.attention_flops) / shares.matrix
        + work.recurrent_flops / shares.recurrent
    ) / rate
    moved = work.moved_bytes * batch_size + work.fixed_bytes
    memory_s = 0.0 if profile.moved is None else moved / (shares.memory * profile.moved.value)
    return arithmetic_s * batch_size + memory_s


def _several_s(
    profile: Profile, work: StepWork, batch_size: int, frozen: StepWork | None
) -> float | None:
    """Return `several_speeds_s` of a training step whose frozen part is a forward pass alone."""
    if frozen is None:
        return several_speeds_s(profile, work, batch_size)
    trained_s = several_speeds_s(profile, work.without(frozen), batch_size)
    frozen_s = several_speeds_s(profile, frozen, batch_size, INFERENCE)
    return None if trained_s is None or frozen_s is None else trained_s + frozen_s


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
    frozen: StepWork | None = None,
) -> float:
    """Return the time of a training step on a device, seconds.

    Args:
        profile: The device.
        reference_s: Cost of the step in seconds of one core of the reference machine.
        work: Its arithmetic and memory traffic; None is unknown.
        batch_size: Examples of the step.
        like: Class of model; the profile's measurement of it, if any, is scaled by the batch size.
        frozen: The part of `work` below all layers that are trained; None: no layer is frozen.
    """
    known = published_step(profile, like)
    if known is not None:
        return known.step.value * batch_size / known.batch_size
    one_s = one_speed_s(profile, reference_s)
    several_s = None if work is None else _several_s(profile, work, batch_size, frozen)
    return one_s if several_s is None else max(one_s, several_s)


def evaluation_s(profile: Profile, reference_s: float, work: StepWork, batch_size: int) -> float:
    """Return the time of an evaluation step on a device, seconds; arguments as of `step_s`."""
    one_s = one_speed_s(profile, reference_s)
    several_s = several_speeds_s(profile, work, batch_size, INFERENCE)
    return one_s if several_s is None else max(one_s, several_s)


@dataclass(frozen=True, slots=True)
class AtTask:
    """A device at a task."""

    profile: Profile
    """It has the `core_speed` of training."""
    evaluation_speed: float = 1.0
    """Speed in an evaluation, relative to that in training."""


def at_task(
    profile: Profile,
    costs: TaskCosts,
    batch_size: int,
    evaluation_size: int,
    like: str | None = None,
) -> AtTask:
    """Return a device with the speeds that it has at a task.

    Args:
        profile: The device.
        costs: Costs and work of the task.
        batch_size: Examples of a training step.
        evaluation_size: Examples of an evaluation step.
        like: As for `step_s`.
    """
    trained = _trained(profile, costs, batch_size, like)
    work, reference_s = costs.evaluation_work, costs.evaluate.seconds(evaluation_size)
    if work is None or reference_s <= 0.0:
        return AtTask(trained)
    took_s = evaluation_s(profile, reference_s, work, evaluation_size)
    return AtTask(trained, reference_s / (trained.training_speed * took_s))


def _trained(profile: Profile, costs: TaskCosts, batch_size: int, like: str | None) -> Profile:
    """Return the profile with the `core_speed` that it has when it trains."""
    reference_s = costs.train.seconds(batch_size)
    took_s = step_s(profile, reference_s, costs.work, batch_size, like, costs.frozen_work)
    if took_s <= 0.0 or reference_s <= 0.0:
        return profile
    speed = profile.core_speed * reference_s / profile.training_speed / took_s
    if speed == profile.core_speed:
        return profile
    here = f"at this task, a step of {batch_size} examples in {took_s:.4g} s"
    source = f"{here}; {profile.one_core.source}"
    found = Quantity(value=speed, tag=profile.one_core.tag, source=source)
    return structs.replace(profile, one_core=found)
