"""`fairbed profiles plot`: draw the numbers of a profile, link or trace over time in a terminal."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from fairbed import profiles
from fairbed.profiles import (
    CellProfile,
    DeviceTracks,
    LinkProfile,
    Population,
    ProfileError,
    device_tracks,
)
from fairbed.profiles.load import kind_of
from fairbed.profiles.quantities import DATA
from fairbed.profiles.schema import Thermal
from fairbed.profiles.series import Series
from fairbed.profiles.traces import Trace, TraceReader
from fairbed.testbed.cli import DONE
from fairbed.testbed.errors import UsageError
from fairbed.testbed.install import install_command
from fairbed.testbed.units import duration_s

HEAT = "thermal"
"""Key of the curve of the clock under full load."""

ONSET_MULTIPLE = 2.0
"""Length of that curve, as a multiple of the onset of throttling."""

LEAST_HEAT_S = 60.0
"""Minimum length of that curve, seconds."""


@dataclass(frozen=True, slots=True)
class ProfileCurve:
    """One number over time."""

    key: str
    series: Series

    def quantile(self, share: float) -> float:
        """Return the value that the number does not exceed for this share of the time."""
        series = self.series
        trace = Trace(np.array(series.t_s), {"x": np.array(series.values)}, series.period_s)
        return trace.quantile("x", share)

    def sampled(self, start: float, length: float, count: int) -> tuple[list[float], list[float]]:
        """Return `count` equidistant times, and the values at these times."""
        moments = [start + length * index / max(1, count - 1) for index in range(count)]
        return moments, [self.series.at(t) for t in moments]


def curves(
    source: str, keys: Sequence[str], environ: Mapping[str, str], rng: np.random.Generator
) -> list[ProfileCurve]:
    """Return the curves of a profile, link or trace.

    Args:
        source: Name of a profile or link, path of its `.toml`, a trace file, or `data:SET/TRACE`.
        keys: Numbers, by the end of their keys, or `thermal`; empty selects all that vary, or the
            rates if none varies.
        environ: Read for `FAIRBED_DATA`, the folder of downloaded traces.
        rng: Draws numbers that are given as distributions.

    Raises:
        ProfileError: The name or a key is unknown, or a file breaks a rule.
    """
    read = TraceReader(environ)
    if is_trace(source):
        trace = read.trace(source)
        found = {name: trace.series(name) for name in trace.columns}
        return _chosen(source, found, keys, list(found))
    path = profiles.find(source)
    kind = kind_of(path)
    if kind in (Population, CellProfile):
        got = "population" if kind is Population else "cell"
        raise ProfileError(
            f"{source}: must be a profile, a link or a trace, got a {got}, which has no numbers "
            "over time; plot a profile"
        )
    profile = None if kind is LinkProfile else profiles.load(path)
    link = profile.link if profile is not None else profiles.load_link(path).link
    found = _of_tracks(device_tracks(profile, link, read, rng))
    if profile is None:
        found = {key: series for key, series in found.items() if key.startswith("link.")}
    usual = [key for key, series in found.items() if not series.is_constant]
    if profile is not None and profile.thermal is not None:
        found[HEAT] = under_full_load(profile.thermal)
        usual.insert(0, HEAT)
    return _chosen(source, found, keys, usual or ["link.down_bps", "link.up_bps"])


def is_trace(source: str) -> bool:
    """Return whether a name names a trace."""
    path = Path(source)
    return source.startswith(DATA) or (
        path.suffix != ".toml" and (path.suffix != "" or path.is_file())
    )


def _of_tracks(tracks: DeviceTracks) -> dict[str, Series]:
    """Return the series of a device, by key."""
    found = {
        "clock_ratio": tracks.clock_ratio,
        "background_load": tracks.background_load,
        "availability.available": tracks.available,
    }
    if tracks.link is not None:
        for field in fields(tracks.link):
            series = getattr(tracks.link, field.name)
            if isinstance(series, Series):
                found[f"link.{field.name}"] = series
    return found


def under_full_load(thermal: Thermal) -> Series:
    """Return the mean clock ratio of an idle device after the start of full load on all cores."""
    if not thermal.throttles:
        return Series((0.0,), (1.0,), LEAST_HEAT_S)
    end = max(LEAST_HEAT_S, ONSET_MULTIPLE * thermal.onset_s)
    if thermal.onset_s == 0.0:
        return Series((0.0,), (thermal.sustained_clock_ratio,), end)
    return Series((0.0, thermal.onset_s), (1.0, thermal.sustained_clock_ratio), end)


def _chosen(
    source: str, found: Mapping[str, Series], keys: Sequence[str], usual: Sequence[str]
) -> list[ProfileCurve]:
    chosen = []
    for key in keys or usual:
        match = [name for name in found if name == key or name.endswith(f".{key}")]
        if not match:
            raise ProfileError(f"{source}: has no {key} over time; use one of {', '.join(found)}")
        chosen.append(ProfileCurve(match[0], found[match[0]]))
    return chosen


def table(drawn: Sequence[ProfileCurve]) -> list[str]:
    """Return one line per curve: its period, and the distribution of its values over time."""
    head = f"{'number':<26}{'period s':>10}{'mean':>11}{'lowest':>11}"
    head += "".join(f"{share:>11}" for share in ("p5", "median", "p95")) + f"{'highest':>11}"
    return [head] + [
        f"{curve.key:<26}{curve.series.period_s:>10.6g}{curve.series.mean:>11.4g}"
        f"{curve.series.lowest:>11.4g}"
        + "".join(f"{curve.quantile(share):>11.4g}" for share in (0.05, 0.5, 0.95))
        + f"{curve.series.highest:>11.4g}"
        for curve in drawn
    ]


MOST_S = 600.0
"""Longest default length of a plot, seconds: a column of characters is then some seconds."""

LEAST_SIZE, MOST_SIZE = (40, 8), (400, 100)


def plot(options: argparse.Namespace) -> int:
    """Draw curves; return the exit code."""
    width, height = _size(options.size)
    start, length = _time("--start", options.start), None
    if options.length is not None:
        length = _time("--length", options.length)
        if length <= 0.0:
            raise UsageError(f"--length: must be more than 0, got {options.length}; 60s is usual")
    rng = np.random.Generator(np.random.PCG64(options.seed))
    found = curves(options.what, options.number, os.environ, rng)
    if length is None:
        length = min(MOST_S, max(curve.series.period_s for curve in found))
    for unit, same_unit in _by_unit(found).items():
        print(draw(Path(options.what).name, unit, same_unit, start, length, (width, height)))
    print("\n".join(table(found)))
    return DONE


def draw(
    title: str,
    unit: str,
    shown: list[ProfileCurve],
    start: float,
    length: float,
    size: tuple[int, int],
) -> str:
    """Return a plot of curves of one unit, in characters without colour."""
    try:
        import plotext
    except ImportError as exc:
        raise UsageError(
            "profiles plot: needs plotext, which is not installed; "
            f"run: {install_command('fairbed[testbed]')}"
        ) from exc
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(*size)
    factor = 1e-6 if unit == "Mbit/s" else 1.0
    for curve in shown:
        moments, values = curve.sampled(start, length, 2 * size[0])
        plotext.plot(
            moments, [value * factor for value in values], label=curve.key.removeprefix("link.")
        )
    plotext.ylim(0, None)
    plotext.title(f"{title}: {unit}")
    plotext.xlabel("s")
    text: str = plotext.uncolorize(plotext.build())
    return "\n".join(line.rstrip() for line in text.splitlines())


def _by_unit(found: list[ProfileCurve]) -> dict[str, list[ProfileCurve]]:
    groups: dict[str, list[ProfileCurve]] = {}
    for curve in found:
        name = curve.key.rpartition(".")[2]
        unit = "Mbit/s" if name.endswith("bps") else "s" if name.endswith("_s") else name
        groups.setdefault(unit, []).append(curve)
    return groups


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    size = (int(match[1]), int(match[2])) if match else (0, 0)
    is_valid = all(
        low <= n <= high for low, n, high in zip(LEAST_SIZE, size, MOST_SIZE, strict=True)
    )
    if not is_valid:
        raise UsageError(f"--size: must be from 40x8 to 400x100, got {text}; 100x18 is usual")
    return size


def _time(option: str, text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as exc:
        raise UsageError(f"{option}: {exc}; 60s is usual") from exc
