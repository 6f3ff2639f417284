"""Lines of the event log: wrapped between words, each part in its style."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fairbed.coordinator.store.tables import EventRow
from fairbed.coordinator.tui.widgets.log import event_lines, wrapped

texts = st.text(alphabet="ab é界", max_size=40)


def event(text: str, *, level: str = "info", device: str | None = None) -> EventRow:
    return EventRow(
        at_s=83.0, wall="", level=level, kind="dispatched", round=None, device=device, text=text
    )


def plain(width: int, row: EventRow) -> list[str]:
    lines = event_lines(row, width)
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_a_long_event_goes_on_beside_its_time() -> None:
    assert plain(34, event("round 29: asked pi-01, pi-02, pi-10")) == [
        "   1:23 dispatched round 29: asked",
        "        pi-01, pi-02, pi-10",
    ]


def test_kind_and_device_have_styles_and_a_warning_a_mark() -> None:
    (line,) = event_lines(event("is silent", level="warning", device="pi-01"), 60)
    assert "".join(text for text, _ in line) == "   1:23 ! dispatched pi-01 is silent"
    assert ("pi-01", "device") in line
    assert {name for text, name in line if text in ("!", " dispatched")} == {"warning"}


def test_a_word_wider_than_the_log_is_cut() -> None:
    assert plain(12, event("0123456789")) == [
        "   1:23 disp",
        "        atch",
        "        ed",
        "        0123",
        "        4567",
        "        89",
    ]


@given(st.lists(st.tuples(texts, st.sampled_from(["", "device"])), max_size=3), st.integers(2, 30))
def test_wrapping_loses_no_character_and_exceeds_no_line(
    parts: list[tuple[str, str]], width: int
) -> None:
    lines = wrapped(parts, width)
    assert all(sum(cell_len(text) for text, _ in line) <= width for line in lines)
    for name in ("", "device"):
        expected = "".join(text for text, of in parts if of == name)
        found = "".join(text for line in lines for text, of in line if of == name)
        assert found.replace(" ", "") == expected.replace(" ", "")
