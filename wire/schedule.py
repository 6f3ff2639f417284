"""Schedules of the learning rate: a factor for each round, or for each local step of a round."""

import math

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.messages import Schedule


def rate_factor(schedule: Schedule, at: int, length: int) -> float:
    """Return the factor on the learning rate at a round or local step.

        at < W:     (at + 1) / W                                 warm-up, W = `warm_up`
        step:       factor^floor((at - W) / every)
        cosine:     r + (1 - r) (1 + cos(pi t)) / 2,   t = min(1, (at - W) / (length - W))

    Args:
        schedule: The schedule; r is its `least_ratio`.
        at: Number of the round or step, from 0.
        length: Rounds or steps of cosine, unless the schedule has its own.

    Source:
        Loshchilov and Hutter, ICLR 2017, equation 5 (arXiv:1608.03983); warm-up: Goyal et al. 2017,
        section 2.2 (arXiv:1706.02677).
    Deviates:
        After its length cosine stays at the least rate; `CosineAnnealingLR` of torch rises again.
    """
    since = at - schedule.warm_up
    if since < 0:
        return (at + 1) / schedule.warm_up
    if schedule.kind == "step":
        return math.pow(schedule.factor, since // schedule.every)
    whole = max(1, (schedule.length or length) - schedule.warm_up)
    share, least = min(1.0, since / whole), schedule.least_ratio
    return least + (1.0 - least) * (1.0 + math.cos(math.pi * share)) / 2.0


def rate_factors(schedule: Schedule, at: int, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return `rate_factor` for devices with different numbers of steps, shape (A,).

    Args:
        schedule: The schedule.
        at: Number of the step, from 0.
        lengths: Steps of each device in the round, shape (A,).
    """
    if schedule.kind == "step" or schedule.length is not None or at < schedule.warm_up:
        return np.full(len(lengths), rate_factor(schedule, at, 1))
    return np.array([rate_factor(schedule, at, length) for length in lengths.tolist()])
