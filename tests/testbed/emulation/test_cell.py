"""Devices of a cell share its rate: all of it, by its rule, and no device beyond its own link."""

from math import fsum, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.profiles import CellShare
from fairbed.testbed.emulation.cell import Cell, Sharer, alone_bps, shared_rates

CLOSE = 1e-9


def cell(name: str = "ap", bps: float = 20e6, share: CellShare = "equal", **more: str) -> Cell:
    return Cell(name=name, down_bps=bps, up_bps=bps / 2.0, share=share, **more)


def rates(sharers: list[Sharer], *cells: Cell) -> list[float]:
    return shared_rates(sharers, {one.name: one for one in cells}, "down")


own_rates = st.one_of(st.floats(1e3, 1e9), st.just(inf), st.just(0.0), st.just(5e6))
sharers_of_one = st.lists(
    st.builds(Sharer, st.just("ap"), own_rates, st.integers(0, 7)), min_size=1, max_size=12
)
capacities = st.floats(1e4, 1e9)


@pytest.mark.parametrize(
    ("share", "sharers", "expected"),
    [
        ("equal", [Sharer("ap", inf)] * 4, [5e6] * 4),
        ("equal", [Sharer("ap", 2e6), Sharer("ap", 50e6), Sharer("ap", inf)], [2e6, 9e6, 9e6]),
        ("equal", [Sharer("ap", 2e6), Sharer("ap", 3e6)], [2e6, 3e6]),
        ("equal", [Sharer("ap", 0.0), Sharer("ap", inf)], [0.0, 20e6]),
        ("proportional-fair", [Sharer("ap", 4e6), Sharer("ap", 80e6)], [2e6, 10e6]),
        ("proportional-fair", [Sharer("ap", 0.0), Sharer("ap", 80e6)], [0.0, 20e6]),
        ("priority", [Sharer("ap", 15e6, 1), Sharer("ap", 12e6, 0)], [8e6, 12e6]),
        ("priority", [Sharer("ap", inf, 3), Sharer("ap", inf, 0)], [0.0, 20e6]),
        ("priority", [Sharer("ap", inf, 2)] * 2, [10e6, 10e6]),
    ],
)
def test_worked_examples(share: CellShare, sharers: list[Sharer], expected: list[float]) -> None:
    assert rates(sharers, cell(share=share)) == pytest.approx(expected)


def test_each_direction_has_its_own_rate() -> None:
    both = [Sharer("ap", inf)] * 2
    assert shared_rates(both, {"ap": cell()}, "up") == pytest.approx([5e6, 5e6])


def test_the_devices_and_not_the_cells_share_the_line_in_front() -> None:
    line = cell("line", 12e6)
    one, other = cell("one", 100e6, behind="line"), cell("other", 100e6, behind="line")
    sharers = [Sharer("one", inf)] * 3 + [Sharer("other", inf)]
    assert rates(sharers, line, one, other) == pytest.approx([3e6] * 4)
    slow = cell("one", 3e6, behind="line")
    assert rates(sharers, line, slow, other) == pytest.approx([1e6, 1e6, 1e6, 9e6])


@given(sharers_of_one, capacities)
def test_an_equal_cell_is_max_min_fair(sharers: list[Sharer], bps: float) -> None:
    sharers = [one._replace(priority=0) for one in sharers]
    found = rates(sharers, cell(bps=bps))
    assert all(rate <= one.own_bps for rate, one in zip(found, sharers, strict=True))
    assert fsum(found) <= bps * (1.0 + CLOSE)
    level = max(found)
    for rate, one in zip(found, sharers, strict=True):  # below the level only by the own link
        assert rate == level or rate == one.own_bps
    if fsum(found) < bps * (1.0 - CLOSE):  # work conserving
        assert found == [one.own_bps for one in sharers]


@given(sharers_of_one, capacities)
def test_a_proportional_fair_cell_shares_its_time(sharers: list[Sharer], bps: float) -> None:
    found = rates(sharers, cell(bps=bps, share="proportional-fair"))
    times = [
        rate / min(one.own_bps, bps)
        for rate, one in zip(found, sharers, strict=True)
        if one.own_bps > 0.0
    ]
    assert times == pytest.approx([1.0 / max(1, len(times))] * len(times))
    assert all(rate <= one.own_bps for rate, one in zip(found, sharers, strict=True))


@given(sharers_of_one, capacities)
def test_a_priority_takes_nothing_from_the_one_before(sharers: list[Sharer], bps: float) -> None:
    found = rates(sharers, cell(bps=bps, share="priority"))
    assert fsum(found) <= bps * (1.0 + CLOSE)
    for priority in range(8):
        first = [one for one in sharers if one.priority <= priority]
        of_first = [r for r, one in zip(found, sharers, strict=True) if one.priority <= priority]
        assert rates(first, cell(bps=bps, share="priority")) == pytest.approx(of_first)


trees = st.lists(st.tuples(capacities, st.integers(0, 3)), min_size=4, max_size=4)


@given(
    trees,
    st.lists(st.tuples(st.integers(0, 3), own_rates), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_rates_are_max_min_fair_in_a_tree_whatever_the_order(
    tree: list[tuple[float, int]], devices: list[tuple[int, float]], random: object
) -> None:
    """A device gets less than another only if its own link, or a full line, has no more for it."""
    cells = [cell("0", tree[0][0])] + [
        cell(str(at), bps, behind=str(parent % at)) for at, (bps, parent) in enumerate(tree) if at
    ]
    sharers = [Sharer(str(at), own) for at, own in devices]
    found = rates(sharers, *cells)
    by_name = {one.name: one for one in cells}
    for one, rate in zip(sharers, found, strict=True):
        assert rate <= alone_bps(one, by_name, "down")
    for one, rate in zip(sharers, found, strict=True):
        if rate >= one.own_bps:
            continue
        limits = []
        at: str | None = one.cell
        while at is not None:
            inside = [
                r for s, r in zip(sharers, found, strict=True) if _is_behind(s.cell, at, by_name)
            ]
            is_full = fsum(inside) >= by_name[at].down_bps * (1.0 - 1e-6)
            limits.append(is_full and rate >= max(inside) * (1.0 - 1e-6))
            at = by_name[at].behind
        assert any(limits)
    order = list(range(len(sharers)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert rates([sharers[at] for at in order], *cells) == [found[at] for at in order]


def _is_behind(name: str | None, line: str, cells: dict[str, Cell]) -> bool:
    while name is not None:
        if name == line:
            return True
        name = cells[name].behind
    return False
