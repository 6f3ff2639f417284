"""The figure of a division: the share of each class on each device, and the sizes of devices."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path

import numpy as np

from fairbed.coordinator.report.figure_style import COLOURS, FORMATS, save, styled
from fairbed.coordinator.report.markup import tag
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.experiment.division import Division, shares, summary

SUFFIXES = (*FORMATS, "html")
MAX_LABELS = 20
"""Most classes that are named on the axis."""


def check_suffix(path: Path) -> None:
    """Check the name of the file.

    Raises:
        UsageError: It has another suffix.
    """
    if path.suffix[1:].lower() not in SUFFIXES:
        raise UsageError(f"--out: must end in .{', .'.join(SUFFIXES)}, got {str(path)!r}")


def write_figure(division: Division, title: str, path: Path) -> None:
    """Write the figure; an HTML page has it with the numbers in words.

    Raises:
        RunError: matplotlib is not installed, or the file cannot be written.
    """
    suffix = path.suffix[1:].lower()
    try:
        content = _drawn(division, title, "svg" if suffix == "html" else suffix)
        if suffix == "html":
            content = _page(division, title, content)
        path.write_bytes(content)
    except ModuleNotFoundError as exc:
        raise RunError(f"--out: {exc.name} must be installed; install fairbed[analysis]") from exc
    except OSError as exc:
        raise RunError(f"{path}: must be writable, got: {exc.strerror or exc}") from exc


def _page(division: Division, title: str, svg: bytes) -> bytes:
    image = f"data:image/svg+xml;base64,{b64encode(svg).decode()}"
    page = tag(
        "html",
        tag("head", tag("meta", charset="utf-8"), tag("title", title)),
        tag(
            "body",
            tag("h1", title),
            tag("img", src=image, alt=f"Classes of the devices: {title}"),
            *(tag("p", line) for line in summary(division)),
        ),
        lang="en",
    )
    return f"<!doctype html>\n{page}\n".encode()


def _drawn(division: Division, title: str, suffix: str) -> bytes:
    with styled({"text.parse_math": False}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        figure.suptitle(title, fontsize=10)
        places = np.arange(1, len(division.sizes) + 1)
        above.bar(places, division.sizes, width=1.0, color=COLOURS[0])
        above.set_ylabel("examples")
        image = below.imshow(
            shares(division).T,
            aspect="auto",
            origin="lower",
            interpolation="nearest",
            cmap="Blues",
            vmin=0.0,
            vmax=1.0,
            extent=(0.5, len(places) + 0.5, -0.5, len(division.classes) - 0.5),
        )
        below.set_xlabel("device")
        below.set_ylabel("class")
        below.grid(visible=False)
        if len(division.classes) <= MAX_LABELS:
            below.set_yticks(range(len(division.classes)), division.classes)
        figure.colorbar(image, ax=below, label="share of the device's examples")
        file = BytesIO()
        save(figure, file, suffix)
    return file.getvalue()
