"""Cells of an experiment file: read with their profiles; a wrong one is refused in one line."""

from typing import Any

import pytest

from fairbed import profiles
from fairbed.testbed.emulation.cell import Cell
from fairbed.testbed.experiment.file import Experiment, ExperimentError, make_experiment
from fairbed.testbed.experiment.fleet import cells_of, plan_fleet

PI = {"profile": "raspberry-pi-4b", "count": 2}
AP = {"name": "ap", "down_bps": 20e6, "up_bps": 10e6}
LINE = {"name": "line", "down_bps": 50e6, "up_bps": 5e6}


def experiment(*cells: dict[str, Any], **group: Any) -> Experiment:
    document = {
        "name": "x",
        "fleet": [PI | {"cell": "ap"} | group],
        "cell": list(cells),
        "selection": {"per_round": 1, "beta": 0.0},
    }
    return make_experiment(document, "x.toml")


def test_a_device_has_its_cell_and_those_in_front() -> None:
    plan = experiment(AP | {"behind": "line"}, LINE)
    ap = Cell(name="ap", down_bps=20e6, up_bps=10e6, behind="line")
    line = Cell(name="line", down_bps=50e6, up_bps=5e6)
    assert cells_of(plan) == {"ap": ap, "line": line}
    assert [device.spec.cells for device in plan_fleet(plan, {})] == [(ap, line)] * 2
    dilated = plan_fleet(plan, {})[0].dilated(2.0).spec
    assert [cell.down_bps for cell in dilated.cells] == [10e6, 25e6]


def test_a_key_replaces_that_of_the_profile() -> None:
    shipped = profiles.load_cell("lte-cell")
    plan = experiment({"name": "ap", "profile": "lte-cell", "up_bps": 3e6})
    assert cells_of(plan)["ap"] == Cell(
        name="ap", down_bps=shipped.down_bps, up_bps=3e6, share="proportional-fair"
    )


def test_a_group_without_a_cell_has_none() -> None:
    document = {"name": "x", "fleet": [PI], "selection": {"per_round": 1, "beta": 0.0}}
    assert plan_fleet(make_experiment(document, "x.toml"), {})[0].spec.cells == ()


@pytest.mark.parametrize(
    ("cells", "group", "line"),
    [
        (
            [AP],
            {"cell": "ap-2"},
            "x.toml: fleet[0].cell must be the name of a [[cell]], got 'ap-2'; the cells are ap",
        ),
        (
            [],
            {},
            "x.toml: fleet[0].cell must be the name of a [[cell]], got 'ap'; the experiment has no "
            "[[cell]]; add one",
        ),
        (
            [AP, LINE],
            {},
            "x.toml: cell[1].name must be named by a group of the fleet or by another cell, got "
            "'line', which none names; set cell = 'line' in a [[fleet]], or remove the cell",
        ),
        (
            [AP, AP],
            {},
            "x.toml: cell[0].name must differ from those of the other cells, got 'ap' twice; "
            "rename one",
        ),
        (
            [AP | {"behind": "dsl"}],
            {},
            "x.toml: cell[0].behind must be the name of a [[cell]], got 'dsl'; the cells are ap",
        ),
        (
            [AP | {"behind": "line"}, LINE | {"behind": "ap"}],
            {},
            "x.toml: cell[0].behind must lead to a cell that is behind no other, with at most 4 "
            "cells on the way, got more from 'ap'; remove one",
        ),
        (
            [{"name": "ap", "down_bps": 20e6}],
            {},
            "x.toml: cell[0]: up_bps must be given without a profile, got none for the cell 'ap'; "
            "give the rate in bit/s, such as 20e6",
        ),
        (
            [AP],
            {"profile": None, "model": "linear", "theta": (1.0, 1.0, 0.15)},
            "x.toml: fleet[0]: model excludes cell, got both, with cell 'ap'; remove one: only "
            "devices with a profile share a cell",
        ),
    ],
)
def test_a_wrong_cell_is_one_line(
    cells: list[dict[str, Any]], group: dict[str, Any], line: str
) -> None:
    with pytest.raises(ExperimentError) as error:
        experiment(*cells, **group)
    assert str(error.value) == line


@pytest.mark.parametrize("key", ["down_bps", "up_bps"])
def test_a_rate_of_0_is_refused(key: str) -> None:
    with pytest.raises(ExperimentError, match=rf"^x.toml: cell\[0\]\.{key}: .*> 0.*got 0"):
        experiment(AP | {key: 0})


@pytest.mark.parametrize(
    ("cells", "group", "line"),
    [
        (
            [AP],
            {"priority": 1},
            "fleet[0].priority: needs a cell with share = \"priority\", got 'equal' in the cell "
            "'ap'; remove the priority, or change the cell",
        ),
        (
            [],
            {"cell": None, "priority": 1},
            'fleet[0].priority: needs a cell with share = "priority", got no cell; remove the '
            "priority, or change the cell",
        ),
        (
            [AP | {"behind": "line", "share": "priority"}, LINE],
            {},
            "cell[0].share: must be \"equal\" for a cell that is behind another, got 'priority' "
            "for 'ap'; change the rule, or remove `behind`",
        ),
        (
            [AP | {"behind": "line"}, LINE | {"share": "proportional-fair"}],
            {},
            'cell[1].share: must be "equal" for a cell that has others behind it, got '
            "'proportional-fair' for 'line'; change the rule, or remove `behind`",
        ),
    ],
)
def test_a_rule_that_does_not_fit_is_one_line(
    cells: list[dict[str, Any]], group: dict[str, Any], line: str
) -> None:
    plan = experiment(*cells, **group)
    with pytest.raises(ExperimentError) as error:
        plan_fleet(plan, {})
    assert str(error.value) == line
