"""`fairbed report`: the page in a browser, and what it cannot do."""

import re
import webbrowser
from pathlib import Path

import pytest

from fairbed.testbed.cli.main import main
from tests.coordinator.store.fake_run import as_older, fake_run
from tests.testbed.web.browser import find_chromium, open_page

WIDE, NARROW = 1200, 390
"""Widths of a screen and of a phone, pixels."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with one finished run."""
    folder = tmp_path / "runs"
    fake_run(folder / "demo-1", rounds=12)
    return folder


def test_writes_one_file_and_says_where(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--runs", str(runs), "--no-figures"]) == 0
    assert capsys.readouterr().out.startswith("demo-1.html: 0.")
    assert (tmp_path / "demo-1.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-1.html", "runs"]


def test_several_runs_are_side_by_side(runs: Path, tmp_path: Path) -> None:
    other = fake_run(runs / "demo-2", rounds=4)
    path = other / "experiment.toml"
    path.write_text(path.read_text().replace("per_round = 4", "per_round = 2"))
    out = tmp_path / "page.html"
    arguments = ["--runs", str(runs), "--out", str(out), "--no-figures"]
    assert main(["report", "demo-1", "demo-2", *arguments]) == 0
    page = out.read_text(encoding="utf-8")
    sections = re.findall(r"<h2>(.*?)</h2>", page)
    assert sections == ["Runs", "Summary", "Settings that differ", "Side by side", "Each run"]
    assert "selection.per_round" in page
    assert "rounds-4_per_round-2 - rounds-12_per_round-4" in page
    assert page.count("<details>") >= 2


@pytest.mark.full
def test_figures_are_also_files_for_papers(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "figures"
    out = ["--out", str(tmp_path / "page.html"), "--figures", str(folder), "--no-figures"]
    assert main(["report", "--runs", str(runs), *out]) == 0
    names = {path.name for path in folder.iterdir()}
    assert {"accuracy.svg", "accuracy.pdf", "selection.svg", "queues.pdf"} <= names
    assert f"{len(names)} files of figures" in capsys.readouterr().out


def test_open_opens_the_page(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    out = tmp_path / "page.html"

    def no_browser(address: str) -> bool:
        opened.append(address)
        return False

    monkeypatch.setattr(webbrowser, "open", no_browser)
    assert main(["report", "--runs", str(runs), "--out", str(out), "--open", "--no-figures"]) == 0
    assert opened == [out.as_uri()]
    assert "open the file by hand" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["gone"], 2, ["must name a run", "'gone'"]),
        (["demo-1", "latest"], 2, ["must be distinct", "twice"]),
        (
            ["demo-1", "--out", "no/such/folder.html"],
            1,
            ["fairbed: no/such/folder.html: must be writable", "No such"],
        ),
        (["old"], 1, ["version"]),
    ],
)
def test_what_cannot_be_reported_is_one_line(
    runs: Path,
    arguments: list[str],
    code: int,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if arguments == ["old"]:
        as_older(fake_run(runs / "old", rounds=1))
        arguments = [str(runs / "old")]
    assert main(["report", "--runs", str(runs), "--no-figures", *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words), line


@pytest.mark.full
@pytest.mark.anyio
async def test_the_page_in_a_browser(runs: Path, tmp_path: Path) -> None:
    """It requests nothing, fits each width, follows the dark preference, and sorts its devices."""
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium; on Debian: apt-get install chromium")
    out = tmp_path / "page.html"
    assert main(["report", "--runs", str(runs), "--out", str(out)]) == 0
    async with open_page(program, tmp_path / "profile") as page:
        await page.call("Page.navigate", url=out.as_uri())
        await page.wait_until(lambda: page.evaluate("document.readyState === 'complete'"), "page")
        loaded = [address for address in page.requests if not address.startswith("data:")]
        assert loaded == [out.as_uri()]
        assert page.console == []
        for width in (WIDE, NARROW):
            await page.resize(width, 900)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
        colours = []
        for scheme in ("light", "dark"):
            preference = [{"name": "prefers-color-scheme", "value": scheme}]
            await page.call("Emulation.setEmulatedMedia", features=preference)
            colours.append(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert colours[0] == "rgb(255, 255, 255)"
        assert colours[1] != colours[0]
        rows = "[...document.querySelectorAll('table.devices tbody tr')]"
        names = f"{rows}.map(row => row.cells[0].textContent)"
        before = await page.evaluate(names)
        await page.evaluate("document.querySelector('table.devices th').click()")
        assert await page.evaluate(names) == sorted(before)
        await page.evaluate("document.querySelector('table.devices th').click()")
        assert await page.evaluate(names) == sorted(before, reverse=True)
        await page.call("Emulation.setEmulatedMedia", media="print", features=preference)
        paper = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"
        printed = await page.call("Page.printToPDF", preferCSSPageSize=True)
        assert len(printed["data"]) > 10_000
