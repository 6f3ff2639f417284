"""The screen of a Textual application as plain lines."""

import html
import re
from typing import Any

from textual.app import App

CELL_WIDTH = 12.2
"""Width of a cell in the SVG that Textual exports, in its units."""

_TEXT = re.compile(
    r'<text [^>]*?x="(?P<x>[\d.]+)"[^>]*?clip-path="url\(#[\w-]+-line-(?P<line>\d+)\)"[^>]*>'
    r"(?P<text>.*?)</text>"
)


def lines_on(app: App[Any]) -> list[str]:
    """Return the lines of the screen, without trailing spaces."""
    svg = app.export_screenshot(simplify=True)
    lines = [""] * app.size.height
    for match in _TEXT.finditer(svg):
        number, column = int(match["line"]), round(float(match["x"]) / CELL_WIDTH)
        text = html.unescape(match["text"]).replace("\xa0", " ")
        lines[number] = lines[number].ljust(column) + text
    return [line.rstrip() for line in lines]
