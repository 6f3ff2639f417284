"""Draws the control room of a run folder as an SVG file, without a terminal.

python -m fairbed.coordinator.tui.screenshot runs/ID docs/images/tui.svg --size 120x40
"""

import argparse
import asyncio
import re
from pathlib import Path

from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.tui.app import ControlRoom

MONOSPACED = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
"""Fonts of the picture; those with braille and block glyphs come first."""


async def screenshot(folder: Path, size: tuple[int, int]) -> str:
    """Return the SVG of a run at a size in columns and lines."""
    with RunReader(folder) as reader:
        app = ControlRoom(reader)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            return without_downloads(app.export_screenshot())


def without_downloads(svg: str) -> str:
    """Return the SVG with installed monospaced fonts instead of fonts to download.

    Each run of text states its length, so columns stay aligned with any font.
    """
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("font-family: Fira Code, monospace;", f"font-family: {MONOSPACED};")


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(prog="screenshot", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("out", type=Path, help="SVG file to write")
    parser.add_argument("--size", type=_size, default=(120, 40), help="COLUMNSxLINES")
    args = parser.parse_args()
    svg = asyncio.run(screenshot(args.run, args.size))
    args.out.write_text(svg, encoding="utf-8")


def _size(text: str) -> tuple[int, int]:
    columns, _, lines = text.partition("x")
    return int(columns), int(lines)


if __name__ == "__main__":
    main()
