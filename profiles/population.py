"""Populations of devices: each number as a distribution over the devices."""

from typing import Annotated, Generic, TypeAlias, TypeVar

import numpy as np
from msgspec import Meta, field
from msgspec.structs import fields

from fairbed.profiles.quantities import (
    Floats,
    Quantiles,
    Quantity,
    Seconds,
    Share,
    Strict,
    Tag,
    Text,
)
from fairbed.profiles.schema import (
    BitsPerSecond,
    BusyCores,
    Bytes,
    BytesPerSecond,
    Cores,
    Delay,
    Kind,
    Loss,
    Name,
    Speed,
    Watts,
)

T = TypeVar("T")

RankCorrelation: TypeAlias = Annotated[float, Meta(gt=-1.0, lt=1.0)]


class Distributed(Strict, Generic[T], frozen=True, kw_only=True):
    """A number of every device: one value for all, or a distribution over the devices."""

    value: T | None = None
    """Value of all devices."""
    quantiles: tuple[tuple[Share, T], ...] | None = None
    """`[share, value]`: this share of the devices has at most `value`; linear in between, without
    values below the first or above the last."""
    tag: Tag
    source: Text

    def __post_init__(self) -> None:
        if (self.value is None) == (self.quantiles is None):
            given = "neither" if self.value is None else "both"
            raise ValueError(f"must have either value or quantiles, got {given}")
        self.distribution()

    def distribution(self) -> Quantiles:
        """Return the distribution of the number.

        Raises:
            ValueError: The quantiles violate a rule.
        """
        if self.quantiles is not None:
            return Quantiles(self.quantiles)  # type: ignore[arg-type]  # T is always a number
        return Quantiles(((0.0, self.value),))  # type: ignore[arg-type]


class LinkPopulation(Strict, frozen=True, kw_only=True):
    """Distribution of access links."""

    down_bps: Distributed[BitsPerSecond]
    up_bps: Distributed[BitsPerSecond]
    delay_s: Distributed[Delay]
    jitter_s: Distributed[Delay] | None = None
    """Absent is 0."""
    loss_ratio: Distributed[Loss] | None = None
    """Absent is 0."""


class AvailabilityPopulation(Strict, frozen=True, kw_only=True):
    """Distribution of the availability of devices."""

    available: Distributed[Share]
    """Share of the time in which a device is available."""
    session_s: Quantity[Seconds] | None = None
    """Mean length of a session, seconds; absent is one session per day."""


class EnergyPopulation(Strict, frozen=True, kw_only=True):
    """Distribution of the power of the whole device, as in a profile; absent is unknown."""

    idle_w: Distributed[Watts] | None = None
    train_w: Distributed[Watts] | None = None
    compute_w: Distributed[Watts] | None = None
    transmit_w: Distributed[Watts] | None = None


class Correlation(Strict, frozen=True, kw_only=True):
    """Correlation of two numbers."""

    of: tuple[str, str]
    """Keys such as `link.down_bps`."""
    rank: Quantity[RankCorrelation]
    """Spearman's rank correlation."""


class Population(Strict, frozen=True, kw_only=True):
    """`profiles/populations/NAME.toml`: devices for `[[fleet]] population = "NAME"`."""

    name: Name
    """Name of the file without `.toml`; not a key in it."""
    title: Text
    kind: Kind = field(name="class")
    licence: Text
    """Licence of the sources, and the reason why the numbers may be redistributed."""
    cores: Distributed[Cores]
    core_speed: Distributed[Speed]
    memory_bytes: Distributed[Bytes]
    storage_read_bytes_per_s: Distributed[BytesPerSecond]
    background_load: Distributed[BusyCores]
    engine_threads: Distributed[Cores]
    link: LinkPopulation
    availability: AvailabilityPopulation | None = None
    """Absent: always available."""
    energy: EnergyPopulation | None = None
    """Absent: unknown."""
    correlations: tuple[Correlation, ...] = ()
    """Correlated pairs; all other pairs of numbers are independent."""

    def __post_init__(self) -> None:
        known = self.numbers()
        for correlation in self.correlations:
            for key in correlation.of:
                if key not in known:
                    raise ValueError(
                        f"correlations.of must be two of {', '.join(known)}, got {key!r}"
                    )
        self.score_correlations()

    def numbers(self) -> dict[str, "Distributed[float]"]:
        """Return every number of the devices by its key, in a fixed order."""
        found = {field.encode_name: getattr(self, field.name) for field in fields(self)}
        for table in ("link", "availability", "energy"):
            nested = found.pop(table)
            for item in fields(nested) if nested is not None else ():
                found[f"{table}.{item.encode_name}"] = getattr(nested, item.name)
        return {key: item for key, item in found.items() if isinstance(item, Distributed)}

    def score_correlations(self) -> Floats:
        """Return the correlation matrix of normal scores, shape (N, N), for N numbers in order.

            r = 2 sin(pi r_s / 6)    for a rank correlation r_s

        Raises:
            ValueError: The matrix is not positive definite.
        """
        keys = list(self.numbers())
        matrix = np.eye(len(keys))
        for correlation in self.correlations:
            i, j = (keys.index(key) for key in correlation.of)
            if i == j:
                raise ValueError(f"correlations.of must be two numbers, got {keys[i]} twice")
            matrix[i, j] = matrix[j, i] = 2.0 * np.sin(np.pi * correlation.rank.value / 6.0)
        if np.linalg.eigvalsh(matrix).min() <= 0.0:
            raise ValueError(
                "correlations must be possible together, got a matrix that is not positive definite"
            )
        return matrix
