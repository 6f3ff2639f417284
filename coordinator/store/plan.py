"""What a reader wants to know of a run's experiment file, whatever version wrote it."""

from msgspec import DecodeError, Struct, toml

PROMISING = ("rbcs-f", "rbcs-f-known")
"""Policies that guarantee a rate."""


class PlannedSelection(Struct, frozen=True, kw_only=True):
    """The part of `[selection]` that is shown; None where the file does not say."""

    policy: str | None = None
    per_round: int | None = None
    beta: float | None = None
    counts: str = "selected"
    ridge_lambda: float | None = None
    discount: float | None = None
    alpha: float | str | None = None
    cold_start_coding: str | None = None


class PlannedAggregation(Struct, frozen=True, kw_only=True):
    """The part of `[aggregation]` that is shown."""

    rule: str | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """The part of an experiment that is shown beside its results."""

    rounds: int | None = None
    selection: PlannedSelection = PlannedSelection()
    aggregation: PlannedAggregation = PlannedAggregation()

    @property
    def beta(self) -> float | None:
        """Guaranteed selection rate; None when the policy guarantees none."""
        return self.selection.beta if self.selection.policy in PROMISING else None


def read_plan(experiment_toml: str) -> Plan:
    """Return what the file says; an unreadable one says nothing."""
    try:
        return toml.decode(experiment_toml, type=Plan)
    except DecodeError:
        return Plan()
