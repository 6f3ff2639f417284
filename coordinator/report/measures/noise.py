"""Numbers over devices that are corrected for the noise of the test sets, and its shares."""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from fairbed.coordinator.report.measures.entry import (
    OWN,
    Compared,
    Group,
    RunMeasure,
    RunSource,
)
from fairbed.coordinator.report.measures.scales import (
    NOISE_RATIO,
    VARIANCE,
    WORST_SHARE,
    MetricKind,
)

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.sampling_noise import SamplingNoise
    from fairbed.coordinator.report.summary_schema import RunSummary

Better = Literal["less", "more"]


def part_of_noise(name: str) -> "Callable[[SamplingNoise | None], float | None]":
    """Return what gives a number of the noise; None of no noise."""
    get = attrgetter(name)
    return lambda noise: None if noise is None else get(noise)


def noise_measures(
    key: str,
    group: Group,
    of: str,
    short: str,
    source: "Callable[[str], RunSource]",
    why_none: "str | Callable[[RunSummary], str]",
    *,
    has_table: bool = False,
    is_own: bool = False,
) -> tuple[RunMeasure, ...]:
    """Return worst 10 % and variance corrected for the noise of the test sets, and its shares.

    Args:
        key: Begins the keys.
        group: Group of the comparison.
        of: Begins the names.
        short: Begins the short headings.
        source: Gives the source of a field of the noise.
        why_none: Why a run lacks them.
        has_table: The shrunken worst 10 % have a table of their own.
        is_own: They have no field in `RunSummary`, and their differences are only shown.
    """
    worst, variance = f"{of}worst 10 %", f"{of}variance"

    def one(ending: str, name: str, meaning: str, part: str, compare: Compared) -> RunMeasure:
        return RunMeasure(
            key=f"{key}_{ending}",
            name=name,
            meaning=meaning,
            source=source(part),
            why_none=why_none,
            json=f"{OWN}{key}_{ending}" if is_own else "",
            compare=compare,
        )

    def compared(heading: str, better: Better | None, kind: MetricKind, digits: int) -> Compared:
        return Compared(
            group=group,
            short=f"{short}{heading}",
            better=better,
            kind=kind,
            digits=digits,
            has_table=has_table and kind is WORST_SHARE,
            is_tested=not is_own,
        )

    return (
        one(
            "worst10_shrunken",
            f"{worst}, shrunken",
            "Worst 10 % of the posterior means of the accuracies",
            "worst10_shrunken",
            compared("worst shr", "more", WORST_SHARE, 3),
        ),
        one(
            "variance_corrected",
            f"{variance}, corrected",
            "Population variance of the accuracies without the noise of the test sets",
            "variance_corrected",
            compared("var cor", "less", VARIANCE, 4),
        ),
        one(
            "worst10_noise",
            f"noise in {worst}",
            "Share of its distance from the mean that identical devices would show",
            "worst10_share",
            compared("worst noise", None, NOISE_RATIO, 2),
        ),
        one(
            "variance_noise",
            f"noise in {variance}",
            "Share of the variance that is noise of the test sets",
            "variance_share",
            compared("var noise", None, NOISE_RATIO, 2),
        ),
    )
