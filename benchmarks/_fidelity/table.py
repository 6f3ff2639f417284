"""Rows as tables: for a terminal, docs/accuracy.md, and in short docs/measurements.md. Pure."""

from collections.abc import Iterable, Sequence

from benchmarks._fidelity.rows import Row, Unit

TABLE, SUMMARY = "fidelity table", "fidelity summary"
"""Names of the places in a document that are replaced."""

TITLES = {
    "cpu": "share of a core, 5 to 150 %",
    "step": "time of a step, steady and first after a pause",
    "work": "work of a processor second under a quota",
    "burst": "work at full speed after a pause",
    "goodput": "goodput, 0.1 to 500 Mbit/s, both ways",
    "transfer": "time of 64 KB to 1 MB",
    "delay": "one-way delay and jitter",
    "loss": "packet loss",
    "queue": "delay in a full queue, 50 ms to 1 s",
    "outage": "holes in the link",
    "trace": "replay of cellular traces",
    "trace-steps": "traces with steps of 20, 50 and 250 ms",
    "dilation": "time dilated 4 times against not",
    "cell": "share of each stream in a cell",
    "driver": "driving 100 devices at 10 Hz",
    "fleet": "100 devices",
}


def number(value: float, unit: Unit) -> str:
    """Return a value with its unit for display."""
    if unit == "cores":
        return f"{100.0 * value:.1f} %"
    if unit == "bit/s":
        return f"{value / 1e6:.4g} Mbit/s"
    if unit == "s":
        return f"{1e3 * value:.4g} ms" if value < 1.0 else f"{value:.3f} s"
    if unit == "bytes":
        return f"{value:.0f} B"
    return f"{100.0 * value:.1f} %"


def deviation(row: Row, value: float, sign: str = "+") -> str:
    """Return an error, or a limit of errors."""
    if row.is_relative:
        return f"{100.0 * value:{sign}.1f} %"
    if row.unit == "s":
        return f"{1e3 * value:{sign}.1f} ms"
    return f"{value:{sign}.0f} B"


def limit_of(row: Row) -> str:
    """Return the limit as text."""
    if row.limit is None:
        return ""
    if row.is_bound:
        return f"<= {number(row.limit, row.unit)}"
    return f"+-{deviation(row, row.limit, '')}"


def verdict(row: Row) -> str:
    """Return whether the limit is met, as one word."""
    if row.achieved is None:
        return "unknown"
    return {True: "ok", False: "missed", None: ""}[row.ok]


def arranged(rows: Iterable[Row], backends: Sequence[str]) -> list[Row]:
    """Return rows ordered by group and backend; unknown ones are last."""
    groups, last = list(TITLES), len(TITLES) + len(backends)

    def place(row: Row) -> tuple[int, int]:
        return (
            groups.index(row.group) if row.group in groups else last,
            backends.index(row.backend) if row.backend in backends else last,
        )

    return sorted(rows, key=place)


def plain(rows: Sequence[Row]) -> str:
    """Return a table for a terminal."""
    lines = [
        f"{'backend':<10} {'quantity':<42} {'target':>13} {'achieved':>13} {'error':>9} "
        f"{'limit':>12} {'':<8} valid"
    ]
    for row in rows:
        target = "" if row.target is None else number(row.target, row.unit)
        achieved = "" if row.achieved is None else number(row.achieved, row.unit)
        error = "" if row.error is None else deviation(row, row.error)
        why = f"  {row.reason}" if row.achieved is None else ""
        lines.append(
            f"{row.backend:<10} {row.quantity:<42} {target:>13} {achieved:>13} {error:>9} "
            f"{limit_of(row):>12} {verdict(row):<8} {row.valid}/{row.attempts}{why}"
        )
    return "\n".join(lines)


def markdown(rows: Sequence[Row]) -> str:
    """Return a Markdown table with one column per backend."""
    backends = list(dict.fromkeys(row.backend for row in rows))
    by_name: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        by_name.setdefault((row.group, row.quantity), {})[row.backend] = row
    lines = [
        f"| quantity | {' | '.join(backends)} |",
        f"|---|{'---|' * len(backends)}",
    ]
    for (_, quantity), found in by_name.items():
        cells = (_cell(found.get(backend)) for backend in backends)
        lines.append(f"| {quantity} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Return a table of groups: the number of limits met, and the largest error of each."""
    backends = list(dict.fromkeys(row.backend for row in rows))
    lines = [
        f"| what | {' | '.join(backends)} |",
        f"|---|{'---|' * len(backends)}",
    ]
    for group in dict.fromkeys(row.group for row in rows):
        cells = (
            _short([row for row in rows if row.group == group and row.backend == backend])
            for backend in backends
        )
        lines.append(f"| {TITLES.get(group, group)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.achieved is None:
        return f"unknown: {row.reason}"
    parts = [number(row.achieved, row.unit)]
    if row.error is not None:
        parts.append(f"({deviation(row, row.error)})")
    if row.ok is False:
        parts.append(f"**misses {limit_of(row)}**")
    return " ".join(parts)


def _short(rows: Iterable[Row]) -> str:
    limited = [row for row in rows if row.limit is not None]
    if not limited:
        return ""
    known = [row for row in limited if row.ok is not None]
    within = sum(row.ok is True for row in known)
    worst = max(
        (row for row in known if row.error is not None and row.is_relative),
        key=lambda row: abs(row.error or 0.0),
        default=None,
    )
    text = f"{within} of {len(limited)} within limits"
    if len(known) < len(limited):
        text += f", {len(limited) - len(known)} unknown"
    if worst is not None and worst.error is not None:
        text += f"; at most {deviation(worst, worst.error)}"
    return text
