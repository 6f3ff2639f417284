"""HTML is escaped by construction."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.report.markup import (
    HtmlCell,
    HtmlColumn,
    Markup,
    escaped,
    html_table,
    join,
    tag,
)
from fairbed.wire.printable import printable


class _Reader(HTMLParser):
    """Collects elements, their attributes and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(), st.text())
def test_no_text_or_attribute_becomes_an_element(text: str, attribute: str) -> None:
    read = _Reader(tag("td", text, title=attribute))
    assert [name for name, _ in read.elements] == ["td"]
    assert list(read.elements[0][1]) == ["title"]
    shown = [text.replace("\N{NO-BREAK SPACE}", " ") for text in (read.text, printable(text))]
    assert shown[0] == shown[1]


def test_characters_that_turn_the_direction_of_a_text_are_replaced() -> None:
    assert escaped("pi\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe") == "pi?gnp.exe"


def test_markup_is_not_escaped_twice() -> None:
    assert join(tag("b", "<"), " & ") == "<b>&lt;</b> &amp; "
    assert escaped(Markup("<br>")) == "<br>"


def test_attributes_that_are_false_or_none_are_left_out() -> None:
    found = tag("p", class_="note", hidden=False, title=None, itemscope=True, data_value=3)
    assert found == '<p class="note" itemscope data-value="3"></p>'


@pytest.mark.parametrize(
    ("share", "style"),
    [(0.25, "--share:0.250"), (7.0, "--share:1.000"), (-1.0, "--share:0.000"), (None, None)],
)
def test_a_bar_is_as_long_as_its_share_and_never_longer_than_the_cell(
    share: float | None, style: str | None
) -> None:
    cell = HtmlCell("0.25", 0.25, share=share)
    read = _Reader(html_table([HtmlColumn("rate")], [[cell]]))
    (attributes,) = [found for name, found in read.elements if name == "td"]
    assert attributes.get("style") == style
    assert attributes["data-value"] == "0.25"


def test_a_row_must_have_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="argument"):
        html_table([HtmlColumn("a"), HtmlColumn("b")], [["1"]])
