"""epsilon of local noise, by the updates that each device has sent.

Neighbours are any two data sets of one device: after the clip to C its updates differ by at most
2 C, and the noise is z C. So one update is a Gaussian mechanism with sigma = z / 2 in units of its
sensitivity, and T of them, each chosen after the earlier ones were seen, are exactly as private as
one with

    sigma = z / (2 sqrt(T))            Dong et al., 2022 (arXiv:1905.02383), Corollary 3.3

whose epsilon at a given delta is exact (Balle and Wang, 2018, arXiv:1805.06530, Theorem 8). The
selection is not random, so it amplifies nothing.
"""

import math
from collections.abc import Iterable
from functools import lru_cache

from fairbed.coordinator.report.summary_schema import PrivacySummary
from fairbed.coordinator.store.reader import PlannedPrivacy

PACKAGE = "dp-accounting"

INSTALL = "uv pip install 'fairbed[privacy]'"


class AccountantMissingError(Exception):
    """The package that computes epsilon is not installed; the message names the command."""


@lru_cache(maxsize=4096)
def epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return epsilon of a device that has sent some updates.

    Args:
        noise_multiplier: z, standard deviation of the noise / clip.
        releases: T, number of updates sent.
        delta: Target delta.

    Raises:
        AccountantMissingError: dp-accounting is not installed.
    """
    if releases == 0:
        return 0.0
    try:
        from dp_accounting import get_epsilon_gaussian  # loads scipy: only where epsilon is shown
    except ImportError as exc:
        raise AccountantMissingError(
            f"epsilon needs the package {PACKAGE}, got none; install it: {INSTALL}"
        ) from exc
    return float(get_epsilon_gaussian(noise_multiplier / (2.0 * math.sqrt(releases)), delta))


def privacy_summary(plan: PlannedPrivacy, releases: Iterable[int]) -> PrivacySummary | None:
    """Return the privacy of a run; None without local noise.

    Args:
        plan: `[privacy]`.
        releases: Number of updates that each device has sent.
    """
    if plan.clip is None or plan.noise_multiplier is None:
        return None
    counts, largest, note = list(releases), None, ""
    most = max(counts, default=0)
    try:
        largest = epsilon(plan.noise_multiplier, most, plan.delta)
    except AccountantMissingError as exc:
        note = str(exc)
    return PrivacySummary(
        clip=plan.clip,
        noise_multiplier=plan.noise_multiplier,
        delta=plan.delta,
        sends_scores=plan.scores,
        releases=sum(counts),
        releases_most=most,
        epsilon_max=largest,
        note=note,
    )


def device_epsilon(summary: PrivacySummary | None, releases: int) -> float | None:
    """Return epsilon of one device; None if that of the run is unknown."""
    if summary is None or summary.epsilon_max is None:
        return None
    return epsilon(summary.noise_multiplier, releases, summary.delta)
