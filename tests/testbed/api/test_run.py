"""Runs that exist, from a program: tables, figures, pages and exports."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

import fairbed
from fairbed import RunError, UsageError
from tests.coordinator.store.fake_run import fake_run

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairbed.Run:
    folder = tmp_path_factory.mktemp("runs") / "demo-1"
    fake_run(folder, rounds=12)
    return fairbed.Run.open(folder)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_opens_by_id_prefix_folder_and_latest(run: fairbed.Run) -> None:
    runs = run.folder.parent
    for ref in ("latest", "demo-1", "demo", run.folder, str(run.folder)):
        assert fairbed.Run.open(ref, runs) == run


def test_tables_are_read_whole_or_in_part(run: fairbed.Run) -> None:
    assert {"round", "exchange", "selection", "device"} <= set(run.tables)
    assert len(run.table("round").pandas()) == 12
    part = run.table("round", since_round=10, columns=["round", "duration_s"])
    assert part.columns == ("round", "duration_s")
    assert part.column("round").tolist() == [11, 12]
    with pytest.raises(UsageError, match="round: must have a column 'tau'; it has: round"):
        run.table("round", columns=["tau"])


def test_a_figure_shows_itself_and_is_the_one_of_the_command(run: fairbed.Run) -> None:
    figure = run.plot("accuracy")
    picture, size = figure._repr_png_()  # type: ignore[attr-defined]  # what a notebook calls
    assert picture.startswith(PNG)
    assert 300 < size["width"] < 1_200
    figure.savefig("mine.svg")
    assert Path("mine.svg").stat().st_size > 2_000
    both = run.plot("accuracy", run)
    assert len(both.axes[0].get_lines()) == 2 * len(figure.axes[0].get_lines())


def test_settings_of_the_notebook_do_not_change_a_figure(run: fairbed.Run) -> None:
    import matplotlib

    def picture() -> bytes:
        png: bytes = run.plot("accuracy")._repr_png_()[0]  # type: ignore[attr-defined]
        return png

    before = picture()
    with matplotlib.rc_context({"font.size": 30.0, "figure.facecolor": "red", "savefig.dpi": 9}):
        assert picture() == before


def test_a_figure_without_its_data_is_one_line(run: fairbed.Run) -> None:
    with pytest.raises(UsageError, match=r"^figure: must be one of accuracy, .*, got 'acuracy'$"):
        run.plot("acuracy")
    with pytest.raises(UsageError, match=r"^energy: "):
        run.plot("energy")


def test_a_page_of_a_run_is_written(run: fairbed.Run) -> None:
    assert run.report() == Path("demo-1.html")
    assert "<h2>Summary</h2>" in Path("demo-1.html").read_text(encoding="utf-8")


@pytest.mark.full
def test_a_page_of_two_runs_is_written(run: fairbed.Run, folder: Path) -> None:
    page = run.report(folder / "both.html", run).read_text(encoding="utf-8")
    assert page.count("demo-1") > 2
    with pytest.raises(RunError, match="no/where"):
        run.report("no/where.html")


def test_an_export_is_a_folder_with_a_dictionary(run: fairbed.Run) -> None:
    calls: list[tuple[int, int]] = []
    out = run.export("csv", tables=["round"], progress=lambda *n: calls.append(n))
    assert out == Path("demo-1-csv")
    with (out / "round.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.reader(file))) == 13
    assert (out / "dictionary.csv").exists()
    assert calls[-1] == (12, 12)
    with pytest.raises(UsageError, match="must be a new or empty folder"):
        run.export("csv", out)
    with pytest.raises(UsageError, match="format: must be one of csv, parquet, sqlite, got 'xls'"):
        run.export("xls")  # type: ignore[arg-type]  # what a user does


def test_a_missing_package_is_named_with_the_command_that_installs_it(run: fairbed.Run) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; import fairbed\n"
        f"run = fairbed.Run.open({str(run.folder)!r})\n"
        "try: run.plot('accuracy')\n"
        "except ImportError as exc: print(exc)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("the package matplotlib must be installed, got none; run: ")
