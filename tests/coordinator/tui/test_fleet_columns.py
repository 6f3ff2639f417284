"""Columns of the fleet: order, fit and words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.tui.filters import Filter, parse_filter
from fairbed.coordinator.tui.fleet_columns import (
    MAX_BAR,
    PADDING,
    PHASE_BAR,
    FleetColumn,
    Order,
    all_columns,
    arranged,
    by_key,
    columns_of,
    fields,
    fitting,
)
from fairbed.coordinator.tui.view import DeviceView, RunView

devices = st.lists(
    st.builds(
        DeviceView,
        st.text("pi-02²é", min_size=1, max_size=5),
        tau_s=st.none() | st.sampled_from([0.0, 0.5, 2.0]),
        profile=st.sampled_from(["", "pi", "nano"]),
    ),
    max_size=12,
)
orders = st.builds(Order, st.sampled_from(["", "name", "profile", "tau", "rate"]), st.booleans())


@given(devices=devices, order=orders)
def test_every_kept_device_is_listed_once_and_equal_ones_keep_their_order(
    devices: list[DeviceView], order: Order
) -> None:
    keeps: Filter[DeviceView] = parse_filter("!profile:nano", fields())
    listed = arranged(devices, keeps, order)
    assert sorted(listed) == [at for at, d in enumerate(devices) if d.profile != "nano"]
    if not order.key:
        return
    values = [by_key()[order.key].value(devices[at]) for at in listed]
    known = [value for value in values if value is not None]
    assert values == known + [None] * (len(values) - len(known))  # unknown ones are last
    for (one, a), (other, b) in zip(
        zip(listed, values, strict=True), zip(listed[1:], values[1:], strict=True), strict=False
    ):
        assert a != b or one < other
    if order.key == "tau":
        assert known == sorted(known, reverse=order.is_largest_first)


def test_numbers_in_names_are_compared_as_numbers() -> None:
    names = ["pi-10", "pi-9", "PI-1", "nano-2"]
    listed = arranged([DeviceView(name) for name in names], Filter(), Order("name"))
    assert [names[at] for at in listed] == ["nano-2", "PI-1", "pi-9", "pi-10"]


@given(order=orders)
def test_an_order_is_remembered_as_a_text(order: Order) -> None:
    assert Order.read(str(order)) == order
    assert order.reversed.reversed == order


@pytest.mark.parametrize("text", ["no-such-column", "--tau", "-no"])
def test_a_damaged_order_counts_as_none(text: str) -> None:
    assert Order.read(text) == Order()


@pytest.mark.parametrize(
    ("key", "order"),
    [("tau", "-tau"), ("queue", "-queue"), ("rate", "rate"), ("accuracy", "accuracy"), ("", "")],
)
def test_what_deserves_attention_comes_first(key: str, order: str) -> None:
    before = Order("name")
    assert str(before.by(key)) == order
    assert before.by(key).by(key) == before.by(key).reversed


@given(
    widths=st.fixed_dictionaries({column: st.integers(1, 30) for column in all_columns()}),
    width=st.integers(1, 300),
    always=st.sampled_from(["", "valid"]),
)
def test_columns_fit_and_the_sorted_one_stays(
    widths: dict[FleetColumn, int], width: int, always: str
) -> None:
    kept = fitting(widths, width, always=always)
    assert by_key()["name"] in kept
    assert len(kept) == 1 or sum(kept.values()) + PADDING * len(kept) <= width
    assert list(kept) == [column for column in widths if column in kept]
    assert all(kept[c] == widths[c] for c in kept if c is not PHASE_BAR)
    assert kept.get(PHASE_BAR, 0) <= max(MAX_BAR, widths[PHASE_BAR])
    left_out = [c.priority for c in all_columns() if c not in kept]
    stay = [c.priority for c in kept if c.key not in ("name", always)]
    assert not left_out or not stay or max(stay) <= min(left_out)


def test_every_column_has_words_and_a_letter_of_its_own() -> None:
    letters = [column.letter for column in all_columns()]
    assert len({*letters, "o"}) == len(letters) + 1
    assert all(column.help.endswith(".") for column in all_columns())
    assert {field.name for field in fields()} == by_key().keys() - {"phases"}


def test_chosen_columns_replace_the_usual_ones() -> None:
    view = RunView(devices=(DeviceView("pi", temperature_celsius=50.0),))
    usual = {column.key for column in columns_of(view)}
    assert "temp" in usual
    assert not usual & {"kind", "clock", "energy", "malicious"}  # nothing to show
    assert [c.key for c in columns_of(view, ("tau", "energy"))] == ["name", "tau", "energy"]
    assert "phases" not in {c.key for c in columns_of(view, has_bars=False)}
