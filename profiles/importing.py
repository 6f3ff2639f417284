"""Import traces as a link: its profile file, and the trace files beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

from fairbed.profiles.quantities import Quantity, Varying
from fairbed.profiles.schema import DROP_TAIL, Link, LinkProfile, LinkQueue
from fairbed.profiles.traces.table import format_table
from fairbed.profiles.traces.trace import ONE_WAY, Trace
from fairbed.profiles.write import to_toml

GIVEN = "given when the trace was imported"
NOT_RECORDED = "not recorded: taken as 0, so no delay is added"

MAX_TEXT = 600
"""Characters of a title or source (`profiles.quantities.Text`)."""

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles printed for each column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The files of a link that follows traces."""

    files: Mapping[str, str]
    """Contents by file name: the link's `.toml`, and one `.csv` per trace."""
    found: tuple[str, ...]
    """One line per column of the traces, with its statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Text of a link profile that a trace does not contain."""

    title: str
    source: str
    licence: str


def import_link(
    name: str,
    down: Trace,
    up: Trace | None,
    description: Description,
    up_bps: float | None = None,
    delay_s: float | None = None,
    queue: LinkQueue = DROP_TAIL,
) -> Imported:
    """Return a link whose rates follow traces.

    Args:
        name: Name of the link.
        down: Trace of the downlink, and of all other numbers that it has columns for.
        up: Separate trace of the uplink; None takes the column of `down`, or its only rate for
            both directions.
        description: Title, source and licence.
        up_bps: A constant uplink rate instead, bit/s.
        delay_s: One-way delay, seconds, if the traces have none; None takes 0.
        queue: The queue of each direction.

    Raises:
        ValueError: A rate is missing, or always 0.
    """
    beside = {f"{name}.csv": down}
    if up is not None:
        beside = {f"{name}.down.csv": down, f"{name}.up.csv": up}
    down_file, up_file = next(iter(beside)), list(beside)[-1]

    def followed(key: str, trace: Trace, file: str) -> Varying[float, float]:
        return _followed(key, trace, file, description.source)

    link = Link(
        down=followed("down_bps", down, down_file),
        up=_given(up_bps, GIVEN)
        if up_bps is not None
        else followed("up_bps", down if up is None else up, up_file),
        delay=followed("delay_s", down, down_file)
        if down.has("delay_s")
        else _given(delay_s or 0.0, NOT_RECORDED if delay_s is None else GIVEN),
        jitter=followed("jitter_s", down, down_file) if down.has("jitter_s") else None,
        loss=followed("loss_ratio", down, down_file) if down.has("loss_ratio") else None,
        queue_depth=None
        if queue.depth_s is None
        else Quantity(value=1000.0 * queue.depth_s, tag="literature", source=GIVEN),
        queue_size=None
        if queue.depth_bytes is None
        else Quantity(value=queue.depth_bytes, tag="literature", source=GIVEN),
        discipline=None
        if queue.discipline == "drop-tail"
        else Quantity(value=queue.discipline, tag="literature", source=GIVEN),
    )
    profile = LinkProfile(
        name=name, title=_line(description.title), licence=_line(description.licence), link=link
    )
    notes = {"source": description.source, "licence": description.licence}
    files = {f"{name}.toml": to_toml(profile)}
    files |= {file: format_table(trace, notes) for file, trace in beside.items()}
    return Imported(
        files=files,
        found=tuple(
            f"{file}: {_described(trace, column)}"
            for file, trace in beside.items()
            for column in trace.columns
        ),
    )


def _followed(key: str, trace: Trace, file: str, source: str) -> Varying[float, float]:
    """Return a number that follows a trace; its `value` is the mean."""
    if not trace.has(key):
        raise ValueError(f"must have a column for {key}, got {', '.join(trace.columns)}")
    mean = trace.mean(key if key in trace.columns else ONE_WAY)
    if key.endswith("_bps") and mean <= 0.0:
        raise ValueError(f"{key} must be above 0 at some time, got only zeros")
    return Varying(
        value=float(f"{mean:.6g}"),
        tag="measured",
        source=_line(f"mean of the trace: {source}"),
        trace=file,
    )


def _given(value: float, source: str) -> Varying[float, float]:
    return Varying(value=value, tag="literature", source=source)


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_TEXT]


def _described(trace: Trace, column: str) -> str:
    values = ", ".join(
        f"p{round(share * 100)} {trace.quantile(column, share):.4g}" for share in SHARES
    )
    rows = len(trace.t_s)
    return f"{column}: {rows} rows, {trace.period_s:g} s, mean {trace.mean(column):.4g}, {values}"
