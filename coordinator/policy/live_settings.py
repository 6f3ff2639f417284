"""The settings that an operator may change between two rounds of a live run.

The bounds are those of the experiment file. Algorithms keep their state: `Decisions.reconfigure`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.selection.feasibility import highest_rate, shortage
from fairbed.coordinator.policy.combinations import built_in_gradient, weights_problem
from fairbed.coordinator.policy.config import (
    CoordinatorConfig,
    RoundConfig,
    SelectionConfig,
    merge_problem,
    rule_problem,
)
from fairbed.coordinator.policy.factories import defence_problem
from fairbed.coordinator.store.tables import CommandRow

SECTIONS = {
    "V": "selection",
    "beta": "selection",
    "per_round": "selection",
    "deadline_s": "round",
    "min_devices": "round",
}
"""Section of the experiment file of each setting."""


class SettingError(ValueError):
    """A setting cannot have this value in this run; the message is one line."""


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that an operator changed while the run was live."""

    name: str
    value: float
    round: int
    """The first round with the new value."""


def accepted_changes(rows: Sequence[CommandRow]) -> list[Change]:
    """Return the settings that operators changed, oldest first."""
    return [
        Change(row.name, row.value, row.round)
        for row in rows
        if row.is_accepted and row.name and row.value is not None and row.round is not None
    ]


def due_now(rows: Sequence[CommandRow], first_round: int) -> list[CommandRow]:
    """Return the rows of settings that a resumed run takes earlier than they were answered.

    A setting holds from the next round on; a run that is resumed begins at the open round again.
    """
    late = [row for row in rows if row.round is not None and row.round > first_round]
    return [replace(row, round=first_round) for row in late]


def value_of(config: CoordinatorConfig, name: str) -> float:
    """Return the value of a setting.

    Raises:
        SettingError: There is no such setting.
    """
    if name not in SECTIONS:
        raise SettingError(
            f"setting: must be one of {', '.join(SECTIONS)}, got {name!r}; the others hold for the "
            "whole run"
        )
    if name == "min_devices":
        return float(config.min_devices)
    return float(getattr(getattr(config, SECTIONS[name]), name))


def key_of(name: str) -> str:
    """Return the key of a setting in an experiment file, as in `selection.beta`."""
    return f"{SECTIONS[name]}.{name}"


def changed(
    config: CoordinatorConfig, name: str, value: float, availability: Floats
) -> CoordinatorConfig:
    """Return the configuration with another value of one setting, after every check.

    Args:
        config: The configuration of the next round.
        name: The setting.
        value: Its new value.
        availability: Probability that each device is available in a round, shape (N,).

    Raises:
        SettingError: The value is out of its bounds, or the run cannot go on with it.
    """
    new = with_value(config, name, value)
    key, devices = key_of(name), len(availability)
    selection, settings = new.selection, new.round
    if name in ("V", "beta") and not selection.has_queues:
        raise SettingError(
            f"{key}: must be for policy 'rbcs-f', got {selection.policy!r}, which does not read it"
        )
    if name == "min_devices" and devices and value > devices:
        raise SettingError(
            f"{key}: must be at most the {devices} devices of this run, got {value:g}"
        )
    if name == "deadline_s" and settings.merges_late_updates:
        raise SettingError(
            f"{key}: must stay where late updates are merged, got {value:g}: open exchanges have "
            "the deadline that their devices were sent"
        )
    if name == "per_round":
        if settings.is_buffered and settings.buffer and settings.concurrency:
            raise SettingError(
                f"{key}: must be for runs without round.buffer and round.concurrency, got both, "
                "which replace it"
            )
        if new.cohort_size > devices and new.cohort_size > config.cohort_size:
            raise SettingError(
                f"{key}: must be at most the {devices} devices of this run, got {value:g}"
            )
        if problem := (
            rule_problem(new.aggregation, selection, new.training, devices)
            or merge_problem(settings, new.aggregation, selection)
            or defence_problem(new.aggregation, new.updates_per_version)
            or weights_problem(
                new.aggregation,
                new.updates_per_version,
                built_in_gradient(new.aggregation, new.training),
            )
        ):
            raise SettingError(problem)
    if name in ("beta", "per_round") and selection.has_queues and devices:
        _check_feasible(new, key, value, availability)
    return new


def with_value(config: CoordinatorConfig, name: str, value: float) -> CoordinatorConfig:
    """Return the configuration with another value of one setting, after a check of its bounds.

    Raises:
        SettingError: The value is out of the bounds of the experiment file.
    """
    value_of(config, name)
    section: SelectionConfig | RoundConfig = getattr(config, SECTIONS[name])
    is_whole = name in ("per_round", "min_devices") and float(value).is_integer()
    fields = msgspec.structs.asdict(section) | {name: int(value) if is_whole else value}
    plain = msgspec.to_builtins(fields)
    try:
        new = msgspec.convert(plain, type(section))
    except msgspec.ValidationError as exc:
        problem = str(exc).removesuffix(f" - at `$.{name}`").replace("`", "")
        raise SettingError(f"{key_of(name)}: {problem}, got {value:g}") from None
    config = msgspec.structs.replace(config, **{SECTIONS[name]: new})
    if name == "min_devices":  # set by an operator, it holds for every round
        config = msgspec.structs.replace(config, min_linked=int(value))
    return config


def with_changes(config: CoordinatorConfig, changes: Iterable[Change]) -> CoordinatorConfig:
    """Return the configuration after changes that a run accepted before.

    Raises:
        SettingError: One is out of the bounds of this version.
    """
    for change in changes:
        config = with_value(config, change.name, change.value)
    return config


def mean_beta(beta: float, changes: Iterable[Change], first_round: int, last_round: int) -> float:
    """Return the mean of the guaranteed rate over some rounds.

        mean_beta = sum_t beta_t / T,   as  Z_T >= sum_t beta_t - sum_t x_t  for any beta_t

    Args:
        beta: Guaranteed rate of the experiment file.
        changes: Accepted changes, oldest first.
        first_round: First of the rounds.
        last_round: Last of them.
    """
    total, since = 0.0, first_round
    for change in changes:
        if change.name == "beta" and change.round <= last_round:
            start = max(change.round, since)
            total, since, beta = total + beta * (start - since), start, change.value
    return (total + beta * (last_round + 1 - since)) / (last_round + 1 - first_round)


def _check_feasible(
    config: CoordinatorConfig, key: str, value: float, availability: Floats
) -> None:
    """Check that every device can be selected at the guaranteed rate.

    Raises:
        SettingError: It cannot.
    """
    beta, per_round = config.selection.beta, config.updates_per_version
    lacks = shortage(availability, per_round, beta)
    if lacks is None:
        return
    raise SettingError(
        f"{key}: {value:g} cannot be guaranteed: {lacks}; set beta to at most "
        f"{highest_rate(availability, per_round):.3f}, or raise per_round first"
    )
