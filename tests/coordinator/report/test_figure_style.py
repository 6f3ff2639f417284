"""Figures have the same bytes for the same data, and leave matplotlib's settings unchanged."""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fairbed.coordinator.report.figure_style import (
    COLOURS,
    band,
    drawing,
    files_of,
    series_style,
)

needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="the extra `figures` is not installed"
)


def draw(path: Path) -> list[bytes]:
    x = np.linspace(0.0, 1.0, 20)
    with drawing(path) as figure:
        axes = figure.add_subplot()
        band(axes, x, x - 0.1, x, x + 0.1, label="one", style=series_style(0))
        axes.plot(x, x**2, marker="o", label="two")
        axes.legend()
    return [file.read_bytes() for file in files_of(path)]


@needs_matplotlib
def test_the_same_data_give_the_same_bytes(tmp_path: Path) -> None:
    first, again = draw(tmp_path / "a" / "figure"), draw(tmp_path / "b" / "figure")
    assert first == again
    svg, pdf, png = first
    assert pdf.startswith(b"%PDF")
    assert b"CreationDate" not in pdf
    assert b"<svg" in svg
    assert b"<dc:date>" not in svg
    assert png.startswith(b"\x89PNG")


@needs_matplotlib
def test_user_settings_have_no_effect_and_are_unchanged_afterwards(tmp_path: Path) -> None:
    import matplotlib

    plain = draw(tmp_path / "plain")
    with matplotlib.rc_context({"lines.linewidth": 9.0, "font.size": 30.0}):
        assert draw(tmp_path / "loud") == plain
        assert matplotlib.rcParams["lines.linewidth"] == 9.0


def test_a_file_name_keeps_its_dots() -> None:
    wanted = [Path("a/V=0.5.svg"), Path("a/V=0.5.pdf"), Path("a/V=0.5.png")]
    assert files_of(Path("a/V=0.5")) == wanted


def test_many_series_have_different_styles() -> None:
    looks = [series_style(at) for at in range(len(COLOURS) * 4)]
    assert len(set(looks)) == len(looks)
    for one, other in pairwise(looks):
        assert one.colour != other.colour
        assert one.marker != other.marker
        assert one.dash != other.dash
