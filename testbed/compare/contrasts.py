"""Factorial contrasts over the arms of a grid: main effects, interactions, simple effects. Pure.

A factor is a key of the experiment with two levels, `from` and `to`; a level is a value, or several
values whose arms are averaged. For factors A and B, with y_ab the mean over the arms of a cell in
one seed, and levels 0 and 1:

    main effect of A            (y_10 - y_00 + y_11 - y_01) / 2
    interaction of A and B      y_11 - y_01 - y_10 + y_00
    simple effect of A at b     y_1b - y_0b

A third factor is averaged over; the interaction of three is the difference of two interactions. On
the log scale y are logarithms, and effects are ratios, or ratios of ratios, minus 1. Each effect is
one number per seed, so that the effect of the seed itself cancels, and is tested as a difference of
two arms is (`fairbed.testbed.compare.differences`).
"""

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from scipy import special

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.measures.scales import MetricKind
from fairbed.testbed.compare.differences import (
    FAMILY_LEVEL,
    ArmValues,
    Difference,
    difference_of,
    first_level,
    judged,
    on_scale,
    resolution_of,
)
from fairbed.testbed.compare.statistics import LEAST_SEEDS_TO_JUDGE, standard_error

LEAST_FLIPS = 7
"""With fewer seeds the p-value of sign flips cannot be below 2 %."""
MAX_EXACT, DRAWN_SIGNS = 12, 10_000
"""Seeds up to which all signs are tried; beyond, so many are drawn."""
POWER = 0.8
"""Share of grids in which an effect of the stated size has a verdict."""

EffectKind: TypeAlias = Literal["main", "interaction", "simple"]


@dataclass(frozen=True, slots=True)
class Factor:
    """A key of the experiment with two levels."""

    key: str
    levels: tuple[str, str]
    """Texts of the values, `from` and `to`."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A factorial question."""

    name: str
    factors: tuple[Factor, ...]
    """One to three."""
    cells: Mapping[tuple[int, ...], tuple[str, ...]]
    """Names of the arms by level of each factor, 0 or 1; all combinations are there."""
    metrics: tuple[str, ...]
    """Keys of its metrics: the declared ones."""
    tested: tuple[EffectKind, ...]
    """The kinds of effects that are tested; others are shown without a verdict."""
    margins: Mapping[str, float]
    """By metric: an effect within -margin and margin is none that matters; a share if the metric is
    on the log scale."""

    def effects(self) -> Iterator["EffectOf"]:
        """Yield the effects: main effects, interactions, then simple ones."""
        numbers = range(len(self.factors))
        for size in range(1, len(self.factors) + 1):
            for of in itertools.combinations(numbers, size):
                yield EffectOf("main" if size == 1 else "interaction", of)
        if len(self.factors) > 1:
            for own in numbers:
                others = [number for number in numbers if number != own]
                for levels in itertools.product((0, 1), repeat=len(others)):
                    yield EffectOf("simple", (own,), tuple(zip(others, levels, strict=True)))

    @property
    def declared(self) -> str:
        """All that it declares, as JSON: it may not change after the first run."""
        cells = [[at, arms] for at, arms in self.cells.items()]
        content = (self.name, cells, self.metrics, self.tested, dict(self.margins))
        return msgspec.json.encode(content, order="sorted").decode()

    @property
    def arms(self) -> list[str]:
        """Names of all its arms."""
        return [arm for arms in self.cells.values() for arm in arms]

    @property
    def claims(self) -> int:
        """Tests that the contrast declares: effects, and those of equivalence."""
        effects = sum(effect.kind in self.tested for effect in self.effects())
        return effects * (len(self.metrics) + len(self.margins))


@dataclass(frozen=True, slots=True)
class EffectOf:
    """Which effect: its factors, and the levels of others."""

    kind: EffectKind
    of: tuple[int, ...]
    at: tuple[tuple[int, int], ...] = ()
    """Factor and level of each other factor of a simple effect."""

    def sign(self, cell: tuple[int, ...]) -> float:
        """Return the coefficient of a cell, before the mean over the factors that are left."""
        if any(cell[factor] != level for factor, level in self.at):
            return 0.0
        return math.prod((1.0 if cell[factor] else -1.0) for factor in self.of)

    def text(self, factors: Sequence[Factor]) -> str:
        """Return the effect in words, such as `rule: fedavg to term, at policy uniform`."""
        shown = [factors[factor] for factor in self.of]
        steps = [f"{short_key(f.key)} {f.levels[0]} to {f.levels[1]}" for f in shown]
        at = [f"{short_key(factors[f].key)} {factors[f].levels[level]}" for f, level in self.at]
        return " x ".join(steps) + (f", at {' and '.join(at)}" if at else "")


class Equivalence(Struct, frozen=True, kw_only=True):
    """Whether an effect is too small to matter, by two one-sided tests."""

    margin: float
    p: float | None
    """Null if it was not tested."""
    p_family: float | None
    """The same, corrected for all comparisons of the grid."""
    is_shown: bool


class Effect(Struct, frozen=True, kw_only=True):
    """One effect of a contrast on one metric."""

    contrast: str
    kind: EffectKind
    effect: str
    """In words."""
    metric: str
    estimate: Difference
    p_sign_flip: float | None
    """p-value of sign flips, without the assumption of a normal distribution and uncorrected; null
    for fewer than `LEAST_FLIPS` seeds."""
    equivalence: Equivalence | None
    smallest: float | None
    """Smallest effect that these seeds show with a power of 80 % as the first of the family, in
    standard deviations; null if it is not tested."""

    @property
    def is_tested(self) -> bool:
        """Whether it has a p-value, from enough seeds."""
        return self.estimate.p is not None

    def tests(self, number: int) -> Iterator[tuple[Hashable, float]]:
        """Yield its p-values by test, for the effect of this number."""
        if self.is_tested and self.estimate.p is not None:
            yield ("effect", number), self.estimate.p
            if self.equivalence is not None and self.equivalence.p is not None:
                yield ("equivalence", number), self.equivalence.p

    def judged(
        self,
        family: Mapping[Hashable, float],
        number: int,
        better: Literal["less", "more"] | None,
        level: float,
    ) -> "Effect":
        """Return it with corrected p-values and verdicts.

        Args:
            family: Corrected p-values by test.
            number: Of this effect.
            better: The good side of the metric.
            level: At which the first of the family is shown.
        """
        p_family = family.get(("effect", number))
        if p_family is None or better is None:
            return self
        equivalence = self.equivalence
        if (p := family.get(("equivalence", number))) is not None and equivalence is not None:
            equivalence = msgspec.structs.replace(
                equivalence, p_family=p, is_shown=p <= FAMILY_LEVEL
            )
        return msgspec.structs.replace(
            self,
            estimate=judged(self.estimate, p_family, better),
            equivalence=equivalence,
            smallest=smallest_effect(self.estimate.n, level),
        )


def short_key(key: str) -> str:
    """Return the last part of a key."""
    return key.rpartition(".")[2]


def effect_values(
    contrast: Contrast, effect: EffectOf, samples: Mapping[str, ArmValues], *, is_log: bool
) -> Floats:
    """Return an effect in each seed that all its arms have, shape (n,), in the order of the seeds.

    Args:
        contrast: The contrast.
        effect: One of its effects.
        samples: The metric of each arm.
        is_log: The metric is on the log scale.
    """
    weights = {cell: effect.sign(cell) for cell in contrast.cells}
    used = {cell: weight for cell, weight in weights.items() if weight}
    scale = 2.0 ** len(effect.of) / len(used)  # a mean over the levels of all other factors
    seeds = set.intersection(
        *(set(samples[arm].values) for cell in used for arm in contrast.cells[cell])
    )

    def of_cell(cell: tuple[int, ...], seed: int) -> float:
        values = [samples[arm].values[seed] for arm in contrast.cells[cell]]
        return math.fsum(map(math.log, values) if is_log else values) / len(values)

    found: Floats = np.array(
        [
            scale * math.fsum(weight * of_cell(cell, seed) for cell, weight in used.items())
            for seed in sorted(seeds)
        ],
        dtype=np.float64,
    )
    return found


def measured_effects(
    contrast: Contrast, metric: str, quantity: MetricKind, samples: Mapping[str, ArmValues]
) -> list[Effect]:
    """Return the effects of a contrast on a metric, not yet judged.

    An effect has no verdict if an arm of the contrast lacks the metric in a seed.
    """
    lacking = [arm for arm in contrast.arms if samples[arm].missing]
    found = list[Effect]()
    for effect in contrast.effects():
        values = effect_values(contrast, effect, samples, is_log=quantity.scale == "log")
        if not values.size:
            continue
        floor = max(resolution_of(samples[arm], quantity) for arm in contrast.arms)
        is_tested = effect.kind in contrast.tested
        gap = difference_of(values, quantity, floor, is_tested=is_tested and not lacking)
        reason = f"undefined in a seed of {', '.join(lacking)}" if lacking else ""
        if lacking or not is_tested:
            gap = msgspec.structs.replace(gap, judgement="no verdict", reason=reason)
        found.append(
            Effect(
                contrast=contrast.name,
                kind=effect.kind,
                effect=effect.text(contrast.factors),
                metric=metric,
                estimate=gap,
                p_sign_flip=sign_flip_p(values)
                if is_tested and values.size >= LEAST_FLIPS
                else None,
                equivalence=_equivalence(contrast, metric, quantity, values, gap, floor),
                smallest=None,
            )
        )
    return found


def _equivalence(
    contrast: Contrast,
    metric: str,
    quantity: MetricKind,
    values: Floats,
    gap: Difference,
    floor: float,
) -> Equivalence | None:
    if metric not in contrast.margins:
        return None
    margin = contrast.margins[metric]
    on_scale = math.log1p(margin) if quantity.scale == "log" else margin
    p = equivalence_p(values, on_scale, floor if values.any() else 0.0)
    return Equivalence(
        margin=margin, p=p if gap.p is not None else None, p_family=None, is_shown=False
    )


def equivalence_p(values: Floats, margin: float, floor: float = 0.0) -> float:
    """Return the p-value of two one-sided tests that the mean is within -margin and margin.

        p = P(T_{n-1} <= (|mean| - margin) / s.e.)

    Args:
        values: One per seed, shape (n,), n at least 2.
        margin: Above 0, on the scale of the values.
        floor: Least standard deviation.

    Source:
        D. J. Schuirmann, *A comparison of the two one-sided tests procedure and the power
        approach*, Journal of Pharmacokinetics and Biopharmaceutics 15(6), 1987.
    """
    if values.size < 2:
        return 1.0
    distance, error = abs(float(values.mean())) - margin, standard_error(values, floor)
    if error == 0.0:
        return 0.0 if distance < 0.0 else 1.0
    return float(special.stdtr(values.size - 1, distance / error))


def sign_flip_p(values: Floats) -> float:
    """Return the p-value of sign flips: it needs symmetric values, and no normal ones.

    The share of all 2^n signs with which the sum is at least as far from 0; beyond `MAX_EXACT`
    values that of drawn ones, where the signs as they are count as one more.

    Args:
        values: One per seed, shape (n,).
    """
    n, observed = values.size, abs(float(values.sum())) * (1.0 - 1e-12)
    beyond = int((np.abs(_signs(n) @ values) >= observed).sum())
    if n > MAX_EXACT:
        return (1 + beyond) / (1 + DRAWN_SIGNS)
    return beyond / len(_signs(n))


@lru_cache(maxsize=4)
def _signs(n: int) -> Floats:
    """Return all signs of n values, or drawn ones, shape (m, n)."""
    if n > MAX_EXACT:
        bits = np.random.Generator(np.random.Philox(0)).integers(0, 2, (DRAWN_SIGNS, n))
    else:
        bits = np.arange(1 << n)[:, None] >> np.arange(n) & 1
    signs: Floats = np.asarray(2.0 * bits - 1.0, dtype=np.float64)
    return signs


def smallest_effect(n: int, level: float, power: float = POWER) -> float | None:
    """Return the smallest effect that a two-sided paired t-test of n seeds shows, in s.d.

        P(|T_{n-1}(delta sqrt(n))| > t_{1 - level / 2, n - 1}) = power      for delta

    with T the noncentral t distribution.

    Args:
        n: Seeds.
        level: Probability of a verdict without an effect, for this test alone.
        power: Probability of a verdict with the effect.

    Returns:
        None for fewer than two seeds.
    """
    if n < 2:
        return None
    critical = -float(special.stdtrit(n - 1, level / 2.0))
    low, high = 0.0, 1.0
    while _power(n, critical, high) < power:
        low, high = high, 2.0 * high
    while high - low > 1e-6 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _power(n, critical, middle) >= power else (middle, high)
    return high


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)


def _power(n: int, critical: float, delta: float) -> float:
    """Return P(|Z + delta sqrt(n)| > critical s), with (n - 1) s^2 chi-squared of n - 1.

    By quadrature over the quantiles of s: `scipy.special.nctdtr` fails far from 0.
    """
    share = 0.5 * (_NODES + 1.0)
    s = np.sqrt(special.chdtri(n - 1, 1.0 - share) / (n - 1))
    shift = delta * math.sqrt(n)
    above = special.ndtr(shift - critical * s)
    below = special.ndtr(-shift - critical * s)
    return float(0.5 * (_WEIGHTS @ (above + below)))


def power_line(contrasts: Sequence[Contrast], n: int) -> str:
    """Return what n seeds can show, before a run; for the first verdict of the family.

    Args:
        contrasts: Those of the grid, at least one.
        n: Seeds.
    """
    claims = sum(contrast.claims for contrast in contrasts)
    found = smallest_effect(n, first_level(claims, 1))
    what = f"contrasts: {claims} tests with {n} seed{'s' * (n != 1)}"
    if n < LEAST_SEEDS_TO_JUDGE or found is None:
        return f"{what}: no power, a verdict needs {LEAST_SEEDS_TO_JUDGE} seeds; add seeds"
    return (
        f"{what} show effects of {found:.2f} standard deviations (of an effect over seeds) in "
        f"{100 * POWER:.0f} % of grids; an effect of 1 needs {seeds_for(1.0, claims)} seeds"
    )


def power_in_units(
    contrasts: Sequence[Contrast],
    pairs: Sequence[tuple[str, str]],
    primary: str,
    samples: Mapping[str, Mapping[str, ArmValues]],
    quantities: Mapping[str, MetricKind],
    n: int,
) -> list[str]:
    """Return the smallest effects that n seeds can show, in units of the metrics, one line each.

    The standard deviations of the effects are those of other seeds, such as tuning runs.

    Args:
        contrasts: Those of the grid, whose tested effects are shown.
        pairs: Arm and baseline, whose differences are shown if there is no contrast.
        primary: The metric of these differences.
        samples: Of each metric and arm, over the other seeds.
        quantities: Scale of each metric.
        n: Seeds of the grid.
    """
    claims = sum(contrast.claims for contrast in contrasts) or len(pairs)
    smallest = smallest_effect(n, first_level(claims, 1))
    if n < LEAST_SEEDS_TO_JUDGE or smallest is None:
        return [
            f"power: none with {n} seed{'s' * (n != 1)}: a verdict needs {LEAST_SEEDS_TO_JUDGE}"
        ]
    found = list[tuple[str, str, Floats]]()
    for contrast in contrasts:
        for metric in contrast.metrics:
            if metric in samples:
                found += [
                    (effect.text(contrast.factors), metric, values)
                    for effect in contrast.effects()
                    if effect.kind in contrast.tested
                    for values in [
                        _values_of(contrast, effect, samples[metric], quantities[metric])
                    ]
                ]
    if not contrasts and primary in samples:
        own = samples[primary]
        for arm, baseline in pairs:
            known = sorted(own[arm].values.keys() & own[baseline].values.keys())
            both = [[own[name].values[seed] for seed in known] for name in (arm, baseline)]
            ends: Floats = np.array(both, dtype=np.float64)
            ends = np.log(ends) if _is_log(own, quantities[primary]) else ends
            found.append((f"{arm} - {baseline}", primary, ends[0] - ends[1]))
    lines = list[str]()
    for effect_text, metric, values in found:
        if values.size < 2:
            continue
        deviation = float(values.std(ddof=1))
        is_log = _is_log(samples[metric], quantities[metric])
        size = smallest * deviation
        text = f"{100.0 * math.expm1(size):.3g} %" if is_log else f"{size:.3g}"
        low, high = _deviation_range(values.size)
        lines.append(
            f"power: {n} seeds show {effect_text} from {text} of {metric} on in "
            f"{100 * POWER:.0f} % of grids, if its standard deviation is that of the "
            f"{values.size} tuning seeds on validation examples, which may be {low:.2f} to "
            f"{high:.3g} times as large"
        )
    return lines


def _values_of(
    contrast: Contrast, effect: EffectOf, own: Mapping[str, ArmValues], quantity: MetricKind
) -> Floats:
    if not all(own[arm].values for arm in contrast.arms):
        return np.empty(0)
    return effect_values(contrast, effect, own, is_log=_is_log(own, quantity))


def _is_log(own: Mapping[str, ArmValues], quantity: MetricKind) -> bool:
    return on_scale(quantity, own).scale == "log"


def _deviation_range(n: int) -> tuple[float, float]:
    """Return the 95 % interval of a standard deviation of n normal values, as factors."""
    return (
        math.sqrt((n - 1) / special.chdtri(n - 1, 0.025)),
        math.sqrt((n - 1) / special.chdtri(n - 1, 0.975)),
    )


def seeds_for(effect: float, claims: int) -> int:
    """Return the seeds with which an effect, in standard deviations, is shown with `POWER`."""
    level = first_level(claims, 1)
    n = LEAST_SEEDS_TO_JUDGE
    while (smallest_effect(n, level) or math.inf) > effect:
        n += 1
    return n
