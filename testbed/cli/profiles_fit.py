"""`fairbed profiles fit`: a link from recorded drives, as a process that draws others like them."""

import argparse
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fairbed.profiles.fitting import Direction, NotFitted, coupling_of, fit_direction
from fairbed.profiles.importing import GIVEN, MAX_TEXT, NOT_RECORDED
from fairbed.profiles.quantities import Episodes, Floats, Quantity, Spread, Varying
from fairbed.profiles.schema import Link, LinkProfile
from fairbed.profiles.traces import Trace
from fairbed.profiles.traces.columns import parse_columns
from fairbed.profiles.traces.trace import ONE_WAY
from fairbed.profiles.write import to_toml
from fairbed.testbed.cli import DONE
from fairbed.testbed.cli.profile_drives import check_name, drives_of_file, number_of
from fairbed.testbed.errors import UsageError
from fairbed.wire.printable import printable

STEP = "1s"

ALIKE = 0.95
"""Both directions of one recording are at least so alike in length."""


@dataclass(frozen=True, slots=True)
class Drive:
    """A recorded drive, in steps."""

    label: str
    trace: Trace

    def rates(self, column: str) -> Floats:
        """Return the rates of a direction, or those without one, bit/s, shape (S,)."""
        columns = self.trace.columns
        return columns[column] if column in columns else columns[ONE_WAY]


def fit_link(options: argparse.Namespace) -> int:
    """Write the link that is fitted to the drives of some files; return the exit code."""
    check_name(options.name)
    step_s = number_of("--step", options.step or STEP)
    if step_s <= 0.0:
        raise UsageError(f"--step: must be more than 0, got {options.step}; 1s is usual")
    drives = [drive for path in options.files for drive in _read(path, options, step_s)]
    down = _chosen("--down", drives, options.down, "down_bps")
    up = [] if options.up is None and options.up_rate else _uplink(drives, options.up)
    if not down:
        raise UsageError("--down: must match a drive with a rate, got none; see --split")
    if not up and options.up_rate is None:
        raise UsageError(
            "--up: must match a drive with a rate of the uplink, got none; give --up or "
            "--up-rate 5mbit"
        )
    path = options.to / f"{options.name}.toml"
    if path.exists() and not options.force:
        raise UsageError(f"{path}: exists already; choose another --name or --to, or use --force")
    try:
        profile = _profile(options, down, up, step_s)
    except NotFitted as exc:
        raise UsageError(f"{options.files[0]}: {exc}") from exc
    try:
        options.to.mkdir(parents=True, exist_ok=True)
        path.write_text(to_toml(profile), encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"--to {options.to}: must be a writable folder, got: {exc}") from exc
    print(f'wrote {path}; use it as: link = "{printable(str(path))}"')
    return DONE


def _read(path: Path, options: argparse.Namespace, step_s: float) -> list[Drive]:
    """Return the drives of a file; one without a split has the name of the file."""
    of_file = copy(options)
    of_file.down, of_file.up = path, None
    of_file.nominal = of_file.interval = None
    columns = None
    if options.columns is not None:
        try:
            columns = parse_columns(options.columns)
        except ValueError as exc:
            raise UsageError(f"--columns: {exc}") from exc
    gap_s = None if options.gap is None else number_of("--gap", options.gap)
    found = drives_of_file(of_file, step_s, columns, gap_s)
    return [Drive(label or path.name, trace) for label, trace, _ in found]


def _chosen(option: str, drives: Sequence[Drive], pattern: str | None, column: str) -> list[Drive]:
    """Return the drives that a pattern names and that have a rate for the direction.

    Raises:
        UsageError: The pattern names none.
    """
    named = [each for each in drives if pattern is None or fnmatchcase(each.label, pattern)]
    if pattern is not None and not named:
        labels = ", ".join(each.label for each in drives[:5])
        raise UsageError(
            f"{option}: must match a drive, got {pattern!r}; there are {printable(labels)}"
        )
    return [each for each in named if each.trace.has(column)]


def _uplink(drives: Sequence[Drive], pattern: str | None) -> list[Drive]:
    if pattern is not None:
        return _chosen("--up", drives, pattern, "up_bps")
    return [each for each in drives if "up_bps" in each.trace.columns]


def _profile(
    options: argparse.Namespace, down: Sequence[Drive], up: Sequence[Drive], step_s: float
) -> LinkProfile:
    names = ", ".join(path.name for path in options.files)
    origin = options.source or f"fitted to {names}"
    of_down = _fitted(down, "down_bps", step_s, origin, options)
    of_up = _fitted(up, "up_bps", step_s, origin, options) if up else None
    for way, found in (("down", of_down), ("up", of_up)):
        if found is not None:
            print(_line(way, found))
    pairs = _pairs(down, up)
    coupling = coupling_of(pairs)
    delay_s = None if options.delay is None else number_of("--delay", options.delay)
    return LinkProfile(
        name=options.name,
        title=options.title or f"Link fitted to {len(down)} drives of {names}"[:MAX_TEXT],
        licence=options.licence or "not stated at the fit: ask the owner before publishing",
        link=Link(
            down=_rate(of_down, origin),
            up=_rate(of_up, origin)
            if of_up is not None
            else Varying(
                value=number_of("--up-rate", options.up_rate),
                tag="literature",
                source=GIVEN,
            ),
            delay=Varying(
                value=delay_s or 0.0,
                tag="literature",
                source=NOT_RECORDED if delay_s is None else GIVEN,
            ),
            outages=_of_both(of_down.outages, None if of_up is None else of_up.outages),
            degraded=of_down.degraded,
            coupling=None
            if not coupling
            else Quantity(
                value=coupling,
                tag="measured",
                source=f"correlation of normal scores in {len(pairs)} pairs: {origin}"[:MAX_TEXT],
            ),
        ),
    )


def _fitted(
    drives: Sequence[Drive], column: str, step_s: float, origin: str, options: argparse.Namespace
) -> Direction:
    way = column.removesuffix("_bps")
    pattern: str | None = getattr(options, way)
    has_states = way not in options.no_states
    rates = [each.rates(column) for each in drives]
    total_s = step_s * sum(map(len, rates))
    which = "" if pattern is None else f" ({pattern})"
    count = f"{len(drives)} drive{'s' * (len(drives) != 1)}"
    source = f"fairbed profiles fit of {count}{which}, {total_s:g} s: {origin}"
    return fit_direction(rates, step_s, "measured", source[:MAX_TEXT], has_states=has_states)


def _rate(found: Direction, origin: str) -> Varying[float, float]:
    drives = f"{found.drives} drive{'s' * (found.drives != 1)}"
    source = f"median while connected of {drives}, {found.seconds:g} s: {origin}"
    spread: Spread[float] = found.spread
    return Varying(value=found.median_bps, tag="measured", source=source[:MAX_TEXT], spread=spread)


def _of_both(down: Episodes | None, up: Episodes | None) -> Episodes | None:
    """Return the outages of a link: those of the downlink, if it has any."""
    return up if down is None else down


def _pairs(down: Sequence[Drive], up: Sequence[Drive]) -> list[tuple[Floats, Floats]]:
    """Return rates of drives that were recorded in both directions at the same time.

    They are the same drive, or have names that differ by `down` and `up` and are as long.
    """
    by_label = {each.label: each for each in up}
    found = []
    for each in down:
        other = by_label.get(each.label.replace("down", "up"))
        if other is None or (other is each and "up_bps" not in each.trace.columns):
            continue
        a, b = each.rates("down_bps"), other.rates("up_bps")
        length = min(len(a), len(b))
        if length >= ALIKE * max(len(a), len(b)):
            found.append((a[:length], b[:length]))
    return found


def _line(way: str, found: Direction) -> str:
    """Return what was found in one direction."""
    spread = found.spread
    fast = 1.0 - spread.drive - spread.slow
    rate, zero = found.median_bps / 1e6, 100.0 * found.zero_share
    count = f"{found.drives} drive{'s' * (found.drives != 1)}"
    text = (
        f"{way}: {count}, {found.seconds:g} s, median {rate:.3g} Mbit/s while connected, at 0 for "
        f"{zero:.1f} % of the time; variance of scores: {spread.drive:.0%} between drives, "
        f"{spread.slow:.0%} slow ({spread.slow_s:g} s), {fast:.0%} fast"
    )
    for name, state in (("outage", found.outages), ("degraded", found.degraded)):
        if state is not None:
            text += f"; {name} every {state.value:g} s, for {float(state.lengths().at(0.5)):g} s"
    if found.drives == 1:
        text += "; one drive does not show how drives differ: all devices have its distribution"
    return text
