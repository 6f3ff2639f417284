"""Names on the timeline: short enough for the bars, and distinct; what it shows without a round."""

from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.tui.widgets.timeline import (
    MIN_BAR_WIDTH,
    NAME_WIDTH,
    NUMBER_WIDTH,
    shortened,
    timeline_lines,
    width_of_names,
)

device_names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=32)


def test_a_name_that_fits_is_left_alone() -> None:
    assert shortened("pi-7", 4) == "pi-7"


def test_a_name_that_does_not_fit_keeps_its_end() -> None:
    assert shortened("raspberry-pi-3b-plus-12", 10) == "…b-plus-12"
    assert shortened("raspberry-pi-3b-plus-12", 1) == "…"
    assert shortened("raspberry-pi-3b-plus-12", 0) == ""


@given(name=device_names, width=st.integers(0, 40))
def test_a_name_never_takes_more_than_its_columns(name: str, width: int) -> None:
    short = shortened(name, width)
    assert len(short) <= width
    assert name.endswith(short.removeprefix("…"))


@given(names=st.lists(device_names, max_size=8), width=st.integers(0, 200))
def test_names_leave_room_for_bar_and_number(names: list[str], width: int) -> None:
    granted = width_of_names(names, width)
    assert 0 <= granted <= max(NAME_WIDTH, width // 3)
    assert granted == 0 or width - granted - NUMBER_WIDTH >= MIN_BAR_WIDTH


def test_long_names_are_shown_whole_where_there_is_room() -> None:
    assert width_of_names(["raspberry-pi-3b-plus-12"], 76) == 24
    assert width_of_names(["raspberry-pi-3b-plus-12"], 56) == 18
    assert width_of_names(["pi-1"], 76) == NAME_WIDTH


def test_without_a_round_the_report_of_the_wait_is_shown_on_as_many_lines_as_fit() -> None:
    report = "1 of 2 devices are ready for round 1, 7 s left"

    def texts(width: int, height: int, waiting: str) -> list[str]:
        return [
            "".join(x.text for x in line) for line in timeline_lines((), width, height, waiting)
        ]

    assert texts(60, 9, "") == ["no round yet"]
    assert texts(60, 9, report) == [report]
    assert texts(30, 9, report) == ["1 of 2 devices are ready for", "round 1, 7 s left"]
    assert texts(30, 1, report) == ["1 of 2 devices are ready for"]
