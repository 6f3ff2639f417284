"""How evenly a model serves the devices, and how evenly they are chosen."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats, Ints


def jain(values: NDArray[np.generic]) -> float:
    """Return Jain's index: 1 if all are equal, 1/N if one has everything, NaN if nobody does.

        J = (sum x)^2 / (N sum x^2)

    Args:
        values: Counts, rates or any shares, shape (N,), at least 0.

    Source:
        Jain, Chiu & Hawe, DEC-TR-301 (1984).
    """
    x = values.astype(np.float64)
    squares = float(x.size * np.square(x).sum())
    return float(x.sum() ** 2 / squares) if squares > 0.0 else float("nan")


def gini(values: Floats) -> float:
    """Return the Gini coefficient: 0 if all are equal, towards 1 if one has everything.

        G = sum_i (2 i - n - 1) a_(i) / (n sum a),   a_(1) <= ... <= a_(n)

    NaN if all are 0 (or there are none): nobody has anything, so nothing is shared unevenly.

    Args:
        values: Shape (n,), at least 0.
    """
    ordered = np.sort(values)
    n, total = ordered.size, float(ordered.sum())
    if total <= 0.0:
        return float("nan")
    ranks = 2.0 * np.arange(1, n + 1) - n - 1
    return float(ranks @ ordered / (n * total))


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessSummary:
    """One model on every device's held-out data; a device counts once, whatever its size."""

    devices: int
    """Devices with held-out examples; the others are left out."""
    accuracy_mean: float
    """Unweighted over devices."""
    accuracy_pooled: float
    """All correct / all examples."""
    accuracy_worst10: float
    """Unweighted mean of the max(1, int(0.1 n)) lowest."""
    accuracy_best10: float
    """Unweighted mean of the max(1, int(0.1 n)) highest."""
    accuracy_variance: float
    """Population variance of the ratios; papers print it of percentages, times 10^4."""
    accuracy_gini: float
    """NaN if every accuracy is 0."""
    accuracy_gap: float
    """Best minus worst device."""
    loss_mean: float
    """Nats, unweighted over devices."""
    loss_std: float
    """Population, nats, over devices."""


def summarise(n: Ints, correct: Ints, loss_sum: Floats) -> FairnessSummary:
    """Return the summary of one evaluation.

    Args:
        n: Held-out examples of each device, shape (N,), 0 for none.
        correct: Of these, classified correctly, shape (N,).
        loss_sum: Nats, summed over the examples, shape (N,).

    Raises:
        ValueError: Nobody has a held-out example.

    Source:
        Li et al., ICLR 2020 (arXiv:1905.10497), section 4.
    Deviates:
        The worst 10 % of fewer than 20 devices are one device, where the paper's code has none
        below 10.
    """
    tested = n > 0
    if not tested.any():
        raise ValueError(
            f"summarise: at least one device must have held-out examples, got none of {len(n)}; "
            "check the test splits"
        )
    accuracy = np.sort(correct[tested] / n[tested])
    tail = max(1, accuracy.size // 10)
    with np.errstate(invalid="ignore", over="ignore"):  # a diverged model has infinite loss
        loss = loss_sum[tested] / n[tested]
        loss_mean, loss_std = float(loss.mean()), float(loss.std())
    return FairnessSummary(
        devices=accuracy.size,
        accuracy_mean=float(accuracy.mean()),
        accuracy_pooled=float(correct[tested].sum() / n[tested].sum()),
        accuracy_worst10=float(accuracy[:tail].mean()),
        accuracy_best10=float(accuracy[-tail:].mean()),
        accuracy_variance=float(accuracy.var()),
        accuracy_gini=gini(accuracy),
        accuracy_gap=float(accuracy[-1] - accuracy[0]),
        loss_mean=loss_mean,
        loss_std=loss_std,
    )


def selection_rates(counts: Ints, rounds: int | Ints) -> Floats:
    """Return count / rounds of each device, shape (N,); NaN where there was no round.

    Args:
        counts: How often each device was selected (or merged), shape (N,).
        rounds: Rounds of the run; or of each device, shape (N,), those since it joined, or those
            in which it was available for the rate conditioned on availability.
    """
    of = np.broadcast_to(np.asarray(rounds, dtype=np.float64), counts.shape)
    rates: Floats = np.full(counts.shape, np.nan)
    np.divide(counts, of, out=rates, where=of > 0)
    return rates


def rate_slack(counts: Ints, rounds: int | Ints, beta: float, queues: Floats) -> Floats:
    """Return by how much each device exceeds what RBCS-F guarantees after T rounds, shape (N,).

        slack = rate - (beta - Z_T / T) >= 0,   from Z_{t+1} >= Z_t + beta - x_t

    Exact for every run and every T, up to rounding (1e-9 is generous). "rate >= beta" is not:
    a queue of level Z is a debt of Z rounds that is still open.

    Args:
        counts: How often each device was selected, shape (N,).
        rounds: T, rounds of the run or since each device joined, shape (N,), at least 1.
        beta: Promised rate.
        queues: Z_T, shape (N,).
    """
    slack: Floats = selection_rates(counts, rounds) - (beta - queues / rounds)
    return slack
