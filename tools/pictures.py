"""Draw the pictures of the control room in README and docs, as SVG files.

    python tools/pictures.py [RUN]

Without RUN, the folder of a finished run, the quickstart runs first: about a minute.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.app import ControlRoom

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
QUICKSTART = ROOT / "examples" / "quickstart.toml"

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
    """Draw all pictures of a finished run."""
    for picture in PICTURES:
        file = images / picture.file
        file.parent.mkdir(parents=True, exist_ok=True)
        svg = asyncio.run(screenshot(folder, picture.size, picture.keys))
        file.write_text(svg, encoding="utf-8")
        print(file)


def main() -> None:
    """Draw the pictures."""
    parser = argparse.ArgumentParser(prog="pictures.py", description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="folder of a finished run")
    run: Path | None = parser.parse_args().run
    if run is not None:
        draw(run)
        return
    with tempfile.TemporaryDirectory(prefix="fairbed-pictures-") as name:
        folder = Path(name) / "quickstart"
        command = [sys.executable, "-m", "fairbed.testbed.cli.main", "run", str(QUICKSTART)]
        subprocess.run([*command, "--headless", "--out", str(folder)], check=True)
        draw(folder)


if __name__ == "__main__":
    main()
