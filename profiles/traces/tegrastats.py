"""Read load and clock of a Jetson from a log of tegrastats.

    load    sum over the cores of (busy percent) / 100, cores
    clock   mean MHz of the cores, weighted by their load, relative to a nominal clock

An idle core has a low clock that is not its clock under load. So the clock of a row with
less than half a core busy is that of the busy row before.

Source: "tegrastats Utility", Jetson Linux Developer Guide (releases 28 to 36): `CPU [X%@Z,off]`,
and the earlier `CPU [X%,Y%]@Z`; dates of later releases are MM-DD-YYYY HH:MM:SS.
"""

import math
import re
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.moments import after_folds
from fairbed.profiles.traces.trace import MAX_CLOCK_RATIO, Floats, Trace

INTERVAL_S = 1.0
"""Default interval of tegrastats, seconds."""

BUSY_CORES = 0.5
"""Load from which the clock of a row counts, cores."""

_RAM = re.compile(r"\bRAM \d+/\d+[kMG]B", re.IGNORECASE)
_CPU = re.compile(r"\bCPU \[([^\]]*)\](?:@(\d+))?", re.IGNORECASE)
_CORE = re.compile(r"(\d+)%(?:@(\d+))?")
_DATE = re.compile(r"^\s*(\d{2})-(\d{2})-(\d{4}) (\d{2}:\d{2}:\d{2})\b")
_RAIL = re.compile(r"\b((?:VDD|VIN|POM)_\w+) (\d+)(?:mW)?/")


@dataclass(frozen=True, slots=True)
class Log:
    """Load and clock of a board."""

    trace: Trace
    cores: int
    """Cores of the board, those that are off included."""
    lines: tuple[str, ...]
    """What was read, assumed and left out."""


def is_tegrastats(content: bytes) -> bool:
    """Return whether a file is a log of tegrastats."""
    head = content[:4000].decode("utf-8", "replace")
    return bool(_RAM.search(head) and _CPU.search(head))


def read_tegrastats(
    content: bytes, where: str, nominal_mhz: float | None = None, interval_s: float | None = None
) -> Log:
    """Return the load and the clock in a log.

    Args:
        content: Content of the file.
        where: Name of the file in errors.
        nominal_mhz: Clock that counts as 1, MHz; not given: the highest in the log.
        interval_s: Time between lines without a date, seconds; not given: `INTERVAL_S`.

    Raises:
        TraceError: There are no lines of tegrastats, one violates a rule, or the log has nothing
            for which a clock or an interval is given.
    """
    times, loads, clocks = list[float](), list[float](), list[float]()
    power_mw: dict[str, list[float]] = {}
    cores, other, highest_mhz = 0, 0, 0.0
    for row, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        found = _CPU.search(line)
        if found is None:
            other += bool(line.strip())
            continue
        busy, mhz = np.zeros(0), np.zeros(0)
        for core in found.group(1).split(","):
            part = _CORE.fullmatch(core.strip())
            if part is None and core.strip() != "off":
                raise TraceError(
                    f"{where}: row {row}: a core must be PERCENT%@MHZ or off, got "
                    f"{core.strip()[:20]!r}; correct or delete the row"
                )
            clock = 0.0 if part is None else float(part.group(2) or found.group(2) or 0.0)
            busy = np.append(busy, 0.0 if part is None else float(part.group(1)) / 100.0)
            mhz = np.append(mhz, clock)
        if np.any(busy > 1.0):
            raise TraceError(f"{where}: row {row}: a core must be at most 100 %; correct the row")
        cores = max(cores, len(busy))
        highest_mhz = max(highest_mhz, float(mhz.max()))
        loads.append(float(busy.sum()))
        has_clock = loads[-1] >= BUSY_CORES and bool(np.all(mhz[busy > 0.0] > 0.0))
        clocks.append(float(np.average(mhz, weights=busy)) if has_clock else np.nan)
        times.append(_time_s(line, where, row))
        for rail, value in _RAIL.findall(line):
            power_mw.setdefault(rail, []).append(float(value))
    if not times:
        raise TraceError(f"{where}: must have lines of tegrastats with CPU [...], got none")
    lines = [f"tegrastats: {len(times)} rows of {cores} cores"]
    if other:
        lines.append(f"{other} lines without CPU left out")
    t_s = np.array(times)
    if np.isnan(t_s).all():
        step_s = interval_s or INTERVAL_S
        t_s = np.arange(len(times)) * step_s
        default = "" if interval_s else ", the default of tegrastats; state another by --interval"
        lines.append(f"no times: {step_s:g} s between lines{default}")
    elif np.isnan(t_s).any():
        raise TraceError(f"{where}: all lines or none must have a date; delete the others")
    elif interval_s is not None:
        raise TraceError(
            f"{where}: the lines have dates, so --interval must not be given, got {interval_s:g} "
            "s; remove it"
        )
    else:
        t_s, corrected = after_folds(t_s, is_local=True)
        lines += corrected
    if (falls := np.flatnonzero(np.diff(t_s) < 0.0)).size:
        raise TraceError(
            f"{where}: times must not decrease, got a fall after line {falls[0] + 1} of "
            "tegrastats; import one log at a time"
        )
    columns = {"background_load": np.array(loads)}
    of_clock = _clock(np.array(clocks), nominal_mhz or highest_mhz, nominal_mhz is None, lines)
    if nominal_mhz is not None and not of_clock:
        raise TraceError(f"{where}: {lines[-1]}, so --nominal must not be given; remove it")
    columns |= of_clock
    starts, place, counts = np.unique(t_s, return_inverse=True, return_counts=True)
    usual_s = float(np.median(np.diff(starts))) if len(starts) > 1 else INTERVAL_S
    if power_mw:
        means = ", ".join(f"{rail} {np.mean(mw) / 1e3:.3g} W" for rail, mw in power_mw.items())
        lines.append(f"mean power, not imported: {means}")
    lines.append("memory, GPU and temperatures: not numbers of a trace, not imported")
    lines.append("the load is of all processes, also of training if it ran")
    trace = Trace(
        starts - starts[0],
        {name: np.bincount(place, weights=values) / counts for name, values in columns.items()},
        float(starts[-1] - starts[0]) + usual_s,
    )
    return Log(trace, cores, tuple(lines))


def _clock(
    mhz: Floats, nominal_mhz: float, is_highest: bool, lines: list[str]
) -> dict[str, Floats]:
    """Return the column of the clock, if a row has one under load, and describe it."""
    known = np.flatnonzero(~np.isnan(mhz))
    if not known.size or nominal_mhz <= 0.0:
        lines.append(f"no row with a clock and {BUSY_CORES:g} cores busy: no clock imported")
        return {}
    last = np.maximum.accumulate(np.where(np.isnan(mhz), -1, np.arange(len(mhz))))
    ratio = mhz[np.where(last < 0, known[0], last)] / nominal_mhz
    source = "the highest in the log; state another by --nominal" if is_highest else "as given"
    lines.append(
        f"clock from {known.size} rows with {BUSY_CORES:g} cores busy or more, relative to "
        f"{nominal_mhz:g} MHz, {source}"
    )
    return {"clock_ratio": np.clip(ratio, 1e-3, MAX_CLOCK_RATIO)}


def _time_s(line: str, where: str, row: int) -> float:
    found = _DATE.match(line)
    if found is None:
        return math.nan
    month, day, year, clock = found.groups()
    try:
        moment = datetime.strptime(f"{year}-{month}-{day} {clock}", "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007
    except ValueError:
        raise TraceError(
            f"{where}: row {row}: a date must be MM-DD-YYYY HH:MM:SS, got {line[:19]!r}; "
            "correct or delete the row"
        ) from None
    return moment.replace(tzinfo=timezone.utc).timestamp()
