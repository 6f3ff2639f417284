"""Shipped numbers equal those of the data named as their sources, if available here."""

import csv
import lzma
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fairbed import profiles

DATA = Path(os.environ.get("FAIRBED_DATA", "nowhere"))

pytestmark = pytest.mark.skipif(
    not (DATA / "devices").is_dir() or not (DATA / "traces").is_dir(),
    reason="needs the published data: FAIRBED_DATA is not set",
)

MIPS = re.compile(
    r"7-zip, one thread: (\d+) MIPS / 3910 MIPS of the N100 \(sbc-bench \w+, run (\w+)"
)
WATTS = re.compile(r"whole board(, a[^,]*)?, (at rest|all cores under stress-ng)")


def rows(name: str) -> Iterator[dict[str, str]]:
    with lzma.open(DATA / name, "rt", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def test_core_speeds_are_those_of_the_named_runs() -> None:
    published = {row["run"]: row["zip7_single_mips"] for row in rows("devices/sbc_results.csv.xz")}
    checked = 0
    for name in profiles.names():
        number = profiles.load(name).one_core
        if found := MIPS.match(number.source):
            mips, run = found.groups()
            assert run in published or run == "of", (name, run)  # one board's run has no name
            assert published.get(run, mips) == mips, name
            assert number.value == pytest.approx(int(mips) / 3910, abs=6e-4), name
            checked += 1
    assert checked >= 20


def test_watts_and_ports_are_among_those_of_the_reviews() -> None:
    text = (DATA / "devices" / "sbc_reviews_results.yml").read_text(encoding="utf-8")
    for name in profiles.names():
        profile = profiles.load(name)
        energy = profile.energy
        powers = () if energy is None else ((energy.idle_w, "idle"), (energy.train_w, "stress"))
        for number, key in powers:
            if number is not None and WATTS.match(number.source):
                assert re.search(rf"^ +{key}: {number.value:g}(\.0)?$", text, re.M), (name, key)
        if found := re.match(
            r"throughput of .* port.*?, ([\d.]+) Mbit/s", profile.link.down.source
        ):
            assert profile.link.down_bps == float(found[1]) * 1e6
            assert re.search(rf"^ +primary: {found[1]}$", text, re.M), name


@pytest.mark.parametrize(("key", "column"), [("down_bps", "dl_kbps"), ("up_bps", "ul_kbps")])
def test_the_rates_of_populations_are_those_of_the_clients(key: str, column: str) -> None:
    name = "devices/fedscale_fedfetch_device_capacity.csv.xz"
    clients = np.array([float(row[column]) * 1e3 for row in rows(name)])
    for population in map(profiles.load_population, profiles.population_names()):
        quantiles = population.numbers()[f"link.{key}"].quantiles
        assert quantiles is not None
        for share, value in quantiles:
            assert value == pytest.approx(np.quantile(clients, share), rel=0.01)
