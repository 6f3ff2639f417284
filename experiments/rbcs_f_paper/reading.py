"""The numbers of the curves of Figs. 5 and 6, and checks of the paper's statements about them.

Every number is a mean over seeds with a 95 % interval. Comparisons are paired by seed: runs of one
seed share data, first model, fleet and random streams.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from experiments.rbcs_f_paper.arms import FEDCS, RANDOM, WEIGHTS, rbcs_f
from experiments.rbcs_f_paper.settings import EVENNESS, Figure, Line, Setting, Size, fixed, lines_of
from experiments.rbcs_f_paper.training import Curve, accuracies
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.testbed.compare.statistics import (
    WINDOW,
    ConfidenceInterval,
    Verdict,
    final_value,
    mean_interval,
    restricted,
    time_to,
)

TARGET_SHARE = 0.9
"""Target accuracy, relative to the final accuracy of the baseline with evenly divided classes."""

Trained: TypeAlias = Mapping[Setting, Curve]
Word: TypeAlias = Literal["shown", "the opposite is shown", "not shown"]

BASELINES: Mapping[Figure, Line] = {5: Line(fixed(EVENNESS[-1]), EVENNESS[-1]), 6: Line(RANDOM)}
"""The curve with which the others of a panel are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The numbers of one curve of one panel."""

    figure: Figure
    dataset: str
    mixture: float | None
    """gamma_1; None is infinite, which JSON cannot express."""
    label: str
    final: ConfidenceInterval
    """Final accuracy, the mean of the last five evaluations."""
    final_against: ConfidenceInterval | None
    """The same minus that of the baseline; None for the baseline itself."""
    swing: ConfidenceInterval
    """Mean absolute change of the accuracy between two evaluations, second half."""
    rounds_to: ConfidenceInterval
    """Rounds until the running mean of five reaches `target`; all rounds if it never does."""
    target: float
    reached: int
    """Number of seeds that reach the target."""
    time_s: ConfidenceInterval
    """Total time of all rounds on the virtual clock."""
    early: ConfidenceInterval
    """Accuracy when the fastest run of the panel ends, mean of the last five evaluations."""
    early_against: ConfidenceInterval | None
    early_s: float
    """The end of the fastest run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A statement about a figure, as a difference that is positive if the statement is true."""

    figure: Figure
    dataset: str
    """Empty for a statement about all data sets."""
    text: str
    difference: ConfidenceInterval
    word: Word
    """Nothing is shown if the interval contains 0 or the seeds are too few."""


WORDS: Mapping[Verdict, Word] = {
    "more": "shown",
    "less": "the opposite is shown",
    "unclear": "not shown",
}


def interval(values: Floats) -> ConfidenceInterval:
    """Return the mean over seeds and its interval; equal values give equal bits."""
    return mean_interval(values)


class Finals:
    """The curves of one data set by panel and line, and the final accuracy of each seed."""

    def __init__(self, trained: Trained, size: Size, dataset: str) -> None:
        self._trained, self._size, self._dataset = trained, size, dataset

    def curves(self, line: Line, mixture: float) -> list[Curve]:
        """Return the curves of all seeds."""
        seeds = range(self._size.seeds)
        return [self._trained[line.setting(self._dataset, mixture, seed)] for seed in seeds]

    def of(self, line: Line, mixture: float) -> Floats:
        """Return the final accuracy of each seed, shape (seeds,)."""
        return np.array([_final(curve) for curve in self.curves(line, mixture)])

    def mean(self, line: Line) -> Floats:
        """Return the same, averaged over all mixtures."""
        return _mean([self.of(line, each) for each in self._size.mixtures])

    def gain(self) -> Floats:
        """Return the final accuracy of the most even minus that of the least, shape (seeds,)."""
        return self.mean(BASELINES[5]) - self.mean(lines_of(5)[0])

    def end_s(self, figure: Figure, mixture: float) -> float:
        """Return the end of the fastest run of a panel, seconds on the virtual clock."""
        return min(c.time_s[-1] for line in lines_of(figure) for c in self.curves(line, mixture))

    def lead(self, line: Line, mixture: float) -> Floats:
        """Return the accuracy minus that of random when the fastest run ends, shape (seeds,)."""
        end_s = self.end_s(6, mixture)
        own, random = (_early(self.curves(one, mixture), end_s) for one in (line, BASELINES[6]))
        return own - random


def outcomes(figure: Figure, trained: Trained, size: Size) -> list[Outcome]:
    """Return the numbers of every curve of a figure, panel by panel."""
    return [
        outcome
        for dataset in size.datasets
        for mixture in size.mixtures
        for outcome in _panel(figure, Finals(trained, size, dataset), size, dataset, mixture)
    ]


def _panel(
    figure: Figure, finals: Finals, size: Size, dataset: str, mixture: float
) -> Iterator[Outcome]:
    base, lines = BASELINES[figure], lines_of(figure)
    target = TARGET_SHARE * float(finals.of(base, max(size.mixtures)).mean())
    end_s = finals.end_s(figure, mixture)
    base_final = finals.of(base, mixture)
    base_early = _early(finals.curves(base, mixture), end_s)
    for line in lines:
        curves, is_base = finals.curves(line, mixture), line == base
        final, early = finals.of(line, mixture), _early(curves, end_s)
        yield Outcome(
            figure=figure,
            dataset=dataset,
            mixture=None if math.isinf(mixture) else mixture,
            label=line.policy.label,
            final=interval(final),
            final_against=None if is_base else interval(final - base_final),
            swing=interval(swings(curves)),
            rounds_to=interval(_needed(curves, target, size)),
            target=target,
            reached=sum(_rounds_to(curve, target) is not None for curve in curves),
            time_s=interval(np.array([curve.time_s[-1] for curve in curves])),
            early=interval(early),
            early_against=None if is_base else interval(early - base_early),
            early_s=end_s,
        )


def _final(curve: Curve) -> float:
    accuracy = np.array(curve.accuracy)
    known = final_value(accuracy)
    return float(accuracy.mean()) if known is None else known


def swings(curves: Sequence[Curve]) -> Floats:
    """Return the mean change of each seed's accuracy between two evaluations.

    mean_t |a_t - a_{t-1}|   over the second half, shape (seeds,)
    """
    values = accuracies(curves)
    steps = np.abs(np.diff(values[:, values.shape[1] // 2 - 1 :], axis=1))
    means: Floats = steps.mean(axis=1)
    return means


def _rounds_to(curve: Curve, target: float) -> float | None:
    """Return the rounds until the running mean of five reaches a target; None if never."""
    return time_to(target, np.array(curve.rounds, dtype=np.float64), np.array(curve.accuracy))


def _needed(curves: Sequence[Curve], target: float, size: Size) -> Floats:
    """Return the same for each seed, all rounds if it never does, shape (seeds,)."""
    return np.array([restricted(_rounds_to(c, target), float(size.rounds)) for c in curves])


def _early(curves: Sequence[Curve], at_s: float) -> Floats:
    """Return the latest running mean of five of each seed at an instant."""
    return np.array([_known_by(curve, at_s) for curve in curves])


def _known_by(curve: Curve, at_s: float) -> float:
    """Return the mean of the last five evaluations before an instant, or of fewer."""
    count = max(1, int(np.searchsorted(curve.time_s, at_s, side="right")))
    return float(np.mean(curve.accuracy[max(0, count - WINDOW) : count]))


def readings(figure: Figure, trained: Trained, size: Size) -> list[Reading]:
    """Return the paper's statements about a figure, and related ones, tested on our curves."""
    by_dataset = {name: Finals(trained, size, name) for name in size.datasets}
    find = _of_evenness if figure == 5 else _of_strategies
    found = [
        _reading(figure, name, text, values)
        for name, finals in by_dataset.items()
        for text, values in find(finals, size)
    ]
    if figure == 5 and {"fashion-mnist", "cifar10"} <= by_dataset.keys():
        gains = {name: finals.gain() for name, finals in by_dataset.items()}
        text = "evenness gains more on CIFAR-10 than on Fashion-MNIST"
        found.append(_reading(5, "", text, gains["cifar10"] - gains["fashion-mnist"]))
    return found


def _reading(figure: Figure, dataset: str, text: str, values: Floats) -> Reading:
    difference = interval(values)
    return Reading(
        figure=figure,
        dataset=dataset,
        text=text,
        difference=difference,
        word=WORDS[difference.verdict],
    )


def _of_evenness(finals: Finals, size: Size) -> Iterator[tuple[str, Floats]]:
    """Yield statements about Fig. 5 with the difference of each seed, shape (seeds,)."""
    uneven, even = lines_of(5)[0], BASELINES[5]
    statement = f"gamma_2 = {EVENNESS[-1]:g} ends above {EVENNESS[0]:g}"
    for mixture in size.mixtures:
        yield (
            f"{statement}, gamma_1 = {mixture:g}",
            finals.of(even, mixture) - finals.of(uneven, mixture),
        )
    yield f"{statement}, mean of the panels", finals.gain()
    low, high = min(size.mixtures), max(size.mixtures)
    if low == high:
        return
    target = TARGET_SHARE * float(finals.of(even, high).mean())
    panels = [(finals.curves(line, low), finals.curves(line, high)) for line in lines_of(5)]
    steadier = [swings(mixed) - swings(alike) for mixed, alike in panels]
    yield f"swings are larger with gamma_1 = {low:g} than {high:g}", _mean(steadier)
    later = [_needed(mixed, target, size) - _needed(alike, target, size) for mixed, alike in panels]
    yield f"gamma_1 = {low:g} takes more rounds to {target:.3f} than {high:g}", _mean(later)
    gains = [finals.of(even, each) - finals.of(uneven, each) for each in (low, high)]
    yield f"evenness gains more with gamma_1 = {low:g} than {high:g}", gains[0] - gains[1]


def _of_strategies(finals: Finals, size: Size) -> Iterator[tuple[str, Floats]]:
    """Yield statements about Fig. 6 with the difference of each seed, shape (seeds,)."""
    fair, unfair = rbcs_f(WEIGHTS[0]), rbcs_f(WEIGHTS[-1])
    pairs = [(RANDOM, FEDCS), (fair, FEDCS), (unfair, FEDCS), (fair, unfair), (RANDOM, fair)]
    for better, worse in pairs:
        gain = finals.mean(Line(better)) - finals.mean(Line(worse))
        yield f"{better.label} ends above {worse.label}, mean of the panels", gain
    for fast in (fair, unfair, FEDCS):
        leads = [finals.lead(Line(fast), mixture) for mixture in size.mixtures]
        statement = f"{fast.label} is above {RANDOM.label} at the end of the fastest run"
        yield f"{statement}, mean of the panels", _mean(leads)


def _mean(values: Sequence[Floats]) -> Floats:
    means: Floats = np.mean(values, axis=0)
    return means
