"""The pictures of the control room need no other file, and show all screens."""

import asyncio
import re
from pathlib import Path

import pytest

from fairbed.coordinator.tui.app import TABS
from tests.coordinator.store.fake_run import fake_run
from tools.pictures import (
    IMAGES,
    PICTURES,
    REPORT_PICTURES,
    REPORT_SIZE,
    draw,
    draw_report,
    screenshot,
)


def addresses(svg: str) -> set[str]:
    """Return the addresses that a browser fetches, without the XML name space and comments."""
    text = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    return set(re.findall(r"https?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}


def test_a_picture_fetches_no_font(tmp_path: Path) -> None:
    svg = asyncio.run(screenshot(fake_run(tmp_path / "run", rounds=2, devices=2), (80, 24)))
    assert addresses(svg) == set()
    assert "@font-face" not in svg
    assert "monospace" in svg


@pytest.mark.full
def test_every_picture_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw(fake_run(tmp_path / "run", rounds=4), tmp_path / "images")
    for picture in PICTURES:
        svg = (tmp_path / "images" / picture.file).read_text()
        assert "digits-12" in svg
        (title,) = [tab.title for tab in TABS if [tab.key] == list(picture.keys[:1])] or [
            "Overview"
        ]
        assert title in svg
    assert len(capsys.readouterr().out.splitlines()) == len(PICTURES)


@pytest.mark.full
def test_the_report_is_drawn_for_light_and_dark_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fake_run(tmp_path / "run", rounds=3)
    draw_report(run, tmp_path)
    drawn = [tmp_path / name for name in REPORT_PICTURES if (tmp_path / name).exists()]
    if not drawn:
        assert "Chromium is not installed" in capsys.readouterr().err
        pytest.skip("needs Chromium; on Debian: apt-get install chromium")
    light, dark = (path.read_bytes() for path in drawn)
    assert light != dark
    for picture in (light, dark):
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(picture[16:20], "big") == 1.5 * REPORT_SIZE[0]


def test_the_pictures_in_the_pages_fetch_nothing() -> None:
    for picture in PICTURES:
        assert addresses((IMAGES / picture.file).read_text(encoding="utf-8")) == set()
