"""The grid file: arms, axes and seeds, and its error messages."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed import profiles
from fairbed.profiles.population import Distributed, EnergyPopulation
from fairbed.testbed.compare.grid import (
    NAME_PATTERN,
    Arm,
    Grid,
    arm_name,
    distinct,
    load_grid,
)
from fairbed.testbed.experiment.file import Experiment, ExperimentError

BASE = """
name = "base"
rounds = 7
[selection]
per_round = 1
[[fleet]]
model = "linear"
theta = [1.0, 1.0, 0.2]
count = 3
"""
ARMS = """
[[arm]]
name = "uniform"
set = { "selection.policy" = "uniform" }
[[arm]]
name = "rbcs-f"
axes = { "selection.V" = [0, 2.5] }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE, encoding="utf-8")
    return tmp_path


def grid_of(folder: Path, text: str, *settings: str, seeds: int | None = None) -> Grid:
    path = folder / "grid.toml"
    path.write_text(text, encoding="utf-8")
    return load_grid(path, settings, seeds)


def small(folder: Path, top: str = "seeds = 3", arms: str = ARMS) -> Grid:
    return grid_of(folder, f'experiment = "base.toml"\n{top}\n{arms}')


def test_arms_are_listed_and_spanned(folder: Path) -> None:
    grid = small(folder)
    assert [arm.name for arm in grid.arms] == ["uniform", "rbcs-f_V-0", "rbcs-f_V-2.5"]
    assert [arm.experiment.selection.V for arm in grid.arms] == [20.0, 0.0, 2.5]
    assert [arm.curve for arm in grid.arms] == ["uniform", "rbcs-f", "rbcs-f"]
    assert [arm.front_value for arm in grid.arms] == [None, 0.0, 2.5]
    assert grid.arms[0].experiment.selection.policy == "uniform"
    assert (grid.name, grid.baseline, grid.seeds) == ("grid", "uniform", (0, 1, 2))


def test_axes_of_the_grid_multiply_every_arm(folder: Path) -> None:
    axes = '\n[axes]\n"aggregation.rule" = ["fedavg", "q-fedavg"]\n'
    grid = small(folder, "seeds = [5, 1]", ARMS + axes)
    assert len(grid.arms) == 6
    assert grid.arms[-1].name == "rbcs-f_rule-q-fedavg_V-2.5"
    assert grid.arms[-1].curve == "rbcs-f_rule-q-fedavg"
    assert [(c.seed, c.experiment.seed) for c in grid.cells()[::6]] == [(5, 5), (1, 1)]


def test_axes_alone_make_arms_and_keys_with_equal_ends_are_written_in_full(folder: Path) -> None:
    axes = '[axes]\n"selection.deadline_s" = [1, 2]\n"round.deadline_s" = [3]\n'
    assert [arm.name for arm in small(folder, arms=axes).arms] == [
        "selection.deadline_s-1_round.deadline_s-3",
        "selection.deadline_s-2_round.deadline_s-3",
    ]


@given(
    st.lists(
        st.one_of(
            st.booleans(),
            st.integers(-9, 9),
            st.floats(-1e9, 1e9),
            st.text(max_size=8),
            st.lists(st.text(max_size=3), max_size=2),
            st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
        ),
        min_size=1,
        max_size=12,
        unique_by=lambda value: json.dumps(value, sort_keys=True),
    ),
    st.sampled_from(["", "rbcs-f", "A"]),
)
def test_generated_names_follow_the_rule_of_given_ones_and_never_collide(
    values: list[Any], stem: str
) -> None:
    """Neither do their folders where the case of letters does not count."""
    key = "selection.options.x"
    arms = [
        Arm(name, name, ((key, value),), cast(Experiment, None))
        for value in values
        for name in [arm_name(stem, {key: "x"}, [(key, value)])]
    ]
    given_one = replace(arms[0], axes=())
    for some in (arms, [given_one, *arms]):
        names = [arm.name for arm in distinct(some)]
        assert all(re.search(NAME_PATTERN, name) for name in names)
        assert len({name.casefold() for name in names}) == len(names)
        assert names[0] == arms[0].name


def test_two_given_names_must_differ_where_case_does_not_count(folder: Path) -> None:
    with pytest.raises(ExperimentError, match="also where case does not count, got 'uniform'"):
        small(folder, arms=ARMS.replace('"rbcs-f"', '"Uniform"').split("axes")[0])


def test_the_metrics_of_the_table_for_a_paper_are_those_of_the_grid(folder: Path) -> None:
    own = 'seeds = 1\nreport = ["jain", "at_equal_time"]'
    assert small(folder, own).report == ("jain", "at_equal_time")
    with pytest.raises(ExperimentError, match="report: must be a metric of this grid, got 'acc'"):
        small(folder, 'seeds = 1\nreport = ["jain", "acc"]')


def test_what_is_set_for_all_comes_before_what_an_arm_sets(folder: Path) -> None:
    text = f'experiment = "base.toml"\nseeds = 1\nset = {{ "selection.V" = 9 }}\n{ARMS}'
    grid = grid_of(folder, text, "rounds=4", seeds=2)
    assert [arm.experiment.selection.V for arm in grid.arms] == [9.0, 0.0, 2.5]
    assert {arm.experiment.rounds for arm in grid.arms} == {4}
    assert grid.seeds == (0, 1)


def test_an_experiment_may_stand_in_the_grid(folder: Path) -> None:
    text = "\n".join(
        line.replace("[[fleet]]", "[[experiment.fleet]]").replace("[sel", "[experiment.sel")
        for line in BASE.strip().splitlines()[2:]
    )
    grid = grid_of(folder, f"seeds = 1\n{ARMS}\n[experiment]\nrounds = 7\n{text}")
    assert grid.arms[0].experiment.devices == 3
    assert grid.arms[0].experiment.name == "grid"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'experiment = "base.toml"\n{ARMS}', "seeds: must be given"),
        (f'experiment = "base.toml"\nseeds = 0\n{ARMS}', "seeds: must be"),
        (f'experiment = "base.toml"\nseeds = [1, 1]\n{ARMS}', "seeds: must be distinct"),
        (f'experiment = "base.toml"\nseeds = []\n{ARMS}', "seeds: must be"),
        ('experiment = "base.toml"\nseeds = 1', "arm: a grid needs arms"),
        (f'experiment = "nope.toml"\nseeds = 1\n{ARMS}', r"nope\.toml: there is no such file"),
        (f'experiment = "base.toml"\nseeds = 1\nfleet = "real"\n{ARMS}', "'replay', 'run'"),
        (f'experiment = "base.toml"\nseeds = 1\nseed = 1\n{ARMS}', "did you mean 'seeds'"),
        (
            f'experiment = "base.toml"\nseeds = 1\nbaseline = "random"\n{ARMS}',
            "baseline: must be an arm, got 'random'; there are: uniform, rbcs-f_V-0",
        ),
        (
            f'experiment = "base.toml"\nseeds = 1\n{ARMS}\n[target]\nof = "random"',
            "target.of: must be an arm",
        ),
        (f'experiment = "base.toml"\nseeds = 1\n{ARMS}\n[target]\nshare = [1.5]', "share"),
        (
            f'experiment = "base.toml"\nseeds = 1\n{ARMS}{ARMS}',
            "arm 'uniform': names must be",
        ),
        (
            'experiment = "base.toml"\nseeds = 1\n[[arm]]\nname = "a b"',
            r"arm\[0\]\.name: must be a text that matches",
        ),
        (
            'experiment = "base.toml"\nseeds = 1\n[[arm]]\nname="a"\nset={"selection.v"=1}',
            "arm 'a': selection.v: unknown key; .*valid here: V, ",
        ),
        (
            'experiment = "base.toml"\nseeds = 1\n[[arm]]\nname="a"\nset={"selection.policy"="x"}',
            "arm 'a': selection.policy: must be one of .*'uniform'.*, got 'x'",
        ),
        (
            'experiment = "base.toml"\nseeds = 1\n[[arm]]\nname="a"\nset={"seeds.data"=1}',
            "arm 'a': seeds.data: must be equal in all arms",
        ),
        (
            'experiment = "base.toml"\nseeds = 1\n[[arm]]\nname="a"\nset={"rounds.x"=1}',
            "arm 'a': rounds.x: 'rounds' is not a table",
        ),
        (
            'experiment = "base.toml"\nseeds = 1\n[[arm]]\nname="a"\naxes={"selection.V"=[]}',
            "axes",
        ),
        (
            f'experiment = "base.toml"\nseeds = 1000\n[axes]\n"selection.V" = {list(range(11))}',
            "must be at most 10,000, got 11,000",
        ),
        (f'experiment = "base.toml"\nseeds = nan\n{ARMS}', "seeds: must be a finite number"),
        (
            f'experiment = "base.toml"\nseeds = 1\nprimary = "speed"\n{ARMS}',
            "primary: must be a metric of this grid, got 'speed'; there are: virtual_s, ",
        ),
        (
            f'experiment = "base.toml"\nseeds = 1\nprimary = "accuracy_mean"\n{ARMS}',
            "primary: must be a metric of this grid, got 'accuracy_mean'; there are: virtual_s, ",
        ),
        (
            f'experiment = "base.toml"\nseeds = 1\nprimary = "wall_s"\n{ARMS}',
            "primary: must be a metric of this grid, got 'wall_s'",
        ),
        (
            f'experiment = "base.toml"\nseeds = 1\nbudget_metric = "jain"\n{ARMS}',
            "budget_metric: must be a metric of this grid, got 'jain'; there are: updates",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file(folder: Path, text: str, words: str) -> None:
    with pytest.raises(ExperimentError, match=words) as caught:
        grid_of(folder, text)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_the_primary_metric_is_accuracy_with_training_and_time_without(folder: Path) -> None:
    grid = small(folder)
    assert (grid.primary, grid.budget_metric) == ("virtual_s", "updates")
    training = 'seeds = 1\nset = { "replay.training" = true }'
    grid = small(folder, training)
    assert (grid.primary, grid.budget_metric) == ("accuracy_mean", "accuracy_mean")
    own = f'{training}\nprimary = "time_to_0.8"\nbudget_metric = "accuracy_worst10"'
    grid = small(folder, own, f"{ARMS}\n[target]\naccuracy = [0.8]")
    assert (grid.primary, grid.budget_metric) == ("time_to_0.8", "accuracy_worst10")
    live = small(folder, 'seeds = 1\nfleet = "run"\nprimary = "wall_s"')
    assert (live.primary, live.budget_metric) == ("wall_s", "accuracy_mean")


def test_an_arm_cannot_set_the_seed(folder: Path) -> None:
    with pytest.raises(ExperimentError, match="--set: seed: must be equal in all arms"):
        grid_of(folder, f'experiment = "base.toml"\nseeds = 1\n{ARMS}', "seed=3")


@pytest.mark.parametrize(
    ("group", "fleet", "has_power"),
    [
        ('profile = "raspberry-pi-4b"', "replay", True),
        ('profile = "raspberry-pi-4b"', "run", True),
        ('physical = ["pi-1"]\nprofile = "raspberry-pi-4b"', "replay", True),
        ('physical = ["pi-1"]\nprofile = "raspberry-pi-4b"', "run", False),  # without a sensor
        ('population = "phones-2025"', "replay", False),
        ('population = "powered.toml"', "replay", True),
        ('population = "no-such-population"', "replay", False),
        ('model = "linear"\ntheta = [1.0, 1.0, 0.2]', "replay", False),
    ],
)
def test_energy_is_a_metric_where_every_device_has_a_power(
    group: str, fleet: str, has_power: bool, folder: Path
) -> None:
    population = profiles.load_population("phones-2025")
    power = Distributed(value=2.0, tag="literature", source="made up")
    powered = msgspec.structs.replace(population, energy=EnergyPopulation(compute_w=power))
    (folder / "powered.toml").write_text(profiles.to_toml(powered), encoding="utf-8")
    group = group.replace("powered.toml", str(folder / "powered.toml"))
    base = f'name = "base"\n[selection]\nper_round = 1\nbeta = 0.1\n[[fleet]]\n{group}\n'
    (folder / "base.toml").write_text(base, encoding="utf-8")
    top = f'seeds = 1\nfleet = "{fleet}"\nprimary = "energy_j"'
    if has_power:
        assert small(folder, top).primary == "energy_j"
    else:
        with pytest.raises(ExperimentError, match="primary: must be a metric of this grid"):
            small(folder, top)


RULES = """
[axes]
"aggregation.rule" = ["fedavg", "q-fedavg", "term"]
"""


def test_with_fixed_cohorts_arms_that_select_alike_follow_one_of_them(folder: Path) -> None:
    grid = small(folder, 'seeds = 2\ncohorts = "fixed"', ARMS + RULES)
    leader_of = {arm.name: arm.cohorts_of for arm in grid.arms}
    for stem in ("uniform", "rbcs-f"):
        leads = [name for name in leader_of if name.startswith(stem) and leader_of[name] is None]
        assert len(leads) == (1 if stem == "uniform" else 2), leads
    followers = [arm for arm in grid.arms if arm.cohorts_of is not None]
    assert len(followers) == 6
    for arm in followers:
        leader = next(one for one in grid.arms if one.name == arm.cohorts_of)
        assert leader.experiment.selection == arm.experiment.selection
        assert leader.experiment.aggregation.rule == "fedavg"
    leading, following = grid.stages()
    assert {cell.arm.cohorts_of for cell in leading} == {None}
    assert len(leading) + len(following) == len(grid.cells())


def test_the_baseline_gives_its_cohorts(folder: Path) -> None:
    top = 'seeds = 1\ncohorts = "fixed"\nbaseline = "rule-term"'
    grid = small(folder, top, RULES)
    assert [arm.cohorts_of for arm in grid.arms] == ["rule-term", "rule-term", None]


@pytest.mark.parametrize(
    ("top", "problem"),
    [
        ('fleet = "run"', r'cohorts: must be "own" with fleet = "run"'),
        ('set = { "replay.cohorts_from" = "x" }', r"replay\.cohorts_from must not be set"),
    ],
)
def test_cohorts_that_cannot_be_fixed_are_one_line(folder: Path, top: str, problem: str) -> None:
    with pytest.raises(ExperimentError, match=problem):
        small(folder, f'seeds = 1\ncohorts = "fixed"\n{top}', RULES)
