"""Utilities of the arms of a grid: CoreFed's numbers, with the models of other arms. Pure.

    u_i = M - F_i on the held-out examples of device i
    ratio sum    sum_i u_i(baseline) / u_i(arm): up to n no group of devices gains by leaving for
                 the model of the baseline, whose own ratio sum is n
    core margin  max over the models of the other arms of max_s rho_(s) s / n, with rho_(1) >= ...
                 the ratios of the utilities: above 1 a group of s devices gains by leaving

They need the losses of each device, in one seed of all arms, and one M. They are evidence about
the tested models, and no proof; `fairbed core` trains models of the groups.

Source: Ray Chaudhury et al., NeurIPS 2022, Definition 1 and Tables 1 to 4 (arXiv:2211.02091).
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.core_stability import strongest_coalition
from fairbed.coordinator.algorithms.fairness import summarise_utilities
from fairbed.testbed.compare.grid import Arm
from fairbed.testbed.compare.measures import CORE_MARGIN, RATIO_SUM

OF_ARMS = ("utility_average", "utility_least", "utility_product", "utility_log_product")
"""Utilities of one model, which compare under one M alone."""

Losses: TypeAlias = Mapping[str, float | None]
"""By device; None where the model has diverged."""
Found: TypeAlias = dict[str, float | str]
"""Values by key; a text is why there is none."""

ALONE = "there is no other arm"
OTHER_DEVICES = "arms have other devices with held-out examples"
UNKNOWN = "the losses of the devices are unknown, or there are too many devices"
NOT_ALL = "another arm lacks the losses of this seed"
TOO_LARGE = "it is too large for a number; log U(Multi) has it"


def one_game(arms: Sequence[Arm]) -> str:
    """Return why the losses of arms do not compare; empty if they do."""
    games = {repr((a.experiment.data, a.experiment.model, a.experiment.shards)) for a in arms}
    return "arms have other data, models or devices" if len(games) > 1 else ""


def common_m(arms: Sequence[Arm]) -> float:
    """Return the largest `aggregation.M` of the arms, nats: one M for all."""
    return max(arm.experiment.aggregation.M for arm in arms)


def utilities_of(losses: Losses, M: float) -> Found:
    """Return the utilities of one model; see `OF_ARMS`."""
    own = _array(losses)
    if not own.size:
        return dict.fromkeys(OF_ARMS, UNKNOWN)
    if not own.max() < M:
        return dict.fromkeys(OF_ARMS, _too_small(M))
    found = summarise_utilities(own, M)
    product = found.product
    values = (found.average, found.least, product if np.isfinite(product) else TOO_LARGE)
    return dict(zip(OF_ARMS, (*values, found.log_product), strict=True))


def pairs_of(seed: Mapping[str, Losses | None], M: float, baseline: str) -> dict[str, Found]:
    """Return ratio sum and core margin of each arm in one seed.

    Args:
        seed: Losses of each arm; None of a run that failed.
        M: Of all arms, nats.
        baseline: The arm of the ratio sums.
    """
    return {
        arm: {
            RATIO_SUM: _ratio_sum(own, seed[baseline], M),
            CORE_MARGIN: _margin(own, [seed[other] for other in seed if other != arm], M),
        }
        for arm, own in seed.items()
        if own is not None
    }


def _ratio_sum(own: Losses, baseline: Losses | None, M: float) -> float | str:
    if why := _why_none(own, [baseline], M):
        return why
    assert baseline is not None, "checked"
    u, other = M - _array(own), M - _array(baseline)
    if not np.isfinite(other).all():
        return "the baseline has diverged"
    return float((other / u).sum())


def _margin(own: Losses, others: Sequence[Losses | None], M: float) -> float | str:
    if not others:
        return ALONE
    if why := _why_none(own, others, M):
        return why
    found = np.array([M - _array(other) for other in others if other is not None])
    return strongest_coalition(M - _array(own), found).margin


def _why_none(own: Losses, others: Sequence[Losses | None], M: float) -> str:
    if not own:
        return UNKNOWN
    if any(not other for other in others):
        return NOT_ALL
    if any(other is not None and other.keys() != own.keys() for other in others):
        return OTHER_DEVICES
    return "" if _array(own).max() < M else _too_small(M)


def _too_small(M: float) -> str:
    return f"the loss of a device is at least aggregation.M = {M:g}"


def _array(losses: Losses) -> Floats:
    """Return losses in the order of the names of the devices, infinite where unknown."""
    found = [losses[name] for name in sorted(losses)]
    return np.array([np.inf if loss is None else loss for loss in found], dtype=np.float64)
