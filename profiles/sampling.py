"""Draw devices from a population.

    z ~ N(0, R),   x_k = F_k^-1(Phi(z_k))

with the correlations R of normal scores and the quantile functions F_k^-1 of each number: a
Gaussian copula, so that numbers go together as published and each is distributed as published.
"""

from typing import Any

import msgspec
import numpy as np

from profiles.population import Population
from profiles.quantiles import Floats, normal_shares
from profiles.schema import Profile

WHOLE = {"cores": 1, "engine_threads": 1, "memory_bytes": 1 << 20}
"""What is counted in whole units."""

FREE_CORES = 0.01
"""What the background leaves of a device at least."""

MAX_WORDS = 600


def sample(population: Population, count: int, rng: np.random.Generator) -> list[Profile]:
    """Return `count` devices, in the order they are drawn: fewer are the first of more.

    Each is a profile under the population's name, whose sources say at which share of the
    population every number was drawn.

    Raises:
        ValueError: `count` is negative.
    """
    values, shares = draw(population, count, rng)
    return [_profile(population, *row) for row in zip(values, shares, strict=True)]


def draw(population: Population, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the numbers of `count` devices, and at which share of the population each was drawn.

    Both are of shape (count, N), for the N numbers of the population in their order.

    Raises:
        ValueError: `count` is negative.
    """
    if count < 0:
        raise ValueError(f"count must be >= 0, got {count}")
    numbers = population.numbers()
    factor = np.linalg.cholesky(population.score_correlations())
    shares = normal_shares(rng.standard_normal((count, len(numbers))) @ factor.T)
    values = np.empty_like(shares)
    for k, number in enumerate(numbers.values()):
        values[:, k] = number.distribution().at(shares[:, k])
    return values, shares


def _profile(population: Population, values: Floats, shares: Floats) -> Profile:
    raw: dict[str, Any] = {
        "name": population.name,
        "title": f"drawn from {population.name}: {population.title}"[:MAX_WORDS],
        "class": population.kind,
        "licence": population.licence,
    }
    drawn = dict(zip(population.numbers(), values.tolist(), strict=True))
    for key, unit in WHOLE.items():
        drawn[key] = max(unit, round(drawn[key] / unit) * unit)
    drawn["engine_threads"] = min(drawn["engine_threads"], drawn["cores"])
    drawn["background_load"] = min(drawn["background_load"], drawn["cores"] - FREE_CORES)
    for (key, number), share in zip(population.numbers().items(), shares.tolist(), strict=True):
        table, _, name = key.rpartition(".")
        where = f"drawn at {share:.1%} of {population.name}: " if number.quantiles else ""
        source = f"{where}{number.source}"[:MAX_WORDS]
        (raw.setdefault(table, {}) if table else raw)[name] = {
            "value": drawn[key],
            "tag": number.tag,
            "source": source,
        }
    stays = population.availability
    if stays is not None and stays.session_s is not None:
        raw["availability"]["session_s"] = msgspec.to_builtins(stays.session_s)
    return msgspec.convert(raw, Profile)
