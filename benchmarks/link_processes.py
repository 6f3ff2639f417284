"""Links that are fitted to recorded drives, against the drives.

    fairbed bench link-processes [--only NAME ...] [--draws 200] [--json] [--write FILE ...]

Two questions for each set of drives in `FAIRBED_DATA`:

- Does a link that is fitted to all drives have their pooled statistics? As many drives as recorded
  are drawn many times over, each as long as the recorded one. A correlation is about the mean of
  the drives, so it is computed for as many drives as recorded, and averaged over the draws.
- Is a drive that was left out within the 90 % band of the link that is fitted to the others? The
  band of a statistic is between its quantiles of 5 and 95 % over drawn drives of the same length.

A transfer begins every ten seconds, takes the rate of each second, and continues at the start of
its drive at the end: no TCP, so that rates alone are compared.
"""

import argparse
import csv
import fnmatch
import io
import lzma
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks._pages import page, require_place, write_place
from fairbed.profiles.fitting import Direction, fit_direction, runs
from fairbed.profiles.quantities import Floats, Varying
from fairbed.profiles.schema import Link
from fairbed.profiles.tracks import draw_rates

MARK = "link processes"

EVERY_S = 10.0
"""Time between the starts of two transfers, seconds."""

SIZES = (1e6, 10e6)
"""Bytes of a transfer."""

LAGS_S = (1, 10, 60)
"""Lags of the autocorrelation, seconds; a step if that is longer."""

BAND = (0.05, 0.95)

TIME_LIMIT, ZERO_LIMIT, CORRELATION_LIMIT, LENGTH_LIMIT = 0.15, 0.03, 0.1, 0.5
"""Limits: of times, relative; of the share at 0; of correlations; of the mean length of outages,
by factor: ln(1.65)."""

LEAST_OUTAGES = 20
"""Fewer outages are too few to judge their lengths."""


@dataclass(frozen=True, slots=True)
class DriveSet:
    """Drives of one kind."""

    title: str
    file: str
    """In `FAIRBED_DATA/traces`."""
    names: str
    """Pattern of their names."""
    step_s: float = 1.0
    has_states: bool = True
    """False: as `--no-states` of the shipped link that is fitted to them."""


SETS: Mapping[str, DriveSet] = {
    "att": DriveSet("AT&T down, US", "us_drives_2023.csv.xz", "att-down-*"),
    "verizon": DriveSet("Verizon down, US", "us_drives_2023.csv.xz", "verizon-down-*"),
    "tmobile": DriveSet("T-Mobile down, US", "us_drives_2023.csv.xz", "tmobile-down-*"),
    "starlink-mobility": DriveSet(
        "Starlink Mobility down, US", "us_drives_2023.csv.xz", "starlink-mobility-down-*"
    ),
    "starlink-roam": DriveSet(
        "Starlink Roam down, US", "us_drives_2023.csv.xz", "starlink-roam-down-*"
    ),
    "starlink-up": DriveSet("Starlink up, US", "us_drives_2023.csv.xz", "starlink-*-up-*"),
    "cork-5g-up": DriveSet("5G up, Cork", "cork_uplink_2022.csv.xz", "cork-5g-up-*", 3.0),
    "cork-lte-up": DriveSet("LTE up, Cork", "cork_uplink_2022.csv.xz", "cork-lte-up-*", 3.0),
    "ireland-5g": DriveSet("5G and LTE down, Ireland", "5g_ireland_2020.csv.xz", "Download/Dr*"),
    "ireland-static": DriveSet(
        "5G and LTE down, Ireland, not moving",
        "5g_ireland_2020.csv.xz",
        "Download/St*",
        has_states=False,
    ),
    "mahimahi-down": DriveSet(
        "LTE down, US 2012-16", "mahimahi_cellular_us_1s.csv.xz", "*LTE*.down"
    ),
    "new-york": DriveSet("LTE down, New York 2019", "nyc_lte_2019_1s.csv.xz", "*"),
    "oslo": DriveSet("3G down, Oslo", "norway_hsdpa_3g.csv.xz", "*"),
    "umts-up": DriveSet(
        "UMTS up, US 2012", "mahimahi_cellular_us_1s.csv.xz", "*UMTS*.up", has_states=False
    ),
}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of a set: pooled over the drives, and over drawn drives."""

    set: str
    statistic: str
    recorded: float
    drawn: float
    ok: bool | None
    """None if it has no limit."""


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of drives that were left out, and those within their band."""

    set: str
    inside: int
    of: int
    misses: tuple[str, ...]


def main(arguments: list[str]) -> int:
    """Compare, print the tables, and return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench link-processes", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", choices=SETS, default=list(SETS), metavar="NAME")
    add("--draws", type=int, default=200, help="drawn drives for each recorded one")
    add("--json", action="store_true")
    add("--write", nargs="+", type=page, default=[], metavar="FILE")
    options = parser.parse_args(arguments)
    if options.draws < 20:
        parser.error(f"--draws: must be at least 20 for a band, got {options.draws}")
    require_place(options.write, MARK)
    folder = os.environ.get("FAIRBED_DATA")
    if folder is None:
        print("link-processes: needs the published drives; set FAIRBED_DATA", file=sys.stderr)
        return 2
    rows, held = list[Comparison](), list[HeldOut]()
    for name in options.only:
        drives = drives_of(SETS[name], Path(folder))
        rows += compared(name, drives, SETS[name].step_s, options.draws)
        if len(drives) > 2:
            held.append(held_out(name, drives, SETS[name].step_s, options.draws))
    if options.json:
        print(msgspec.json.encode({"pooled": rows, "held_out": held}).decode())
    else:
        print(markdown(rows, held))
    for path in options.write:
        text = f"`fairbed bench link-processes`:\n\n{markdown(rows, held)}"
        write_place(path, MARK, text)
    return 0 if all(row.ok is not False for row in rows) else 1


def drives_of(wanted: DriveSet, data: Path) -> list[Floats]:
    """Return the rates of each drive of a set, bit/s, in its steps, shape (S,) each.

    Rows of one time are averaged. Of 5G Ireland, pauses between files are left out.

    Raises:
        SystemExit: The table is missing.
    """
    path = data / "traces" / wanted.file
    if not path.is_file():
        raise SystemExit(f"link-processes: needs {path}, which does not exist; set FAIRBED_DATA")
    is_ireland = wanted.file.startswith("5g_ireland")
    found: dict[str, dict[float, list[float]]] = {}
    with lzma.open(path) as packed:
        for row in csv.DictReader(io.TextIOWrapper(packed, "utf-8")):
            if not fnmatch.fnmatchcase(row["trace"], wanted.names):
                continue
            value = row["dl_mbps" if is_ireland else "mbps"]
            at = float(row["t_s"]) // wanted.step_s
            if value:
                found.setdefault(row["trace"], {}).setdefault(at, []).append(float(value) * 1e6)
    drives = []
    for times in found.values():
        values = np.array([np.mean(times[at]) for at in sorted(times)])
        drives.append(values[values >= PAUSE_BPS] if is_ireland else values)
    return drives


PAUSE_BPS = 50e3
"""Lower rates of 5G Ireland are the pauses of some seconds between two files."""


def drawn_drives(
    found: Direction, lengths: Sequence[int], draws: int, seed: int = 1
) -> list[Floats]:
    """Return drawn drives, `draws` for each length, in steps, in the order of the lengths."""
    rate: Varying[float, float] = Varying(
        value=found.median_bps, tag="measured", source="fitted", spread=found.spread
    )
    link = Link(down=rate, outages=found.outages, degraded=found.degraded)
    rng = np.random.default_rng(seed)
    drawn = []
    for length in lengths:
        for _ in range(draws):
            values = np.array(draw_rates(link, rng)[0].values)
            drawn.append(np.resize(values, length))
    return drawn


def times_s(rates_bps: Floats, step_s: float, n_bytes: float) -> Floats:
    """Return the time of transfers that begin every `EVERY_S`, seconds; `inf` without any rate."""
    starts = np.arange(0.0, len(rates_bps), max(1.0, EVERY_S / step_s))
    total = float(rates_bps.sum()) * step_s
    if total == 0.0:
        return np.full(len(starts), np.inf)
    laps = int(np.ceil(8.0 * n_bytes / total)) + 1
    area = np.concatenate([[0.0], np.cumsum(np.tile(rates_bps, laps) * step_s)])
    edges = np.arange(len(area)) * step_s
    begun = np.interp(starts * step_s, edges, area)
    wanted = begun + 8.0 * n_bytes
    place = np.searchsorted(area, wanted, side="left")
    before = area[place - 1]
    ends = edges[place - 1] + (wanted - before) / (area[place] - before) * step_s
    times: Floats = ends - starts * step_s
    return times


def statistics_of(drives: Sequence[Floats], step_s: float) -> dict[str, float]:
    """Return the pooled statistics of drives."""
    found = dict[str, float]()
    for n_bytes in SIZES:
        pooled = np.concatenate([times_s(drive, step_s, n_bytes) for drive in drives])
        found[f"{n_bytes / 1e6:g} MB, median"] = _seconds(pooled, 0.5)
        found[f"{n_bytes / 1e6:g} MB, p90"] = _seconds(pooled, 0.9)
    whole = np.concatenate(drives)
    found["rate, median"] = float(np.median(whole)) / 1e6
    found["share at 0"] = float(np.mean(whole <= 0.0))
    lengths = np.concatenate([np.subtract(*runs(drive <= 0.0)[::-1]) for drive in drives])
    found["outages in an hour"] = 3600.0 * len(lengths) / (step_s * len(whole))
    found["outage, mean"] = float(lengths.mean() * step_s) if len(lengths) else 0.0
    for lag_s in LAGS_S:
        lag = max(1, round(lag_s / step_s))
        found[f"correlation, {lag_s} s"] = _correlation(drives, lag)
    return found


def _seconds(values: Floats, share: float) -> float:
    """Return a quantile that is one of the values: some may be infinite."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def _correlation(drives: Sequence[Floats], lag: int) -> float:
    """Return the autocorrelation about the mean of all drives, weighted by time."""
    mean = float(np.mean(np.concatenate(drives)))
    pairs = [(drive[:-lag] - mean, drive[lag:] - mean) for drive in drives if len(drive) > lag]
    products = sum(float(a @ b) for a, b in pairs)
    squares = sum((float(a @ a) + float(b @ b)) / 2.0 for a, b in pairs)
    return products / squares if squares else 0.0


def _fitted(name: str, drives: Sequence[Floats], step_s: float) -> Direction:
    wanted = SETS[name]
    return fit_direction(drives, step_s, "measured", wanted.title, has_states=wanted.has_states)


def compared(name: str, drives: Sequence[Floats], step_s: float, draws: int) -> list[Comparison]:
    """Return the pooled statistics of a set beside those of the link that is fitted to it."""
    fitted = _fitted(name, drives, step_s)
    drawn = drawn_drives(fitted, [len(drive) for drive in drives], draws)
    recorded, model = statistics_of(drives, step_s), statistics_of(drawn, step_s)
    sets = [drawn[number::draws] for number in range(draws)]
    for lag_s in LAGS_S:
        lag = max(1, round(lag_s / step_s))
        found = [_correlation(each, lag) for each in sets]
        model[f"correlation, {lag_s} s"] = float(np.mean(found))
    outages = sum(len(runs(drive <= 0.0)[0]) for drive in drives)
    return [
        Comparison(
            set=name,
            statistic=statistic,
            recorded=value,
            drawn=model[statistic],
            ok=_is_ok(statistic, value, model[statistic], outages),
        )
        for statistic, value in recorded.items()
    ]


def _is_ok(statistic: str, recorded: float, drawn: float, outages: int) -> bool | None:
    if "MB" in statistic:
        return drawn == recorded or abs(drawn / recorded - 1.0) <= TIME_LIMIT
    if statistic == "share at 0":
        return abs(drawn - recorded) <= ZERO_LIMIT
    if statistic.startswith("correlation"):
        return abs(drawn - recorded) <= CORRELATION_LIMIT
    if statistic == "outage, mean" and outages >= LEAST_OUTAGES:
        return abs(np.log(drawn / recorded)) <= LENGTH_LIMIT if drawn > 0.0 else False
    return None


HELD_OUT = ("1 MB, median", "10 MB, median", "10 MB, p90", "rate, median", "share at 0")
"""Statistics of a single drive."""


def held_out(name: str, drives: Sequence[Floats], step_s: float, draws: int) -> HeldOut:
    """Fit a link to all drives but one, for each, and count its statistics within the band."""
    inside, of, misses = 0, 0, list[str]()
    for at, drive in enumerate(drives):
        others = [each for number, each in enumerate(drives) if number != at]
        fitted = _fitted(name, others, step_s)
        drawn = [
            statistics_of([each], step_s)
            for each in drawn_drives(fitted, [len(drive)], draws, seed=at)
        ]
        own = statistics_of([drive], step_s)
        for statistic in HELD_OUT:
            values = np.array([each[statistic] for each in drawn])
            low, high = (_seconds(values, share) for share in BAND)
            is_inside = low <= own[statistic] <= high
            inside, of = inside + is_inside, of + 1
            if not is_inside:
                misses.append(f"{at}: {statistic} {own[statistic]:.3g} ({low:.3g} to {high:.3g})")
    return HeldOut(set=name, inside=inside, of=of, misses=tuple(misses))


def markdown(rows: Sequence[Comparison], held: Sequence[HeldOut]) -> str:
    """Return both tables."""
    names = list(dict.fromkeys(row.statistic for row in rows))
    lines = [f"| recorded / drawn | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for of_set in dict.fromkeys(row.set for row in rows):
        cells = {row.statistic: _cell(row) for row in rows if row.set == of_set}
        lines.append(f"| {SETS[of_set].title} | {' | '.join(cells[name] for name in names)} |")
    missed = sum(row.ok is False for row in rows)
    judged = sum(row.ok is not None for row in rows)
    lines += ["", f"{judged - missed} of {judged} within their limits."]
    if held:
        inside, of = sum(each.inside for each in held), sum(each.of for each in held)
        lines += [
            "",
            "| drives left out | statistics within the band | outside |",
            "|---|---|---|",
        ]
        lines += [
            f"| {SETS[each.set].title} | {each.inside} of {each.of} | {'; '.join(each.misses)} |"
            for each in held
        ]
        lines += ["", f"{inside} of {of} within the 90 % band: {100 * inside / of:.0f} %."]
    return "\n".join(lines)


def _cell(row: Comparison) -> str:
    recorded, drawn = f"{row.recorded:.3g}", f"{row.drawn:.3g}"
    if row.statistic == "share at 0":
        recorded, drawn = f"{100 * row.recorded:.1f} %", f"{100 * row.drawn:.1f} %"
    text = f"{recorded} / {drawn}"
    return f"**{text}**" if row.ok is False else text
