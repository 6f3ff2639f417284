"""Coverage of the effects of a factorial grid, and verdicts where no factor has an effect.

    fairbed bench contrasts [--draws 2000] [--json]

Drawn grids of two factors, 2 x 3 arms of which two are averaged, with an effect of the seed that
all arms share. Two tables:

1. The share of 95 % intervals of a main effect and of the interaction that contain the true one,
   for normal noise and for noise that is skewed: a lognormal and an exponential distribution, of
   which one arm has more.
2. The share of grids without any effect in which an effect of two metrics, their equivalence or a
   difference of an arm has a verdict, corrected as `fairbed compare` does. `from` and `to` are the
   95 % interval of the share.
"""

import argparse
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from scipy import stats

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.measures.scales import MetricKind, RunSize
from fairbed.testbed.compare.contrasts import Contrast, Effect, Factor, measured_effects
from fairbed.testbed.compare.differences import (
    FAMILY_LEVEL,
    ArmValues,
    corrected,
    difference,
)
from fairbed.testbed.errors import UsageError

SIZES = (6, 10, 20)
ARMS = ("a0-b0", "a0-b1", "a0-b2", "a1-b0", "a1-b1", "a1-b2")
METRICS = ("worst", "mean")
CONTRAST = Contrast(
    name="fair",
    factors=(Factor("a", ("a0", "a1")), Factor("b", ("b0", "b1 or b2"))),
    cells={
        (0, 0): ARMS[:1],
        (0, 1): ARMS[1:3],
        (1, 0): ARMS[3:4],
        (1, 1): ARMS[4:],
    },
    metrics=METRICS,
    tested=("main", "interaction"),
    margins={"mean": 0.5},
)
SIZE = RunSize(rounds=100, devices=100, selections=1000, test_examples=5000)
QUANTITY = MetricKind(None, None, "linear", lambda size, value: 0.0)
NOISES = ("normal", "lognormal", "exponential")


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the shares; return the exit code.

    Raises:
        UsageError: An option is out of range.
    """
    parser = argparse.ArgumentParser(
        prog="fairbed bench contrasts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--draws", type=int, default=2_000, help="grids (default 2000)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    if options.draws < 1:
        raise UsageError(f"--draws: must be at least 1, got {options.draws}; leave it out")
    coverage, verdicts = list(_coverage(options.draws)), list(_verdicts(options.draws))
    if options.json:
        print(msgspec.json.encode({"coverage": coverage, "verdicts": verdicts}).decode())
        return 0
    for rows in (coverage, verdicts):
        print("| " + " | ".join(rows[0]) + " |")
        print("|" + "---|" * len(rows[0]))
        for row in rows:
            cells = (f"{x:.3f}" if isinstance(x, float) else str(x) for x in row.values())
            print("| " + " | ".join(cells) + " |")
        print()
    return 0


def _coverage(draws: int) -> Iterator[dict[str, str | int | float]]:
    for noise in NOISES:
        for n in SIZES:
            rng = np.random.default_rng([n, NOISES.index(noise)])
            held = np.zeros(2)
            for _ in range(draws):
                values = _values(rng, n, noise)
                effects = measured_effects(CONTRAST, "worst", QUANTITY, values)
                held += [_holds(effects[at], _truth(noise, at)) for at in (1, 2)]
            main_effect, interaction = (held / draws).tolist()
            yield {
                "noise": noise,
                "seeds": n,
                "main effect": main_effect,
                "interaction": interaction,
            }


def _verdicts(draws: int) -> Iterator[dict[str, str | int | float]]:
    for n in SIZES:
        rng, found, alone = np.random.default_rng([n, 9]), 0, 0
        for _ in range(draws):
            p: dict[object, float] = {}
            declared: set[object] = set()
            for metric in METRICS:
                values = _values(rng, n, "normal")
                for number, effect in enumerate(
                    measured_effects(CONTRAST, metric, QUANTITY, values)
                ):
                    if effect.is_tested:  # equivalence is true here, and no error
                        p[metric, number] = effect.estimate.p or 0.0
                        declared.add((metric, number))
                for arm in ARMS[1:]:
                    gap = difference(values[arm], values[ARMS[0]], QUANTITY)
                    if gap is not None and gap.p is not None:
                        p[metric, arm] = gap.p
            found += min(corrected(p, declared).values()) <= FAMILY_LEVEL
            alone += min(p.values()) <= FAMILY_LEVEL
        low, high = stats.binomtest(found, draws).proportion_ci(method="exact")
        yield {
            **{"seeds": n, "grids": draws, "tests": len(p), "any verdict": found / draws},
            **{"from": float(low), "to": float(high), "without correction": alone / draws},
        }


def _values(rng: np.random.Generator, n: int, noise: str) -> dict[str, ArmValues]:
    """Return a metric of each arm; one arm has noise of another mean if it is skewed."""
    shared = rng.normal(0.0, 2.0, n)
    drawn = {arm: shared + _noise(rng, n, noise, is_more=arm == ARMS[-1]) for arm in ARMS}
    return {arm: _sample(values) for arm, values in drawn.items()}


def _noise(rng: np.random.Generator, n: int, noise: str, *, is_more: bool) -> Floats:
    scale = 3.0 if is_more and noise != "normal" else 1.0
    if noise == "lognormal":
        return scale * rng.lognormal(0.0, 1.0, n)
    return scale * (rng.exponential(1.0, n) if noise == "exponential" else rng.normal(0.0, 1.0, n))


def _truth(noise: str, at: int) -> float:
    """Return the true effect: main effect of b (1), or the interaction (2)."""
    if noise == "normal":
        return 0.0
    more = 2.0 * (float(np.exp(0.5)) if noise == "lognormal" else 1.0)
    return more / 4.0 if at == 1 else more / 2.0


def _holds(effect: Effect, truth: float) -> bool:
    gap = effect.estimate
    return gap.low is not None and gap.high is not None and gap.low <= truth <= gap.high


def _sample(values: Floats) -> ArmValues:
    found: Mapping[int, float] = dict(enumerate(values.tolist()))
    return ArmValues(values=found, sizes=dict.fromkeys(found, SIZE), missing={})
