"""Figures of runs as files, with equal bytes for equal data, and as SVG inside a page."""

import re
from collections.abc import Collection, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from fairbed.coordinator.report.errors import NoFigureError
from fairbed.coordinator.report.figure_style import COLOURS, GREY, INK, save, styled
from fairbed.coordinator.report.figures.catalogue import FIGURES, HEIGHT_IN
from fairbed.coordinator.report.figures.data import RunFigures
from fairbed.coordinator.report.figures.panels import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

WIDTH_IN = 7.2
LEGEND_LINE_IN = 0.2

GRID = "#dddddd"
SETTINGS = {
    "axes.edgecolor": "#444444",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "grid.color": GRID,
    "legend.labelcolor": INK,
    "text.color": INK,
    "text.parse_math": False,  # a name may contain dollar signs
    "xtick.color": INK,
    "ytick.color": INK,
}
"""Settings of matplotlib in which figures of runs are drawn and saved."""

THEME: dict[str, tuple[str, str]] = {
    "--ink": (INK, "#e8e8e8"),
    "--paper": ("#ffffff", "#16181d"),
    "--axis": ("#444444", "#9a9a9a"),
    "--grid": (GRID, "#33363d"),
    "--muted": (GREY, "#a0a0a0"),
    "--series-1": (COLOURS[0], "#4f9fdc"),
    "--series-2": (COLOURS[1], "#ee7f3b"),
    "--series-3": (COLOURS[2], "#2bb98b"),
    "--series-4": (COLOURS[3], "#dc9cc2"),
    "--series-5": (COLOURS[4], "#f0b840"),
    "--series-6": (COLOURS[5], "#9bd6f5"),
    "--series-7": (COLOURS[6], "#ffffff"),
}
"""Variables of a page that shows inline figures: their colours on light and on dark paper."""


def why_missing(what: str, runs: Sequence[RunFigures]) -> str | None:
    """Return why none of the runs has a figure; None if one of them has it.

    Raises:
        NoFigureError: There is no figure of this name.
    """
    if what not in FIGURES:
        raise NoFigureError(f"figure: must be one of {', '.join(FIGURES)}, got {what!r}")
    reasons = [FIGURES[what].missing(run) for run in runs]
    return None if None in reasons else next(filter(None, reasons), "there is no run")


def draw(what: str, runs: Sequence[RunFigures], figure: "Figure") -> None:
    """Draw one figure of runs; those that lack its data are left out.

    Args:
        what: Its name, a key of `FIGURES`.
        runs: The runs; what does not compare them is drawn for one below the other.
        figure: An empty figure, made in `styled`.

    Raises:
        NoFigureError: There is no such figure, or no run has its data.
    """
    if (reason := why_missing(what, runs)) is not None:
        raise NoFigureError(f"{what}: {reason}")
    kind = FIGURES[what]
    known = [one for one in shown(runs) if not kind.missing(one.run)]
    figure.set_size_inches(WIDTH_IN, _height_in(what, runs))
    if kind.compares or len(known) == 1:
        kind.draw(known, figure)
        if len(known) == 1 < len(runs):
            _headline(figure, known[0].label)
        return
    heights = [kind.height_in(one.run) for one in known]
    parts = figure.subfigures(len(known), 1, squeeze=False, height_ratios=heights)
    for one, part in zip(known, parts.flat, strict=True):
        kind.draw([one], part)
        _headline(part, one.label)


def _headline(figure: "Figure | SubFigure", text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=10, fontweight="bold")


def write_figures(
    runs: Sequence[RunFigures],
    folder: Path,
    names: Collection[str] | None = None,
    formats: Sequence[str] = ("svg", "pdf"),
) -> list[Path]:
    """Write figures of runs as `NAME.FORMAT`, the same bytes for the same data; return the files.

    Args:
        runs: The runs; a figure for which all of them lack the data is left out.
        folder: Folder of the files; it is created.
        names: Names of figures; None: all.
        formats: Of `figure_style.FORMATS`.

    Raises:
        NoFigureError: There is no figure of a name.
        ModuleNotFoundError: matplotlib is not installed.
        OSError: A file cannot be written.
    """
    written = list[Path]()
    for name in FIGURES if names is None else names:
        if why_missing(name, runs) is not None:
            continue
        for suffix in formats:
            folder.mkdir(parents=True, exist_ok=True)
            written.append(folder / f"{name}.{suffix}")
            written[-1].write_bytes(figure_bytes(name, runs, suffix))
    return written


def figure_bytes(what: str, runs: Sequence[RunFigures], suffix: str) -> bytes:
    """Return one figure as the bytes of a file, the same for the same data.

    Raises:
        NoFigureError: There is no such figure, or no run has its data.
        ModuleNotFoundError: matplotlib is not installed.
    """
    with styled(SETTINGS):
        return _as_bytes(_drawn(what, runs), suffix)


def inline_svg(what: str, runs: Sequence[RunFigures]) -> str:
    """Return one figure as an SVG element for a page that sets the variables of `THEME`.

    Text is text in the font of the page, and colours are the variables of the page. The image of a
    heat map has its own colours, which are readable on light and on dark paper.

    Raises:
        NoFigureError: There is no such figure, or no run has its data.
        ModuleNotFoundError: matplotlib is not installed.
    """
    settings = {**SETTINGS, "svg.fonttype": "none", "savefig.transparent": True}
    with styled(settings):
        svg = _as_bytes(_drawn(what, runs), "svg").decode()
    prefix = f"{what}-{crc32(' '.join(run.run_id for run in runs).encode()):08x}-"
    return _for_page(svg, FIGURES[what].title, prefix)


def _drawn(what: str, runs: Sequence[RunFigures]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure()
    draw(what, runs, figure)
    return figure


def _as_bytes(figure: "Figure", suffix: str) -> bytes:
    file = BytesIO()
    save(figure, file, suffix)
    return file.getvalue()


def _height_in(what: str, runs: Sequence[RunFigures]) -> float:
    kind = FIGURES[what]
    heights = [kind.height_in(run) for run in runs if not kind.missing(run)]
    if kind.compares and len(heights) > 1:
        return HEIGHT_IN + LEGEND_LINE_IN * (-(-len(heights) // 3))
    return sum(heights)


_VARIABLES = {light.lower(): f"var({name},{light.lower()})" for name, (light, _) in THEME.items()}
_TAG = re.compile(r"<[^>]+>")
_ID = re.compile(r' id="([^"]+)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^)"]+)')
_PATH = re.compile(r' d="[^"]*"')
_NUMBER = re.compile(r"\d+\.\d{3,}")
_FONT = re.compile(r"font: ([\d.]+px)[^;\"]*")
_COLOUR = re.compile(": (" + "|".join(_VARIABLES) + ")")


def _for_page(svg: str, title: str, prefix: str) -> str:
    """Turn a file of matplotlib into an element: no header, variables, own names, short paths.

    Only tags change; what is between them is text, which may be the name of a run.
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = {name for tag in _TAG.findall(svg) for _, name in _REFERENCE.findall(tag)}

    def changed(tag: str) -> str:
        tag = _ID.sub(lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", tag)
        tag = _REFERENCE.sub(rf"\1{prefix}\2", tag)
        tag = _PATH.sub(lambda m: _NUMBER.sub(lambda x: f"{float(x[0]):.2f}", m[0]), tag)
        tag = _FONT.sub(r"font-size:\1", tag)
        return _COLOUR.sub(lambda m: f":{_VARIABLES[m[1]]}", tag)

    head, _, body = svg.partition(">")
    body = _TAG.sub(lambda tag: changed(tag[0]), re.sub(r"\n\s+", "\n", body))
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', head)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'role="img" aria-label="{escape(title)}" class="figure" viewBox="0 0 {width} {height}" '
        f'width="{float(width) * 4 / 3:.0f}" height="{float(height) * 4 / 3:.0f}">'
        f"<title>{escape(title)}</title>{body.strip()}"
    )
