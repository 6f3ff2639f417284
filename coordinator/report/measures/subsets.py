"""The numbers of personal models, of benign and malicious devices, and of local noise."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fairbed.coordinator.report.measures.entry import (
    FOUR_DIGITS,
    PERCENT,
    Compared,
    RunMeasure,
    Summary,
)
from fairbed.coordinator.report.measures.noise import noise_measures, part_of_noise
from fairbed.coordinator.report.measures.scales import (
    COUNT,
    ERROR,
    RATE,
    SELECTIONS,
    SHARE,
    VARIANCE,
    WORST_SHARE,
)
from fairbed.coordinator.store.reader import LIVE

if TYPE_CHECKING:
    from fairbed.coordinator.report.summary_schema import Attackers, RunSummary

NO_BENIGN = "no benign device has held-out examples, or no device is malicious"
NO_PERSONAL = "no personal model was tested"


def _of_benign(
    of_attackers: "Callable[[Attackers], float | None]",
    of_all: "Callable[[RunSummary], float | None]",
) -> Summary:
    """Return the source of a number of benign devices; without an attack all are benign."""

    def value(s: "RunSummary") -> float | None:
        if s.attackers is not None:
            return of_attackers(s.attackers)
        return None if s.status in LIVE else of_all(s)

    return Summary(value)


def _personal_noise(part: str) -> Summary:
    get = part_of_noise(part)
    return Summary(lambda s: get(s.personal.noise) if s.personal else None)


def _benign_noise(part: str) -> Summary:
    get = part_of_noise(part)
    return _of_benign(lambda a: get(a.noise), lambda s: get(s.accuracy.noise))


PERSONAL = (
    RunMeasure(
        key="personal_accuracy_mean",
        name="personal accuracy",
        meaning="Accuracy of the personal models on held-out data, mean over devices",
        source=Summary("personal.accuracy_mean"),
        why_none=NO_PERSONAL,
        json="personal.accuracy_mean",
        show="personal",
        report="Accuracy",
        compare=Compared(
            has_table=True, group="personal", short="personal", better="more", kind=SHARE
        ),
    ),
    RunMeasure(
        key="personal_accuracy_worst10",
        name="personal worst 10 %",
        meaning="Mean accuracy of the worst tenth of the personal models",
        source=Summary("personal.accuracy_worst10"),
        why_none=NO_PERSONAL,
        json="personal.accuracy_worst10",
        show="personal",
        compare=Compared(group="personal", short="p worst", better="more", kind=WORST_SHARE),
    ),
    RunMeasure(
        key="personal_accuracy_variance",
        name="personal variance",
        meaning="Population variance of the accuracies of the personal models",
        source=Summary("personal.accuracy_variance"),
        format=FOUR_DIGITS,
        why_none=NO_PERSONAL,
        json="personal.accuracy_variance",
        compare=Compared(group="personal", short="p var", better="less", kind=VARIANCE, digits=4),
    ),
    *noise_measures(
        "personal_accuracy", "personal", "personal ", "p ", _personal_noise, NO_PERSONAL
    ),
)
"""Personal models."""

ATTACK = (
    RunMeasure(
        key="benign_accuracy_mean",
        name="benign accuracy",
        meaning="Accuracy on held-out data, mean over benign devices",
        source=_of_benign(lambda a: a.accuracy_mean, lambda s: s.accuracy.mean),
        why_none=NO_BENIGN,
        json="attackers.accuracy_mean",
        show="benign",
        report="Problems",
        compare=Compared(has_table=True, group="attack", short="benign", better="more", kind=SHARE),
    ),
    RunMeasure(
        key="benign_accuracy_worst10",
        name="benign worst 10 %",
        meaning="Mean accuracy of the worst tenth of the benign devices",
        source=_of_benign(lambda a: a.accuracy_worst10, lambda s: s.accuracy.worst10),
        why_none=NO_BENIGN,
        json="attackers.accuracy_worst10",
        show="benign",
        compare=Compared(group="attack", short="b worst", better="more", kind=WORST_SHARE),
    ),
    RunMeasure(
        key="benign_accuracy_variance",
        name="benign variance",
        meaning="Population variance of the accuracies over benign devices",
        source=_of_benign(lambda a: a.accuracy_variance, lambda s: s.accuracy.variance),
        format=FOUR_DIGITS,
        why_none=NO_BENIGN,
        json="attackers.accuracy_variance",
        compare=Compared(group="attack", short="b var", better="less", kind=VARIANCE, digits=4),
    ),
    *noise_measures("benign_accuracy", "attack", "benign ", "b ", _benign_noise, NO_BENIGN),
    RunMeasure(
        key="benign_loss_mean",
        name="benign loss",
        meaning="Loss on held-out data, mean over benign devices",
        source=_of_benign(lambda a: a.loss_mean, lambda s: s.loss.mean),
        unit="nats",
        why_none=NO_BENIGN,
        json="attackers.loss_mean",
        show="benign",
        compare=Compared(group="attack", short="b loss", better="less", kind=ERROR),
    ),
    RunMeasure(
        key="malicious_selections",
        name="malicious selections",
        meaning="Selections of malicious devices / selections",
        source=_of_benign(
            lambda a: a.selection_share,
            lambda s: 0.0 if any(s.selected.values()) else None,
        ),
        format=PERCENT,
        why_none="no device is malicious",
        json="attackers.selection_share",
        show="malicious",
        compare=Compared(group="attack", short="mal sel", better="less", kind=SELECTIONS),
    ),
    RunMeasure(
        key="malicious_weight",
        name="malicious weight",
        meaning="Sum of the weights of the updates of malicious devices, mean over merges",
        source=_of_benign(
            lambda a: a.weight_share,
            lambda s: None if s.weights.divergence is None else 0.0,
        ),
        format=PERCENT,
        why_none="no update was aggregated, or no device is malicious",
        json="attackers.weight_share",
        show="malicious",
        report="Problems",
        compare=Compared(group="attack", short="mal w", better="less", kind=RATE),
    ),
)
"""Malicious and benign devices."""

PRIVACY = (
    RunMeasure(
        key="epsilon_max",
        name="largest epsilon",
        meaning="epsilon of the device that has sent the most updates with local noise",
        source=Summary("privacy.epsilon_max"),
        why_none="no local noise, or its accountant is not installed",
        json="privacy.epsilon_max",
        show="privacy",
        compare=Compared(group="privacy", short="epsilon", better=None, kind=COUNT, digits=2),
    ),
)
"""Local noise."""
