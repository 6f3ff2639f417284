"""`fairbed plot`: one figure of runs as a file, and what it cannot draw."""

import json
from pathlib import Path

import pytest

from fairbed.coordinator.report.figures import FIGURES
from fairbed.testbed.cli.main import main
from tests.coordinator.store.fake_run import fake_run, make_store

pytest.importorskip("matplotlib", reason="figures need matplotlib")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an own folder with the runs `one` and `empty`."""
    monkeypatch.chdir(tmp_path)
    fake_run(tmp_path / "runs" / "one", rounds=4, devices=3)
    make_store(tmp_path / "runs" / "empty").close()
    return tmp_path / "runs"


def test_the_figure_of_the_latest_run_is_a_file_in_this_folder(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", "one", "rates"]) == 0
    assert capsys.readouterr().out == "rates.svg\n"
    assert b"<svg" in Path("rates.svg").read_bytes()


@pytest.mark.parametrize(("name", "first"), [("a/b.pdf", b"%PDF"), ("b.PNG", b"\x89PNG")])
def test_the_suffix_of_out_is_the_format(runs: Path, name: str, first: bytes) -> None:
    assert main(["plot", "one", "rates", "--out", name]) == 0
    assert Path(name).read_bytes().startswith(first)


def test_a_run_without_the_data_is_left_out_with_a_line(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", "one", "empty", "accuracy"]) == 0
    assert capsys.readouterr().err == (
        "fairbed: accuracy: left out empty: no round has closed yet\n"
    )


def test_without_any_data_there_is_no_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "empty", "accuracy"]) == 1
    assert capsys.readouterr().err == (
        "fairbed: accuracy: there is nothing to draw: empty: no round has closed yet\n"
    )
    assert not Path("accuracy.svg").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["one", "acuracy"], r"must be a figure (accuracy, accuracy-time"),
        (["rates", "one"], "energy), got 'one'"),
        ([], "energy), got none"),
        (["none-such", "rates"], "must name a run, got 'none-such'; there are: "),
        (["one", "rates", "--json"], "--json: is for --list only"),
        (["one", "rates", "--out", "a.gif"], "--out: must end in .svg, .pdf, .png, got 'a.gif'"),
    ],
)
def test_a_mistake_is_one_line(
    runs: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", *words]) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


def test_the_list_has_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)
    assert main(["plot", "--list", "--json"]) == 0
    captions = {name: figure.caption for name, figure in FIGURES.items()}
    assert json.loads(capsys.readouterr().out) == captions
