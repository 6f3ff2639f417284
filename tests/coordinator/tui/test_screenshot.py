"""The picture of the control room needs no other file."""

import asyncio
import re
from pathlib import Path

from fairbed.coordinator.tui.screenshot import screenshot
from tests.coordinator.store.fake_run import fake_run

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "tui.svg"


def addresses(svg: str) -> set[str]:
    """Return the addresses that a browser fetches, without the XML name space and comments."""
    text = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    return set(re.findall(r"https?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}


def test_a_picture_fetches_no_font(tmp_path: Path) -> None:
    svg = asyncio.run(screenshot(fake_run(tmp_path / "run", rounds=2, devices=2), (80, 24)))
    assert addresses(svg) == set()
    assert "@font-face" not in svg
    assert "monospace" in svg


def test_the_picture_in_the_readme_fetches_no_font() -> None:
    assert addresses(PICTURE.read_text(encoding="utf-8")) == set()
