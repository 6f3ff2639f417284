"""Fleets on one family of links, on the virtual clock, seed by seed.

A family is a set of recordings made in the same way, or a shipped link. Estimators were tuned on
some families; the others are held out: nothing about an estimator was chosen by its errors there.
Every device follows a recording of its own, drawn by the seed, from an offset drawn by the seed.
Most recordings have the downlink alone. Then the uplink is another recording of the family, at
`UP_RATIO` of its rate.
"""

import csv
import io
import lzma
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from benchmarks._estimators_replayed import PHASES, Replayed, replay
from experiments.oracle.errors import KNOWN
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.report.quantities import MISSING, percent
from fairbed.testbed.experiment.file import Experiment, FleetConfig, load_experiment

UP_RATIO = 0.25
"""Uplink over downlink where only the downlink was recorded: 1/4 to 1/6 in mahimahi's LTE."""

LEAST_S = 100
"""Shorter recordings are left out; a run takes some minutes and repeats them."""

Recordings: TypeAlias = list[tuple[Floats, Floats | None]]
"""Downlink and uplink, Mbit/s in steps of a second, each of shape (S,); None: not recorded."""


@dataclass(frozen=True, slots=True)
class Family:
    """Links of one kind."""

    title: str
    is_tuned: bool
    """Estimators were tuned on it, or parameters of one compared on it."""
    link: str
    """Shipped link: its delay and, without `file`, its rates."""
    files: tuple[str, ...] = ()
    """Tables in `FAIRBED_DATA/traces`."""
    column: str = "mbps"
    names: str = ""
    """Regular expression of the names of its recordings."""
    is_fast: bool = False
    """Faster boards send float32, so that transfers still take much of an exchange."""
    scale: float = 1.0
    """Factor on the recorded rates: 0.1 is as slow as a model of ten times the size."""


FAMILIES: Mapping[str, Family] = {
    "lte-driving": Family("LTE in cars, US, as the shipped link", True, "lte-driving"),
    "mahimahi": Family(
        "LTE, UMTS and EV-DO in cars, US",
        True,
        "lte-driving",
        ("mahimahi_cellular_us_1s.csv.xz",),
        names=r"\.down$",
    ),
    "norway-3g": Family(
        "3G in bus, tram, train, metro, ferry and car, Oslo",
        True,
        "3g",
        ("norway_hsdpa_3g.csv.xz",),
    ),
    "nyc": Family(
        "3G and LTE in taxi, bus and subway, New York",
        True,
        "lte-driving",
        ("nyc_lte_2019_1s.csv.xz", "nyc_cellular_2018_1s.csv.xz"),
        names=r"taxi|bus|^downlink.*subway",
        is_fast=True,
    ),
    "ireland-5g": Family(
        "5G and LTE in cars, Ireland",
        True,
        "5g-driving",
        ("5g_ireland_2020.csv.xz",),
        column="dl_mbps",
        names="^Download/Driving",
        is_fast=True,
    ),
    **{
        f"us-{name}": Family(
            f"{title} in cars, US",
            True,
            link,
            ("us_drives_2023.csv.xz",),
            names=f"^{kind}-down-",
            is_fast=True,
            scale=0.1,
        )
        for name, title, link, kind in (
            ("att", "5G and LTE of AT&T", "5g-driving", "att"),
            ("verizon", "5G and LTE of Verizon", "5g-driving", "verizon"),
            ("tmobile", "5G and LTE of T-Mobile", "5g-driving", "tmobile"),
            ("starlink", "Starlink", "starlink-driving", "starlink-(mobility|roam)"),
        )
    },
    "starlink": Family(
        "Starlink on a car, Germany, as the shipped link", True, "starlink-driving", is_fast=True
    ),
    "fixed-us": Family(
        "fixed broadband below 6 Mbit/s, US",
        False,
        "fixed-broadband",
        ("fcc_fixed_broadband.csv.xz",),
        names="^trace_",
    ),
    "video-us": Family(
        "connections of viewers of Puffer, US",
        False,
        "fixed-broadband",
        ("puffer_2022_subset.csv.xz",),
    ),
}

BOARDS = {
    False: ("raspberry-pi-zero-2w", "raspberry-pi-3b-plus"),
    True: ("raspberry-pi-4b", "raspberry-pi-5"),
}
"""Boards of a fleet in turn, by `is_fast`."""

SETTINGS: Mapping[str, tuple[int, int, int]] = {"8 of 8": (8, 8, 40), "3 of 9": (9, 3, 120)}
"""Devices of the fleet and of each round, and rounds: about as many exchanges in both."""


def recordings(family: Family, data: Path) -> Recordings:
    """Return the recordings of a family, in the order of their names; none of a shipped link.

    Args:
        family: The family.
        data: Folder of published data.

    Raises:
        SystemExit: A table is missing.
    """
    found = dict[str, Floats]()
    for name in family.files:
        path = data / "traces" / name
        if not path.is_file():
            raise SystemExit(
                f"--families: needs {path}, which does not exist; set FAIRBED_DATA to the folder "
                "of the published data (docs/measurements.md)"
            )
        found.update(_table(path, family.column))
    names = sorted(
        name
        for name, rates in found.items()
        if re.search(family.names, name) and len(rates) >= LEAST_S
    )
    found = {name: family.scale * rates for name, rates in found.items()}
    return [(found[name], found.get(name.removesuffix(".down") + ".up")) for name in names]


def _table(path: Path, column: str) -> dict[str, Floats]:
    """Return the rates of each trace of a table, Mbit/s in steps of a second."""
    rows = dict[str, list[tuple[float, float]]]()
    with lzma.open(path) as packed:
        for row in csv.DictReader(io.TextIOWrapper(packed, "utf-8")):
            rows.setdefault(row["trace"], []).append((float(row["t_s"]), float(row[column] or 0)))
    found = dict[str, Floats]()
    for trace, numbers in rows.items():
        t_s, rates = np.array(numbers).T
        steps = np.arange(0.0, t_s[-1] - t_s[0] + 1.0)
        found[trace] = rates[np.searchsorted(t_s - t_s[0], steps, side="right") - 1]
    return found


def experiment_of(
    example: Path,
    given: Sequence[str],
    name: str,
    setting: str,
    found: Recordings,
    folder: Path,
    seed: int,
) -> Experiment:
    """Return the experiment of one family, setting and seed.

    Args:
        example: The experiment whose fleet is replaced.
        given: Further settings of it, as for `--set`.
        name: The family.
        setting: A key of `SETTINGS`.
        found: Its recordings.
        folder: Receives the traces of the devices.
        seed: Draws recordings and offsets.
    """
    family, (devices, per_round, rounds) = FAMILIES[name], SETTINGS[setting]
    settings = ["replay.training=false", f"selection.per_round={per_round}", f"rounds={rounds}"]
    if family.is_fast:
        settings += ['exchange.up="float32"', 'exchange.down="float32"']
    settings += given
    rng = np.random.default_rng([seed, devices, *name.encode()])
    groups = []
    for at in range(devices):
        trace = None
        if found:
            path = folder / f"{name}-{devices}-{seed}-{at}.csv"
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(_drawn(found, rng), encoding="utf-8")
            trace = str(path)
        board = BOARDS[family.is_fast][at % 2]
        groups.append(FleetConfig(profile=board, name=f"device{at}", link=family.link, trace=trace))
    return msgspec.structs.replace(load_experiment(example, settings, seed), fleet=tuple(groups))


def _drawn(found: Recordings, rng: np.random.Generator) -> str:
    """Return the trace of one device."""
    down, up = found[rng.integers(len(found))]
    if up is None:
        other = found[rng.integers(len(found))][0]
        up = UP_RATIO * np.roll(other, rng.integers(len(other)))
    both = list(zip(down.tolist(), up.tolist(), strict=False))
    if not all(any(rates) for rates in zip(*both, strict=True)):  # an outage of the whole time
        return _drawn(found, rng)
    lines = (f"{t},{a:.4f},{b:.4f}" for t, (a, b) in enumerate(both))
    return "\n".join(["t_s,down_mbps,up_mbps", *lines, ""])


def replay_families(
    names: Sequence[str],
    example: Path,
    given: Sequence[str],
    data: Path,
    seeds: int,
    folder: Path,
) -> list[Replayed]:
    """Replay each family in both settings, for the seeds from 1 on.

    Raises:
        SystemExit: Data are missing, or a seed has no exchange in its second half.
    """
    replayed = []
    for name in names:
        found = recordings(FAMILIES[name], data)
        for setting in SETTINGS:
            of_seed = partial(
                experiment_of, example, given, name, setting, found, folder / "traces"
            )
            one = replay(f"{name}, {setting}", of_seed, seeds, folder)
            replayed.append(one)
    return replayed


LAST, MEAN, MIXTURE = "last value", "device mean", "mixture"


def families_table(replayed: Sequence[Replayed]) -> str:
    """Return one row for each family and setting, as a Markdown table."""
    seeds = replayed[0].seeds
    rounds = dict.fromkeys(f"{one.fleet.split(', ')[1]}: {one.rounds}" for one in replayed)
    lines = [
        f"Median errors of the second half of the rounds ({', '.join(rounds)}), median of {seeds} "
        "seeds:",
        "",
        f"| links, devices per round | tuned on | on the wire | {LAST} | {MEAN} | `ridge` | "
        f"`{PHASES}` | `{MIXTURE}` | `{KNOWN}` | {PHASES} / {KNOWN} | {MIXTURE} / better of "
        f"{LAST} and {PHASES}: of the medians, by seed | in 80 % intervals of `{MIXTURE}`, "
        f"`{PHASES}`, `ridge` | upper over lower end |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in replayed:
        medians = {name: statistics.median(errors) for name, errors in one.errors.items()}
        names = LAST, MEAN, "ridge", PHASES, MIXTURE, KNOWN
        cells = [percent(medians[name]) for name in names]
        tuned = "yes" if FAMILIES[one.fleet.split(",")[0]].is_tuned else "no"
        inside, ends = (
            [statistics.mean(of[name]) for name in (MIXTURE, PHASES, "ridge") if name in of]
            for of in (one.coverage, one.interval)
        )
        better = min((LAST, PHASES), key=medians.__getitem__)
        pairs = zip(one.errors[MIXTURE], one.errors[better], strict=True)
        by_seed = statistics.median(mixture / other for mixture, other in pairs)
        of_medians = medians[MIXTURE] / medians[better]
        cells += [f"{statistics.median(one.ratios):.2f}", f"{of_medians:.2f}, {by_seed:.2f}"]
        cells.append(", ".join(map(percent, inside)) or MISSING)
        cells.append(", ".join(f"{ratio:.2f}" for ratio in ends) or MISSING)
        wire = f"{100 * one.wire_median:.0f} %"
        lines.append(f"| {one.fleet} | {tuned} | {wire} | {' | '.join(cells)} |")
    return "\n".join(lines)
