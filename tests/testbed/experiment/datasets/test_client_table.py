"""A folder with a table of clients, and the pictures, recordings or texts that it names."""

import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fairbed.testbed.experiment.data import AudioConfig, DataConfig, data_config
from fairbed.testbed.experiment.datasets import DatasetError, load

HEAD = "client,file,label\n"


def table(folder: Path, rows: str, head: str = HEAD) -> DataConfig:
    (folder / "clients.csv").write_text(head + rows, encoding="utf-8")
    return data_config(str(folder))


def test_pictures_of_hospitals(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for k in range(3):
        Image.fromarray(np.full((4, 4, 3), k, np.uint8)).save(tmp_path / "a" / f"{k}.png")
    head = "label,extra,client,file\n"
    rows = "nevus,x,rome,a/2.png\nmelanoma,y,bonn,a/0.png\nnevus,z,rome,a/1.png\n"
    data = load(table(tmp_path, rows, head), 0, {})
    assert data.x[:, 0, 0, 0].tolist() == [2, 0, 1]
    assert (data.labels, data.y.tolist()) == (("melanoma", "nevus"), [1, 0, 1])
    assert data.device_ids is not None
    assert data.device_ids.tolist() == [1, 0, 1], "users are in the order of their names"


def test_recordings_of_speakers(tmp_path: Path) -> None:
    for name in ("1.wav", "2.wav"):
        with wave.open(str(tmp_path / name), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.full(40, 100 * int(name[0]), "<i2").tobytes())
    table(tmp_path, "ann,1.wav,yes\ntom,2.wav,no\n")
    data = load(DataConfig(source=str(tmp_path), audio=AudioConfig(samples=50)), 0, {})
    assert data.x.shape == (2, 1, 50)
    assert data.notes == ("2 of 2 recordings are padded with zeros to 50 samples, 0.00625 s",)


def test_texts(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("ab")
    (tmp_path / "2.txt").write_text("ba")
    data = load(table(tmp_path, "ann,1.txt,x\ntom,2.txt,y\n"), 0, {})
    assert data.x[:, :2].tolist() == [[2, 3], [3, 2]]
    assert data.y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        ("a,1.txt\n", "client,file\n", "must have the columns client, file, label, got no label"),
        ("", HEAD, "must have a row, got none; correct clients.csv"),
        ("a,1.txt,\n", HEAD, "a row must have a label, got none in row 1"),
        ("a,1.txt,x\n,2.txt,y\n", HEAD, "a row must have a client, got none in row 2"),
        ("a,1.txt,x\na,3.txt,y\n", HEAD, "files must exist, got none for '3.txt' in row 2"),
        ("a,../up.txt,x\n", HEAD, "files must be in the folder, got '../up.txt' in row 1"),
        ("a,/etc/hosts,x\n", HEAD, "files must be in the folder, got '/etc/hosts' in row 1"),
        ("a,1.txt,x\nb,1.txt,y\n", HEAD, "a file must be in one row, got 1.txt again in row 2"),
        ("a,1.txt,x\nb,p.png,y\n", HEAD, "all files must be text, got p.png in row 2"),
        ("a,clients.csv,x\n", HEAD, "files must be .png, .jpg, .jpeg, .wav, .txt, got clients.csv"),
    ],
)
def test_a_broken_table_is_refused_in_one_line(
    tmp_path: Path, rows: str, head: str, message: str
) -> None:
    (tmp_path.parent / "up.txt").write_text("ab")
    for name in ("1.txt", "2.txt", "p.png"):
        (tmp_path / name).write_text("ab")
    with pytest.raises(DatasetError) as raised:
        load(table(tmp_path, rows, head), 0, {})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
