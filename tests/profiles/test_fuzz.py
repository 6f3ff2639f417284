"""Any file either loads as a profile or gives an error in one line that names the file."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbed import profiles
from fairbed.profiles import ProfileError
from fairbed.profiles.errors import TraceError
from fairbed.profiles.exchange_log import parse_log_columns, read_exchange_log
from fairbed.profiles.traces.columns import parse_columns, read_columns
from tests.tiers import examples

TEXTS = {
    name: profiles.find(name).read_text(encoding="utf-8")
    for name in ("raspberry-pi-3b", "starlink-driving", "phones-2025")
}
WORDS = ("", "-", "nan", "inf", "1e999", "0", "-1", '"', "[", "]", "{", "}", "=", "\n", ",", "\x00")
PHRASES = (
    "[[a]]",
    "trace = 'x.csv'",
    "spread = 1",
    "series = { t_s = [] }",
    "quantiles = [[2, 1]]",
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_a_file_with_any_value_anywhere(folder: Path, name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    path = folder / f"{name}.toml"
    path.write_text(
        text[:start] + data.draw(st.sampled_from(WORDS + PHRASES)) + text[end:], encoding="utf-8"
    )
    problems = profiles.check(path)
    assert all(line.startswith(f"{path}: ") and len(line.splitlines()) == 1 for line in problems)
    load = {"phones-2025": profiles.load_population, "starlink-driving": profiles.load_link}
    try:
        load.get(name, profiles.load)(path)
    except ProfileError as exc:
        error = str(exc)
    else:
        return
    assert error.startswith(f"{path}: ")
    assert len(error.splitlines()) == 1


TABLE = "at;dev;dl_kbps;took_s\n2024-05-01T08:00:00;a;1;2\n2024-05-01T08:00:01;b;3;4\n"
READERS = (
    lambda content: read_columns(content, "x.csv", parse_columns("t=at,down=dl_kbps")),
    lambda content: read_exchange_log(
        content, "x.csv", parse_log_columns("device=dev,total=took_s")
    ),
    lambda content: read_exchange_log(content, "x.csv", parse_log_columns("wide=took_s|dl_kbps:s")),
    lambda content: read_exchange_log(content, "x.csv"),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(READERS), st.data())
def test_a_table_with_any_value_anywhere(
    read: Callable[[bytes], object], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(TABLE)))
    end = data.draw(st.integers(start, min(len(TABLE), start + 30)))
    words = st.sampled_from((*WORDS, "\r", "\t", "#", "1e300", "0001-01-01T00:00:00"))
    text = TABLE[:start] + data.draw(words | st.text(max_size=5)) + TABLE[end:]
    try:
        read(text.encode("utf-8", "surrogatepass"))
    except TraceError as exc:
        error = str(exc)
    else:
        return
    assert error.startswith("x.csv: ")
    assert len(error.splitlines()) == 1
