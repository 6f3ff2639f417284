"""Traces are found beside a profile and in FAIRBED_DATA, or the message names what is missing."""

import csv
import io
import lzma
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces import TraceReader
from fairbed.profiles.traces.mahimahi import MTU_BYTES, PAYLOAD_BYTES
from fairbed.profiles.traces.table import MAX_BYTES

DATA = Path(os.environ.get("FAIRBED_DATA", "nowhere"))

real_data = pytest.mark.skipif(
    not (DATA / "traces").is_dir(), reason="needs the published traces: FAIRBED_DATA is not set"
)


def test_a_path_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t_s,down_mbps\n0,1\n")
    read = TraceReader({})
    first = read(str(path), "down_bps")
    path.unlink()
    assert read(str(path), "down_bps") is first


@pytest.mark.parametrize("ending", ["", ".csv", ".xz", ".csv.xz"])
def test_a_set_is_a_folder_of_plain_or_packed_files(ending: str, tmp_path: Path) -> None:
    folder = tmp_path / "traces" / "mine"
    folder.mkdir(parents=True)
    opened = lzma.open if ending.endswith("xz") else open
    with opened(folder / f"walk-1{ending}", "wb") as file:
        file.write(b"t_s,mbps\n0,2\n")
    read = TraceReader({"FAIRBED_DATA": str(tmp_path)})
    assert read("data:mine/walk-1", "up_bps").values == (2e6,)


def test_a_known_set_may_be_an_archive_or_a_long_table(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    with tarfile.open(folder / "mahimahi_raw.tar.xz", "w:xz") as tar:
        item = tarfile.TarInfo("mahimahi/A.down")
        item.size = 4
        tar.addfile(item, io.BytesIO(b"500\n"))
    with lzma.open(folder / "norway_hsdpa_3g.csv.xz", "wb") as file:
        file.write(b"trace,t_s,mbps\nbus_1,0,1\nbus_10,0,9\nbus_1,2,3\n")
    read = TraceReader({"FAIRBED_DATA": str(tmp_path)})
    assert read.trace("data:mahimahi/A.down").period_s == 0.5
    assert read("data:norway-3g/bus_1", "down_bps").values == (1e6, 3e6)
    for name in ("data:mahimahi/B.down", "data:norway-3g/bus"):
        with pytest.raises(TraceError, match=f"^{name}: no such trace in .*; list its"):
            read.trace(name)
    with pytest.raises(TraceError, match=r"^data:fcc-fixed/a: needs .*, which does not exist"):
        read.trace("data:fcc-fixed/a")
    with pytest.raises(TraceError, match=r"^data:mine/a: no such trace .* mine/a\.csv, or use"):
        read.trace("data:mine/a")
    with pytest.raises(TraceError, match=r"must not leave its folder"):
        read.trace("data:mine/../../a")


@pytest.mark.parametrize(
    ("environ", "got"), [({}, "got nothing"), ({"FAIRBED_DATA": "/no/where"}, "got no folder /no/")]
)
def test_without_the_data_the_message_names_the_variable(environ: dict[str, str], got: str) -> None:
    with pytest.raises(TraceError, match=f"FAIRBED_DATA must name the folder .*{got}.*; set it"):
        TraceReader(environ)("data:mahimahi/a", "down_bps")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t_s,clock_ratio\n0,1\n")
    with pytest.raises(TraceError, match=r"must have a column down_bps, got clock_ratio; name"):
        TraceReader({})(str(path), "down_bps")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a\.csv: must be a readable file, got: No such file"):
        TraceReader({}).trace(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("ending", ["", ".xz"])
def test_a_huge_file_is_refused_unread(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.csv{ending}"
    if ending:
        path.write_bytes(lzma.compress(b"1" * (MAX_BYTES + 1), preset=0))
    else:
        with path.open("wb") as file:
            file.truncate(MAX_BYTES + 1)  # a sparse file
    with pytest.raises(TraceError, match=r"must be at most 100 MB.*, got .*more; "):
        TraceReader({}).trace(str(path))


def test_a_broken_archive_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"t_s,mbps\n0,1\n")[:-9])
    with pytest.raises(TraceError, match=r"a\.xz: must be a readable file, got: "):
        TraceReader({}).trace(str(path))


@real_data
def test_real_traces_have_the_rates_that_were_published() -> None:
    """The published bins are of IP bytes, in whole seconds from the start; the last is cut."""
    with lzma.open(DATA / "traces" / "mahimahi_cellular_us_1s.csv.xz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["trace"] == "ATT-LTE-driving-2016.up"]
    published = np.array([float(row["mbps"]) for row in rows]) * 1e6 * PAYLOAD_BYTES / MTU_BYTES
    read = TraceReader({"FAIRBED_DATA": str(DATA)})
    ours = read.trace("data:mahimahi/ATT-LTE-driving-2016.up").columns["bps"]
    np.testing.assert_allclose(ours[: len(published)], published, rtol=1e-9)
    assert 0 <= len(ours) - len(published) <= 1


@real_data
@pytest.mark.parametrize(
    "name",
    [
        "data:mahimahi/TMobile-LTE-driving.down",
        "data:nyc-2018/uplink-3g-no-cross-subway.pps",
        "data:nyc-2019/trace-3114405-bus",
        "data:norway-3g/norway_bus_1",
        "data:fcc-fixed/bus.ljansbakken-oslo-report.2010-09-28_1407CEST.log",
    ],
)
def test_every_real_set_can_be_read(name: str) -> None:
    series = TraceReader({"FAIRBED_DATA": str(DATA)})(name, "down_bps")
    assert 0.0 < series.mean < 100e6
    assert series.period_s > 60.0
