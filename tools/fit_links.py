"""Fit the links of profiles/links/ that are processes: python tools/fit_links.py [NAME ...].

Reads the folder that FAIRBED_DATA names (its data/README.md describes the files), calls
`fairbed profiles fit` for each link, and adds delay and jitter. No row of the data is written.
"""

import csv
import io
import lzma
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairbed.profiles.importing import GIVEN
from fairbed.profiles.traces.mahimahi import MTU_BYTES, PAYLOAD_BYTES
from fairbed.testbed.cli.main import main as fairbed

LINKS = Path(__file__).resolve().parent.parent / "profiles" / "links"

US = "us_drives_2023.csv.xz"
CORK = "cork_uplink_2022.csv.xz"
IRELAND = "5g_ireland_2020.csv.xz"
MAHIMAHI = "mahimahi_cellular_us_1s.csv.xz"
NEW_YORK = "nyc_lte_2019_1s.csv.xz"
NORWAY = "norway_hsdpa_3g.csv.xz"

FACTS = "statistics, facts about published traces; no trace is included"
US_SOURCE = "Starlink-Project/Satellite-vs-Cellular 79f9412 (Hu et al., CoNEXT 2023), an extract"
CORK_SOURCE = "MTU-Insectt/Measurements5G ab9e549, iperf over UDP"
IRELAND_SOURCE = "uccmisl/5Gdataset 306d92e (Raca et al., MMSys 2020), file downloads"
MAHIMAHI_SOURCE = "ravinet/mahimahi ae477d4 (Winstein et al., NSDI 2013)"
NEW_YORK_SOURCE = "Soheil-ab/Cellular-Traces-NYC ac6717b (Abbasloo et al., SIGCOMM 2020)"
NORWAY_SOURCE = "confiwent/Real-world-bandwidth-traces d28c4fd (Riiser et al., MMSys 2013)"

TO_PAYLOAD = PAYLOAD_BYTES / MTU_BYTES

PAUSE_MBPS = 0.05
"""Lower rates of 5G Ireland are the pauses of some seconds between two files."""

IRELAND_DELAY = """delay_s = { value = 0.0375, tag = "measured", source = "half of the median \
round trip, 75 ms, of 3,208 pings (uccmisl/5Gdataset 306d92e; Raca et al., MMSys 2020)" }
jitter_s = { value = 0.008, tag = "measured", source = "the middle half of 3,208 pings spans 69-84 \
ms: 15 ms / 1.349 is 11 ms of the round trip, / sqrt 2 of one way (uccmisl/5Gdataset 306d92e)" }
"""
LTE_DELAY = """delay_s = { value = 0.03, tag = "literature", source = "half of a 60 ms round trip \
on an idle LTE link (40-80 ms)" }
"""
HSDPA_DELAY = """delay_s = { value = 0.06, tag = "literature", source = "half of a 120 ms round \
trip on HSDPA (60-200 ms)" }
"""
STARLINK_DELAY = """delay_s = { value = 0.029, tag = "literature", source = "half of the median \
round trip, 58 ms, of 1,191 windows of 250 pings on a car in Germany \
(sys-uos/Starlink-on-the-Road 4fd898a; Laniewski et al., arXiv:2403.13497)" }
jitter_s = { value = 0.0056, tag = "literature", source = "of the same pings, as starlink-driving" }
"""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a link is fitted."""

    title: str
    down_file: str
    down: str
    """Pattern of drives."""
    up_file: str | None
    """None: the data have no uplink, and `up` is a rate, with its `up_source`."""
    up: str
    source: str
    delay: str
    keeps: Callable[[dict[str, str]], bool] | None = None
    """Rows of 5G Ireland; None for a file of another data set."""
    factor: float = 1.0
    """TCP payload in the rates of the file of the downlink."""
    up_factor: float = 1.0
    """The same of another file of the uplink."""
    up_source: str = ""
    no_states: str | None = None
    """The direction whose slow seconds are rates: so its drives are described better."""


def _is_download(row: dict[str, str], where: str = "Driving") -> bool:
    is_rate = float(row["dl_mbps"] or 0) >= PAUSE_MBPS
    return row["trace"].startswith(f"Download/{where}") and is_rate


def _us(title: str, drives: str) -> Fit:
    source = f"downlink: {US_SOURCE}; uplink, borrowed: 5G in Cork, {CORK_SOURCE}"
    title = f"5G and LTE of {title} in a moving car, US 2023; uplink of a car in Cork"
    return Fit(title, US, f"{drives}-down-*", CORK, "cork-5g-up-*", source, LTE_DELAY)


def _starlink(title: str, drives: str) -> Fit:
    title = f"Starlink {title} on a moving car, US 2023"
    up = "starlink-mobility-up-*"
    return Fit(title, US, f"{drives}-down-*", US, up, US_SOURCE, STARLINK_DELAY)


FITS: dict[str, Fit] = {
    "5g-us-att": _us("AT&T", "att"),
    "5g-us-verizon": _us("Verizon", "verizon"),
    "5g-us-tmobile": _us("T-Mobile", "tmobile"),
    "starlink-us-mobility": _starlink("Mobility", "starlink-mobility"),
    "starlink-us-roam": _starlink("Roam", "starlink-roam"),
    "5g-driving": Fit(
        "5G and LTE of a phone, in a moving car, Ireland 2019-22",
        IRELAND,
        "Download/*",
        CORK,
        "cork-5g-up-*",
        f"downlink: {IRELAND_SOURCE}; uplink: {CORK_SOURCE}",
        IRELAND_DELAY,
        _is_download,
    ),
    "lte-ireland": Fit(
        "LTE of a phone, in a moving car, Ireland 2019-22",
        IRELAND,
        "Download/*",
        CORK,
        "cork-lte-up-*",
        f"downlink: {IRELAND_SOURCE}, seconds with LTE; uplink: one drive, {CORK_SOURCE}",
        IRELAND_DELAY,
        lambda row: _is_download(row) and row["network"].startswith("LTE"),
    ),
    "lte-driving": Fit(
        "LTE in a moving car, United States 2012-16",
        MAHIMAHI,
        "*LTE*.down",
        MAHIMAHI,
        "*LTE*.up",
        f"5 and 4 traces of 3 operators, as TCP payload, {MAHIMAHI_SOURCE}",
        LTE_DELAY,
        factor=TO_PAYLOAD,
    ),
    "5g-static": Fit(
        "5G and LTE of a phone, not moving, Ireland 2019-20; uplink of a car in Cork",
        IRELAND,
        "Download/*",
        CORK,
        "cork-5g-up-*",
        f"downlink: {IRELAND_SOURCE}; uplink, borrowed: 5G in a car, {CORK_SOURCE}",
        IRELAND_DELAY,
        partial(_is_download, where="Static"),
        no_states="down",
    ),
    "lte-city": Fit(
        "LTE in New York, 2019: on foot, at home, bus, taxi",
        NEW_YORK,
        "*",
        None,
        "3.1mbit",
        f"15 traces, as TCP payload, {NEW_YORK_SOURCE}",
        LTE_DELAY,
        factor=TO_PAYLOAD,
        up_source="the downlink / 3.1, the ratio of the means of lte-driving; no uplink was "
        "recorded",
    ),
    "3g": Fit(
        "3G HSDPA on the move, Oslo; uplink of UMTS in a car, US 2012",
        NORWAY,
        "norway_*",
        MAHIMAHI,
        "TMobile-UMTS-driving.up",
        f"downlink: bus, tram, train, ferry, car, {NORWAY_SOURCE}; uplink: one drive with UMTS, "
        f"as TCP payload, {MAHIMAHI_SOURCE}",
        HSDPA_DELAY,
        up_factor=TO_PAYLOAD,
        no_states="up",
    ),
}


def main(names: list[str]) -> int:
    """Fit the named links, or all; return the exit code."""
    traces = Path(os.environ["FAIRBED_DATA"]) / "traces"
    for name in names or FITS:
        fit_one(name, traces, LINKS)
    return 0


def fit_one(name: str, traces: Path, to: Path) -> None:
    """Fit one link into a folder.

    Raises:
        RuntimeError: The command failed.
    """
    fit = FITS[name]
    with tempfile.TemporaryDirectory(prefix="fairbed-fit-") as folder:
        down = traces / fit.down_file
        up = down if fit.up_file is None else traces / fit.up_file
        if fit.keeps is not None or fit.factor != 1.0:
            is_one, down = up == down, Path(folder) / "drives.csv"
            text = _seconds(traces / fit.down_file, fit.factor, fit.keeps)
            down.write_text(text, encoding="utf-8")
            up = down if is_one else up
        if fit.up_factor != 1.0:
            text, up = _seconds(up, fit.up_factor), Path(folder) / "uplinks.csv"
            up.write_text(text, encoding="utf-8")
        files = dict.fromkeys([str(down), str(up)])
        states = [] if fit.no_states is None else ["--no-states", fit.no_states]
        uplink = ["--up-rate" if fit.up_file is None else "--up", fit.up]
        options = ["--split", "trace", "--down", fit.down, *uplink, *states, "--name", name]
        texts = ["--title", fit.title, "--source", fit.source, "--licence", FACTS]
        if fairbed(["profiles", "fit", *files, *options, *texts, "--to", str(to), "--force"]):
            raise RuntimeError(f"{name}: must be fitted, got an error; see its line")
    path = to / f"{name}.toml"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if line.startswith("delay_s = "))
    text = "".join([*lines[:at], fit.delay, *lines[at + 1 :]])
    if fit.up_source:
        text = text.replace(f'source = "{GIVEN}"', f'source = "{fit.up_source}"')
    path.write_text(text, encoding="utf-8")


def _seconds(
    path: Path, factor: float, keeps: Callable[[dict[str, str]], bool] | None = None
) -> str:
    """Return a table of the mean rate of each second that is kept, one after the other."""
    found: dict[str, dict[int, list[float]]] = {}
    with lzma.open(path) as packed:
        for row in csv.DictReader(io.TextIOWrapper(packed, "utf-8")):
            if keeps is None or keeps(row):
                second = int(float(row["t_s"]))
                found.setdefault(row["trace"], {}).setdefault(second, []).append(
                    factor * float(row["dl_mbps" if "dl_mbps" in row else "mbps"])
                )
    lines = ["trace,t_s,mbps"]
    for name, seconds in found.items():
        for at, second in enumerate(sorted(seconds)):
            values = seconds[second]
            lines.append(f"{name},{at},{sum(values) / len(values):.4f}")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
