"""Successive halving: its plan, its cost, and its choice against that of the full grid."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import halving as bench
from fairbed.testbed.compare.tuning.halving import Choice, Rung, Values, plan, runs_in, search


def run(rungs: list[Rung], seeds: range, better: str, values: Values) -> Choice:
    trials = search(rungs, seeds, "less" if better == "less" else "more")
    wanted = next(trials)
    while True:
        try:
            wanted = trials.send({trial: values[trial] for trial in wanted})
        except StopIteration as stop:
            found: Choice = stop.value
            return found


@pytest.mark.parametrize(
    ("points", "seeds", "rungs"),
    [
        (8, 4, [(8, 1), (4, 2), (2, 4)]),
        (9, 3, [(9, 1), (4, 2), (2, 3)]),
        (2, 4, [(2, 4)]),
        (4, 4, [(4, 2), (2, 4)]),
        (64, 1, [(64, 1)]),
        (1, 3, [(1, 3)]),
    ],
)
def test_the_plan_has_fewer_points_and_more_seeds(
    points: int, seeds: int, rungs: list[tuple[int, int]]
) -> None:
    assert [(rung.points, rung.seeds) for rung in plan(points, seeds)] == rungs


@given(st.integers(1, 200), st.integers(1, 40))
def test_the_winner_has_all_seeds_at_half_the_cost_where_there_are_enough(n: int, m: int) -> None:
    rungs = plan(n, m)
    assert (rungs[0].points, rungs[-1].seeds) == (n, m)
    assert rungs[-1].points >= min(n, 2)
    assert runs_in(rungs) <= n * m == runs_in(plan(n, m, is_halved=False))
    if n >= 8 and m >= 4 and m & (m - 1) == 0:
        assert runs_in(rungs) <= n * m / 2


def test_a_rung_keeps_the_better_half_and_its_runs() -> None:
    """Point 3 is the best with all seeds; point 0 with the first one, but not with two."""
    values: dict[tuple[int, int], float | None] = {
        (point, seed): float(point) for point, seed in itertools.product(range(4), range(4))
    }
    values[0, 0] = 2.5
    trials = search([Rung(4, 1), Rung(2, 2), Rung(2, 4)], [7, 5, 6, 8], "more")
    assert next(trials) == [(0, 7), (1, 7), (2, 7), (3, 7)]
    assert trials.send({(0, 7): 2.5, (1, 7): 1.0, (2, 7): 2.0, (3, 7): 3.0}) == [(3, 5), (0, 5)]
    assert trials.send({(3, 5): 3.0, (0, 5): 0.0}) == [(3, 6), (0, 6), (3, 8), (0, 8)]
    with pytest.raises(StopIteration) as end:
        trials.send({(3, 6): 1.0, (0, 6): 1.0, (3, 8): 1.0, (0, 8): 9.0})
    choice: Choice = end.value.value
    assert choice.point == 0, "3.125 against 2.0: all seeds count"
    assert [tried.rung for tried in choice.tried] == [3, 1, 1, 3]
    assert choice.tried[1].values == {7: 1.0}
    assert choice.tried[0].mean([7, 5, 6, 8]) == 12.5 / 4


def test_less_may_be_better_and_an_undefined_value_is_the_worst() -> None:
    values: dict[tuple[int, int], float | None] = {(0, 0): None, (1, 0): 0.3, (2, 0): 0.2}
    assert run(plan(3, 1), range(1), "less", values).point == 2
    assert run(plan(3, 1), range(1), "more", values).point == 1
    values[1, 0] = float("nan")
    values[2, 0] = None
    assert run(plan(3, 1), range(1), "more", values).point is None


def test_of_equal_points_the_first_is_chosen_and_the_others_are_counted() -> None:
    values: dict[tuple[int, int], float | None] = {(0, 0): 0.1, (1, 0): 0.2, (2, 0): 0.2}
    choice = run(plan(3, 1), range(1), "more", values)
    assert (choice.point, choice.ties) == (1, 1)


@pytest.mark.parametrize("space", bench.SPACES)
@pytest.mark.parametrize("noise", [0.25, 0.5])
def test_the_choice_is_that_of_the_full_grid_in_80_percent_of_cases_at_half_the_cost(
    space: tuple[int, int], noise: float
) -> None:
    found = bench.row(space, 4, noise, 200)
    assert float(found["same"]) >= 0.8
    assert float(found["cost"]) <= 0.5
    assert float(found["loss"]) < 0.05
