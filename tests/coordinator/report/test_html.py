"""The HTML report of a run."""

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.report import html
from fairbed.coordinator.report.figures import FIGURES, read_figures, why_missing
from fairbed.coordinator.report.html import n_parts, read_page, report_page, write_report
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import CommandRow, DeviceRow, EventRow
from tests.coordinator.store.fake_run import FakeRun, fake_run

NASTY = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "demo-1", rounds=12)


def page_of(folder: Path, *, has_figures: bool = False) -> str:
    with RunReader(folder) as reader:
        return report_page([read_page(reader, has_figures=has_figures)])


def test_is_whole_and_loads_nothing(run: Path) -> None:
    parts: list[float] = []
    with RunReader(run) as reader:
        page = report_page([read_page(reader)], advance=parts.append)
    assert parts == [1] * (n_parts(1) - 1)  # the run itself was read before
    sections = re.findall(r"<h2>(.*?)</h2>", page)
    assert sections == ["Summary", "What was run", "Figures", "Devices", "Faults and alerts"]
    assert re.findall(r"(?:src|href)=\"(?!data:|#)[^\"]*\"", page) == []
    assert "@import" not in page
    assert "default-src &#x27;none&#x27;" in page
    assert "url(" not in page.replace("url(#", "").replace("url(data:", "")
    with RunReader(run) as reader:
        data = read_figures(reader)
    for name, kind in FIGURES.items():
        has_data = why_missing(name, [data]) is None
        assert (f'id="figure-{name}"' in page) is has_data, name
        is_explained = not has_data and not kind.is_rare
        assert (f"{kind.title} (" in page) is is_explained, name
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(set(ids)) == len(ids)


def test_progress_counts_every_run_and_figure(run: Path, tmp_path: Path) -> None:
    parts: list[float] = []
    with RunReader(run) as reader:
        write_report([reader], tmp_path / "page.html", has_figures=False, advance=parts.append)
    assert parts == [1] * n_parts(1, has_figures=False)


def test_equal_runs_have_equal_pages(run: Path) -> None:
    assert page_of(run) == page_of(run)


def test_texts_of_devices_and_operators_are_escaped(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", devices=3, rounds=2)
    run.store.add(
        DeviceRow(
            name=NASTY,
            row=3,
            first_seen_s=0.0,
            n_k=1,
            capabilities='{"model": "</td><img src=//x>"}',
            has_own_data=False,
            kind="physical",
        )
    )
    run.play(1)
    run.event("failed", NASTY, device=NASTY, level="error")
    run.store.add(
        CommandRow(id="1", at_s=1.0, action="note", device=None, operator=NASTY, text=NASTY)
    )
    page = page_of(run.finish())
    assert NASTY not in page
    assert "<img" not in page
    assert page.count("<script>") == 1
    assert page.count("&lt;script&gt;") >= 5


def test_a_live_run_says_on_top_that_its_numbers_will_change(tmp_path: Path) -> None:
    live = FakeRun(tmp_path / "live", devices=3)
    live.play(2)
    live.store.flush()
    page = page_of(live.folder)
    live.finish()
    before, _, _ = page.partition("<h2>")
    assert "This run is running: the page shows it after round 2 of 30" in before
    assert "will change" in before


def test_an_interrupted_run_names_the_command_that_continues_it(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", devices=3)
    run.play(2)
    page = page_of(run.finish("stopped"))
    assert "not complete (stopped)" in page
    assert f"fairbed run {run.folder}" in page


def test_without_matplotlib_the_page_names_the_extra(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> str:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr(html, "inline_svg", absent)
    page = page_of(run, has_figures=True)
    assert "fairbed[figures]" in page
    assert "<svg" not in page


def test_a_run_without_rounds_has_a_page(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", devices=2)
    page = page_of(run.finish("stopped"))
    assert "No round" in page
    assert "No exchange took place" in page


def test_a_run_without_training_has_no_accuracy(tmp_path: Path, run: Path) -> None:
    with RunReader(run) as reader:
        page = read_page(reader, has_figures=False)
    accuracy = msgspec.structs.replace(page.summary.accuracy, mean=None, worst10=None)
    fleet = [msgspec.structs.replace(device, accuracy=None) for device in page.summary.fleet]
    s = msgspec.structs.replace(page.summary, accuracy=accuracy, fleet=fleet)
    text = report_page([replace(page, summary=s, evaluations=[])])
    assert "accuracy, mean" not in text
    assert ">accuracy</th>" not in text


def test_of_a_large_fleet_the_worst_devices_are_listed(run: Path) -> None:
    with RunReader(run) as reader:
        page = read_page(reader, has_figures=False)
    one = page.summary.fleet[0]
    fleet = [
        msgspec.structs.replace(one, name=f"d{i:06d}", accuracy=i / 50_000) for i in range(50_000)
    ]
    s = msgspec.structs.replace(page.summary, fleet=fleet[::-1], devices=1_000_000)
    text = report_page([replace(page, summary=s)])
    assert len(text) < 200_000
    assert "The 100 of 50,000 devices with the lowest accuracy" in text
    assert "950,000 of the 1,000,000 devices were never selected" in text
    assert "d000099" in text
    assert "d000100" not in text


def test_many_events_and_reasons_are_bounded(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", devices=2, rounds=2)
    run.play(1)
    for number in range(html.MAX_EVENTS + 5):
        run.event("refused", f"number {number} " + "x" * 1_000, level="warning")
    page = page_of(run.finish())
    assert f"the newest {html.MAX_EVENTS} of {html.MAX_EVENTS + 5}" in page
    assert "number 4 " not in page
    assert f"number {html.MAX_EVENTS + 4} " in page
    assert "x" * html.MAX_TEXT not in page


def test_a_failed_write_leaves_the_earlier_page(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    with RunReader(run) as reader:
        write_report([reader], path, has_figures=False)
        before = path.read_bytes()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            write_report([reader], path, has_figures=False)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_experiment_file_is_named(run: Path) -> None:
    with RunReader(run) as reader:
        page = read_page(reader, has_figures=False)
    assert "cannot be read" in report_page([replace(page, experiment={})])


def test_events_of_all_kinds_are_counted(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", devices=2, rounds=2)
    run.play(1)
    run.event("refused", "one", level="warning")
    run.event("lost", "two", level="error")
    run.event("refused", "three", level="warning")
    with RunReader(run.finish()) as reader:
        page = read_page(reader, has_figures=False)
    assert page.problem_counts["refused"] == 2
    assert [event.text for event in page.problems][-3:] == ["one", "two", "three"]
    assert all(isinstance(event, EventRow) for event in page.problems)
