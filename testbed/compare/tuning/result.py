"""All that a search for constants tried, and its choice: for JSON, CSV, and lines. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from fairbed.testbed.compare.tuning.halving import Better, Choice, Rung, runs_in
from fairbed.testbed.compare.tuning.space import Point, edges

MAX_NAMED = 4
"""Lines about arms that one warning has."""


class TriedPoint(Struct, frozen=True, kw_only=True):
    """One combination of values."""

    setting: dict[str, Any]
    """Value of each key."""
    rung: int
    """Number of the last rung in which it ran, from 1."""
    values: dict[int, float | None]
    """The criterion, by seed; null is undefined."""
    mean: float | None
    """Over these seeds; null if it is undefined in one of them."""
    is_chosen: bool


class ArmTuning(Struct, frozen=True, kw_only=True):
    """The search of one arm."""

    name: str
    points: list[TriedPoint]
    ties: int
    """Other points that ran to the end and are as good; the first of them is chosen."""
    edges: list[str]
    """Where the choice is the smallest or largest number that was tried, in words."""

    @property
    def chosen(self) -> TriedPoint:
        """The point that was chosen."""
        return next(point for point in self.points if point.is_chosen)


class TuningSummary(Struct, frozen=True, kw_only=True):
    """How the constants of the arms of a grid were chosen."""

    criterion: str
    """Key of the metric, on validation examples."""
    better: Better
    seeds: list[int]
    """Of the tuning runs; none is a seed of the comparison."""
    runs: int
    """Tuning runs of all arms."""
    of_runs: int
    """Those of the full grid, without halving."""
    devices: int
    without: int
    """Devices without a validation example, which do not count."""
    folded: int
    """Devices whose few validation examples are another fold in each seed."""
    arms: list[ArmTuning]
    power: list[str] = []
    """Smallest effects that the comparison can show, in units of their metrics, as lines."""

    @property
    def line(self) -> str:
        """How the constants were chosen, in one line."""
        n_points = len(self.arms[0].points)
        halved = "" if self.runs == self.of_runs else " by successive halving"
        arms = "; ".join(f"{arm.name}: {setting_text(arm.chosen.setting)}" for arm in self.arms)
        return (
            f"Constants were tuned: {n_points} points of each arm{halved}, {self.runs} runs with "
            f"{len(self.seeds)} other seed{'s' * (len(self.seeds) != 1)}, chosen by "
            f"{self.criterion} on validation examples alone: {arms}"
        )

    @property
    def warnings(self) -> list[str]:
        """What the choice lacks, one line each."""
        found = [f"tune: {arm.name}: {edge}" for arm in self.arms for edge in arm.edges]
        if len(found) > MAX_NAMED:
            found = [*found[:MAX_NAMED], f"tune: {len(found) - MAX_NAMED} more choices are edges"]
        if tied := [f"{arm.ties + 1} in {arm.name}" for arm in self.arms if arm.ties]:
            found.append(
                f"tune: one point of an arm must be the best by {self.criterion}, got equal ones "
                f"of which the first was chosen: {', '.join(tied[:MAX_NAMED])}"
                f"{', ...' if len(tied) > MAX_NAMED else ''}; set another tune.criterion"
            )
        if self.without:
            found.append(
                f"tune: {self.without} of {self.devices} devices have no validation example, so "
                "that constants are chosen without them; give devices more examples"
            )
        if self.folded and len(self.seeds) == 1:
            found.append(
                f"tune: {self.folded} of {self.devices} devices have few validation examples, of "
                "which one seed takes a single fold; set more tune.seeds"
            )
        return found


def setting_text(setting: Mapping[str, Any]) -> str:
    """Return keys and values in one line."""
    return ", ".join(f"{key} = {value}" for key, value in setting.items())


def arm_tuning(
    name: str,
    points: Sequence[Point],
    space: Mapping[str, Sequence[Any]],
    choice: Choice,
) -> ArmTuning:
    """Return the search of an arm.

    Args:
        name: The arm.
        points: Its points.
        space: Values that were tried, by key.
        choice: The end of the search, which has chosen one.
    """
    assert choice.point is not None, "the search has chosen a point"
    return ArmTuning(
        name=name,
        points=[
            TriedPoint(
                setting=dict(point.setting),
                rung=tried.rung,
                values=dict(tried.values),
                mean=tried.mean(list(tried.values)),
                is_chosen=number == choice.point,
            )
            for number, (point, tried) in enumerate(zip(points, choice.tried, strict=True))
        ],
        ties=choice.ties,
        edges=list(edges(points[choice.point].setting, space)),
    )


def plan_text(rungs: Sequence[Rung], arms: int, seeds: Sequence[int], n_final: int) -> str:
    """Return the runs of a search before it begins, in one line.

    Args:
        rungs: Of each arm.
        arms: Their number.
        seeds: Of the tuning runs.
        n_final: Runs of the comparison.
    """
    n_points, runs = rungs[0].points, arms * runs_in(rungs)
    full = arms * n_points * len(seeds)
    steps = ", then ".join(f"{rung.points} with {rung.seeds}" for rung in rungs)
    saved = f" of the {full:,} of the full grid" if runs < full else ""
    return (
        f"tune: {runs:,} runs{saved}, for each of {arms} arms {steps} seed"
        f"{'s' * (rungs[-1].seeds != 1)}; the comparison has {n_final:,} more"
    )


def tuning_rows(summary: TuningSummary) -> Iterator[Sequence[object]]:
    """Yield the heading and a row for each arm, point and seed that ran."""
    keys = list(
        dict.fromkeys(key for arm in summary.arms for point in arm.points for key in point.setting)
    )
    yield ("arm", "point", *keys, "rung", "seed", summary.criterion, "mean", "chosen")
    for arm in summary.arms:
        for number, point in enumerate(arm.points, 1):
            values = [point.setting.get(key) for key in keys]
            for seed, value in point.values.items():
                yield (
                    *(arm.name, number, *values, point.rung, seed, value, point.mean),
                    point.is_chosen,
                )
