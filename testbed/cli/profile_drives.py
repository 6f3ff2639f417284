"""Drives in a file of recorded links, for `fairbed profiles import` and `fit`."""

import argparse
import re
from pathlib import Path

from fairbed.profiles.traces import Trace
from fairbed.profiles.traces.columns import Column, own_columns, read_columns, read_drives
from fairbed.profiles.traces.drives import parse_split
from fairbed.profiles.traces.files import format_of, parse_trace, read_file
from fairbed.profiles.traces.gaps import GapRule, bridge_gaps
from fairbed.profiles.traces.iperf import read_iperf
from fairbed.profiles.traces.tegrastats import read_tegrastats
from fairbed.profiles.traces.units import check_magnitudes
from fairbed.testbed.errors import UsageError
from fairbed.testbed.units import duration_s, rate_bps

NAME = re.compile(r"[a-z0-9-]{1,32}")

MAHIMAHI_STEP_S = 1.0


def drives_of_file(
    options: argparse.Namespace,
    step_s: float | None,
    columns: dict[str, Column] | None,
    gap_s: float | None,
) -> list[tuple[str, Trace, list[str]]]:
    """Return the label, trace and notes of each drive of `options.down`, whole without a split.

    A drive of one row has no duration, and one that repeats another adds nothing: they are left
    out, and the notes of the first drive state it.
    """
    path = options.down
    if options.split is None:
        notes: list[str] = []
        return [("", read_trace(path, options, step_s, columns, gap_s, notes), notes)]
    content, where = read_file(path), str(path)
    kind = format_of(content)
    try:
        split = parse_split(options.split)
    except ValueError as exc:
        raise UsageError(f"--split: {exc}") from exc
    if kind == "iperf3":
        found = [
            ("", test.trace, [f"{path.name}: {test.line}"]) for test in read_iperf(content, where)
        ]
    else:
        chosen = columns or own_columns(content, where)
        if split.column == chosen["t"].name:
            raise UsageError(
                f"--split: must be a column of names, got the time {split.column!r}; use --split "
                "time to cut where it falls"
            )
        found = [
            (label, read.trace, [f"{path.name}{of_label(label)}: {read}"])
            for label, read in read_drives(content, where, chosen, split)
        ]
    kept: list[tuple[str, Trace, list[str]]] = []
    short = repeats = 0
    seen: set[bytes] = set()
    for label, trace, lines in found:
        key = b"".join(values.tobytes() for values in (trace.t_s, *trace.columns.values()))
        short += len(trace.t_s) < 2
        repeats += len(trace.t_s) > 1 and key in seen
        if len(trace.t_s) > 1 and key not in seen:
            if not options.as_is:
                check_magnitudes(trace, f"{where}{of_label(label)}")
            kept.append(
                (label, _bridged(path, trace, options.gaps or "cut", step_s, gap_s, lines), lines)
            )
        seen.add(key)
    if not kept:
        raise UsageError(f"{path}: must have drives of 2 rows or more, got none; check --split")
    if short or repeats:
        kept[0][2].append(
            f"{path.name}: {short} drives of one row, {repeats} that repeat another left out"
        )
    return kept


def _bridged(
    path: Path,
    trace: Trace,
    rule: GapRule,
    step_s: float | None,
    gap_s: float | None,
    notes: list[str],
) -> Trace:
    """Return a trace whose gaps follow the rule, averaged over steps, and note the gaps."""
    try:
        trace, gaps = bridge_gaps(trace, rule, gap_s)
        if gaps.count:
            notes.append(f"{path.name}: {gaps}")
        return trace if step_s is None else trace.binned(step_s)
    except ValueError as exc:
        raise UsageError(f"{path}: {exc}") from exc


def check_name(name: str) -> None:
    """Check the name of a link or a profile that is written.

    Raises:
        UsageError: It is not one.
    """
    if NAME.fullmatch(name) is None:
        raise UsageError(
            f"--name: must be 1 to 32 of a-z, 0-9 and hyphen, got {name!r}; choose another"
        )


def of_label(label: str) -> str:
    """Return the label of a drive in brackets; empty without one."""
    return f" ({label})" if label else ""


def read_trace(
    path: Path,
    options: argparse.Namespace,
    step_s: float | None,
    columns: dict[str, Column] | None,
    gap_s: float | None,
    notes: list[str],
) -> Trace:
    """Return the trace of a file, and append what was changed in it to `notes`."""
    content, where = read_file(path), str(path)
    kind = format_of(content)
    if kind == "mahimahi":  # it has no gaps: a time without a packet is a rate of 0
        trace = parse_trace(content, where, step_s or MAHIMAHI_STEP_S)
        if not options.as_is:
            check_magnitudes(trace, where)
        return trace
    if kind == "iperf3":
        tests = read_iperf(content, where)
        if len(tests) > 1:
            raise UsageError(
                f"{path}: must be one test, got {len(tests)}; make a link of each: --split"
            )
        trace = tests[0].trace
        notes.append(f"{path.name}: {tests[0].line}")
    elif kind == "tegrastats":
        log = read_tegrastats(content, where, _nominal(options), _interval(options))
        trace = log.trace
        notes += [f"{path.name}: {line}" for line in log.lines]
    elif columns is None:
        trace = parse_trace(content, where)
    else:
        found = read_columns(content, where, columns)
        trace = found.trace
        notes.append(f"{path.name}: {found}")
    if not options.as_is:
        check_magnitudes(trace, where)
    return _bridged(path, trace, options.gaps or "cut", step_s, gap_s, notes)


def _nominal(options: argparse.Namespace) -> float | None:
    if options.nominal is None:
        return None
    try:
        mhz = float(options.nominal.lower().removesuffix("mhz"))
    except ValueError:
        mhz = 0.0
    if not 0.0 < mhz < 1e5:
        raise UsageError(f"--nominal: must be a clock in MHz, got {options.nominal}; 1479 is usual")
    return mhz


def _interval(options: argparse.Namespace) -> float | None:
    seconds = optional("--interval", options.interval)
    if seconds is not None and seconds <= 0.0:
        raise UsageError(f"--interval: must be more than 0, got {options.interval}; 1s is usual")
    return seconds


def optional(option: str, text: str | None) -> float | None:
    """Return the number of an option, seconds or bit/s; None if it was not given."""
    return None if text is None else number_of(option, text)


def number_of(option: str, text: str) -> float:
    """Return a rate (`--...-rate`), bit/s, or a time, seconds.

    Raises:
        UsageError: It is none.
    """
    try:
        return rate_bps(text) if option.endswith("-rate") else duration_s(text)
    except ValueError as exc:
        raise UsageError(f"{option}: {exc}") from exc
