"""Small inputs that would grow: each is refused in one line, soon, before it is expanded."""

import sqlite3
import time
import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.reader import read_excerpt
from fairbed.coordinator.store.schema import RECORDS
from fairbed.device_agent.config import load_config
from fairbed.device_agent.errors import ConfigError, DataError
from fairbed.device_agent.examples import OwnData
from fairbed.profiles.load import check
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.datasets.npz import load_npz
from fairbed.wire import codec
from fairbed.wire.enrolment import EnrolRequest, decode_json
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import PROTOCOL_VERSION
from fairbed.wire.text import MAX_KEY_PARTS, MAX_LEVELS, NotText, toml_of
from tests.coordinator.store.fake_run import fake_run

LIMIT_S = 1.0
"""Longest processor time of a refusal."""

LEVELS, PARTS = 5_000, 20_000

TOML_BOMBS = {
    "arrays": f"a = {'[' * LEVELS}{']' * LEVELS}\n",
    "inline tables": "a = " + "{a = " * LEVELS + "1" + "}" * LEVELS + "\n",
    "a dotted key": f"{'.'.join('a' * PARTS)} = 1\n",
    "a key with spaces": f"{' . '.join('a' * PARTS)} = 1\n",
    "quoted parts": ".".join(['"a.b"'] * PARTS) + " = 1\n",
    "a heading": f"[{'.'.join('a' * PARTS)}]\n",
    "a heading of an array": f"[[{'.'.join('a' * PARTS)}]]\n",
    "open arrays": f"a = {'[' * LEVELS}",
    "a key in a table": "a = { " + ".".join("b" * PARTS) + " = 1 }\n",
    "much text": f"a = '{'x' * (17 << 20)}'\n",
}


@pytest.mark.parametrize("text", TOML_BOMBS.values(), ids=TOML_BOMBS.keys())
def test_toml_that_would_take_the_stack_or_minutes_is_refused(text: str) -> None:
    begun = time.thread_time()
    with pytest.raises(NotText, match=r"^must be TOML ") as caught:
        toml_of(text)
    assert len(str(caught.value).splitlines()) == 1
    assert time.thread_time() - begun < LIMIT_S


@pytest.mark.parametrize(
    "text",
    [
        f"a = {'[' * (MAX_LEVELS - 1)}{']' * (MAX_LEVELS - 1)}\n",
        f"{'.'.join('a' * MAX_KEY_PARTS)} = 1\n",
        f'a = \'{"." * 999}\'\nb = """{"[" * 999}\n\\""""\n',
        f"c = '''{'{' * 999}'''  # {'[' * 999}\n",
        f"a = [{'1.5, ' * 999}]\n" + "".join(f"k{i} = 1.5\n" for i in range(999)),
        "".join(
            "[[fleet]]\nprofile = 'a.b.c'  # [ ' \" .\nn.m = [1.5, [2.5]]\n" for _ in range(99)
        ),
    ],
)
def test_toml_within_the_bounds_is_read(text: str) -> None:
    assert toml_of(text)


BOMB = f"a = {'[' * LEVELS}{']' * LEVELS}\n"


@pytest.mark.full
def test_every_reader_of_toml_refuses_a_bomb_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(BOMB)
    for command in (
        ["config", str(path)],
        ["compare", str(path)],
        ["profiles", "check", str(path)],
    ):
        assert main(command) in (1, 2)
        shown = capsys.readouterr()
        (line,) = (shown.out + shown.err).splitlines()
        assert "arrays and tables inside each other, got more in row 1" in line
    with pytest.raises(ConfigError, match="inside each other"):
        load_config(path, {})
    assert "inside each other" in "".join(check(path))
    assert read_excerpt(BOMB) == read_excerpt("")  # of a run: its results can still be read


def zeros(path: Path, expanded_bytes: int) -> Path:
    """Write an archive of zeros; numpy packs them to a thousandth."""
    x = np.zeros((expanded_bytes // 784, 784), np.uint8)
    np.savez_compressed(path, x=x, y=np.zeros(len(x), np.int64))
    return path


@pytest.mark.full
def test_an_archive_of_zeros_is_refused_before_it_is_expanded(tmp_path: Path) -> None:
    path = zeros(tmp_path / "zeros.npz", 300 << 20)
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match="must have at most 100 times the bytes"):
            load_npz(path, DataConfig(source=str(path)))
        with pytest.raises(DataError, match=r"got 303 MiB from 0\.3 MiB; write them"):
            OwnData(path).count()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_an_archive_of_many_arrays_is_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(2_000):
            archive.writestr(f"a{number}.npy", b"")
    with pytest.raises(DataError, match=r"must hold arrays x and y, got a0, a1") as caught:
        OwnData(path).count()
    assert len(str(caught.value)) < len(str(path)) + 300


def nested(levels: int) -> str:
    return f'{{"a": {"[" * levels}{"]" * levels}}}'


def test_json_and_msgpack_of_a_peer_that_nest_are_refused() -> None:
    data = nested(100_000).encode()
    with pytest.raises(DecodeError):
        decode_json(data, EnrolRequest)
    head = bytes([PROTOCOL_VERSION])
    with pytest.raises(DecodeError):
        codec.decode(head + b"\x81\xa1a" + b"\x91" * 100_000)
    with pytest.raises(DecodeError):
        codec.decode(head + b"\x82\xa1m\xa4ping\xa1z" + b"\x91" * 100_000)


@pytest.mark.parametrize(
    "cell", [nested(5_000), "x" * (5 << 20)], ids=["nested JSON", "a long text"]
)
@pytest.mark.parametrize(
    ("table", "column"),
    [("device", "capabilities"), ("truth", "details"), ("run", "provenance"), ("event", "text")],
)
def test_a_foreign_run_with_a_bomb_in_a_cell_is_one_line(
    table: str, column: str, cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fake_run(tmp_path / "demo-1", rounds=2, devices=2)
    with closing(sqlite3.connect(folder / DATABASE)) as db:
        db.execute(f'UPDATE "{table}" SET "{column}" = ?', (cell,))
        db.commit()
    main(["show", "demo-1", "--runs", str(tmp_path)])
    shown = capsys.readouterr()
    assert "internal error" not in shown.err
    assert "Traceback" not in shown.err
    (record,) = (record for record in RECORDS if table == record.TABLE)
    with RunReader(folder) as reader, pytest.raises(StoreError, match="must have at most"):
        reader.columns(record, (column,))
