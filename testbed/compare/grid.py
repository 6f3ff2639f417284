"""The grid file: a base experiment, arms that change it, and the seeds that all arms share.

Arms are listed (`[[arm]]`), made from axes (`[axes]`), or both: every listed arm is combined with
all values of its own axes and of the grid's. The file is decoded as strictly as an experiment.

Names of arms, given or made from axes, are folders, and never need quotes: letters, digits and
`._+-`. A name from axes has a part for each of them, `KEY-VALUE`, after `_`: `rbcs-f_V-5`.
"""

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fairbed import profiles
from fairbed.coordinator.policy.config import PositiveFloat, Section
from fairbed.profiles import ProfileError
from fairbed.testbed.compare.contrasts import Contrast, EffectKind, Factor
from fairbed.testbed.compare.measures import (
    CORE_MARGIN,
    ENERGY,
    FINAL_ACCURACY,
    FINAL_ERROR,
    MACHINE_TIME,
    NEEDS_TRAINING,
    POOLED_ACCURACY,
    POOLED_ERROR,
    RATIO_SUM,
    TOTAL_TIME,
    UPDATES,
    WITHOUT_TRAINING,
    keys_of,
    known_metrics,
    named_keys,
    scores,
)
from fairbed.testbed.compare.tuning import halving
from fairbed.testbed.compare.tuning.result import TuningSummary
from fairbed.testbed.compare.tuning.space import (
    Point,
    TuneConfig,
    Tuning,
    axes_of,
    check_spaces,
    settings_of,
    size_of,
)
from fairbed.testbed.experiment.explain import assign, explain, first_not_finite
from fairbed.testbed.experiment.file import (
    Experiment,
    ExperimentError,
    FleetConfig,
    Seed,
    Settings,
    change,
    parse_experiment,
)
from fairbed.wire.text import NotText, TOMLDecodeError, text_of, toml_of

MAX_ARM_NAME = 120
"""Maximum length of an arm's name, which is also the name of a folder."""
MAX_MARK = 7
"""Characters that make a name from axes distinct, with a hyphen."""
NAME_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._+-]{{0,{MAX_ARM_NAME - 1}}}$"
"""Of a grid and of an arm."""
Name: TypeAlias = Annotated[str, Meta(pattern=NAME_PATTERN)]
Share: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.0)]
Values: TypeAlias = Annotated[list[Any], Meta(min_length=1)]
Fleet: TypeAlias = Literal["replay", "run"]
Cohorts: TypeAlias = Literal["own", "fixed"]
Levels: TypeAlias = tuple[Any, Any]
Document: TypeAlias = dict[str, Any]
"""A parsed TOML document, or a part of it."""

RUNS = "runs"
"""Folder of the runs, below that of the grid."""
MAX_CELLS = 10_000
FRONT_AXIS = "selection.V"
"""Arms that differ only in this key are one curve: a selector is compared at all its values."""
BUDGETS = ("at_equal_rounds", "at_equal_time", "at_equal_device_s")
"""Keys of the metrics at equal budgets."""
SHARED = ("seed", "seeds", "name")
"""Keys that an arm must not set: cells of one seed share their data, fleet and traces."""


class ArmConfig(Section, frozen=True, kw_only=True):
    """`[[arm]]`."""

    name: Name
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys of the experiment, with dots, and their values."""
    axes: dict[str, Values] = msgspec.field(default_factory=dict)
    """Axes of this arm only."""


class TargetConfig(Section, frozen=True, kw_only=True):
    """`[target]`: accuracies to reach, fixed before the grid is run."""

    accuracy: tuple[Share, ...] = ()
    """Accuracies, mean over devices."""
    share: tuple[Share, ...] = (0.9, 0.95)
    """Accuracies as shares of the mean of the last five evaluations of `of`; used if `accuracy` is
    empty."""
    of: str | None = None
    """An arm; None is the baseline."""
    horizon_s: PositiveFloat | None = None
    """Limit of the times to a target in their mean; at most, and by default, the shortest run."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the metrics of the targets, in their order."""
        if self.accuracy:
            return tuple(f"time_to_{accuracy:g}" for accuracy in self.accuracy)
        return tuple(f"time_to_{100 * share:g}_percent" for share in self.share)


class ContrastConfig(Section, frozen=True, kw_only=True):
    """`[[contrast]]`: a question about one to three factors, declared before the grid is run."""

    name: Name
    factors: Annotated[dict[str, Levels], Meta(min_length=1, max_length=3)]
    """Keys of the experiment, with dots, each with two levels; a level is a value, or a list of
    values whose arms are averaged. Every combination must be an arm."""
    where: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys and values that its arms have, where arms differ in more than the factors."""
    metrics: Annotated[tuple[str, ...], Meta(max_length=3)] = ()
    """Keys of the metrics that it is about; empty is the primary metric."""
    effects: Annotated[tuple[EffectKind, ...], Meta(min_length=1)] = ("main", "interaction")
    """The kinds of effects that are tested; the others are shown without a verdict."""
    equivalent: dict[str, PositiveFloat] = msgspec.field(default_factory=dict)
    """By metric: an effect within this margin, either side of 0, does not matter, which is tested,
    too; a share where the metric is compared by ratios."""


class GridConfig(Section, frozen=True, kw_only=True):
    """A whole grid file."""

    name: Name | None = None
    """None takes the name of the file."""
    experiment: str | dict[str, Any]
    """Path relative to the grid file, or the experiment itself."""
    fleet: Fleet = "replay"
    """`replay`: on a virtual clock; `run`: emulated devices, one run after another."""
    seeds: Annotated[int, Meta(ge=1, le=1_000)] | Annotated[tuple[Seed, ...], Meta(min_length=1)]
    """Number of seeds, from 0; or a list of them."""
    baseline: str | None = None
    """The arm that all others are compared with; None is the first."""
    primary: str | None = None
    """Key of the metric that the grid is about; None is the final accuracy, without training the
    total time."""
    report: tuple[str, ...] = ()
    """Keys of the metrics of the table for a paper, `compare.tex`, after the primary one; empty
    takes accuracy, worst tenth, the first target, total time, least rate and device-seconds, as far
    as they fit.
    It may change after the first run."""
    budget_metric: str | None = None
    """What is compared at equal rounds, time and device-seconds: a key of `scores`, or `updates`;
    None is the accuracy, without training the updates."""
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys of the experiment that all arms change."""
    axes: dict[str, Values] = msgspec.field(default_factory=dict)
    arm: tuple[ArmConfig, ...] = ()
    target: TargetConfig = TargetConfig()
    contrast: tuple[ContrastConfig, ...] = ()
    """Factorial questions: main effects, interactions, equivalence."""
    tune: TuneConfig | None = None
    """Constants of the arms, chosen on validation examples; not set: those of the experiment."""
    cohorts: Cohorts = "own"
    """`fixed`: arms that select alike have the cohorts of one of them, the baseline or the first;
    `own`: each arm selects for itself."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant of the experiment."""

    name: str
    curve: str
    """Its name without `FRONT_AXIS`: arms of one curve differ only in that key."""
    axes: tuple[tuple[str, Any], ...]
    """Keys and values from the axes."""
    experiment: Experiment
    """The experiment, with the first seed of the grid."""
    cohorts_of: str | None = None
    """The arm whose cohorts this one has; None: it selects for itself."""
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values to try, by key; empty without `[tune]`."""
    points: tuple[Point, ...] = ()
    """All combinations of them."""

    @property
    def front_value(self) -> float | None:
        """The arm's value of `FRONT_AXIS`; None if that is no axis."""
        value = dict(self.axes).get(FRONT_AXIS)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class GridCell:
    """One run of the grid."""

    arm: Arm
    seed: int

    @property
    def experiment(self) -> Experiment:
        """The experiment of this run."""
        return msgspec.structs.replace(self.arm.experiment, seed=self.seed)

    def folder(self, out: Path) -> Path:
        """Return the folder of this run."""
        return out / RUNS / self.arm.name / str(self.seed)

    def experiment_in(self, out: Path) -> Experiment:
        """Return the experiment of this run, with the cohorts of another run of the grid."""
        experiment, leader = self.experiment, self.arm.cohorts_of
        if leader is None:
            return experiment
        folder = str((out / RUNS / leader / str(self.seed)).resolve())
        replay = msgspec.structs.replace(experiment.replay, cohorts_from=folder)
        return msgspec.structs.replace(experiment, replay=replay)


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid file with all its arms."""

    name: str
    fleet: Fleet
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    baseline: str
    primary: str
    """Key of the metric that the grid is about."""
    budget_metric: str
    """What is compared at equal budgets: a key of `scores`, or `UPDATES`."""
    target: TargetConfig
    report: tuple[str, ...] = ()
    """Keys of the metrics of the table for a paper; empty takes a few."""
    contrasts: tuple[Contrast, ...] = ()
    """Factorial questions, declared before the first run."""
    cohorts: Cohorts = "own"
    tuning: Tuning | None = None
    """How constants are chosen; None: they are not, or the arms have the chosen ones."""
    tuned: TuningSummary | None = None
    """How the constants of the arms were chosen; None: they were not."""

    def cells(self) -> list[GridCell]:
        """Return all cells, seed by seed, so that an interrupted grid has complete seeds."""
        return [GridCell(arm, seed) for seed in self.seeds for arm in self.arms]

    def stages(self) -> list[list[GridCell]]:
        """Return the cells that may run at once, after those of the stages before."""
        leading, following = list[GridCell](), list[GridCell]()
        for cell in self.cells():
            (leading if cell.arm.cohorts_of is None else following).append(cell)
        return [leading, following] if following else [leading]


def load_grid(path: Path, settings: Settings = (), seeds: int | None = None) -> Grid:
    """Return the grid in a TOML file; the arguments are those of `make_grid`.

    Raises:
        ExperimentError: A file cannot be read, or breaks a rule; one line.
    """
    return make_grid(_read(path), path, settings, seeds)


def make_grid(raw: Document, path: Path, settings: Settings = (), seeds: int | None = None) -> Grid:
    """Return the grid of a parsed document.

    Args:
        raw: The document.
        path: Its file, which names the grid and is the origin of relative paths.
        settings: Overrides of the base experiment such as `rounds=50`; arms override them.
        seeds: Number of seeds, from 0, instead of those in the document.

    Raises:
        ExperimentError: The document, or a file that it names, breaks a rule; one line.
    """
    problem = first_not_finite(raw)
    if problem is not None:
        raise ExperimentError(f"{path}: {problem}")
    try:
        config = msgspec.convert(raw, GridConfig)
    except msgspec.ValidationError as exc:
        raise ExperimentError(f"{path}: {explain(exc, raw, GridConfig)}") from exc
    if seeds is not None:
        config = msgspec.structs.replace(config, seeds=seeds)
    name = config.name or path.stem
    if re.search(NAME_PATTERN, name) is None:
        raise ExperimentError(
            f"{path}: name: must be a text of letters, digits, dot, underscore, hyphen and plus, "
            f"got {name!r} from the file; set the key name"
        )
    try:
        return _grid(config, name, _base(config, path, settings), path)
    except ValueError as exc:
        raise ExperimentError(f"{path}: {exc}") from exc


def _read(path: Path) -> Document:
    try:
        return toml_of(text_of(path.read_bytes()))
    except FileNotFoundError as exc:
        raise ExperimentError(f"{path}: there is no such file; examples/grids/ has some") from exc
    except OSError as exc:
        raise ExperimentError(f"{path}: cannot be read: {exc}") from exc
    except NotText as exc:
        raise ExperimentError(f"{path}: {exc}") from exc
    except TOMLDecodeError as exc:
        raise ExperimentError(f"{path}: not valid TOML: {exc}") from exc


def _base(config: GridConfig, path: Path, settings: Settings) -> Document:
    """Return the document that all arms start from."""
    if isinstance(config.experiment, str):
        raw = _read(path.parent / config.experiment)
    else:
        raw = copy.deepcopy(config.experiment)
        raw.setdefault("name", config.name or path.stem)
    for key, value in config.set.items():
        _check_shared("set", key)
        _assign(raw, "set", key, value)
    for setting in settings:
        _check_shared("--set", setting.partition("=")[0])
    change(raw, settings)
    return raw


def _grid(config: GridConfig, name: str, base: Document, path: Path) -> Grid:
    seeds = tuple(range(config.seeds)) if isinstance(config.seeds, int) else config.seeds
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds: must be distinct, got {list(seeds)}; list each once")
    if not config.arm and not config.axes:
        raise ValueError("arm: a grid needs arms, got none; add [[arm]] or [axes]")
    listed: tuple[ArmConfig | None, ...] = config.arm or (None,)
    arms = distinct(
        [a for one in listed for a in _span(one, config.axes, base, seeds[0], path, config.tune)]
    )
    names = [arm.name for arm in arms]
    taken = dict[str, str]()
    for arm in names:
        if (other := taken.setdefault(arm.casefold(), arm)) != arm or names.count(arm) > 1:
            raise ValueError(
                f"arm {arm!r}: names must be distinct, also where case does not count, got "
                f"{'this one twice' if other == arm else repr(other)}; rename one of them"
            )
    if len(arms) * len(seeds) > MAX_CELLS:
        raise ValueError(
            f"axes: arms x seeds must be at most {MAX_CELLS:,}, got {len(arms) * len(seeds):,}; "
            "remove some"
        )
    baseline = _known("baseline", config.baseline or names[0], names)
    if config.cohorts == "fixed":
        arms = with_fixed_cohorts(arms, baseline, config.fleet)
    _known("target.of", config.target.of or baseline, names)
    quality = FINAL_ACCURACY
    if all(arm.experiment.model.task == "regression" for arm in arms):
        quality = FINAL_ERROR
    trains = all(config.fleet == "run" or arm.experiment.trains_in_replay for arm in arms)
    has_personal = any(arm.experiment.personalisation.is_on for arm in arms)
    is_served = any(serves_personal(arm.experiment) for arm in arms)
    groups = [group for arm in arms for group in arm.experiment.fleet]
    has_energy = all(_has_power(group, config.fleet) for group in groups)
    has_attack = any(g.malicious is not None for arm in arms for g in arm.experiment.fleet)
    compared = _metrics(
        config,
        trains=trains,
        has_attack=has_attack,
        has_personal=has_personal,
        is_served=is_served,
        has_energy=has_energy,
    )
    if trains:
        compared += named_keys(sorted({name for arm in arms for name in _named(arm)}))
    described = [metric.key for metric in known_metrics() if metric.better is None]
    described += [RATIO_SUM, CORE_MARGIN] if trains else []
    primary = _metric("primary", config.primary or (quality if trains else TOTAL_TIME), compared)
    return Grid(
        name=name,
        fleet=config.fleet,
        seeds=seeds,
        arms=tuple(arms),
        baseline=baseline,
        primary=primary,
        report=tuple(_metric("report", key, [*compared, *described]) for key in config.report),
        budget_metric=_metric(
            "budget_metric",
            config.budget_metric or (FINAL_ACCURACY if trains else UPDATES),
            [*(scores() if trains else ()), UPDATES],
        ),
        target=config.target,
        contrasts=_contrasts(config.contrast, arms, primary, compared),
        cohorts=config.cohorts,
        tuning=None
        if config.tune is None
        else _tuning(config, config.tune, arms, seeds, compared if trains else ()),
    )


def _tuning(
    config: GridConfig,
    tune: TuneConfig,
    arms: Sequence[Arm],
    seeds: Sequence[int],
    compared: Sequence[str],
) -> Tuning:
    """Return how the constants of a grid are chosen.

    Args:
        config: The grid.
        tune: Its `[tune]`.
        arms: Its arms, with their points.
        seeds: Those of the comparison.
        compared: Keys of its metrics; empty without training.

    Raises:
        ValueError: The arms cannot be tuned so.
    """
    own = tune.all_seeds
    if len(set(own)) < len(own):
        raise ValueError(f"tune.seeds: must be distinct, got {list(own)}; list each once")
    if both := sorted(set(own) & set(seeds)):
        raise ValueError(
            f"tune.seeds: must be no seeds of the comparison, got {', '.join(map(str, both))} in "
            "both: constants would be chosen by its runs; take others"
        )
    if not compared:
        raise ValueError(
            "tune: must be for a grid that trains, got one without training; set replay.training, "
            "or remove [tune]"
        )
    for arm in arms:
        _check_tuned(arm, [key for one in config.contrast for key in one.factors])
    check_spaces({arm.name: arm.space for arm in arms})
    n_points = len(arms[0].points)
    if n_points < 2:
        raise ValueError(
            f"tune.space: must have at least two points, got {n_points}; list more values"
        )
    runs = len(arms) * halving.runs_in(halving.plan(n_points, len(own), is_halved=tune.halving))
    if tune.max_runs is not None and runs > tune.max_runs:
        raise ValueError(
            f"tune.space: must need at most {tune.max_runs:,} runs (max_runs), got {runs:,}: "
            f"{len(arms)} arms x {n_points} points with up to {len(own)} seeds; remove values or "
            "seeds, or raise max_runs"
        )
    if len(arms) * n_points * len(own) > MAX_CELLS:
        raise ValueError(
            f"tune.space: arms x points x seeds must be at most {MAX_CELLS:,}, got "
            f"{len(arms) * n_points * len(own):,}; remove some values"
        )
    is_error = all(arm.experiment.model.task == "regression" for arm in arms)
    default = POOLED_ERROR if is_error else POOLED_ACCURACY
    criterion = _metric("tune.criterion", tune.criterion or default, compared)
    own_sides = {metric.key: metric.better for metric in known_metrics()}
    named = set.intersection(*(set(_named(arm)) for arm in arms))
    if criterion in named_keys(named):
        return Tuning(own, criterion, None, tune.halving)
    if criterion not in own_sides or criterion in keys_of("attack"):
        raise ValueError(
            f"tune.criterion: must be a metric of every run, got {criterion!r}; use "
            f"{', '.join([*scores(), *named_keys(sorted(named))])}"
        )
    side = own_sides[criterion]
    assert side is not None, "compared metrics have a better side"
    return Tuning(own, criterion, side, tune.halving)


def _named(arm: Arm) -> list[str]:
    """Return the names of the metrics of `evaluation.metrics` of an arm."""
    return [name.rpartition(":")[2] for name in arm.experiment.evaluation.metrics]


def _check_tuned(arm: Arm, factors: Sequence[str]) -> None:
    """Check that the constants of an arm can be chosen on validation examples alone.

    Raises:
        ValueError: They cannot.
    """
    data = arm.experiment.data
    if not data.validation_fraction:
        raise ValueError(
            "tune: data.validation_fraction must be above 0, got 0: constants are chosen on "
            "validation examples; set it to 0.2"
        )
    if data.evaluated != "test":
        raise ValueError(
            f"tune: data.evaluated must be 'test', got {data.evaluated!r} in {arm.name}: the "
            "comparison is that of the tests; remove it"
        )
    if arm.experiment.seeds.data is None and data.dataset != "synthetic":
        raise ValueError(
            "tune: seeds.data must be set, got none: with another division in each seed, the test "
            "examples of one are trained on in others; set seeds.data = 0"
        )
    if key := next((key for key in arm.space if key in factors), None):
        raise ValueError(
            f"tune.space: {key}: must be no factor of a contrast, got one; tune other keys"
        )
    if key := next((key for key, _ in arm.axes if key in arm.space), None):
        raise ValueError(
            f"tune.space: {key}: must be no axis of arm {arm.name!r}, whose name has its value; "
            "remove it from one of them"
        )


def _contrasts(
    configs: Sequence[ContrastConfig], arms: Sequence[Arm], primary: str, compared: Sequence[str]
) -> tuple[Contrast, ...]:
    """Return the contrasts of a grid.

    Raises:
        ValueError: Two have one name, a metric is unknown, or factors do not cross.
    """
    names = [config.name for config in configs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"contrast: names must be distinct, got {twice!r} twice; rename one")
    experiments = {arm.name: msgspec.to_builtins(arm.experiment) for arm in arms}
    return tuple(_contrast(config, experiments, primary, compared) for config in configs)


def _contrast(
    config: ContrastConfig,
    experiments: Mapping[str, Document],
    primary: str,
    compared: Sequence[str],
) -> Contrast:
    where = f"contrast {config.name!r}"
    levels = {
        key: [level if isinstance(level, list) else [level] for level in pair]
        for key, pair in config.factors.items()
    }
    for key, (low, high) in levels.items():
        if not low or not high or any(value in high for value in low):
            raise ValueError(
                f"{where}: factors.{key}: must have two levels without a common value, got "
                f"{config.factors[key]}; list other values"
            )
    cells = {
        at: tuple(
            _arm_with(
                where, {**config.where, **dict(zip(levels, values, strict=True))}, experiments
            )
            for values in itertools.product(
                *(pair[level] for pair, level in zip(levels.values(), at, strict=True))
            )
        )
        for at in itertools.product((0, 1), repeat=len(levels))
    }
    metrics = config.metrics or (primary,)
    for key in (*metrics, *config.equivalent):
        _metric(f"{where}: metrics", key, compared)
    if other := next((key for key in config.equivalent if key not in metrics), None):
        raise ValueError(
            f"{where}: equivalent: must be of its metrics, got {other!r}; add it to metrics"
        )
    return Contrast(
        name=config.name,
        factors=tuple(
            Factor(key, (_level_text(pair[0]), _level_text(pair[1])))
            for key, pair in levels.items()
        ),
        cells=cells,
        metrics=metrics,
        tested=config.effects,
        margins=config.equivalent,
    )


def _arm_with(where: str, values: Mapping[str, Any], experiments: Mapping[str, Document]) -> str:
    """Return the arm that has these values.

    Raises:
        ValueError: None has, or several have.
    """
    found = [
        name
        for name, experiment in experiments.items()
        if all(_value_in(experiment, key) == value for key, value in values.items())
    ]
    if len(found) == 1:
        return found[0]
    wanted = ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
    if not found:
        raise ValueError(f"{where}: must have an arm for every combination, got none with {wanted}")
    raise ValueError(
        f"{where}: must have one arm for a combination, got {' and '.join(found[:3])} with "
        f"{wanted}; set where to a key in which they differ"
    )


def _value_in(experiment: Document, key: str) -> Any:
    value: Any = experiment
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _level_text(values: Sequence[Any]) -> str:
    return " or ".join(value if isinstance(value, str) else json.dumps(value) for value in values)


def with_fixed_cohorts(arms: Sequence[Arm], baseline: str, fleet: Fleet) -> list[Arm]:
    """Return the arms, of which those that select alike have the cohorts of one of them.

    Raises:
        ValueError: They run live, or an arm has cohorts of another run already.
    """
    if fleet == "run":
        raise ValueError(
            'cohorts: must be "own" with fleet = "run", got "fixed": only replays can have the '
            'cohorts of another run; set fleet = "replay"'
        )
    leaders = dict[bytes, str]()
    for arm in sorted(arms, key=lambda one: one.name != baseline):
        if arm.experiment.replay.cohorts_from is not None:
            raise ValueError(
                f"arm {arm.name!r}: replay.cohorts_from must not be set with cohorts = "
                f'"fixed", got {arm.experiment.replay.cohorts_from!r}; remove one of them'
            )
        leaders.setdefault(_selects_by(arm.experiment), arm.name)
    names = [leaders[_selects_by(arm.experiment)] for arm in arms]
    return [
        arm if name == arm.name else replace(arm, cohorts_of=name)
        for arm, name in zip(arms, names, strict=True)
    ]


def _selects_by(experiment: Experiment) -> bytes:
    """Return what arms with the same cohorts have in common."""
    return msgspec.json.encode(
        (experiment.selection, experiment.round, experiment.rounds, experiment.fleet)
    )


def serves_personal(experiment: Experiment) -> bool:
    """Return whether devices serve models of their own: personal ones, or with own parts."""
    return experiment.personalisation.is_on or experiment.model.has_local_values


def _has_power(group: FleetConfig, fleet: Fleet) -> bool:
    """Return whether the devices of a group have a stated power; a sensor may be absent."""
    if group.population is None:
        return group.profile is not None and not (fleet == "run" and group.physical)
    try:
        return profiles.load_population(group.population).energy is not None
    except ProfileError:  # reported when the arms are checked
        return False


def _metrics(
    config: GridConfig,
    *,
    trains: bool,
    has_attack: bool,
    has_personal: bool,
    is_served: bool,
    has_energy: bool,
) -> list[str]:
    """Return the keys of the metrics of a grid whose differences are tested."""
    trained = {key for group in NEEDS_TRAINING for key in keys_of(group)} - {WITHOUT_TRAINING}
    unknown = {
        *(() if trains else trained),
        *(() if has_energy else (ENERGY,)),
        *(() if has_attack else keys_of("attack")),
        *(() if trains and has_personal else keys_of("personal")),
        *(() if trains and is_served else keys_of("served")),
        *(() if config.fleet == "run" else (MACHINE_TIME,)),
    }
    targets = config.target.keys if trains else ()
    return [
        *(m.key for m in known_metrics() if m.better and m.key not in unknown),
        *targets,
        *BUDGETS,
    ]


def _metric(where: str, key: str, keys: Sequence[str]) -> str:
    if key not in keys:
        raise ValueError(
            f"{where}: must be a metric of this grid, got {key!r}; there are: {', '.join(keys)}"
        )
    return key


def _span(
    listed: ArmConfig | None,
    shared: Mapping[str, list[Any]],
    base: Document,
    seed: int,
    path: Path,
    tune: TuneConfig | None,
) -> Iterator[Arm]:
    """Yield the arms from the axes and one listed arm; None if no arm is listed."""
    axes = {**shared, **(listed.axes if listed else {})}
    settings = listed.set if listed else {}
    words = short_keys(axes)
    where = f"arm {listed.name!r}" if listed else "axes"
    for key in (*settings, *axes):
        _check_shared(where, key)
    for values in itertools.product(*axes.values()):
        given = tuple(zip(axes, values, strict=True))
        raw = copy.deepcopy(base)
        raw["seed"] = seed
        for key, value in (*settings.items(), *given):
            _assign(raw, where, key, copy.deepcopy(value))
        stem = listed.name if listed else ""
        name = arm_name(stem, words, given)
        longest = MAX_ARM_NAME - MAX_MARK
        if len(name) > longest:
            raise ValueError(
                f"{where}: names must have at most {longest} characters, got {name!r}; "
                "list the arms one by one"
            )
        experiment = parse_experiment(raw, f"{path}: arm {name!r}")
        curve = arm_name(stem, words, [(key, value) for key, value in given if key != FRONT_AXIS])
        arm = Arm(name, curve or name, given, experiment)
        yield arm if tune is None else _with_points(arm, raw, tune, path)


def _with_points(arm: Arm, raw: Document, tune: TuneConfig, path: Path) -> Arm:
    """Return an arm with the points of its search space.

    Args:
        arm: The arm.
        raw: Its document.
        tune: The spaces.
        path: The file of the grid.

    Raises:
        ValueError: A value is refused, or there are too many points.
    """
    own = msgspec.to_builtins(arm.experiment)
    fits = {
        number: all(_value_in(own, key) == value for key, value in space.where.items())
        for number, space in enumerate(tune.space)
    }
    axes = axes_of(tune, fits)
    if size_of(axes) > MAX_CELLS:
        raise ValueError(
            f"tune.space: must have at most {MAX_CELLS:,} points, got {size_of(axes):,} for arm "
            f"{arm.name!r}; remove some values"
        )
    points = []
    for setting in settings_of(axes):
        document = copy.deepcopy(raw)
        for key, value in setting:
            _check_shared("tune.space", key)
            _assign(document, "tune.space", key, copy.deepcopy(value))
        shown = ", ".join(f"{key} = {json.dumps(value, default=str)}" for key, value in setting)
        experiment = parse_experiment(document, f"{path}: tune.space: {shown}: arm {arm.name!r}")
        points.append(Point(setting, experiment))
    return replace(arm, space=axes, points=tuple(points))


def distinct(arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms with distinct names, whose later ones end in a hash of their values.

    Unequal values can have one text in a name, such as `true` and `"true"`. The names of two arms
    with equal values, or without axes, stay as they are.
    """
    given = {arm.name.casefold() for arm in arms if not arm.axes}
    values = dict[str, str]()
    found = []
    for arm in arms:
        key, own = arm.name.casefold(), _mark(arm.axes)
        if arm.axes and (key in given or values.setdefault(key, own) != own):
            of_curve = _mark([axis for axis in arm.axes if axis[0] != FRONT_AXIS])
            arm = replace(arm, name=f"{arm.name}-{own}", curve=f"{arm.curve}-{of_curve}")
        found.append(arm)
    return found


def _mark(values: Sequence[tuple[str, Any]]) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[: MAX_MARK - 1]


def _assign(raw: Document, where: str, key: str, value: Any) -> None:
    try:
        assign(raw, key, value)
    except ValueError as exc:
        raise ValueError(f"{where}: {key}: {exc}") from exc


def _check_shared(where: str, key: str) -> None:
    if key.strip().partition(".")[0] in SHARED:
        raise ValueError(
            f"{where}: {key}: must be equal in all arms, got a setting for some; set it in the "
            "experiment, or use seeds of the grid"
        )


def _known(where: str, arm: str, names: Sequence[str]) -> str:
    if arm not in names:
        raise ValueError(f"{where}: must be an arm, got {arm!r}; there are: {', '.join(names)}")
    return arm


def short_keys(axes: Mapping[str, object]) -> dict[str, str]:
    """Return the last part of each key, or the whole key if two have the same last part."""
    last = {key: key.rpartition(".")[2] for key in axes}
    words = list(last.values())
    return {key: word if words.count(word) == 1 else key for key, word in last.items()}


def arm_name(stem: str, words: Mapping[str, str], values: Sequence[tuple[str, Any]]) -> str:
    """Return the name of an arm: its stem, and a part for each key and value.

    Args:
        stem: Name of a listed arm, or empty.
        words: The short form of each key.
        values: Keys and values.
    """
    parts = [f"{slug(words[key])}-{slug(value)}" for key, value in values]
    return "_".join([stem, *parts] if stem else parts).lstrip("._+-")


def slug(value: Any) -> str:
    """Return a key or a value as a part of the name of an arm; unequal ones may have one text."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", text)
    return (plain if isinstance(value, int | float) else plain.strip("-")) or "none"
