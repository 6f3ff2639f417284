"""`[tune]` of a grid file: values of constants to try, for every arm as many. Pure."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from fairbed.coordinator.policy.config import PositiveInt, Section
from fairbed.testbed.compare.tuning.halving import Better
from fairbed.testbed.experiment.file import Experiment, Seed

TUNING_SEEDS = 10_000
"""First seed of the tuning runs, if their number is given: a number of seeds of a grid ends far
before it."""
NOT_TUNED = ("data", "evaluation", "fleet", "replay")
"""Tables whose keys are no constants of a method: examples, devices, and what is measured."""

Values: TypeAlias = Annotated[list[Any], Meta(min_length=1)]
Setting: TypeAlias = tuple[tuple[str, Any], ...]
"""Keys of the experiment, with dots, and a value of each."""


class SpaceConfig(Section, frozen=True, kw_only=True):
    """`[[tune.space]]`: values of constants to try in some arms."""

    where: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys and values that its arms have; empty: all arms."""
    axes: Annotated[dict[str, Values], Meta(min_length=1)]
    """Keys of the experiment, with dots, and the values to try; every combination is a point. A
    later space replaces the values that an earlier one has for a key."""


class TuneConfig(Section, frozen=True, kw_only=True):
    """`[tune]`: constants are chosen on validation examples before the arms are compared."""

    space: Annotated[tuple[SpaceConfig, ...], Meta(min_length=1)]
    """The search spaces; all arms have as many points."""
    seeds: (
        Annotated[int, Meta(ge=1, le=1_000)] | Annotated[tuple[Seed, ...], Meta(min_length=1)]
    ) = 4
    """Number of seeds of the tuning runs, from 10,000; or a list of them. None is a seed of the
    comparison."""
    criterion: str | None = None
    """Key of the metric by which constants are chosen, on validation examples, its mean over the
    seeds, such as `metric.NAME` of `evaluation.metrics`; not set: the accuracy, or the error, over
    the examples of all devices."""
    halving: bool = True
    """Successive halving: the better half of the points runs with more seeds, until the last few
    have all; false: every point runs with every seed."""
    max_runs: PositiveInt | None = None
    """Most tuning runs; not set: no limit but that of a grid."""

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds of the tuning runs."""
        if isinstance(self.seeds, int):
            return tuple(range(TUNING_SEEDS, TUNING_SEEDS + self.seeds))
        return self.seeds


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values."""

    setting: Setting
    experiment: Experiment
    """The arm with these values."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the constants of a grid are chosen; the points are those of its arms."""

    seeds: tuple[int, ...]
    criterion: str
    """Key of the metric."""
    better: Better | None
    """Its good side; None: its function declares it, which the first runs state."""
    is_halved: bool


def axes_of(config: TuneConfig, fits: Mapping[int, bool]) -> dict[str, list[Any]]:
    """Return the values to try in an arm, by key.

    Args:
        config: The spaces.
        fits: Whether the arm is one of a space, by its number.
    """
    found: dict[str, list[Any]] = {}
    for number, space in enumerate(config.space):
        if fits[number]:
            found |= space.axes
    return found


def size_of(axes: Mapping[str, Sequence[Any]]) -> int:
    """Return the number of points of a space; 1 without a key."""
    return math.prod(len(values) for values in axes.values())


def settings_of(axes: Mapping[str, Sequence[Any]]) -> Iterator[Setting]:
    """Yield the points of a space, the last key first."""
    for values in itertools.product(*axes.values()):
        yield tuple(zip(axes, values, strict=True))


def check_spaces(arms: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
    """Check that the arms of a grid can be tuned alike.

    Args:
        arms: The values to try, by arm and key.

    Raises:
        ValueError: A value is listed twice, a key is no constant, or spaces are unequal.
    """
    for arm, axes in arms.items():
        for key, values in axes.items():
            if key.strip().partition(".")[0] in NOT_TUNED:
                raise ValueError(
                    f"tune.space: {key}: must be a constant of a method, got a key of "
                    f"{', '.join(NOT_TUNED)}; set it in the experiment"
                )
            texts = [repr(value) for value in values]
            if twice := next((text for text in texts if texts.count(text) > 1), None):
                raise ValueError(
                    f"tune.space: {key}: values must be distinct, got {twice} twice for arm "
                    f"{arm!r}; list each once"
                )
    sizes = {arm: size_of(axes) for arm, axes in arms.items()}
    if len(set(sizes.values())) > 1:
        least, most = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        raise ValueError(
            f"tune.space: arms must have as many points, got {sizes[least]} in {least} and "
            f"{sizes[most]} in {most}: the arm with more would gain from the search alone; list "
            "more values for the other one"
        )


def edges(chosen: Setting, axes: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Yield where a chosen number is the smallest or largest that was tried, in words.

    Keys with one value, and values that are no numbers, have no edge.
    """
    for key, value in chosen:
        tried = axes[key]
        numbers = [v for v in tried if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) < len(tried) or len(numbers) < 2:
            continue
        if value in (min(numbers), max(numbers)):
            side, beyond = (
                ("smallest", "smaller") if value == min(numbers) else ("largest", "larger")
            )
            yield f"{key} = {value:g} is the {side} of {len(numbers)} values; try {beyond} ones"
