"""The schedule of faults is a function of its seed, and has every kind of fault."""

from collections import Counter
from itertools import groupby, islice

import pytest

from benchmarks._chaos.schedule import (
    DRAWS_PER_LIFE,
    KINDS,
    SETUPS,
    Kind,
    Setup,
    Step,
    kinds_of,
    steps,
)


def schedule(seed: int, count: int, setup: Setup = "process") -> list[Step]:
    return list(islice(steps(seed, kinds_of(setup), 3), count))


def test_equal_seeds_give_equal_schedules() -> None:
    assert schedule(7, 100) == schedule(7, 100)
    assert schedule(7, 100) != schedule(8, 100)


def test_the_line_of_a_step_is_part_of_the_repeatable_schedule() -> None:
    assert schedule(1, 1)[0].line == schedule(1, 2)[0].line
    assert schedule(1, 1)[0].line.startswith("step 1: ")


@pytest.mark.parametrize("setup", SETUPS)
def test_as_many_steps_as_kinds_have_every_kind(setup: Setup) -> None:
    kinds = kinds_of(setup)
    drawn = {fault.kind for step in schedule(3, len(kinds), setup) for fault in step.faults}
    assert drawn == set(kinds)


def test_a_fault_that_ends_the_run_is_alone_or_last() -> None:
    for step in schedule(5, 500):
        assert [f.kind.ends_run for f in step.faults[:-1]] == [False] * (len(step.faults) - 1)
        assert 1 <= len(step.faults) <= 2


def test_long_lives_have_all_faults_that_do_not_end_the_run() -> None:
    kinds = kinds_of("process")
    found = list(islice(steps(4, kinds, 3, has_long_lives=True), 200))
    lives = [len(list(group)) for ends, group in groupby(found, _ends) if not ends]
    others = [kind for kind in kinds if not (kind.ends_run or kind.may_end_run)]
    draws = DRAWS_PER_LIFE * len(others)
    assert all(draws // 2 <= life <= draws for life in lives[:-1])
    first = Counter(fault.kind for step in found[: lives[0]] for fault in step.faults)
    assert {kind: first[kind] for kind in others} == dict.fromkeys(others, DRAWS_PER_LIFE)


def _ends(step: Step) -> bool:
    return step.may_end_run


def test_one_kind_is_repeated_for_ever() -> None:
    kind = Kind(name="broker killed")
    for step in islice(steps(1, [kind], 3), 20):
        assert [fault.kind for fault in step.faults] in ([kind], [kind, kind])
        assert all(fault.duration_s == 0.0 and fault.device is None for fault in step.faults)


def test_faults_of_devices_name_one_of_them() -> None:
    faults = [fault for step in schedule(2, 300) for fault in step.faults]
    assert {f.device for f in faults if f.kind.of_device} == {0, 1, 2}
    assert all((fault.duration_s > 0.0) == fault.kind.lasts for fault in faults)


def test_names_of_kinds_are_unique() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
