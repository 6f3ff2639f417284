"""Import traces as a link: its profile file, and the trace files beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from fairbed.profiles.quantities import Quantity, Varying
from fairbed.profiles.sampling import FREE_CORES
from fairbed.profiles.schema import (
    DROP_TAIL,
    Availability,
    Link,
    LinkProfile,
    LinkQueue,
    Profile,
)
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
    down_bps: float | None = None,
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
        down_bps: A constant downlink rate instead, bit/s.

    Raises:
        ValueError: A rate is missing or always 0, or no rate of a trace is used.
    """
    _check_rates(down, up, up_bps, down_bps)
    beside = {f"{name}.csv": down}
    if up is not None:
        beside = {f"{name}.down.csv": down, f"{name}.up.csv": up}
    down_file, up_file = next(iter(beside)), list(beside)[-1]

    def followed(key: str, trace: Trace, file: str) -> Varying[float, float]:
        return _followed(key, trace, file, description.source)

    link = Link(
        down=_given(down_bps, GIVEN)
        if down_bps is not None
        else followed("down_bps", down, down_file),
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


def _check_rates(
    down: Trace, up: Trace | None, up_bps: float | None, down_bps: float | None
) -> None:
    """Check that each direction has a rate, and that a rate of the traces is used.

    Raises:
        ValueError: A direction lacks its rate, or only given rates are used.
    """
    lacks_down = down_bps is None and not down.has("down_bps")
    lacks_up = up_bps is None and not (down if up is None else up).has("up_bps")
    got = ", ".join(dict.fromkeys([*down.columns, *(() if up is None else up.columns)]))
    if lacks_down:
        raise ValueError(
            f"must have a column for down_bps, got {got}; give the downlink with --down-rate 20mbit"
        )
    if lacks_up:
        raise ValueError(
            f"must have a column for up_bps, got {got}; give the uplink as a second file or with "
            "--up-rate 5mbit"
        )
    if down_bps is not None and up_bps is not None:
        raise ValueError(
            f"must give at most one rate beside a trace, got two beside {got}; remove --up-rate or "
            "--down-rate"
        )


PARTS: Mapping[str, str] = {
    "clock_ratio": "clock_ratio",
    "background_load": "background_load",
    "available": "availability.available",
}
"""Columns of a trace that belong to a device and not to its link, and their keys in a profile."""


def has_link(trace: Trace) -> bool:
    """Return whether a trace has a rate."""
    return trace.has("down_bps") or trace.has("up_bps")


def import_parts(
    name: str, trace: Trace, description: Description, profile: Profile | None, link: Link | None
) -> Imported:
    """Return the trace of a device, and the profile that follows it.

    Args:
        name: Name of the profile and the trace.
        trace: Trace with at least one column of `PARTS`.
        description: Title, source and licence.
        profile: Profile of the device, whose other numbers stay; None writes the trace alone, and
            `found` has the lines for a profile.
        link: Link of the device instead of that of the profile.

    Raises:
        ValueError: The trace has no such column, or a load of all cores.
    """
    parts = [column for column in PARTS if column in trace.columns]
    if not parts:
        raise ValueError(
            f"must have a rate, clock, load or availability, got {', '.join(trace.columns)}; "
            "name the columns: --columns"
        )
    found = [f"{name}.csv: {_described(trace, column)}" for column in trace.columns]
    columns = dict(trace.columns)
    if profile is not None and "background_load" in columns:
        most = profile.cores - FREE_CORES
        median = float(np.median(columns["background_load"]))
        if median > profile.cores:
            raise ValueError(
                f"the median of background_load must be at most the {profile.cores} cores of "
                f"{profile.name}, got {median:.6g}; divide per cent by 100: load=COLUMN:/100"
            )
        above = int((columns["background_load"] > most).sum())
        if above:
            columns["background_load"] = np.minimum(columns["background_load"], most)
            found.append(
                f"background_load: {above} rows above {most:g} of the {profile.cores} cores "
                f"lowered to that"
            )
    trace = Trace(trace.t_s, columns, trace.period_s)
    file = f"{name}.csv"
    numbers = {column: _followed(column, trace, file, description.source) for column in parts}
    notes = {"source": description.source, "licence": description.licence}
    files = {file: format_table(trace, notes)}
    if profile is None:
        for column, number in numbers.items():
            table = "[availability] " if column == "available" else ""
            found.append(
                f'for a profile: {table}{column} = {{ value = {number.value!r}, tag = "measured", '
                f'source = "{_plain(number.source)}", trace = "{file}" }}'
            )
        return Imported(files=files, found=tuple(found))
    changed = msgspec.structs.replace(
        profile,
        name=name,
        title=_line(description.title),
        licence=_line(f"{description.licence}; {profile.licence}"),
        link=link or profile.link,
        clock=numbers.get("clock_ratio", profile.clock),
        busy=numbers.get("background_load", profile.busy),
        availability=Availability(share=numbers["available"])
        if "available" in numbers
        else profile.availability,
    )
    return Imported(files={f"{name}.toml": to_toml(changed)} | files, found=tuple(found))


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'")


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
