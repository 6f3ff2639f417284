"""Growth of the memory of processes per round, whatever restarts there were. Pure.

A process that starts anew begins a new series. The slope of a kind of process is that of a line
through all of its series, each with an offset b_s of its own:

    memory = b_s + slope * round
    slope  = sum (r - mean_s r) (m - mean_s m) / sum (r - mean_s r)^2

Samples that follow each other are alike, so the noise of the slope is that of the jackknife over
blocks of them: the slopes s_i without block i of B have the standard error

    noise^2 = (B - 1) / B  sum (s_i - mean s)^2

The C library takes and returns memory in steps of up to S. The largest slope that one step in the
middle of each life has, of l_s rounds, is 1.5 S / l_s, and

    resolution = 1.5 S  sum l_s^2 / sum l_s^3

through all of them. A slope is noise below three times the noise, and below the resolution.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Samples: TypeAlias = NDArray[np.float64]
"""Rounds and bytes, shape (n, 2)."""

WARM_ROUNDS = 700
"""Rounds at the start of a process that do not count: imports, buffers, caches that fill. In a
life of 4,200 rounds a coordinator grew by 0.17 kB a round from round 300 on, 0.02 from 700 on."""

MIN_ROUNDS = 1_000
"""Fewest rounds in the series of a kind after that, all together, for a slope."""

MIN_SAMPLES = 8
"""Fewest samples of a series that counts."""

BLOCKS = 20
"""Blocks of the jackknife, about."""

SIGNIFICANT = 3.0
"""A slope of less than this many standard errors is noise ..."""
STEP_KB = 600.0
"""... and so is one that a step of this size, kB, in each life makes: coordinators and agents of
5,000 rounds took 390 to 600 kB at once, and returned up to 900 kB ..."""
LARGEST_KB = 1.0
"""... but never a larger one, however noisy it is."""


class Slope(Struct, frozen=True, kw_only=True):
    """How the memory of a kind of process grows."""

    kb_per_round: float
    """Kilobytes (1,000 bytes) a round."""
    noise_kb: float
    """Its standard error."""
    limit_kb: float
    """Largest slope that is within noise."""
    series: int
    """Lives of processes that counted."""
    rounds: int
    """Rounds in them, without those at their start."""

    @property
    def is_within_noise(self) -> bool:
        """Whether the memory does not grow, as far as can be seen."""
        return self.kb_per_round <= self.limit_kb


@dataclass(slots=True)
class MemoryLog:
    """Samples of the memory of processes."""

    _samples: dict[tuple[str, Hashable], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, kind: str, process: Hashable, round_id: int, rss_bytes: int) -> None:
        """Add a sample of a process, whose identity differs from that of any other process."""
        self._samples[kind, process].append((round_id, rss_bytes))

    def slopes(self) -> dict[str, Slope]:
        """Return the slope of each kind with enough samples."""
        kinds = defaultdict[str, list[Samples]](list)
        for (kind, _), samples in self._samples.items():
            kinds[kind].append(np.array(samples, dtype=np.float64))
        found = {kind: slope_of(series) for kind, series in kinds.items()}
        return {kind: slope for kind, slope in found.items() if slope is not None}


def slope_of(series: Sequence[Samples]) -> Slope | None:
    """Return the slope of processes of one kind, None if they lived too short.

    Args:
        series: Samples of each process, ordered by round.
    """
    warm = [one[one[:, 0] >= one[0, 0] + WARM_ROUNDS] for one in series]
    warm = [one for one in warm if len(one) >= MIN_SAMPLES]
    lengths = np.array([one[-1, 0] - one[0, 0] for one in warm])
    rounds = int(lengths.sum())
    if rounds < MIN_ROUNDS:
        return None
    n = sum(map(len, warm))
    without = [
        _pooled([*warm[:i], np.delete(one, block, axis=0), *warm[i + 1 :]])
        for i, one in enumerate(warm)
        for block in np.array_split(np.arange(len(one)), max(2, BLOCKS * len(one) // n))
    ]
    noise_kb = float(np.sqrt((len(without) - 1) * np.var(without)))
    resolution_kb = 1.5 * STEP_KB * float(np.sum(lengths**2) / np.sum(lengths**3))
    return Slope(
        kb_per_round=_pooled(warm),
        noise_kb=noise_kb,
        limit_kb=min(max(SIGNIFICANT * noise_kb, resolution_kb), LARGEST_KB),
        series=len(warm),
        rounds=rounds,
    )


def _pooled(series: Sequence[Samples]) -> float:
    """Return the common slope, kB a round."""
    x, y = np.concatenate([one - one.mean(axis=0) for one in series]).T
    return float(x @ y / (x @ x)) / 1e3
