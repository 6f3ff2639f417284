"""Sampling noise of accuracies over devices: the spread that small test sets show by themselves.

    c_i ~ Bin(n_i, theta_i),   a_i = c_i / n_i,   Var(a_i) = theta_i (1 - theta_i) / n_i

Devices of one true accuracy therefore seem to differ: of 30 with accuracy 0.85 and 12 test
examples each, the worst 10 % show 0.663 +- 0.046.
"""

from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints, distinct
from fairbed.coordinator.algorithms.fairness import tenth
from fairbed.coordinator.algorithms.random_streams import uniforms

DRAWS, LEAST_DRAWS = 4_096, 32
"""Draws of a fleet of identical devices: the error of their mean is a 64th of `worst10_std`."""
MAX_DRAWN = 400_000
"""Devices x draws: a larger fleet, whose tenths vary less, has fewer draws."""
STREAM = 10
"""Purpose of the random stream, whose seed is fixed: equal counts give equal numbers."""
HALF = 0.5
"""Share of noise above which a number is more about the test sets than about the model."""
STEPS, SETTLED = 100, 1e-9
"""Most iterations of the moments, and the change at which they end; they need about ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingNoise:
    """Sampling noise of the accuracies of one evaluation, and the spread without it.

    Identical devices have the pooled accuracy and the test examples of the real ones. The share of
    noise in a tenth is the distance from the mean that identical devices show / the distance
    observed; that of the variance is the variance of the noise / the variance observed. Both are at
    most 1, and null where every device has accuracy 0 or every device 1.
    """

    devices: int
    """Devices with test examples, at least 2."""
    examples_min: int
    """Fewest test examples of a device."""
    examples_median: float
    examples_max: int
    worst10: float
    """Expected worst 10 % of identical devices; likewise the next five."""
    best10: float
    worst10_pooled: float
    """Weighted by examples; likewise `best10_pooled`."""
    best10_pooled: float
    worst10_std: float
    """Standard deviation of it over test sets; likewise `best10_std`."""
    best10_std: float
    variance: float
    """Variance of the noise of the real devices."""
    worst10_share: float | None
    """Share of noise; likewise the other shares."""
    best10_share: float | None
    worst10_pooled_share: float | None
    best10_pooled_share: float | None
    variance_share: float | None
    variance_corrected: float | None
    """Population variance of the true accuracies, at least 0; null if every device has a single
    test example."""
    is_floored: bool
    """The estimate of `variance_corrected` was below 0: noise explains the variance observed."""
    worst10_shrunken: float | None
    """Worst 10 % of the posterior means; null as `variance_corrected`; likewise
    `best10_shrunken`."""
    best10_shrunken: float | None
    prior_accuracy: float | None
    """Mean of the beta distribution of the true accuracies; null as `variance_corrected`."""
    prior_examples: float | None
    """Examples that the prior counts for, alpha + beta; null if it is a single accuracy: the
    accuracies do not differ beyond the noise."""

    @property
    def shares(self) -> dict[str, float | None]:
        """Share of noise of each number that is read first, by its name in texts."""
        return {
            "worst 10 %": self.worst10_share,
            "best 10 %": self.best10_share,
            "variance": self.variance_share,
        }

    @property
    def mostly_noise(self) -> dict[str, float]:
        """Those of the shares that are over half."""
        return {name: x for name, x in self.shares.items() if x is not None and x > HALF}


def sampling_noise(n: Ints, correct: Ints, draws: int = DRAWS) -> SamplingNoise | None:
    """Return the sampling noise of accuracies over devices; None for fewer than two devices.

        noise variance      (1 - 1/K) mean_i h_i / n_i,   h_i = a_i (1 - a_i) n_i / (n_i - 1)
        corrected variance  max(0, mean_i (a_i - mean a)^2 - noise variance)
        identical devices   c_i ~ Bin(n_i, sum c / sum n), independent
        posterior mean      (c_i + alpha) / (n_i + alpha + beta)

    The corrected variance without its floor is unbiased for the population variance of the true
    accuracies of these devices. A device with a single test example has no h_i: it takes the
    pooled one of the others, sum n_i a_i (1 - a_i) / sum (n_i - 1).

    Args:
        n: Test examples of each device, shape (N,); devices with 0 are left out.
        correct: Test examples classified correctly, shape (N,).
        draws: Most draws of identical devices.

    Source:
        Kleinman, JASA 68 (1973), 46-54: proportions with extraneous variance, moments of the
        beta-binomial distribution; Efron & Morris, JASA 70 (1975), 311-319: shrinkage.
    """
    tested = n > 0
    sizes, right = n[tested], correct[tested]
    if sizes.size < 2:
        return None
    order = np.argsort(sizes, kind="stable")
    sizes, right = sizes[order], right[order]
    accuracy: Floats = right / sizes
    pooled = float(right.sum() / sizes.sum())
    observed = _tenths(accuracy[np.newaxis], sizes)[:, 0].tolist()
    drawn = _identical_devices(sizes, pooled, draws)
    noise, std = drawn.mean(axis=1).tolist(), drawn.std(axis=1).tolist()
    centres = (float(accuracy.mean()), float(accuracy.mean()), pooled, pooled)
    shares = [
        _share(abs(pooled - expected), abs(centre - seen))
        for expected, centre, seen in zip(noise, centres, observed, strict=True)
    ]
    variance, noise_variance = float(accuracy.var()), _noise_variance(sizes, accuracy, pooled)
    is_known = bool((sizes > 1).any())
    prior_accuracy, prior_examples = _fit_beta(sizes, accuracy)
    posterior = _posterior_means(sizes, right, prior_accuracy, prior_examples)
    tail = tenth(sizes.size)
    return SamplingNoise(
        devices=sizes.size,
        examples_min=int(sizes[0]),
        examples_median=float(np.median(sizes)),
        examples_max=int(sizes[-1]),
        worst10=noise[0],
        best10=noise[1],
        worst10_pooled=noise[2],
        best10_pooled=noise[3],
        worst10_std=std[0],
        best10_std=std[1],
        variance=noise_variance,
        worst10_share=shares[0],
        best10_share=shares[1],
        worst10_pooled_share=shares[2],
        best10_pooled_share=shares[3],
        variance_share=_share(noise_variance, variance),
        variance_corrected=max(0.0, variance - noise_variance) if is_known else None,
        is_floored=is_known and variance < noise_variance,
        worst10_shrunken=float(posterior[:tail].mean()) if is_known else None,
        best10_shrunken=float(posterior[-tail:].mean()) if is_known else None,
        prior_accuracy=prior_accuracy if is_known else None,
        prior_examples=prior_examples if is_known and np.isfinite(prior_examples) else None,
    )


def _tenths(accuracy: Floats, sizes: Ints) -> Floats:
    """Return worst and best 10 %, then both weighted by examples, shape (4, R).

    Args:
        accuracy: R fleets, shape (R, K).
        sizes: Test examples of each device, ascending, shape (K,): ties are ordered by them.
    """
    order = np.argsort(accuracy, axis=1, kind="stable")
    tail = tenth(sizes.size)
    ends = order[:, :tail], order[:, -tail:]
    plain = [np.take_along_axis(accuracy, end, axis=1).mean(axis=1) for end in ends]
    weighted = [
        np.average(np.take_along_axis(accuracy, end, axis=1), axis=1, weights=sizes[end])
        for end in ends
    ]
    return np.array([*plain, *weighted])


def _identical_devices(sizes: Ints, accuracy: float, most: int) -> Floats:
    """Return the tenths of drawn fleets of identical devices, shape (4, R)."""
    draws = max(LEAST_DRAWS, min(most, MAX_DRAWN // sizes.size))
    rows = np.arange(draws * sizes.size, dtype=np.int64)
    u = uniforms(0, 0, rows, STREAM).reshape(draws, sizes.size)
    correct = np.empty(u.shape)
    for size in distinct(sizes).tolist():
        same = sizes == size
        correct[:, same] = np.searchsorted(_binomial_cdf(size, accuracy)[:-1], u[:, same])
    return _tenths(correct / sizes, sizes)


def _binomial_cdf(n: int, p: float) -> Floats:
    """Return P(X <= k) of X ~ Bin(n, p) for k = 0 .. n, shape (n + 1,)."""
    if p in (0.0, 1.0):
        return np.full(n + 1, 1.0 - p)
    k = np.arange(1, n + 1)
    steps = np.log((n - k + 1) / k) + np.log(p / (1.0 - p))
    log_pmf = n * np.log1p(-p) + np.concatenate(([0.0], np.cumsum(steps)))
    return np.cumsum(np.exp(log_pmf))


def _noise_variance(sizes: Ints, accuracy: Floats, pooled: float) -> float:
    """Return the expected share of the noise in the population variance of the accuracies."""
    within = sizes * accuracy * (1.0 - accuracy)  # n a (1 - a), expected (n - 1) theta (1 - theta)
    more = sizes > 1
    h = np.full(sizes.size, pooled * (1.0 - pooled))
    if more.any():
        h[:] = within.sum() / (sizes - 1).sum()
        h[more] = within[more] / (sizes[more] - 1)
    return float((1.0 - 1.0 / sizes.size) * (h / sizes).mean())


def _fit_beta(sizes: Ints, accuracy: Floats) -> tuple[float, float]:
    """Return mean and alpha + beta of the beta distribution of the true accuracies, by moments.

        p = sum w a / w,   S = sum_i w_i (a_i - p)^2,   v_i = w_i (1 - w_i / w)
        gamma = (S - p q sum v_i / n_i) / (p q sum v_i (1 - 1 / n_i))
        w_i = n_i / (1 + gamma (n_i - 1))

    with w = sum w_i, q = 1 - p and gamma = 1 / (1 + alpha + beta) in 0 .. 1, iterated from
    w_i = n_i. alpha + beta is infinite where gamma is 0.
    """
    weights, gamma = sizes.astype(np.float64), np.inf
    for _ in range(STEPS):
        total = weights.sum()
        p = float(weights @ accuracy / total)
        v = weights * (1.0 - weights / total)
        spread = p * (1.0 - p) * float(v @ (1.0 - 1.0 / sizes))
        if spread <= 0.0:  # every accuracy is 0, every one is 1, or no device has two examples
            return p, np.inf
        excess = float(weights @ np.square(accuracy - p) - p * (1.0 - p) * (v / sizes).sum())
        before, gamma = gamma, min(max(excess / spread, 0.0), 1.0)
        if abs(gamma - before) < SETTLED:
            break
        weights = sizes / (1.0 + gamma * (sizes - 1))
    return p, 1.0 / gamma - 1.0 if gamma > 0.0 else np.inf


def _posterior_means(sizes: Ints, right: Ints, mean: float, examples: float) -> Floats:
    """Return the posterior mean of each accuracy, ascending, shape (K,)."""
    if np.isinf(examples):
        return np.full(sizes.size, mean)
    means: Floats = np.sort((right + mean * examples) / (sizes + examples))
    return means


def _share(noise: float, observed: float) -> float | None:
    """Return noise / observed, at most 1; None if both are 0."""
    if observed > 0.0:
        return min(1.0, noise / observed)
    return 1.0 if noise > 0.0 else None
