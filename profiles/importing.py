"""Make a link of traces: its file, and the traces that lie beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.traces.table import format_table
from profiles.traces.trace import ONE_WAY, Trace

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A link that was made of traces."""

    files: Mapping[str, str]
    """Contents by file name: the link's `.toml`, and one `.csv` per trace."""
    found: tuple[str, ...]
    """One line per column of the traces: what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What nobody can find in a trace."""

    title: str
    source: str
    licence: str


def import_link(
    name: str,
    down: Trace,
    up: Trace | None,
    words: Words,
    up_bps: float | None = None,
    delay_s: float | None = None,
) -> Imported:
    """Return a link whose rates follow traces.

    Args:
        name: Of the link.
        down: The downlink, and all else it has columns for.
        up: The uplink, where it is a trace of its own; else it is a column of `down`, or the
            only rate that `down` has, which then serves both ways.
        words: For people.
        up_bps: A constant uplink instead.
        delay_s: One way, seconds, where the trace does not tell; None takes 0.

    Raises:
        ValueError: A rate is missing, or is 0 throughout.
    """
    beside = {f"{name}.csv": down}
    if up is not None:
        beside = {f"{name}.down.csv": down, f"{name}.up.csv": up}
    down_file, up_file = next(iter(beside)), list(beside)[-1]
    numbers = [_followed("down_bps", down, down_file, words)]
    if up_bps is not None:
        numbers.append(_given("up_bps", up_bps, "given when the trace was imported"))
    else:
        numbers.append(_followed("up_bps", down if up is None else up, up_file, words))
    if "delay_s" in down.columns:
        numbers.append(_followed("delay_s", down, down_file, words))
    else:
        said = "given when the trace was imported"
        unsaid = "not recorded: taken as 0, so no delay is added"
        numbers.append(_given("delay_s", delay_s or 0.0, unsaid if delay_s is None else said))
    numbers += [
        _followed(key, down, down_file, words)
        for key in ("jitter_s", "loss_ratio")
        if key in down.columns
    ]
    head = f"title = {_quoted(words.title)}\nlicence = {_quoted(words.licence)}\n"
    notes = {"source": words.source, "licence": words.licence}
    files = {f"{name}.toml": "\n".join([head, *numbers])}
    files |= {file: format_table(trace, notes) for file, trace in beside.items()}
    return Imported(
        files=files,
        found=tuple(
            f"{file}: {_described(trace, column)}"
            for file, trace in beside.items()
            for column in trace.columns
        ),
    )


def _followed(key: str, trace: Trace, file: str, words: Words) -> str:
    """Return the table of a number that follows a trace; its typical value is the mean."""
    column = key if key in trace.columns else ONE_WAY if key.endswith("_bps") else key
    if column not in trace.columns:
        raise ValueError(f"must have a column for {key}, got {', '.join(trace.columns)}")
    mean = trace.mean(column)
    if key.endswith("_bps") and mean <= 0.0:
        raise ValueError(f"{key} must be above 0 at some time, got 0 throughout")
    return (
        f"[link.{key}]\nvalue = {mean:.6g}\n"
        f'tag = "measured"\nsource = {_quoted(f"mean of the trace: {words.source}")}\n'
        f"trace = {_quoted(file)}\n"
    )


def _given(key: str, value: float, source: str) -> str:
    return f'[link.{key}]\nvalue = {value:.6g}\ntag = "literature"\nsource = {_quoted(source)}\n'


def _described(trace: Trace, column: str) -> str:
    values = ", ".join(
        f"p{round(share * 100)} {trace.quantile(column, share):.4g}" for share in SHARES
    )
    rows = len(trace.t_s)
    return f"{column}: {rows} rows, {trace.period_s:g} s, mean {trace.mean(column):.4g}, {values}"


def _quoted(text: str) -> str:
    """Return a TOML string of one line."""
    plain = " ".join(text.split())
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
