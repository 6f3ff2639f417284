"""One style for all figures, and files with equal bytes for equal data.

A figure is drawn in `drawing`, which saves it as SVG (text as outlines), PDF and PNG, or in
`styled` and saved with `save`. The colours are those of Okabe and Ito, distinct for colour-blind
readers. Every series also has its own marker and dash, so that a print in grey is readable.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Blue, vermilion, green, purple, orange, sky, black; not yellow, which is pale on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
DASHES = ("-", "--", "-.", ":")
GREY = "#666666"
"""Colour of lines that are not a series: bounds and references."""
INK = "#1a1a1a"
"""Colour of text, and of lines that belong to no series but matter as much."""
BAND = 0.18
"""Opacity of the band around a mean."""

SIZE_IN = (6.0, 3.8)
"""Width and height, inches: the text width of most papers."""
DPI = 160
FORMATS = ("svg", "pdf", "png")
"""Formats of a figure file."""

_SALT = "fairbed"
"""Seed of the identifiers inside an SVG, which are random otherwise."""
_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": _SALT},
    "pdf": {"CreationDate": None, "Creator": _SALT, "Producer": None},
    "png": {"Software": None},
}
"""Without the date and the version of matplotlib, which would change the bytes."""
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.0,
    "figure.constrained_layout.use": True,
    "figure.dpi": DPI,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same outlines everywhere
    "font.size": 9.0,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 5.0,
    "pdf.fonttype": 42,  # TrueType: journals refuse the default
    "savefig.dpi": DPI,
    "svg.fonttype": "path",
    "svg.hashsalt": _SALT,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
}


@dataclass(frozen=True, slots=True)
class SeriesStyle:
    """Colour, marker and dash of one series."""

    colour: str
    marker: str
    dash: str


def series_style(index: int) -> SeriesStyle:
    """Return the style of a series by its number, from 0; neighbours differ in all three parts."""
    return SeriesStyle(
        COLOURS[index % len(COLOURS)],
        MARKERS[index % len(MARKERS)],
        DASHES[index % len(DASHES)],
    )


@contextmanager
def styled(changes: Mapping[Any, Any] | None = None) -> Iterator[None]:
    """Draw and save figures of the block in the one style, independent of a user's matplotlibrc.

    Args:
        changes: Settings of matplotlib that differ from the style.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a name is any text
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, **(changes or {})})
        yield


@contextmanager
def drawing(path: Path, size_in: tuple[float, float] = SIZE_IN) -> "Iterator[Figure]":
    """Yield an empty figure to draw on, then save it as `path` + `.svg`, `.pdf` and `.png`.

    Args:
        path: Path without a suffix; its folder is created.
        size_in: Width and height, inches.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: The files cannot be written.
    """
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=size_in)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        for file in files_of(path):
            save(figure, file, file.suffix[1:])


def files_of(path: Path) -> list[Path]:
    """Return the files that `drawing` writes for a path without a suffix."""
    return [path.parent / f"{path.name}.{suffix}" for suffix in FORMATS]


def band(
    axes: "Axes",
    x: ArrayLike,
    lowest: ArrayLike,
    mean: ArrayLike,
    highest: ArrayLike,
    *,
    label: str,
    style: SeriesStyle,
) -> None:
    """Draw a mean over `x` and the band around it, all of shape (T,)."""
    x = np.asarray(x, dtype=np.float64)
    axes.fill_between(
        x, np.asarray(lowest), np.asarray(highest), color=style.colour, alpha=BAND, linewidth=0.0
    )
    axes.plot(x, np.asarray(mean), color=style.colour, linestyle=style.dash, label=label)


def save(figure: "Figure", file: Path | IO[bytes], suffix: str) -> None:
    """Save a figure, with no date and no version in the file.

    Args:
        figure: Drawn in `styled`.
        file: Path, or a binary file.
        suffix: Format: svg, pdf or png.

    Raises:
        OSError: The file cannot be written.
    """
    figure.savefig(file, format=suffix, metadata=_METADATA[suffix])
