"""Figures of runs: what they draw, what they leave out, and equal bytes for equal data."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from fairbed.coordinator.report.figures import (
    FIGURES,
    THEME,
    NoFigureError,
    RunFigures,
    inline_svg,
    read_figures,
    why_missing,
    write_figures,
)
from fairbed.coordinator.store import RunReader
from tests.coordinator.store.fake_run import FakeRun, make_store

pytest.importorskip("matplotlib", reason="figures need matplotlib")


def read(folder: Path) -> RunFigures:
    with RunReader(folder) as reader:
        return read_figures(reader)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFigures:
    made = FakeRun(tmp_path_factory.mktemp("runs") / "run-1", watts=3.0)
    made.play(30)
    return read(made.finish())


def test_the_same_data_give_the_same_bytes(run: RunFigures, tmp_path: Path) -> None:
    names = ("accuracy", "selection", "phases")
    first, again = (
        [path.read_bytes() for path in write_figures([run], tmp_path / part, names)]
        for part in ("first", "again")
    )
    assert len(first) == 6
    assert first == again


@pytest.mark.parametrize("what", FIGURES)
def test_an_inline_figure_has_the_colours_of_the_page_and_its_own_names(
    run: RunFigures, what: str
) -> None:
    assert why_missing(what, [run]) is None
    svg = inline_svg(what, [run])
    ElementTree.fromstring(svg)
    assert 'role="img"' in svg
    assert f"<title>{FIGURES[what].title}</title>" in svg
    names = re.findall(r' id="([^"]+)"', svg)
    used = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    assert used == set(names)
    assert all(name.startswith(f"{what}-") for name in names)
    without_images = re.sub(r"data:image[^\"]+", "", svg)
    outside = re.sub(r"var\((--[a-z0-9-]+),#\w+\)", r"\1", without_images)
    assert set(re.findall(r"--[a-z][a-z0-9-]+", outside)) <= set(THEME)
    fixed = set(re.findall(r"(?:fill|stroke): ?(#\w+)", outside))
    assert fixed <= ({"#1478be", "#dc960a", "#808080"} if what == "selection" else set())


def test_an_unknown_figure_lists_the_known_ones(run: RunFigures) -> None:
    with pytest.raises(NoFigureError, match=r"must be one of accuracy, .*, got 'acuracy'"):
        inline_svg("acuracy", [run])


def test_an_empty_run_has_no_figure_and_a_reason_for_each(tmp_path: Path) -> None:
    make_store(tmp_path / "run").close()
    empty = read(tmp_path / "run")
    assert {why_missing(what, [empty]) for what in FIGURES} == {"no round has closed yet"}
    assert write_figures([empty], tmp_path / "figures") == []
    assert not (tmp_path / "figures").exists()
