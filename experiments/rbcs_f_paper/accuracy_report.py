"""The numbers of Figs. 5 and 6 as Markdown, for the terminal and beside the figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.rbcs_f_paper.reading import Outcome, Reading, Trained, outcomes, readings
from experiments.rbcs_f_paper.report import table
from experiments.rbcs_f_paper.settings import Figure, Size
from fairbed.testbed.compare.statistics import ConfidenceInterval

TITLES = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
ACCURACY_DIGITS = 3
NO_DIGITS = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracySummary:
    """Both figures in numbers."""

    model: str
    rounds: int
    every: int
    """Rounds between two evaluations."""
    seeds: int
    max_examples: int | None
    """Examples of a data set; None is all."""
    outcomes: list[Outcome]
    readings: list[Reading]


def summarise_accuracy(figures: Sequence[Figure], trained: Trained, size: Size) -> AccuracySummary:
    """Return the summary of the trained figures."""
    return AccuracySummary(
        model=size.model,
        rounds=size.rounds,
        every=size.every,
        seeds=size.seeds,
        max_examples=size.max_examples,
        outcomes=[one for figure in figures for one in outcomes(figure, trained, size)],
        readings=[one for figure in figures for one in readings(figure, trained, size)],
    )


def accuracy_markdown(summary: AccuracySummary) -> str:
    """Return all tables, in Markdown that is readable on a terminal."""
    examples = "all" if summary.max_examples is None else f"{summary.max_examples:,}"
    parts = [
        f"{summary.model}, {examples} examples, {summary.rounds} rounds, {summary.seeds} seeds. "
        "Means with 95 % intervals; bold: paired differences whose interval excludes 0. Accuracy "
        f"is the mean of the last five evaluations, one every {summary.every} rounds; a swing is "
        "the mean change between two evaluations."
    ]
    keys = dict.fromkeys((one.figure, one.dataset) for one in summary.outcomes)
    for figure, dataset in keys:
        found = [one for one in summary.outcomes if (one.figure, one.dataset) == (figure, dataset)]
        parts += [f"Figure {figure}, {TITLES[dataset]}:", _outcomes(found)]
    parts += ["Statements, each with a difference that is positive if it is true:"]
    parts += [_readings(summary.readings)]
    return "\n\n".join(parts) + "\n"


def _outcomes(found: Sequence[Outcome]) -> str:
    has_times = found[0].figure == 6
    base = next(one.label for one in found if one.final_against is None)
    heads = ["gamma_1", "curve", "final accuracy", f"minus {base}", "swing"]
    heads += [f"rounds to {found[0].target:.3f}"]
    if has_times:
        heads += ["time of all rounds, s", "accuracy at the end of the fastest", f"minus {base}"]
    return table(heads, [list(_cells(one, has_times)) for one in found])


def _cells(one: Outcome, has_times: bool) -> Iterator[str]:
    yield "inf" if one.mixture is None else f"{one.mixture:g}"
    yield one.label
    yield with_ends(one.final)
    yield difference(one.final_against)
    yield f"{one.swing.mean:.{ACCURACY_DIGITS}f}"
    yield f"{with_ends(one.rounds_to, NO_DIGITS)}, {one.reached}/{one.rounds_to.n}"
    if has_times:
        yield f"{one.time_s.mean:.0f}"
        yield f"{with_ends(one.early)} at {one.early_s:.0f} s"
        yield difference(one.early_against)


def _readings(found: Sequence[Reading]) -> str:
    rows = [
        [
            str(one.figure),
            TITLES.get(one.dataset, "both"),
            one.text,
            difference(one.difference),
            one.word,
        ]
        for one in found
    ]
    return table(["figure", "data", "statement", "difference", "result"], rows)


def with_ends(found: ConfidenceInterval, digits: int = ACCURACY_DIGITS) -> str:
    """Format a mean and its interval."""
    return _formatted(found, f".{digits}f")


def difference(found: ConfidenceInterval | None) -> str:
    """Format a difference and its interval, in bold if it excludes 0; nothing for None."""
    if found is None:
        return ""
    text = _formatted(found, "+.1f" if abs(found.mean) > 1.0 else f"+.{ACCURACY_DIGITS}f")
    return text if found.verdict == "unclear" else f"**{text}**"


def _formatted(found: ConfidenceInterval, form: str) -> str:
    mean = format(found.mean, form)
    if found.low is None or found.high is None:
        return mean
    return f"{mean} [{format(found.low, form)}, {format(found.high, form)}]"
