"""Pages that hold tables: a page that cannot take one is refused before the benchmark runs."""

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks._pages import placed

WITH_PAGES = ("estimators", "fidelity", "link_processes", "models", "replay_links", "scale")


@pytest.mark.parametrize("name", WITH_PAGES)
def test_a_page_that_does_not_exist_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "page.md"
    with pytest.raises(SystemExit) as refused:
        import_module(f"benchmarks.{name}").main(["--write", str(missing)])
    assert refused.value.code == 2
    said = capsys.readouterr()
    assert f"must be a page that can be read, got {missing}: No such file" in said.err
    assert "Traceback" not in said.err
    assert not said.out, "nothing has run"


def test_a_page_that_is_no_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "page.md"
    picture.write_bytes(b"\xff\xfe")
    with pytest.raises(SystemExit):
        import_module("benchmarks.estimators").main(["--write", str(picture)])
    assert f"got {picture}: no UTF-8 text; name one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        (["estimators"], "estimators table"),
        (["estimators", "--replay", "1"], "replayed estimators table"),
        (["estimators", "--families", "starlink"], "estimators on families of links"),
        (["replay_links"], "replay links"),
        (["link_processes"], "link processes"),
    ],
)
def test_a_page_without_a_place_is_refused_before_the_benchmark_runs(
    asked: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n")
    with pytest.raises(SystemExit, match=f"page.md: must have a place between <!-- {place} -->"):
        import_module(f"benchmarks.{asked[0]}").main([*asked[1:], "--write", str(page)])
    assert not capsys.readouterr().out
    assert page.read_text() == "# A\n"


def test_a_table_takes_the_place_of_the_one_before_and_nothing_else() -> None:
    document = "# A\n<!-- B -->\nold\n<!-- end of B -->\nC\n"
    once = placed(document, "B", "new")
    assert once == "# A\n<!-- B -->\nnew\n<!-- end of B -->\nC\n"
    assert placed(once, "B", "new") == once
