"""Fit the thermal model to published curves: python tools/derive_heat.py [NAME=FILE ...].

Reads the folder that FAIRBED_DATA names, or curves that are given. Prints the numbers that
`[thermal]` of the profiles quotes, with the root mean square error of each fit.

A curve is a file of stressberry: time and temperature at rest, under full load for 300 s, and at
rest. A log of sbc-bench (`devices/sbc_health.csv.xz`) has a reading every 10 to 20 s under load,
which shows the slow lag only: its fast lag is that of the bare boards, borrowed. Temperatures at
rest are the lowest of the log. A log that begins hot, or hardly warms up, shows no slow lag: that
is borrowed, too.
"""

import csv
import lzma
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbed import profiles
from fairbed.profiles.schema import Thermal

Floats = NDArray[np.float64]

LOAD_S = 300.0
"""Length of the load in a curve."""
FAST_S = np.geomspace(1.0, 30.0, 35)
SLOW_S = np.geomspace(40.0, 600.0, 45)

BORROWED_SHARE, BORROWED_FAST_S, BORROWED_SLOW_S = 0.46, 8.9, 120.0
"""Means of the bare Raspberry Pi 3B and 4B, which the curves show."""

LEAST_RISE = 5.0
"""Rise of a log, degrees, below which it shows no slow lag."""


@dataclass(frozen=True)
class Fit:
    """The numbers of `[thermal]`, and how well they describe the readings."""

    idle_celsius: float
    rise_celsius: float
    fast_share: float
    fast_constant_s: float
    time_constant_s: float
    rms: float
    heating_rms: float
    cooling_rms: float


def read_curve(path: Path) -> tuple[Floats, Floats]:
    """Return times, seconds, and temperatures, degrees Celsius, shape (N,)."""
    text = path.read_text(encoding="utf-8")
    found = []
    for key in ("time", "temperature"):
        match = re.search(rf"^{key}:\s*(\[[^\]]*\]|(?:\s*- .*)+)", text, re.MULTILINE)
        if match is None:
            raise SystemExit(f"{path}: must have a list {key}; give a file of stressberry")
        found.append(
            np.array([float(x) for x in re.split(r"[\s,\[\]]+", match[1]) if x not in "-"])
        )
    return found[0], found[1]


def lag(t_s: Floats, constant_s: float, on_s: float, off_s: float) -> Floats:
    """Return the heat under load from `on_s` to `off_s`, from rest, shape (N,)."""
    after_on, after_off = np.maximum(t_s - on_s, 0.0), np.maximum(t_s - off_s, 0.0)
    return np.exp(-after_off / constant_s) - np.exp(-after_on / constant_s)


def fit_curve(t_s: Floats, celsius: Floats) -> Fit:
    """Fit both lags: the temperature is linear in the heat of each."""
    jump = float(t_s[int(np.argmax(np.diff(celsius)))])
    best: tuple[float, Fit] | None = None
    starts = np.arange(jump - 3.0, jump + 3.5, 0.5)
    for on_s, fast_s, slow_s in product(starts, FAST_S, SLOW_S):
        off_s = on_s + LOAD_S
        design = np.stack(
            [np.ones_like(t_s), lag(t_s, fast_s, on_s, off_s), lag(t_s, slow_s, on_s, off_s)], 1
        )
        found = np.linalg.solve(design.T @ design, design.T @ celsius)
        if found[1] < 0.0 or found[2] < 0.0:
            continue
        wrong = design @ found - celsius
        rms = _rms(wrong)
        if best is None or rms < best[0]:
            rise = float(found[1] + found[2])
            heating, cooling = (t_s >= on_s) & (t_s < off_s), t_s >= off_s
            best = (
                rms,
                Fit(
                    idle_celsius=float(found[0]),
                    rise_celsius=rise,
                    fast_share=float(found[1]) / rise,
                    fast_constant_s=float(fast_s),
                    time_constant_s=float(slow_s),
                    rms=rms,
                    heating_rms=_rms(wrong[heating]),
                    cooling_rms=_rms(wrong[cooling]),
                ),
            )
    assert best is not None
    return best[1]


def _rms(wrong: Floats) -> float:
    return float(np.sqrt(np.mean(wrong * wrong)))


@dataclass(frozen=True)
class OtherCase:
    """A board of the library in another case, described by its resistance, and by its lag, too."""

    resistance: float
    time_constant_s: float
    heating_rms: float
    cooling_rms: float


def in_other_case(
    t_s: Floats, celsius: Floats, board: Thermal, lags_s: Sequence[float]
) -> OtherCase:
    """Return the resistance, and one of these slow lags, that describe a curve best.

    Args:
        t_s: Times, seconds, shape (N,).
        celsius: Temperatures, shape (N,).
        board: The board in the case of its profile.
        lags_s: Slow lags to try; none: the lag follows from the resistance.
    """
    on_s = float(t_s[int(np.argmax(np.diff(celsius)))])
    off_s, found = on_s + LOAD_S, list[OtherCase]()
    for resistance, lag_s in product(RESISTANCES, lags_s or (None,)):
        case = board.in_case(float(resistance), lag_s)
        assert case.idle_celsius is not None
        assert case.rise_celsius is not None
        share, fast_s = case.fast_lag
        heat = share * lag(t_s, fast_s, on_s, off_s)
        heat += (1.0 - share) * lag(t_s, case.time_constant_s, on_s, off_s)
        wrong = case.idle_celsius.value + case.rise_celsius.value * heat - celsius
        is_hot = t_s < off_s
        rms = _rms(wrong[is_hot]), _rms(wrong[~is_hot])
        found.append(OtherCase(float(resistance), case.time_constant_s, *rms))
    return min(found, key=lambda each: max(each.heating_rms, each.cooling_rms))


def fit_log(t_s: Floats, celsius: Floats, load: Floats, idle: float) -> Fit:
    """Fit rise and slow lag to readings under load, with the borrowed fast lag.

    Args:
        t_s: Times, seconds, shape (N,).
        celsius: Temperatures, shape (N,).
        load: Busy share of all cores up to each time, shape (N,).
        idle: Temperature at rest.
    """
    warms = float(np.ptp(celsius)) >= LEAST_RISE
    best = _fit_log(t_s, celsius, load, idle, SLOW_S if warms else (BORROWED_SLOW_S,))
    if best.time_constant_s in (SLOW_S[0], SLOW_S[-1]):  # the log does not show it
        best = _fit_log(t_s, celsius, load, idle, (BORROWED_SLOW_S,))
    return best


def _fit_log(
    t_s: Floats, celsius: Floats, load: Floats, idle: float, slows_s: Iterable[float]
) -> Fit:
    best: Fit | None = None
    for slow_s in slows_s:
        for rise in np.geomspace(3.0, 120.0, 200):
            heat = (celsius[0] - idle) / rise
            fast = slow = heat
            shown = [celsius[0]]
            for step_s, busy in zip(np.diff(t_s), load[1:], strict=True):
                fast = busy + (fast - busy) * np.exp(-step_s / BORROWED_FAST_S)
                slow = busy + (slow - busy) * np.exp(-step_s / slow_s)
                heat = BORROWED_SHARE * fast + (1.0 - BORROWED_SHARE) * slow
                shown.append(idle + rise * heat)
            rms = _rms(np.array(shown) - celsius)
            if best is None or rms < best.rms:
                best = Fit(
                    idle, float(rise), BORROWED_SHARE, BORROWED_FAST_S, float(slow_s), rms, rms, 0.0
                )
    assert best is not None
    return best


def logs(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return the readings of sbc-bench by run, in lower case."""
    found = defaultdict(list)
    with lzma.open(folder / "devices" / "sbc_health.csv.xz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["run"].lower()].append(row)
    return found


RESISTANCES = np.arange(0.5, 3.01, 0.05)
"""Tried for another case."""

OTHER_CASES = {"rpi4b-fans-off": "raspberry-pi-4b"}
"""Curves of a board in another case than that of its profile."""

RUNS = {
    "raspberry-pi-zero-2w": "3E85",
    "raspberry-pi-2b": "3MGs",
    "raspberry-pi-3b": "4hOp",
    "raspberry-pi-3b-plus": "1isD",
    "raspberry-pi-5": "Au3jaA",
    "jetson-nano": "4rLX",
    "jetson-orin-nano": "4vy7",
    "jetson-agx-orin": "4ax9",
    "lichee-pi-4a": "4xYE",
    "n100": "uHzXI7",
    "radxa-x4": "XObB",
    "orange-pi-5": "4D0a",
    "orange-pi-5-max": "XyIw",
    "radxa-rock-5b": "41BH",
    "radxa-rock-5c": "5pv8oh",
    "nanopi-neo4": "1oho",
    "orange-pi-zero-2w": "4MLz",
    "radxa-rock-5a": "3XTA",
    "visionfive-2": "4xOY",
}
"""Runs of sbc-bench with temperatures, by profile."""


def main() -> None:
    """Print all fits."""
    names = [argument.partition("=") for argument in sys.argv[1:]]
    curves = {name: Path(path) for name, _, path in names}
    folder = Path(os.environ.get("FAIRBED_DATA", ""))
    if not curves:
        if not (folder / "heat").is_dir():
            sys.exit("derive_heat: FAIRBED_DATA must name the folder of the data; set it")
        curves = {path.stem: path for path in sorted((folder / "heat").glob("*.dat"))}
    for name, path in curves.items():
        print(_line(name, fit_curve(*read_curve(path))))
        if name in OTHER_CASES:
            board = profiles.load(OTHER_CASES[name]).thermal
            assert board is not None
            for given, lags_s in (("resistance", []), ("resistance and lag", [*SLOW_S])):
                case = in_other_case(*read_curve(path), board, lags_s)
                print(
                    f"{name}: the bare board, given {given}: {case.resistance:.2f}, "
                    f"{case.time_constant_s:.0f} s; heating {case.heating_rms:.2f}, cooling "
                    f"{case.cooling_rms:.2f}"
                )
    if names:
        return
    found = logs(folder)
    for name, run in RUNS.items():
        all_rows = [row for row in found.get(run.lower(), ()) if row["temp_c"]]
        rows = [
            row
            for row in all_rows
            if row["phase"] == "7-zip multi core benchmark" and row["cpu_pct"]
        ]
        if len(rows) < 4:
            print(f"{name} [{run}]: no readings under load")
            continue
        t_s, celsius, load = (
            np.array([float(row[key]) for row in rows]) for key in ("t_s", "temp_c", "cpu_pct")
        )
        idle = min(float(row["temp_c"]) for row in all_rows)
        print(
            _line(f"{name} [{run}]", fit_log(t_s, celsius, load / 100.0, idle)),
            f"({celsius[0]:.1f} to {celsius.max():.1f} in {t_s[-1]:.0f} s)",
        )


def _line(name: str, fit: Fit) -> str:
    return (
        f"{name}: idle {fit.idle_celsius:.1f}, rise {fit.rise_celsius:.1f}, fast share "
        f"{fit.fast_share:.2f} in {fit.fast_constant_s:.1f} s, slow {fit.time_constant_s:.0f} s; "
        f"rms {fit.rms:.2f}, heating {fit.heating_rms:.2f}, cooling {fit.cooling_rms:.2f}"
    )


if __name__ == "__main__":
    main()
