"""docs/measures.md: the catalogue of measures as a page."""

from collections.abc import Iterable, Iterator, Sequence

from fairbed.coordinator.report.measures import device_measures, run_measures
from fairbed.coordinator.report.measures.entry import DeviceMeasure, RunMeasure

INTRODUCTION = """\
Every number of a run, of its newest round and evaluation, and of a device that more than one view
shows. One entry of `coordinator/report/measures/` declares each: name, unit, source, format and
views. So one name is one number in all of them.

A number of exchanges has its counts beside it, and none of too few:
[n of N](analysis.md#n-of-n). `fairbed compare` has the range, scale and resolution of its
numbers from here, too."""

RUN_TEXT = """\
`JSON` is the place in `fairbed show RUN --json`, *line* the line of `fairbed show`; a place in
`measures` has the value, the exchanges behind it, and why there is none. The key is that
of `compare.csv`, `compare.json` and grid files where `compare` has its group. `Prometheus` is the
gauge of a live run, `TensorBoard` its curve: [metrics](metrics.md). *Room* is a tile in the header
of the control room."""

DEVICE_TEXT = """\
The key is that of a device in `fleet` of `fairbed show RUN --json`, in brackets if it is not there.
*Show*, *report* and *room* are the headings of the tables of devices in `fairbed show`, in the HTML
report and in the fleet of the control room."""


def measures_page(note: str) -> str:
    """Return docs/measures.md.

    Args:
        note: Where the page comes from.
    """
    run_heads = ("key", "name", "unit", "meaning", "JSON", "line", "report", "room", "compare")
    lines = [
        *("# Measures", "", note, "", INTRODUCTION, ""),
        *("## Of a run", "", RUN_TEXT, ""),
        *_table((*run_heads, "Prometheus", "TensorBoard"), map(_run_row, run_measures())),
        *("", "## Of a device", "", DEVICE_TEXT, ""),
        *_table(
            ("key", "name", "unit", "meaning", "show", "report", "room", "Prometheus"),
            map(_device_row, device_measures()),
        ),
    ]
    return "\n".join(lines) + "\n"


def _run_row(m: RunMeasure) -> Sequence[str]:
    return (
        *(_code(m.key), m.name, m.unit, f"{m.meaning}."),
        *(_code(m.json), m.show, m.report, m.room.label if m.room else ""),
        m.compare.group if m.compare else "",
        *(_code(m.prometheus and f"fairbed_{m.prometheus}"), _code(m.tensorboard)),
    )


def _device_row(m: DeviceMeasure) -> Sequence[str]:
    return (
        _code(m.key) if m.in_json else f"({m.key})",
        *(m.name, m.unit, f"{m.meaning}."),
        m.show.heading if m.show else "",
        m.report.heading if m.report else "",
        m.room.wide_heading if m.room else "",
        _code(m.prometheus and f"fairbed_device_{m.prometheus}"),
    )


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
