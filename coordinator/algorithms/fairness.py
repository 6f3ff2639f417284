"""Fairness metrics: of a model's accuracy and loss over devices, and of selection counts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats, Ints


def jain(values: NDArray[np.generic]) -> float:
    """Return Jain's index: 1 if all are equal, 1/N if one device has everything, NaN if all are 0.

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
    """Return the Gini coefficient: 0 if all are equal, towards 1 if one device has everything.

        G = sum_i (2 i - n - 1) a_(i) / (n sum a),   a_(1) <= ... <= a_(n)

    NaN if all values are 0 or there are no values.

    Args:
        values: Shape (n,), at least 0.
    """
    ordered = np.sort(values)
    n, total = ordered.size, float(ordered.sum())
    if total <= 0.0:
        return float("nan")
    ranks = 2.0 * np.arange(1, n + 1) - n - 1
    return float(ranks @ ordered / (n * total))


def tenth(devices: int) -> int:
    """Return the number of devices in the worst 10 %, and in the best: max(1, int(0.1 n))."""
    return max(1, devices // 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessSummary:
    """One model on every device's held-out data; each device counts once, whatever its size."""

    devices: int
    """Number of devices with held-out examples; the others are left out."""
    accuracy_mean: float
    """Unweighted over devices."""
    accuracy_pooled: float
    """Correct examples of all devices / examples of all devices."""
    accuracy_worst10: float
    """Unweighted mean of the max(1, int(0.1 n)) lowest."""
    accuracy_best10: float
    """Unweighted mean of the max(1, int(0.1 n)) highest."""
    accuracy_worst10_pooled: float
    """The same lowest devices, weighted by their examples: correct / examples of the group."""
    accuracy_best10_pooled: float
    """The same highest devices, weighted by their examples."""
    accuracy_variance: float
    """Population variance of the ratios; papers report it for percentages, 10^4 times larger."""
    accuracy_gini: float
    """NaN if every accuracy is 0."""
    accuracy_jain: float
    """NaN if every accuracy is 0."""
    accuracy_gap: float
    """Best minus worst device."""
    loss_mean: float
    """Unweighted over devices, nats."""
    loss_std: float
    """Population standard deviation over devices, nats."""


def summarise(n: Ints, correct: Ints, loss_sum: Floats) -> FairnessSummary:
    """Return the fairness summary of one evaluation.

    Args:
        n: Held-out examples of each device, shape (N,), 0 for none.
        correct: Held-out examples classified correctly, shape (N,).
        loss_sum: Loss summed over the held-out examples, nats, shape (N,).

    Raises:
        ValueError: No device has a held-out example.

    Source:
        Li et al., ICLR 2020 (arXiv:1905.10497), section 4: tenths of devices, unweighted; Hahn et
        al. (AAggFF, arXiv:2405.20821): weighted by examples, at least one device.
    Deviates:
        The worst 10 % of fewer than 20 devices are one device; the code of the first paper takes
        no device below 10.
    """
    tested = n > 0
    if not tested.any():
        raise ValueError(
            f"summarise: at least one device must have held-out examples, got none of {len(n)}; "
            "check the test splits"
        )
    sizes, right = n[tested], correct[tested]
    accuracy = right / sizes
    order = np.lexsort((sizes, accuracy))  # ties by examples, so that no order of devices matters
    tail = tenth(accuracy.size)
    worst, best = order[:tail], order[-tail:]
    with np.errstate(invalid="ignore", over="ignore"):  # a diverged model has infinite loss
        loss = loss_sum[tested] / sizes
        loss_mean, loss_std = float(loss.mean()), float(loss.std())
    return FairnessSummary(
        devices=accuracy.size,
        accuracy_mean=float(accuracy[order].mean()),
        accuracy_pooled=float(right.sum() / sizes.sum()),
        accuracy_worst10=float(accuracy[worst].mean()),
        accuracy_best10=float(accuracy[best].mean()),
        accuracy_worst10_pooled=float(right[worst].sum() / sizes[worst].sum()),
        accuracy_best10_pooled=float(right[best].sum() / sizes[best].sum()),
        accuracy_variance=float(accuracy[order].var()),
        accuracy_gini=gini(accuracy),
        accuracy_jain=jain(accuracy[order]),
        accuracy_gap=float(accuracy.max() - accuracy.min()),
        loss_mean=loss_mean,
        loss_std=loss_std,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """The error of one model of regression on every device's held-out data; small is good."""

    rmse_mean: float
    """Root mean squared error, unweighted over devices."""
    rmse_worst10: float
    """Unweighted mean of the max(1, int(0.1 n)) largest."""
    rmse_best10: float
    """Unweighted mean of the max(1, int(0.1 n)) smallest."""
    rmse_std: float
    """Population standard deviation over devices."""
    rmse_gap: float
    """Worst minus best device."""
    rmse_pooled: float
    """Over all examples."""


def summarise_errors(n: Ints, loss_sum: Floats) -> ErrorSummary:
    """Return the summary of the errors of one evaluation of regression.

        RMSE_k = sqrt(2 F_k),   F_k the mean of half the squared errors

    Args:
        n: Held-out examples of each device, shape (N,), all positive.
        loss_sum: Loss summed over the held-out examples, shape (N,); infinite for a diverged model.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        rmse = np.sort(np.sqrt(2.0 * loss_sum / n))
        tail = tenth(rmse.size)
        return ErrorSummary(
            rmse_mean=float(rmse.mean()),
            rmse_worst10=float(rmse[-tail:].mean()),
            rmse_best10=float(rmse[:tail].mean()),
            rmse_std=float(rmse.std()),
            rmse_gap=float(rmse[-1] - rmse[0]),
            rmse_pooled=float(np.sqrt(2.0 * loss_sum.sum() / n.sum())),
        )


def mean_and_worst10(auroc: Floats) -> tuple[float, float]:
    """Return the mean over devices, shape (N,), N >= 1, and that of the max(1, int(0.1 n)) lowest.

    Both are independent of the order of the devices.
    """
    ordered = np.sort(auroc)
    return float(ordered.mean()), float(ordered[: tenth(ordered.size)].mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class TenthsByExamples:
    """A score over devices, each weighted by its held-out examples, with its inequality."""

    mean: float
    """sum n_k a_k / sum n_k over all devices."""
    worst10: float
    """The same over the max(1, int(0.1 n)) devices with the lowest scores."""
    best10: float
    """The same over the highest."""
    best10_of_devices: float
    """Unweighted mean of these."""
    gini: float
    """Of the scores, each device once; NaN if all are 0."""


def tenths_by_examples(scores: Floats, n: Ints) -> TenthsByExamples:
    """Return the spread of a score that is no share of examples, such as the AUROC.

    Args:
        scores: Of each device, shape (N,), N >= 1, at least 0.
        n: Held-out examples of each device, shape (N,), all positive.

    Source:
        Hahn et al. (AAggFF, arXiv:2405.20821), Table 2: average by examples, worst and best
        devices, Gini coefficient of the AUROC.
    """
    order = np.lexsort((n, scores))  # ties by examples, so that no order of devices matters
    a, w, tail = scores[order], n[order].astype(np.float64), tenth(scores.size)
    return TenthsByExamples(
        mean=float(np.average(a, weights=w)),
        worst10=float(np.average(a[:tail], weights=w[:tail])),
        best10=float(np.average(a[-tail:], weights=w[-tail:])),
        best10_of_devices=float(a[-tail:].mean()),
        gini=gini(a),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilitySummary:
    """Utilities u_i = M - F_i of one model over devices; comparable only under the same M."""

    average: float
    """U(Average): unweighted mean over devices, nats."""
    least: float
    """Least utility, nats."""
    log_product: float
    """Logarithm of U(Multi), which CoreFed maximises: sum of log u_i."""

    @property
    def product(self) -> float:
        """U(Multi): product of u_i; infinite where float64 is too small."""
        with np.errstate(over="ignore"):
            return float(np.exp(self.log_product))


def summarise_utilities(losses: Floats, M: float) -> UtilitySummary:
    """Return the summary of the utilities of one model.

    Args:
        losses: F of each device, nats, shape (n,).
        M: Upper bound of the losses, nats.

    Raises:
        ValueError: There is no loss, or M is not above each.

    Source:
        Ray Chaudhury et al., NeurIPS 2022, equation 1 and Tables 1 to 4 (arXiv:2211.02091).
    """
    if not losses.size or not losses.max() < M:
        got = f"{losses.max():.4g}" if losses.size else "no loss"
        raise ValueError(f"utilities: M = {M:g} must be above every loss, got {got}; raise M")
    u = M - losses
    return UtilitySummary(
        average=float(u.mean()), least=float(u.min()), log_product=float(np.log(u).sum())
    )


def selection_rates(counts: Ints, rounds: int | Ints) -> Floats:
    """Return count / rounds of each device, shape (N,); NaN where the number of rounds is 0.

    Args:
        counts: How often each device was selected (or aggregated), shape (N,).
        rounds: Rounds of the run; or one number per device, shape (N,): the rounds since it
            joined, or those in which it was available (rate conditioned on availability).
    """
    of = np.broadcast_to(np.asarray(rounds, dtype=np.float64), counts.shape)
    rates: Floats = np.full(counts.shape, np.nan)
    np.divide(counts, of, out=rates, where=of > 0)
    return rates


def rate_slack(counts: Ints, rounds: int | Ints, beta: float | Floats, queues: Floats) -> Floats:
    """Return the excess of each rate over the guarantee of RBCS-F after T rounds, shape (N,).

        slack = rate - (beta - Z_T / T) >= 0,   from Z_{t+1} >= Z_t + beta - x_t

    This holds for every run and every T, up to rounding (below 1e-9). "rate >= beta" need not:
    a device whose queue is Z still lacks Z selections.

    Args:
        counts: How often each device was selected, shape (N,).
        rounds: T, rounds of the run or since each device joined, shape (N,), at least 1.
        beta: Guaranteed rate; if it changed, its mean over these rounds, shape (N,).
        queues: Z_T, shape (N,).
    """
    slack: Floats = selection_rates(counts, rounds) - (beta - queues / rounds)
    return slack
