"""Cases of encodings and containers: every reader has the same numbers, or one true line."""

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fairbed import profiles
from fairbed.device_agent.config import load_config
from fairbed.profiles.errors import TraceError
from fairbed.profiles.exchange_log import parse_log_columns, read_exchange_log
from fairbed.profiles.text import TextError, open_text
from fairbed.profiles.traces.columns import parse_columns, read_columns
from fairbed.profiles.traces.files import read_file, read_trace
from fairbed.testbed.compare.grid import load_grid
from fairbed.testbed.experiment.data import DataConfig, is_source
from fairbed.testbed.experiment.datasets import DatasetError, load
from fairbed.testbed.experiment.file import load_experiment

CASES = Path(__file__).parent


def zipped(content: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return file.getvalue()


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        file.write(content)
    return bytes(sink.getvalue().to_pybytes())


def tarred(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        item = tarfile.TarInfo("a.csv")
        item.size = len(content)
        tar.addfile(item, io.BytesIO(content))
    return file.getvalue()


ENCODED: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "utf-8 bom": lambda text: text.encode("utf-8-sig"),
    "utf-16 bom le": lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
    "utf-16 bom be": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "utf-32 bom": lambda text: text.encode("utf-32"),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "cr": lambda text: text.replace("\n", "\r").encode(),
    "no last line end": lambda text: text.rstrip("\n").encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip in parts": lambda text: (
        gzip.compress(text[:9].encode()) + gzip.compress(text[9:].encode())
    ),
    "xz": lambda text: lzma.compress(text.encode()),
    "bzip2": lambda text: bz2.compress(text.encode()),
    "zstd": lambda text: zstd(text.encode()),
    "zip": lambda text: zipped(text.encode(), "a.csv"),
    "zip of a mac": lambda text: zipped(text.encode(), "a.csv", "__MACOSX/._a.csv"),
    "utf-16 crlf in gzip": lambda text: gzip.compress(text.replace("\n", "\r\n").encode("utf-16")),
}
SEPARATED: dict[str, Callable[[str], str]] = {
    "semicolons": lambda text: text.replace(",", ";"),
    "decimal commas": lambda text: text.replace(",", ";").replace(".", ","),
    "decimal commas and tabs": lambda text: text.replace(",", "\t").replace(".", ","),
    "tabs": lambda text: text.replace(",", "\t"),
    "bars": lambda text: text.replace(",", "|"),
    "spaces": lambda text: text.replace(",", ", "),
    "spaces around": lambda text: text.replace(",", " , "),
}
VARIATIONS = ENCODED | {
    name: (lambda text, change=change: change(text).encode()) for name, change in SEPARATED.items()
}

OURS = "t_s,down_mbps,delay_s\n0,1.5,0.01\n1,2.25,0.25\n2.5,12.5,0.125\n"
LOG = "dev,took_s\na,1.5\nb,0.25\na,12.5\n"
TABLE = "h,g,kind\n" + "".join(
    f"{k}.5,{k * k}.25,{['ash', 'oak', 'elm'][k % 3]}\n" for k in range(9)
)


def ours(path: Path) -> list[list[float]]:
    trace = read_trace(path)
    return [trace.t_s.tolist(), *(values.tolist() for values in trace.columns.values())]


def columns(path: Path) -> list[list[float]]:
    named = parse_columns("t=t_s,down=down_mbps,delay=delay_s")
    trace = read_columns(read_file(path), str(path), named).trace
    return [trace.t_s.tolist(), *(values.tolist() for values in trace.columns.values())]


def log(path: Path) -> list[list[float]]:
    named = parse_log_columns("device=dev,total=took_s")
    return [read_exchange_log(read_file(path), str(path), named).durations_s["total"].tolist()]


def examples(path: Path) -> list[list[float]]:
    data = load(DataConfig(source=str(path), label="kind"), 0, {})
    return [data.x.ravel().tolist(), data.y.tolist()]


READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "ours": (ours, OURS),
    "columns": (columns, OURS),
    "log": (log, LOG),
    "examples": (examples, TABLE),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("variation", VARIATIONS)
def test_every_reader_has_the_same_numbers(variation: str, reader: str, tmp_path: Path) -> None:
    read, text = READERS[reader]
    path = tmp_path / "a.csv"
    path.write_text(text)
    expected = read(path)
    path.write_bytes(VARIATIONS[variation](text))
    assert read(path) == expected


@pytest.mark.parametrize("variation", ENCODED)
def test_a_mahimahi_trace_has_the_same_rate(variation: str, tmp_path: Path) -> None:
    (tmp_path / "a.down").write_bytes(ENCODED[variation]("0\n10\n1000\n"))
    assert read_trace(tmp_path / "a.down").columns["bps"].tolist() == [3 * 8 * 1448]
    assert read_trace(CASES / "files" / "m_bom.down").period_s == 1.0


TWICE: dict[str, Callable[[bytes], bytes]] = {
    "gz gz": lambda content: gzip.compress(gzip.compress(content)),
    "zip zip": lambda content: zipped(zipped(content, "a.csv"), "a.zip"),
    "zip gz": lambda content: zipped(gzip.compress(content), "a.csv.gz"),
    "gz zip": lambda content: gzip.compress(zipped(content, "a.csv")),
    "bz2 xz": lambda content: bz2.compress(lzma.compress(content)),
    "xz zst": lambda content: lzma.compress(zstd(content)),
    "gz three times": lambda content: gzip.compress(gzip.compress(gzip.compress(content))),
}

REFUSED = {
    **{
        name: (pack(OURS.encode()), "must be packed once, got a packed file in it; unpack it once")
        for name, pack in TWICE.items()
    },
    "lzma": (lzma.compress(OURS.encode(), lzma.FORMAT_ALONE), "got an LZMA file; unpack it, and"),
    "zlib": (zlib.compress(OURS.encode()), "must be text, got a stream of zlib; unpack it"),
    "web page": (b"\n<!DOCTYPE html>\n<html>", "got a web page; download the file itself, not"),
    "git lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid 1\n",
        "a pointer of Git LFS; get",
    ),
    "pcap": (b"\xd4\xc3\xb2\xa1" + bytes(40), "must be text, got a capture of packets"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(40), "must be text, got a picture"),
    "utf-32 without bom": (OURS.encode("utf-32-le"), "must be text, got a zero byte; save it"),
    "ebcdic": (OURS.encode("cp500"), "row 1: must be UTF-8 text, got byte 0x"),
    "utf-16 without bom": (OURS.encode("utf-16-le"), "got UTF-16LE without one; convert it: iconv"),
    "utf-16-be without bom": (OURS.encode("utf-16-be"), "got UTF-16BE without one"),
    "latin-1": ("t_s,größe\n".encode("latin-1"), "row 1: must be UTF-8 text, got byte 0xf6; save"),
    "odd utf-16": (OURS.encode("utf-16")[:-1], "must be UTF-16 text, as its first bytes state"),
    "two files": (zipped(b"a", "a.csv", "b.csv"), "must have one file, got 2: a.csv, b.csv; unp"),
    "workbook": (zipped(b"a", "[Content_Types].xml", "xl/a"), "got a workbook of Excel; save it"),
    "tar": (tarred(OURS.encode()), "must be one file, got a tar archive; unpack it: tar xf"),
    "tar.gz": (gzip.compress(tarred(OURS.encode())), "got a tar archive; unpack it: tar xf"),
    "7-zip": (b"7z\xbc\xaf\x27\x1c" + bytes(40), "must be text, got a 7-Zip archive"),
    "parquet": (b"PAR1" + bytes(40), "must be text, got a Parquet file"),
    "cut gzip": (gzip.compress(OURS.encode())[:-9], "must be a readable file, got: "),
    "cut xz": (lzma.compress(OURS.encode())[:-9], "must be a readable file, got: "),
    "cut zip": (zipped(OURS.encode(), "a.csv")[:-9], "must be a readable file, got: "),
    "zeros": (b"t_s,mbps\n0,1\n1,\0\n", "row 3: must be text, got a zero byte"),
    "thousands": (b"t_s;mbps;delay_s\n0;1,234;1\n", "got '1,234', which may be 1234 or 1.234"),
    "two marks": (
        b"t_s;mbps;delay_s\n0;1.234;0,5\n",
        "decimal points or decimal commas, got '0,5'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_everything_else_is_one_true_line(case: str, tmp_path: Path) -> None:
    content, words = REFUSED[case]
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError) as of_trace:
        read_trace(path)
    with pytest.raises(DatasetError) as of_table:
        load(DataConfig(source=str(path), label="mbps"), 0, {})
    for message in (str(of_trace.value), str(of_table.value)):
        assert words in message
        assert len(message.splitlines()) == 1


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstd])
def test_a_bomb_stops_at_the_limit(pack: Callable[[bytes], bytes]) -> None:
    content = pack(b"1\n" * 5_000_000)
    with pytest.raises(TextError, match="must be at most 1 MB of text, got more"):
        open_text(io.BytesIO(content), "a.csv", 1_000_000).read()


@pytest.mark.skipif(shutil.which("iconv") is None, reason="needs iconv")
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "cp1252"])
def test_the_advice_of_an_encoding_works(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a b.csv"
    path.write_bytes(f"# größe\n{OURS}".encode(encoding))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    command = "iconv " + str(caught.value).partition("iconv ")[2]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert read_trace(tmp_path / "utf8.csv").t_s.tolist() == [0.0, 1.0, 2.5]


def test_spaces_after_commas_are_no_part_of_names() -> None:
    data = load(DataConfig(source=str(CASES / "labels" / "spc.csv"), label="lab"), 0, {})
    assert (data.classes, data.x_shape) == (3, (2,))
    assert np.isfinite(data.x).all()


@pytest.mark.parametrize("name", ["a.csv.gz", "A.CSV", "a.csv.zip", "a.tsv"])
def test_a_packed_table_is_a_source(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    text = TABLE.replace(",", "\t")
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert load(DataConfig(source=str(path), label="kind"), 0, {}).classes == 3
    assert is_source(str(path))


def settings_of(path: Path) -> object:
    return load_experiment(path).resolved_toml()


def link_of(path: Path) -> object:
    link = profiles.load_link(path).link
    assert profiles.check(path) == []
    return link


def grid_of(path: Path) -> object:
    return load_grid(path).arms


def agent_of(path: Path) -> object:
    return load_config(path, {})


LINK = 'title = "Größe"\nlicence = "CC0"\n[link]\n' + "".join(
    f'{key} = {{ value = {value}, tag = "measured", source = "größe" }}\n'
    for key, value in (("down_bps", 1e6), ("up_bps", 2e6), ("delay_s", 0.01))
)
SETTINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "experiment": (settings_of, '# größe\nname = "e"\nrounds = 3\n[selection]\nper_round = 2\n'),
    "link": (link_of, LINK),
    "agent": (agent_of, '# größe\nbroker_url = "mqtts://a:b@host"\nname = "pi-1"\n'),
    "grid": (
        grid_of,
        '# größe\nseeds = 2\n[experiment]\nname = "e"\nrounds = 2\n[[experiment.fleet]]\n'
        'profile = "raspberry-pi-4b"\ncount = 4\n[experiment.selection]\nper_round = 2\n'
        '[[arm]]\nname = "a"\n[[arm]]\nname = "b"\nset = { rounds = 3 }\n',
    ),
}
EDITORS = {name: ENCODED[name] for name in ENCODED if not name.startswith(("gzip", "xz", "b", "z"))}
EDITORS = {name: code for name, code in EDITORS.items() if "gzip" not in name and name != "zstd"}


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("editor", EDITORS)
def test_a_file_of_settings_is_read_as_an_editor_wrote_it(
    editor: str, kind: str, tmp_path: Path
) -> None:
    read, text = SETTINGS[kind]
    path = tmp_path / "a.toml"
    path.write_text(text, "utf-8")
    expected = read(path)
    path.write_bytes(EDITORS[editor](text))
    assert read(path) == expected


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le", "utf-16-be", "utf-32-le", "cut"])
def test_settings_in_another_encoding_are_one_true_line(
    encoding: str, kind: str, tmp_path: Path
) -> None:
    read, text = SETTINGS[kind]
    path = tmp_path / "a.toml"
    path.write_bytes(text.encode("utf-16")[:-1] if encoding == "cut" else text.encode(encoding))
    with pytest.raises(Exception, match=r"a\.toml: must be UTF-") as caught:
        read(path)
    assert "save it as UTF-8" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


HEIGHTS = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]


@pytest.mark.parametrize(
    "row", ['1.5, "{}, a"', '1.5,  "{}, a" ', '1.5,"{}, a"', ' "1.5","{}, a"', '"1.5", "{}, a"']
)
def test_a_space_before_a_quote_is_no_part_of_the_value(row: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [
        row.format(kind).replace("1.5", str(k))
        for k, kind in zip(HEIGHTS, ("ash", "oak") * 4, strict=True)
    ]
    path.write_text("h,kind\n" + "\n".join(rows) + "\n")
    data = load(DataConfig(source=str(path), label="kind"), 0, {})
    assert data.x.ravel().tolist() == HEIGHTS
    assert [name for name, _ in data.class_counts()] == ["ash, a", "oak, a"]


def test_a_space_before_a_quote_in_a_late_row_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("h,kind\n" + '1.5,"ash"\n2.5,"oak"\n' * 20_000 + '1.5, "ash"\n')
    with pytest.raises(DatasetError, match="row 40002: must have no space between a separator"):
        load(DataConfig(source=str(path), label="kind"), 0, {})


TEXTS: dict[str, tuple[str, list[float] | str]] = {
    "sep=;": ("sep=;\nt;r\n0;1,5\n1;2\n", [1.5, 2.0]),
    "quoted sep=": ('"sep=,"\nt,r\n0,1\n1,2\n', [1.0, 2.0]),
    "quoted decimal commas": ('t,r\n"0,0","1,5"\n"1,0","2,5"\n', [1.5, 2.5]),
    "blank lines": ("\n\nt,r\n\n0,1\n\n1,2\n\n", [1.0, 2.0]),
    "comma at every end": ("t,r,\n0,1,\n1,2,\n", [1.0, 2.0]),
    "mixed ends": ("t,r\r\n0,1\n1,2\r2,3\n", [1.0, 2.0, 3.0]),
    "cr cr lf": ("t,r\r\r\n0,1\r\r\n1,2\r\r\n", [1.0, 2.0]),
    "no-break space": ("t,\u00a0r\n0,1\n1,2\n", [1.0, 2.0]),
    "exponents": ("t,r\n0,1e1\n1,2E0\n", [10.0, 2.0]),
    "plus": ("t,r\n0,+1\n1,.5\n", [1.0, 0.5]),
    "comma in a name": ("t;r;x, y\n0;1;a\n1;2;b\n", [1.0, 2.0]),
    "underscore": ("t,r\n0,1_5\n1,2\n", "r must be a number, got '1_5'"),
    "units below the header": ("t,r\ns,Mbit/s\n0,1\n", "t must be a number, got 's'"),
    "title": ("My log\nt,r\n0,1\n", "must have the column 't', got 'My log'"),
    "comma at the end of rows": ("t,r\n0,1,\n1,2,\n", "row 2: must have 2 values, got 3"),
    "footer": ("t,r\n0,1\nTotal,3\n", "t must be a number, got 'Total'"),
    "two files in one": ("t,r\n0,1\nt,r\n1,2\n", "t must be a number, got 't'"),
    "spaces": ("t r\n0 1\n", "must have the column 't', got 't r'"),
    "unquoted decimal commas": ("t,r\n0,0,1,5\n", "must have 2 values, got 4"),
    "thousands": ("t;r\n0;1.234.567\n", "r must be a number, got '1.234.567'"),
    "apostrophes": ("t;r\n0;1'234\n", 'r must be a number, got "1\'234"'),
    "thin spaces": ("t;r\n0;1\u202f234\n", "r must be a number, got"),
    "both marks": ("t;r\n0;1,5\n1;2.5\n", "must have decimal points or decimal commas"),
    "unit in a cell": ("t;r\n0;1 Mbps\n", "r must be a number, got '1 Mbps'"),
    "error of a sheet": ("t;r\n0;#DIV/0!\n", "r must be a number, got '#DIV/0!'"),
    "below a limit": ("t;r\n0;<1\n", "r must be a number, got '<1'"),
    "code of missing": ("t;r\n0;-999\n", "r must be from 0 to 1e+12"),
    "hexadecimal": ("t;r\n0;0x10\n", "r must be a number, got '0x10'"),
    "fortran": ("t;r\n0;1d3\n", "r must be a number, got '1d3'"),
    "infinite": ("t;r\n0;Infinity\n", "r must be from 0 to 1e+12"),
    "open quote": ('t,r\n0,"1\n1,2\n', "r must be a number, got '1"),
    "zero width": ("t,\u200br\n0,1\n", "must have the column 'r'"),
    "byte order mark in a row": ("t,r\n0,1\n\ufeff1,2\n", "t must be a number, got '\\ufeff1'"),
    "line separator": ("t,r\n0,1\u20281,2\n", "must have 2 values, got 3"),
    "end of file of DOS": ("t,r\n0,1\n\x1a", "row 3: must have 2 values, got 1"),
    "json": ('[{"t":0,"r":1}]', "must have the column 't'"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_table_is_read_right_or_is_one_line(case: str, tmp_path: Path) -> None:
    text, expected = TEXTS[case]
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    named = parse_columns("t=t:s,rate=r:mbit")
    if isinstance(expected, list):
        trace = read_columns(read_file(path), "a.csv", named).trace
        assert (trace.columns["bps"] / 1e6).tolist() == expected
        return
    with pytest.raises(TraceError) as caught:
        read_columns(read_file(path), "a.csv", named)
    assert expected in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
