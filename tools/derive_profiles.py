"""Derive the statistics in profiles/ from published data: python tools/derive_profiles.py.

Reads the folder that FAIRBED_DATA names (its data/README.md describes the files). Prints the
statistics that the files of profiles/ quote; they contain no row of the data.
"""

import csv
import lzma
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fairbed.profiles.traces import TraceReader
from fairbed.profiles.traces.mahimahi import MTU_BYTES, PAYLOAD_BYTES

Floats = NDArray[np.float64]

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
TAILS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)

PAUSE_MBPS = 0.05

HEAT = {
    "4hOp": "raspberry-pi-3b",
    "3XTA": "radxa-rock-5a",
    "1oho": "nanopi-neo4",
    "4MLz": "orange-pi-zero-2w",
}
"""Runs of sbc-bench without or with too little cooling."""


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a packed table."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def links(folder: Path) -> None:
    """Print quantiles of the rate in 1 s steps, and the correlation of successive steps."""
    read = TraceReader({"FAIRBED_DATA": str(folder)})
    for pair in ("ATT-LTE-driving", "TMobile-UMTS-driving", "Verizon-EVDO-driving"):
        for way in ("down", "up"):
            mean = read.trace(f"data:mahimahi/{pair}.{way}").mean("bps")
            print(f"{pair}.{way}: mean {mean / 1e6:.3g} Mbit/s")
    cars = (
        "ATT-LTE-driving-2016",
        "ATT-LTE-driving",
        "TMobile-LTE-driving",
        "TMobile-LTE-short",
        "Verizon-LTE-short",
    )
    for way in ("down", "up"):
        names = [f"{car}.{way}" for car in cars if (car, way) != ("TMobile-LTE-driving", "up")]
        show(f"lte-driving {way}", [rates(read, f"data:mahimahi/{name}") for name in names])
    show("umts up", [rates(read, "data:mahimahi/TMobile-UMTS-driving.up")])
    to_payload = PAYLOAD_BYTES / MTU_BYTES
    city = long_table(folder / "traces" / "nyc_lte_2019_1s.csv.xz")
    show("lte-city down", [series * to_payload for series in city.values()])
    show("3g down", list(resampled(folder / "traces" / "norway_hsdpa_3g.csv.xz")))
    show("fixed down", list(resampled(folder / "traces" / "fcc_fixed_broadband.csv.xz")))
    for kind, traces in ireland(folder).items():
        show(f"5g {kind} down", traces)


def rates(read: TraceReader, name: str) -> Floats:
    """Return the rate in every whole second of a trace, Mbit/s."""
    trace = read.trace(name)
    return trace.columns["bps"][: int(trace.period_s)] / 1e6


def long_table(path: Path) -> dict[str, Floats]:
    """Return the rates of each trace of a long table, Mbit/s."""
    found = defaultdict(list)
    for row in rows(path):
        found[row["trace"]].append(float(row["mbps"]))
    return {name: np.array(values) for name, values in found.items()}


def resampled(path: Path) -> Iterator[Floats]:
    """Yield the mean of every second of traces whose rows are at irregular times."""
    times, values = defaultdict(list), defaultdict(list)
    for row in rows(path):
        times[row["trace"]].append(float(row["t_s"]))
        values[row["trace"]].append(float(row["mbps"]))
    for name, t_s in times.items():
        area = np.concatenate([[0.0], np.cumsum(np.diff(t_s) * values[name][:-1])])
        if t_s[-1] - t_s[0] >= 10.0:
            yield np.diff(np.interp(np.arange(t_s[0], t_s[-1]), t_s, area))


def ireland(folder: Path) -> dict[str, list[Floats]]:
    """Return the downloads, which alone measure capacity; rows of one second are averaged.

    The pauses of about 2 s between files, seconds below `PAUSE_MBPS`, are left out.
    """
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    pings = []
    for row in rows(folder / "traces" / "5g_ireland_2020.csv.xz"):
        if row["trace"].startswith("Download/") and row["dl_mbps"]:
            seconds[row["trace"], int(float(row["t_s"]))].append(float(row["dl_mbps"]))
        if row["ping_avg_ms"]:
            pings.append(float(row["ping_avg_ms"]))
    print("5g ping ms", quantiles(pings, SHARES))
    traces: dict[str, dict[str, list[float]]] = {"static": {}, "driving": {}}
    for (name, _), found in sorted(seconds.items()):
        kind = "static" if "/Static/" in name else "driving"
        if statistics.fmean(found) >= PAUSE_MBPS:
            traces[kind].setdefault(name, []).append(statistics.fmean(found))
    return {kind: [np.array(t) for t in found.values()] for kind, found in traces.items()}


def show(title: str, traces: Sequence[Floats]) -> None:
    """Print the `spread` of a link: quantiles, and the correlation of normal scores."""
    pooled = np.concatenate(traces)
    order = pooled.argsort(kind="stable").argsort(kind="stable")
    scores = np.array([NormalDist().inv_cdf(r) for r in (order + 0.5) / len(order)])
    pieces = np.split(scores, np.cumsum([len(trace) for trace in traces])[:-1])
    before = np.concatenate([piece[:-1] for piece in pieces])
    after = np.concatenate([piece[1:] for piece in pieces])
    rho = float(np.corrcoef(before, after)[0, 1])
    median = statistics.median(float(np.median(trace)) for trace in traces)
    print(
        f"{title}: {len(traces)} traces, {len(pooled)} s, median of medians {median:.3g}, ", end=""
    )
    print(f"mean {pooled.mean():.3g}, zero {np.mean(pooled == 0):.3f}, rho {rho:.2f}")
    print("   Mbit/s", quantiles(pooled, SHARES))


def quantiles(values: Sequence[float] | Floats, shares: Sequence[float]) -> str:
    """Return quantiles in the format of a profile."""
    found = np.quantile(np.asarray(values, dtype=np.float64), shares)
    return ", ".join(f"[{p:g}, {x:.4g}]" for p, x in zip(shares, found, strict=True))


def heat(folder: Path) -> None:
    """Print when the clock first drops under load on all cores, and its mean under full load."""
    clocks: dict[str, list[tuple[str, float, float, float]]] = defaultdict(list)
    for row in rows(folder / "devices" / "sbc_health.csv.xz"):
        if row["run"] in HEAT and row["cpu_mhz"]:
            parts = [float(part) for part in row["cpu_mhz"].split("/")]
            clock = parts[1] if row["mhz_columns"] == "fake/real" else parts[0]
            temperature = float(row["temp_c"] or "nan")
            clocks[row["run"]].append((row["phase"], float(row["t_s"]), clock, temperature))
    for run, found in clocks.items():
        nominal = max(clock for _, _, clock, _ in found)
        for phase in ("7-zip multi core benchmark", "cpuminer"):
            part = [(t, clock, c) for p, t, clock, c in found if p == phase]
            drops = [t for t, clock, _ in part if clock < nominal]
            onset = drops[0] if drops else float("nan")
            after = [clock for t, clock, _ in part if t > 0 and t >= onset]
            print(
                f"{HEAT[run]} [{run}] {phase}: {part[-1][0]:.0f} s, nominal {nominal:.0f} MHz, "
                f"first drop {onset:.0f} s, mean ratio from there "
                f"{np.mean(after) / nominal if after else 1.0:.3f}, "
                f"{min(c for *_, c in part):.0f} to {max(c for *_, c in part):.0f} C"
            )


def population(folder: Path) -> None:
    """Print statistics of phones: speed, links, and time on a charger."""
    devices = folder / "devices"
    clients = list(rows(devices / "fedscale_fedfetch_device_capacity.csv.xz"))
    column = {
        key: np.array([float(client[key]) for client in clients])
        for key in ("computation", "dl_kbps", "ul_kbps", "communication_kbps")
    }
    print(f"fedscale: {len(clients)} clients")
    print(
        "   relative speed, median 1:",
        quantiles(np.median(column["computation"]) / column["computation"], TAILS),
    )
    for key in ("dl_kbps", "ul_kbps", "communication_kbps"):
        print(f"   {key} / 1000:", quantiles(column[key] / 1e3, TAILS))
    ranks = {key: values.argsort().argsort() for key, values in column.items()}
    for one, other in (("dl_kbps", "ul_kbps"), ("computation", "dl_kbps")):
        print(
            f"   rank correlation {one}, {other}: {np.corrcoef(ranks[one], ranks[other])[0, 1]:.3f}"
        )
    with (devices / "ai_benchmark_socs_2025.csv").open(encoding="utf-8") as file:
        socs = [row for row in csv.DictReader(file) if row["CPU-F Score"]]
    scores = np.array([float(row["CPU-F Score"]) for row in socs])
    print(f"ai-benchmark 2025: {len(scores)} SoCs, relative to Snapdragon 855:")
    base = [float(row["CPU-F Score"]) for row in socs if row["Processor"] == "Snapdragon 855"]
    print("   score of Snapdragon 855:", base, "| scores", quantiles(scores, TAILS))
    with (devices / "stunner_percent_of_day.csv").open(encoding="utf-8") as file:
        days = [
            (int(row["percent_of_day"]), int(row["days_online"])) for row in csv.DictReader(file)
        ]
    percents = np.repeat([p for p, _ in days], [n for _, n in days])
    print(
        f"stunner: {len(percents)} days, % of the day:", quantiles(percents, TAILS), percents.mean()
    )


if __name__ == "__main__":
    root = Path(os.environ.get("FAIRBED_DATA", ""))
    if not (root / "traces").is_dir():
        sys.exit("derive_profiles: FAIRBED_DATA must name the folder of the data; set it")
    links(root)
    heat(root)
    population(root)
