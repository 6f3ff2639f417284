"""The model that each device serves: its personal one where it has one, else the global one.

So that runs with and without personal models compare by one number: of a device with a personal
model (Ditto, local training) the latest score of that model counts, of another one that of the
global model. The score of a device that keeps parts of the model (FedPer, FedRep, local batch
normalisation) is that of the global model with its own parts, so it is the one it serves already.
Malicious devices do not count, where they are known.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fairbed.coordinator.algorithms.fairness import ErrorSummary, FairnessSummary
from fairbed.coordinator.algorithms.sampling_noise import SamplingNoise
from fairbed.coordinator.report.quality import (
    ScoreRow,
    accuracies_of,
    counted_tests,
    errors_of,
    noise_of,
)

if TYPE_CHECKING:
    from fairbed.coordinator.report.facts import RunFacts


@dataclass(frozen=True)
class ServedModels:
    """The scores of the models that devices serve."""

    rows: tuple[ScoreRow, ...]
    """One of each device with held-out examples, by name."""
    personal: int
    """Those of them that are of a personal model."""
    unknown: tuple[str, ...]
    """Devices that have trained a personal model without a score of it: they have no row."""
    is_global: bool
    """No device trains a personal model."""

    @cached_property
    def accuracies(self) -> FairnessSummary | None:
        """Over devices; None for regression, and without a row."""
        return accuracies_of(self.rows)

    @cached_property
    def errors(self) -> ErrorSummary | None:
        """Over devices; None unless the task is regression."""
        return errors_of(self.rows)

    @cached_property
    def noise(self) -> SamplingNoise | None:
        """Of the test sets in the accuracies; None as `noise_of` has it."""
        return noise_of(counted_tests(self.rows)) if self.rows else None

    @property
    def note(self) -> str:
        """The devices that no number of served models counts; empty if there are none."""
        n = len(self.unknown)
        if not n or not self.rows:
            return ""
        return (
            f"{n} device{'s' * (n > 1)} trained a personal model without a score of it: no number "
            "of served models counts them"
        )


def served_models(facts: "RunFacts") -> ServedModels:
    """Return the scores of the models that the devices of a run serve.

    There is none if devices train personal models and no score of one is known.
    """
    shared, own, excluded = facts.device_metrics, facts.personal_scores, facts.malicious
    is_global = facts.info.plan.personalisation.method == "none" and not own
    unknown = set[str]() if is_global else _trained(facts) - own.keys() - excluded.keys()
    names = sorted((shared.keys() | own.keys()) - excluded.keys() - unknown)
    if not own and not is_global:
        names = []
    rows: list[ScoreRow] = [own[name] if name in own else shared[name] for name in names]
    rows = [row for row in rows if row.n > 0]
    return ServedModels(
        rows=tuple(rows),
        personal=sum(row.device in own for row in rows),
        unknown=tuple(sorted(unknown)),
        is_global=is_global,
    )


def _trained(facts: "RunFacts") -> set[str]:
    """Return the devices that have trained a personal model in an exchange that is done."""
    table = facts.exchanges
    has_trained = table.done & (table.numbers["personal_s"] > 0.0)
    return set(table.device[has_trained].astype(str).tolist())
