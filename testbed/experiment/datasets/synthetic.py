"""Synthetic(alpha, beta): users that differ in their features and in their labelling model.

LEAF's `synthetic` is another generator.
"""

from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.testbed.experiment.data import SyntheticConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset

DIMENSIONS = 60
CLASSES = 10
LEAST_EXAMPLES = 50
"""Added to every user's log-normal size."""
LOG_SIZE_MEAN = 4.0
LOG_SIZE_SIGMA = {"non-iid": 2.0, "iid": 1.0, "hybrid": 1.0}
FEATURE_VARIANCE: Floats = np.arange(1.0, DIMENSIONS + 1.0, dtype=np.float64) ** -1.2
"""Diagonal of the covariance of x, shape (DIMENSIONS,)."""


@dataclass(frozen=True, slots=True)
class Users:
    """Parameters of the users' distributions, U users."""

    sizes: Ints
    """n_k, shape (U,)."""
    feature_means: Floats
    """v_k, shape (U, DIMENSIONS)."""
    weights: Floats
    """W_k, shape (U, DIMENSIONS, CLASSES)."""
    biases: Floats
    """b_k, shape (U, CLASSES)."""


def draw_users(config: SyntheticConfig, rng: np.random.Generator) -> Users:
    """Draw the users.

        n_k = int(lognormal(4, sigma)) + 50,   sigma = 2 (iid and hybrid: 1)
        u_k ~ N(0, alpha),   W_k ~ N(u_k, 1)^{60x10},   b_k ~ N(u_k, 1)^10
        B_k ~ N(0, beta),    v_k ~ N(B_k, 1)^60
        iid users:           one W, b ~ N(0, 1) for all of them and v_k = 0

    Source:
        Li et al., FedProx (MLSys 2020) and q-FFL (ICLR 2020), as in the authors' generators.
        There the second argument of N is the standard deviation, and so it is here; the papers
        print a variance. The two are equal at 1.
        Since u_k shifts all ten logits of a user equally, alpha does not change any label.
    """
    n = config.users
    n_iid = {"non-iid": 0, "iid": n, "hybrid": n // 2}[config.variant]
    sigma = LOG_SIZE_SIGMA[config.variant]
    sizes = rng.lognormal(LOG_SIZE_MEAN, sigma, n).astype(np.int64) + LEAST_EXAMPLES
    model_means = rng.normal(0.0, config.alpha, n)
    feature_centres = rng.normal(0.0, config.beta, n)
    feature_means = rng.normal(feature_centres[:, np.newaxis], 1.0, (n, DIMENSIONS))
    weights = rng.normal(model_means[:, np.newaxis, np.newaxis], 1.0, (n, DIMENSIONS, CLASSES))
    biases = rng.normal(model_means[:, np.newaxis], 1.0, (n, CLASSES))
    feature_means[:n_iid] = 0.0
    weights[:n_iid] = rng.normal(0.0, 1.0, (DIMENSIONS, CLASSES))
    biases[:n_iid] = rng.normal(0.0, 1.0, CLASSES)
    return Users(sizes, feature_means, weights, biases)


def synthetic(config: SyntheticConfig, rng: np.random.Generator) -> Dataset:
    """Return a draw of Synthetic(alpha, beta), x float32, shape (n, 60), with its users.

        x ~ N(v_k, diag(j^-1.2)),   y = argmax(W_k' x + b_k)

    Source:
        As `draw_users`. Deviates: the source splits 90/10 per user here; we split later.
    """
    users = draw_users(config, rng)
    owner = np.repeat(np.arange(config.users, dtype=np.int64), users.sizes)
    x = np.empty((len(owner), DIMENSIONS), np.float32)
    y = np.empty(len(owner), np.int64)
    scale, ends = np.sqrt(FEATURE_VARIANCE), np.cumsum(users.sizes)
    for k, (start, end) in enumerate(zip(ends - users.sizes, ends, strict=True)):
        noise = rng.standard_normal((end - start, DIMENSIONS)) * scale
        features = users.feature_means[k] + noise
        x[start:end] = features
        y[start:end] = np.argmax(features @ users.weights[k] + users.biases[k], axis=1)
    return Dataset(
        name="synthetic",
        x=x,
        y=y,
        classes=CLASSES,
        device_ids=owner,
        description=(
            f"Synthetic({config.alpha:g}, {config.beta:g}) {config.variant}, {config.users} users,"
            f" {len(owner):,} examples of 60 features, 10 classes"
        ),
        source="generated, after Li et al., MLSys 2020 and ICLR 2020",
        origin="generated",
    )
