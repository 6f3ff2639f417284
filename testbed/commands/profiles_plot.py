"""`fairbed profiles plot`: numbers over time, drawn in a terminal."""

import argparse
import os
import re
from pathlib import Path

import numpy as np

from testbed.commands import DONE, UsageError
from testbed.curves import Curve, curves, table
from testbed.units import duration_s

MOST_S = 600.0
"""Drawn at once, unless asked for more: a column of characters is then some seconds."""

LEAST_SIZE, MOST_SIZE = (40, 8), (400, 100)


def plot(options: argparse.Namespace) -> int:
    """Draw curves; return the exit code."""
    width, height = _size(options.size)
    start, length = _time("--start", options.start), None
    if options.length is not None:
        length = _time("--length", options.length)
        if length <= 0.0:
            raise UsageError(f"--length: must be more than 0, got {options.length}; 60s is usual")
    rng = np.random.Generator(np.random.PCG64(options.seed))
    found = curves(options.what, options.number, os.environ, rng)
    if length is None:
        length = min(MOST_S, max(curve.series.period_s for curve in found))
    for unit, alike in _by_unit(found).items():
        print(draw(Path(options.what).name, unit, alike, start, length, (width, height)))
    print("\n".join(table(found)))
    return DONE


def draw(
    title: str,
    unit: str,
    alike: list[Curve],
    start: float,
    length: float,
    size: tuple[int, int],
) -> str:
    """Return a picture of curves of one unit, in characters without colour."""
    try:
        import plotext
    except ImportError as exc:
        raise UsageError(
            "profiles plot: needs plotext, which is not installed; "
            "install it with: pip install 'fairbed[coordinator]'"
        ) from exc
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(*size)
    factor = 1e-6 if unit == "Mbit/s" else 1.0
    for curve in alike:
        moments, values = curve.sampled(start, length, 2 * size[0])
        plotext.plot(
            moments, [value * factor for value in values], label=curve.key.removeprefix("link.")
        )
    plotext.ylim(0, None)
    plotext.title(f"{title}: {unit}")
    plotext.xlabel("s")
    text: str = plotext.uncolorize(plotext.build())
    return "\n".join(line.rstrip() for line in text.splitlines())


def _by_unit(found: list[Curve]) -> dict[str, list[Curve]]:
    groups: dict[str, list[Curve]] = {}
    for curve in found:
        name = curve.key.rpartition(".")[2]
        unit = "Mbit/s" if name.endswith("bps") else "s" if name.endswith("_s") else name
        groups.setdefault(unit, []).append(curve)
    return groups


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    size = (int(match[1]), int(match[2])) if match else (0, 0)
    is_fine = all(
        low <= n <= high for low, n, high in zip(LEAST_SIZE, size, MOST_SIZE, strict=True)
    )
    if not is_fine:
        raise UsageError(f"--size: must be from 40x8 to 400x100, got {text}; 100x18 is usual")
    return size


def _time(option: str, text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as exc:
        raise UsageError(f"{option}: {exc}; 60s is usual") from exc
