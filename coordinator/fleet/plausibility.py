"""Limits on what a device may plausibly report; see `[limits]` of an experiment.

A report that breaks one is refused: its exchange ends as `rejected`, with the fault as its reason.
"""

import math

import numpy as np

from fairbed.coordinator.algorithms.aggregation.running_sum import squared_distance
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import LimitsConfig
from fairbed.wire.messages import DEVICE_PHASES, Hello, Offer, Privacy

TIME_SLACK_S = 2.0
"""Time that reported phases may exceed the measured one in any case: scheduling of both sides."""

OTHER_VALUES = 1e4
"""Factor on the limit of values that are no parameters: a running variance follows the data."""

CERTAIN = 0.9
"""A rough distance below this part of a limit is below the limit: the error of a sum of
`ROUGH_BLOCK` squares in float32 is at most 5e-4 of it."""
ROUGH_BLOCK = 8192
"""Values of a partial sum, few enough for one thread of the numerical library."""
TINY = 1e-12
"""Added to a rough distance: squares below 1e-38 are lost in float32."""

NOISE_MARGIN = 2.0
"""Factor on the expected norm of local noise, which varies by 1 / sqrt(2 n) of it for n values."""


def fault_in_hello(hello: Hello, limits: LimitsConfig) -> str | None:
    """Return why a device may not join; None if it may."""
    if limits.check == "off" or (hello.n_k or 0) <= limits.examples:
        return None
    return (
        f"its own data must hold at most {limits.examples} examples, got {hello.n_k}; "
        "raise limits.examples if it has them"
    )


def fault_in_report(offer: Offer, elapsed_s: float, limits: LimitsConfig) -> str | None:
    """Return what is implausible in an offer; None if nothing is.

    Args:
        offer: The offer.
        elapsed_s: Time from the dispatch to the offer, on the coordinator's clock.
        limits: `[limits]`.
    """
    if limits.check == "off":
        return None
    for name in ("loss_before", "loss_train"):
        loss: float | None = getattr(offer, name)
        if loss is not None and abs(loss) > limits.loss:
            return (
                f"offer: {name} must be at most {limits.loss:g} (limits.loss), got {loss:g}; if "
                "most devices report such a loss, lower training.learning_rate or scale the data"
            )
    reported_s = math.fsum(getattr(offer.phases, f"{phase}_s") for phase in DEVICE_PHASES)
    limit_s = TIME_SLACK_S + limits.time_ratio * elapsed_s
    if max(reported_s, offer.phases.train_cpu_s / _MAX_THREADS) > limit_s:
        return (
            f"offer: the phases must last at most {limit_s:.3g} s (limits.time_ratio), got "
            f"{reported_s:.3g} s, with {offer.phases.train_cpu_s:.3g} s of processor time"
        )
    return None


_MAX_THREADS = 4096
"""Processors of a device, as in `wire.messages.Capabilities`."""


def fault_in_update(
    vector: Vector, sent: Vector, n_params: int, limits: LimitsConfig, privacy: Privacy | None
) -> str | None:
    """Return what is implausible in an update; None if nothing is.

    Args:
        vector: The model that the device returned, with the vectors of its rule, shape (n,).
        sent: The model that it was sent, shape (n_values,), n_values <= n.
        n_params: Number of parameters.
        limits: `[limits]`.
        privacy: Noise that the device adds; None without.
    """
    if limits.check == "off":
        return None
    n_values = len(sent)
    least = limits.update_norm
    change = _rough_distance(vector[:n_params], sent[:n_params])
    others = _rough_distance(vector[n_params:n_values], sent[n_params:])
    others += _rough_distance(vector[n_values:], None)
    if change < CERTAIN * least and others < CERTAIN * least * OTHER_VALUES:
        return None  # the limits are at least that, whatever the norm of the model
    before = _norm(sent[:n_params])
    allowed = limits.update_norm * (1.0 + before)
    if privacy is not None:
        noise = privacy.noise_multiplier * math.sqrt(n_params)
        allowed += privacy.clip * (1.0 + NOISE_MARGIN * noise)
    change = math.sqrt(squared_distance(vector[:n_params], sent[:n_params]))
    if change > allowed:
        return (
            f"update: its norm must be at most {allowed:.4g} (limits.update_norm), got {change:.4g}"
        )
    others = math.hypot(
        math.sqrt(squared_distance(vector[n_params:n_values], sent[n_params:])),
        _norm(vector[n_values:]),
    )
    allowed *= OTHER_VALUES
    if others > allowed + limits.update_norm * OTHER_VALUES * _norm(sent[n_params:]):
        return (
            "update: buffers and vectors of the local rule must change by at most "
            f"{allowed:.4g} (limits.update_norm), got {others:.4g}"
        )
    return None


def _rough_distance(one: Vector, other: Vector | None) -> float:
    """Return |one - other| in float32, or |one|; infinite or NaN if a square overflows.

    It takes a tenth of the time of `squared_distance`, and depends on the machine.
    """
    squared, space = 0.0, np.empty(min(ROUGH_BLOCK, one.size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, one.size, ROUGH_BLOCK):
            part = one[start : start + ROUGH_BLOCK]
            if other is not None:
                part = np.subtract(part, other[start : start + ROUGH_BLOCK], out=space[: part.size])
            squared += float(np.dot(part, part))
    return math.sqrt(squared) + TINY


def _norm(vector: Vector) -> float:
    return math.sqrt(squared_distance(vector, np.broadcast_to(np.float32(0.0), vector.shape)))
