"""Draw the pictures in README and docs: the control room as SVG, the HTML report as PNG.

    python tools/pictures.py [RUN]

Without RUN, the folder of a finished run, the quickstart runs first, dilated, and is replayed for
the report, so that no number depends on how busy this machine is: about five minutes. The report
needs Chromium.
"""

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairbed.coordinator.report.html import write_report
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.app import ControlRoom

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
QUICKSTART = ROOT / "examples" / "quickstart.toml"

DILATION = 6
"""Seconds of this machine in one of the run: other work then delays no exchange for long."""

MONOSPACED = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
"""Fonts of the picture; those with braille and block glyphs come first."""


class Picture(NamedTuple):
    """A screen, and the keys that open it."""

    file: str
    keys: tuple[str, ...]
    size: tuple[int, int] = (120, 40)


PICTURES = (
    Picture("tui.svg", ()),
    Picture("control-room/fleet.svg", ("2",), (160, 24)),
    Picture("control-room/rounds.svg", ("3",)),
    Picture("control-room/round.svg", ("3", "enter")),
    Picture("control-room/fairness.svg", ("4",)),
    Picture("control-room/estimator.svg", ("5",)),
    Picture("control-room/device.svg", ("2", "enter")),
)


REPORT_PICTURES = {"report-light.png": 1, "report-dark.png": 0}
"""Pictures of the report, and Chromium's number of the preferred scheme."""
REPORT_SIZE = (1000, 1010)
"""Part of the page that is drawn, pixels."""


async def screenshot(folder: Path, size: tuple[int, int], keys: Sequence[str] = ()) -> str:
    """Return the SVG of a run at a size in columns and lines, after some keys."""
    with RunReader(folder) as reader:
        app = ControlRoom(reader)
        async with app.run_test(size=size) as pilot:
            for key in ("", *keys):
                if key:
                    await pilot.press(key)
                before = ""
                while (now := app.export_screenshot(simplify=True)) != before:
                    before = now
                    await pilot.pause()
            return without_downloads(app.export_screenshot())


def without_downloads(svg: str) -> str:
    """Return the SVG with installed monospaced fonts instead of fonts to download.

    Each run of text states its length, so columns stay aligned with any font.
    """
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("font-family: Fira Code, monospace;", f"font-family: {MONOSPACED};")


def draw(folder: Path, images: Path = IMAGES) -> None:
    """Draw all pictures of the control room of a finished run."""
    for picture in PICTURES:
        file = images / picture.file
        file.parent.mkdir(parents=True, exist_ok=True)
        svg = asyncio.run(screenshot(folder, picture.size, picture.keys))
        file.write_text(svg, encoding="utf-8")
        print(file)


def draw_report(folder: Path, images: Path = IMAGES) -> None:
    """Draw the top of the report of a finished run, for light and for dark pages."""
    names = "chromium", "chromium-browser", "google-chrome"
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        print("pictures: Chromium is not installed, so the report is not drawn", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="fairbed-pictures-") as name:
        page = Path(name) / "page.html"
        with RunReader(folder) as reader:
            write_report([reader], page, has_figures=False)
        for file, scheme in REPORT_PICTURES.items():
            options = [
                "--headless=new",
                "--disable-gpu",
                "--hide-scrollbars",
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
                f"--user-data-dir={Path(name) / 'profile'}",
                f"--window-size={REPORT_SIZE[0]},{REPORT_SIZE[1]}",
                "--force-device-scale-factor=1.5",
                f"--blink-settings=preferredColorScheme={scheme}",
                f"--screenshot={images / file}",
            ]
            command = [program, *options, page.as_uri()]
            subprocess.run(command, check=True, capture_output=True)
            print(images / file)


def main() -> None:
    """Draw the pictures."""
    parser = argparse.ArgumentParser(prog="pictures.py", description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="folder of a finished run")
    run: Path | None = parser.parse_args().run
    if run is not None:
        draw(run)
        draw_report(run)
        return
    with tempfile.TemporaryDirectory(prefix="fairbed-pictures-") as name:
        folder = Path(name) / "quickstart"
        command = [sys.executable, "-m", "fairbed.testbed.cli.main"]
        started = [*command, "run", str(QUICKSTART), "--headless", "--out", str(folder)]
        started += ["--set", f"emulation.dilation={DILATION}"]
        subprocess.run(started, check=True)
        draw(folder)
        replayed = Path(name) / "replay" / "quickstart"
        subprocess.run([*command, "replay", str(QUICKSTART), "--out", str(replayed)], check=True)
        draw_report(replayed)


if __name__ == "__main__":
    main()
