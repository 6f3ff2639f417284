"""The numbers of the curves of Figs. 5 and 6, and checks of the paper's statements about them.

Every number is a mean over seeds with a 95 % interval, every comparison one of differences seed by
seed: runs of one seed share data, first model, fleet and random streams.
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
from fairbed.testbed.compare.comparison import BOOTSTRAP_SEED
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
"""Of what the baseline ends with when classes are alike everywhere: the accuracy to reach."""

Trained: TypeAlias = Mapping[Setting, Curve]
Word: TypeAlias = Literal["shown", "the opposite is shown", "not shown"]

BASELINES: Mapping[Figure, Line] = {5: Line(fixed(EVENNESS[-1]), EVENNESS[-1]), 6: Line(RANDOM)}
"""What the other curves of a panel are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one curve of one panel comes to."""

    figure: Figure
    dataset: str
    mixture: float | None
    """gamma_1; None is infinite, which JSON does not have."""
    label: str
    final: ConfidenceInterval
    """Accuracy at the end, the mean of the last five evaluations."""
    final_against: ConfidenceInterval | None
    """The same minus that of the baseline; None for the baseline itself."""
    swing: ConfidenceInterval
    """Mean change of the accuracy from one evaluation to the next, up or down, second half."""
    rounds_to: ConfidenceInterval
    """Rounds until the running mean of five reaches `target`, or all of them."""
    target: float
    reached: int
    """Seeds that did."""
    time_s: ConfidenceInterval
    """Of all rounds, on the virtual clock."""
    early: ConfidenceInterval
    """Accuracy when the quickest run of the panel is over, mean of the last five evaluations."""
    early_against: ConfidenceInterval | None
    early_s: float
    """When that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A statement about a figure, as a difference that is above 0 where it is true."""

    figure: Figure
    dataset: str
    """Empty if it is about all."""
    text: str
    difference: ConfidenceInterval
    word: Word
    """Nothing is shown when 0 is inside the interval, or the seeds are too few."""


WORDS: Mapping[Verdict, Word] = {
    "more": "shown",
    "less": "the opposite is shown",
    "unclear": "not shown",
}


def interval(values: Floats) -> ConfidenceInterval:
    """Return the mean over seeds and its interval; equal values give equal bits."""
    return mean_interval(values, np.random.default_rng(BOOTSTRAP_SEED))


class Finals:
    """The curves of one data set, looked up by panel and line, and what each seed ended with."""

    def __init__(self, trained: Trained, size: Size, dataset: str) -> None:
        self._trained, self._size, self._dataset = trained, size, dataset

    def curves(self, line: Line, mixture: float) -> list[Curve]:
        """Return the curves of all seeds."""
        seeds = range(self._size.seeds)
        return [self._trained[line.setting(self._dataset, mixture, seed)] for seed in seeds]

    def of(self, line: Line, mixture: float) -> Floats:
        """Return the accuracy at the end of each seed, shape (seeds,)."""
        return np.array([_final(curve) for curve in self.curves(line, mixture)])

    def mean(self, line: Line) -> Floats:
        """Return the same, averaged over all mixtures."""
        return _mean([self.of(line, each) for each in self._size.mixtures])

    def gain(self) -> Floats:
        """Return how far the most even draws end above the least even ones, shape (seeds,)."""
        return self.mean(BASELINES[5]) - self.mean(lines_of(5)[0])

    def end_s(self, figure: Figure, mixture: float) -> float:
        """Return when the quickest run of a panel is over, seconds on the virtual clock."""
        return min(c.time_s[-1] for line in lines_of(figure) for c in self.curves(line, mixture))

    def lead(self, line: Line, mixture: float) -> Floats:
        """Return how far a line is above chance when the quickest run is over, shape (seeds,)."""
        end_s = self.end_s(6, mixture)
        ours, chance = (_early(self.curves(one, mixture), end_s) for one in (line, BASELINES[6]))
        return ours - chance


def outcomes(figure: Figure, trained: Trained, size: Size) -> list[Outcome]:
    """Return what every curve of a figure comes to, panel by panel."""
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
    """Return how much each seed's accuracy changes from one evaluation to the next.

    mean_t |a_t - a_{t-1}|   over the second half, shape (seeds,)
    """
    values = accuracies(curves)
    steps = np.abs(np.diff(values[:, values.shape[1] // 2 - 1 :], axis=1))
    means: Floats = steps.mean(axis=1)
    return means


def _rounds_to(curve: Curve, target: float) -> float | None:
    """Return after how many rounds the running mean of five reaches a target; None if never."""
    return time_to(target, np.array(curve.rounds, dtype=np.float64), np.array(curve.accuracy))


def _needed(curves: Sequence[Curve], target: float, size: Size) -> Floats:
    """Return the same of each seed, all rounds where it never does, shape (seeds,)."""
    return np.array([restricted(_rounds_to(c, target), float(size.rounds)) for c in curves])


def _early(curves: Sequence[Curve], at_s: float) -> Floats:
    """Return the running mean of five of each seed at an instant, the last one by then."""
    return np.array([_known_by(curve, at_s) for curve in curves])


def _known_by(curve: Curve, at_s: float) -> float:
    """Return the mean of the last five evaluations by an instant, of fewer if there were fewer."""
    count = max(1, int(np.searchsorted(curve.time_s, at_s, side="right")))
    return float(np.mean(curve.accuracy[max(0, count - WINDOW) : count]))


def readings(figure: Figure, trained: Trained, size: Size) -> list[Reading]:
    """Return what the paper reads in a figure, and what it might, held against our curves."""
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
    """Yield what Fig. 5 is said to show, and what each seed says of it, shape (seeds,)."""
    uneven, even = lines_of(5)[0], BASELINES[5]
    words = f"gamma_2 = {EVENNESS[-1]:g} ends above {EVENNESS[0]:g}"
    for mixture in size.mixtures:
        yield (
            f"{words}, gamma_1 = {mixture:g}",
            finals.of(even, mixture) - finals.of(uneven, mixture),
        )
    yield f"{words}, mean of the panels", finals.gain()
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
    """Yield what Fig. 6 is said to show, and what each seed says of it, shape (seeds,)."""
    fair, unfair = rbcs_f(WEIGHTS[0]), rbcs_f(WEIGHTS[-1])
    pairs = [(RANDOM, FEDCS), (fair, FEDCS), (unfair, FEDCS), (fair, unfair), (RANDOM, fair)]
    for better, worse in pairs:
        gain = finals.mean(Line(better)) - finals.mean(Line(worse))
        yield f"{better.label} ends above {worse.label}, mean of the panels", gain
    for quicker in (fair, unfair, FEDCS):
        leads = [finals.lead(Line(quicker), mixture) for mixture in size.mixtures]
        words = f"{quicker.label} is above {RANDOM.label} when the quickest run is over"
        yield f"{words}, mean of the panels", _mean(leads)


def _mean(values: Sequence[Floats]) -> Floats:
    means: Floats = np.mean(values, axis=0)
    return means
