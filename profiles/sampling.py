"""Draw devices from a population.

    z ~ N(0, R),   x_k = F_k^-1(Phi(z_k))

with the correlations R of normal scores and the quantile function F_k^-1 of each number: a
Gaussian copula, which keeps the published distributions and rank correlations.
"""

from typing import Any

import msgspec
import numpy as np

from fairbed.profiles.population import Distributed, Population
from fairbed.profiles.quantities import Floats, normal_shares
from fairbed.profiles.schema import Profile

WHOLE = {"cores": 1, "engine_threads": 1, "memory_bytes": 1 << 20}
"""Unit of the numbers that are rounded to whole units."""

FREE_CORES = 0.01
"""Lower bound of the cores that the background load leaves free."""

MAX_TEXT = 600
"""Characters of a title or source (`profiles.quantities.Text`)."""


def sample(population: Population, count: int, rng: np.random.Generator) -> list[Profile]:
    """Return `count` devices in the order of the draw: a smaller count returns the first ones.

    Each is a profile with the population's name; the source of each number states the share of the
    population at which it was drawn.

    Raises:
        ValueError: `count` is negative.
    """
    values, shares = draw(population, count, rng)
    return [_profile(population, *row) for row in zip(values, shares, strict=True)]


def draw(population: Population, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the numbers of `count` devices, and the share of the population of each number.

    Both have shape (count, N), for the N numbers of the population in their order.

    Raises:
        ValueError: `count` is negative.
    """
    shares = normal_shares(_scores(population, count, rng))
    values = np.empty_like(shares)
    for k, number in enumerate(population.numbers().values()):
        values[:, k] = number.distribution().at(shares[:, k])
    return values, shares


def columns(population: Population, count: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Return the numbers of `count` devices as columns of shape (count,), by their keys.

    They equal those of the devices that `sample` draws with the same `rng`, without an object per
    device: a million devices take 1 to 2 s, and 8 bytes per number.

    Raises:
        ValueError: `count` is negative.
    """
    scores = _scores(population, count, rng)
    return _whole(
        {
            key: _column(number, scores[:, k])
            for k, (key, number) in enumerate(population.numbers().items())
        }
    )


def _scores(population: Population, count: int, rng: np.random.Generator) -> Floats:
    """Return normal scores z, shape (count, N)."""
    if count < 0:
        raise ValueError(f"count must be >= 0, got {count}")
    factor = np.linalg.cholesky(population.score_correlations())
    scores: Floats = rng.standard_normal((count, len(factor))) @ factor.T
    return scores


def _column(number: "Distributed[float]", scores: Floats) -> Floats:
    """Return one number of each device, shape (count,), given its normal scores."""
    if number.value is not None:
        return np.full(len(scores), float(number.value))
    return number.distribution().at(normal_shares(scores))


def _whole(drawn: dict[str, Floats]) -> dict[str, Floats]:
    """Return the columns rounded to whole units, with threads and load bounded by the cores."""
    rounded = {
        key: np.maximum(unit, np.round(drawn[key] / unit) * unit) for key, unit in WHOLE.items()
    }
    cores = rounded["cores"]
    return {
        **drawn,
        **rounded,
        "engine_threads": np.minimum(rounded["engine_threads"], cores),
        "background_load": np.minimum(drawn["background_load"], cores - FREE_CORES),
    }


def _profile(population: Population, values: Floats, shares: Floats) -> Profile:
    raw: dict[str, Any] = {
        "name": population.name,
        "title": f"drawn from {population.name}: {population.title}"[:MAX_TEXT],
        "class": population.kind,
        "licence": population.licence,
    }
    one = _whole(dict(zip(population.numbers(), values[:, None], strict=True)))
    drawn = {key: float(column[0]) for key, column in one.items()}
    for (key, number), share in zip(population.numbers().items(), shares.tolist(), strict=True):
        table, _, name = key.rpartition(".")
        where = f"drawn at {share:.1%} of {population.name}: " if number.quantiles else ""
        source = f"{where}{number.source}"[:MAX_TEXT]
        (raw.setdefault(table, {}) if table else raw)[name] = {
            "value": round(drawn[key]) if key in WHOLE else drawn[key],
            "tag": number.tag,
            "source": source,
        }
    availability = population.availability
    if availability is not None and availability.session_s is not None:
        raw["availability"]["session_s"] = msgspec.to_builtins(availability.session_s)
    return msgspec.convert(raw, Profile)
