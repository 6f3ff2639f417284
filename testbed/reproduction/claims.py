"""Whether the claims of a source hold: paired statistics over seeds, one family per source. Pure.

A claim is about one number per seed, d, and states that its mean is above 0:

    more      d = a - b            less      d = b - a
    below     d = bound - a        not less  d = a - b + margin
    within    d = margin - |mean of a - b|, by two one-sided tests

Both directions are tested, so a claim holds, fails, or neither is shown. One about several rows
holds if it holds for each of them, and fails if it fails for one, corrected for their number. All
claims of a source are one family, corrected by Holm's method with weights.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from scipy import special

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.compare.contrasts import equivalence_p, smallest_effect
from fairbed.testbed.compare.differences import FAMILY_LEVEL, corrected, first_level
from fairbed.testbed.compare.statistics import (
    LEAST_SEEDS_TO_JUDGE,
    mean_interval,
    p_value,
    standard_error,
)
from fairbed.testbed.reproduction.study import Claim

Verdict: TypeAlias = Literal[
    "holds", "fails", "no power", "not comparable", "not run: no data", "no judgement"
]
"""no judgement: a seed lacks the metric, or has not been run."""


@dataclass(frozen=True, slots=True)
class RowValues:
    """A metric of one row."""

    values: Mapping[int, float]
    """By seed."""
    missing: Mapping[int, str]
    """Why a planned seed has none."""
    resolution: float
    """Smallest change that it can show, in the unit of the metric."""


class Judged(Struct, frozen=True, kw_only=True):
    """A claim with its numbers and its verdict."""

    panel: str
    text: str
    metric: str
    treatment: str
    is_primary: bool
    published: str
    """What the source's own numbers are; empty if it prints none."""
    mean: float | None = None
    """Mean of `of` minus `than`; of the row that decides, where there are several."""
    low: float | None = None
    high: float | None = None
    against: str = ""
    """The row that decides."""
    n: int = 0
    """Seeds."""
    p: float | None = None
    """Of this claim alone, for the direction that the numbers have."""
    p_family: float | None = None
    """Corrected for all claims of the source."""
    smallest: float | None = None
    """Smallest effect that these seeds show in 80 % of repetitions, in the unit of the metric, from
    their own standard deviation."""
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Test:
    against: str
    differences: Floats
    """a - b, or a - bound, shape (n,)."""
    p: float
    """Two-sided."""
    is_for: bool
    """Whether the numbers are on the side of the claim."""


def tested(claim: Claim, rows: Mapping[str, RowValues]) -> "tuple[_Test, ...] | str":
    """Return the tests of a claim, one for each row of `than`; a reason if there is none.

    Args:
        claim: The claim.
        rows: The metric of each row of its panel.
    """
    own = rows[claim.of]
    for label in (claim.of, *claim.than):
        if missing := rows[label].missing:
            seed = min(missing)
            return f"{label}, seed {seed}: {missing[seed]}"
    seeds = sorted(own.values)
    bound = RowValues(dict.fromkeys(seeds, claim.bound), {}, 0.0)
    found = []
    for label, row in [(label, rows[label]) for label in claim.than] or [("", bound)]:
        differences: Floats = np.array(
            [own.values[seed] - row.values[seed] for seed in seeds], dtype=np.float64
        )
        floor = max(own.resolution, row.resolution) if differences.any() else 0.0
        found.append(_test(claim, label, differences, floor))
    return tuple(found)


def _test(claim: Claim, label: str, differences: Floats, floor: float) -> _Test:
    mean = float(differences.mean())
    if claim.kind == "within":
        assert claim.margin is not None, "a study without it is refused"
        is_for = abs(mean) < claim.margin
        if differences.size < LEAST_SEEDS_TO_JUDGE:
            return _Test(label, differences, 1.0, is_for)
        one_sided = (
            equivalence_p(differences, claim.margin, floor)
            if is_for
            else _p_beyond(differences, claim.margin, floor)
        )
        return _Test(label, differences, min(1.0, 2.0 * one_sided), is_for)
    margin = claim.margin or 0.0
    found = p_value(differences + margin, floor)
    is_for = mean + margin > 0.0 if claim.kind in ("more", "not less") else mean < 0.0
    return _Test(label, differences, 1.0 if found is None else found, is_for)


def _p_beyond(differences: Floats, margin: float, floor: float) -> float:
    """Return the one-sided p-value that the mean is further from 0 than a margin."""
    distance = abs(float(differences.mean())) - margin
    error = standard_error(differences, floor)
    if error == 0.0:
        return 0.0 if distance > 0.0 else 1.0
    return float(special.stdtr(differences.size - 1, -distance / error))


def deciding(tests: Sequence[_Test]) -> tuple[_Test, float]:
    """Return the test that decides a claim about several rows, and its p-value.

    It holds if all hold: the largest p-value decides. It fails if one fails: the smallest one
    against it, times their number.
    """
    against = [test for test in tests if not test.is_for]
    if against:
        worst = min(against, key=lambda test: test.p)
        return worst, min(1.0, worst.p * len(against))
    weakest = max(tests, key=lambda test: test.p)
    return weakest, weakest.p


def judged_claims(
    claims: Sequence[Claim],
    rows: Mapping[tuple[str, str], Mapping[str, RowValues]],
    problems: Mapping[str, str],
    not_comparable: Mapping[str, str],
    published: Sequence[str],
) -> list[Judged]:
    """Return the claims of a source with their verdicts.

    Args:
        claims: Those of the study.
        rows: Of each panel and metric: its rows by label.
        problems: Why a panel has no data, by panel.
        not_comparable: Why a panel decides no claim, by panel.
        published: What the source's own numbers are, for each claim.
    """
    found, p = list[Judged](), dict[int, float]()
    decided = dict[int, bool]()
    for number, claim in enumerate(claims):
        base = Judged(
            panel=claim.panel,
            text=text_of(claim),
            metric=claim.metric,
            treatment=claim.treatment,
            is_primary=claim.is_primary,
            published=published[number],
            verdict="no judgement",
        )
        if problem := problems.get(claim.panel):
            found.append(_with(base, verdict="not run: no data", reason=problem))
            continue
        tests = tested(claim, rows[claim.panel, claim.metric])
        why = claim.not_comparable or not_comparable.get(claim.panel, "")
        if isinstance(tests, str):
            verdict: Verdict = "not comparable" if why else "no judgement"
            found.append(_with(base, verdict=verdict, reason=why or tests))
            continue
        test, alone = deciding(tests)
        base = _numbers(base, test)
        if why:
            found.append(_with(base, verdict="not comparable", reason=why))
        elif test.differences.size < LEAST_SEEDS_TO_JUDGE:
            reason = f"a verdict needs {LEAST_SEEDS_TO_JUDGE} seeds, got {test.differences.size}"
            found.append(_with(base, verdict="no power", reason=reason))
        else:
            p[number], decided[number] = alone, test.is_for
            found.append(_with(base, p=alone, verdict="no power"))
    primary = {number for number in p if claims[number].is_primary}
    family = corrected(p, primary or p.keys())
    level = first_level(len(primary or p), len(p) - len(primary or p))
    for number, p_family in family.items():
        verdict = "no power"
        if p_family <= FAMILY_LEVEL:
            verdict = "holds" if decided[number] else "fails"
        found[number] = _with(
            found[number],
            p_family=p_family,
            verdict=verdict,
            smallest=_smallest(found[number], level),
        )
    return found


def _with(judged: Judged, **values: object) -> Judged:
    return msgspec.structs.replace(judged, **values)


def _numbers(judged: Judged, test: _Test) -> Judged:
    interval = mean_interval(test.differences)
    return _with(
        judged,
        mean=interval.mean,
        low=interval.low,
        high=interval.high,
        against=test.against,
        n=interval.n,
    )


def _smallest(judged: Judged, level: float) -> float | None:
    """Return the smallest effect that the seeds show, from the width of their interval."""
    found = smallest_effect(judged.n, level)
    if found is None or judged.low is None or judged.high is None:
        return None
    half = 0.5 * (judged.high - judged.low)
    t = -float(special.stdtrit(judged.n - 1, 0.025))
    return found * half / t * math.sqrt(judged.n)


def text_of(claim: Claim) -> str:
    """Return a claim in words, without its metric."""
    others = ", ".join(claim.than)
    if claim.kind == "within":
        about = others or f"{claim.bound:g}"
        return f"{claim.of} is within {claim.margin:g} of {about}"
    if claim.kind == "below":
        return f"{claim.of} is below {claim.bound:g}"
    if claim.kind == "not less":
        return f"{claim.of} has at most {claim.margin:g} less than {others}"
    each = f"each of {others}" if len(claim.than) > 1 else others
    return f"{claim.of} has {claim.kind} than {each}"
