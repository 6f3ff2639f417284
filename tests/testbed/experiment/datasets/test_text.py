"""Texts as tokens: files, folders by user or class, tables and arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.testbed.experiment.data import DataConfig, Iid, TextConfig
from fairbed.testbed.experiment.datasets import Dataset, DatasetError, load
from fairbed.testbed.experiment.shards import FleetData
from fairbed.wire.preparation import TextPreparation


def write(folder: Path, files: dict[str, Any]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(folder)


def texts(folder: Path, files: dict[str, Any], *, source: str = "", **keys: Any) -> Dataset:
    found = write(folder / "texts", files) + (f"/{source}" if source else "")
    section = {key: keys.pop(key) for key in ("unit", "length", "stride", "words") if key in keys}
    config = DataConfig(source=found, text=TextConfig(**section) if section else None, **keys)
    return load(config, 0, {})


@pytest.mark.parametrize(
    ("unit", "x", "y", "classes"),
    [
        ("bytes", [[98, 196], [170, 0]], [[196, 170], [34, -1]], 257),
        ("characters", [[3, 4]], [[4, 2]], 5),
        ("words", [[3, 0]], [[2, -1]], 4),
    ],
)
def test_y_is_the_next_token(unit: str, x: Any, y: Any, classes: int, tmp_path: Path) -> None:
    """Bytes 97 195 169 33 with 1 added; characters ! a é are 2 3 4, words ! aé are 2 3."""
    data = texts(tmp_path, {"a.txt": "aé!"}, source="a.txt", unit=unit, length=2)
    assert data.x.tolist() == x
    assert data.y.tolist() == y
    assert data.classes == data.x_classes == classes
    assert (data.kind, data.device_ids) == ("classification", None)


@pytest.mark.parametrize(
    ("n", "length", "stride", "starts"),
    [
        (9, 4, 4, [0, 4]),
        (9, 4, 2, [0, 2, 4]),
        (10, 4, 4, [0, 4, 8]),
        (3, 4, 1, [0]),
        (6, 2, 3, [0, 3]),
    ],
)
def test_windows_end_with_the_text(
    n: int, length: int, stride: int, starts: list[int], tmp_path: Path
) -> None:
    text = "".join(map(chr, range(65, 65 + n)))
    data = texts(tmp_path, {"a.txt": text}, length=length, stride=stride)
    assert (data.x[:, 0] - 2).tolist() == starts
    is_labelled = data.y >= 0
    np.testing.assert_array_equal(data.y[is_labelled], data.x[is_labelled] + 1)
    np.testing.assert_array_equal(data.x == 0, ~is_labelled)


def test_each_file_of_a_folder_is_a_user(tmp_path: Path) -> None:
    files = {"tom.txt": "ab" * 9, "ann.txt": "abc", ".hidden": "x", "notes.md": "no text"}
    data = texts(tmp_path, files, length=6)
    assert data.device_ids is not None
    assert data.device_ids.tolist() == [0, 1, 1, 1]
    assert data.notes == ("left out 1 file without the suffix .txt: notes.md",)
    by_folder = texts(tmp_path / "f", {"ann/1": "ab", "ann/2": "ab", "tom/1": "ab"}, target="next")
    assert by_folder.device_ids is not None
    assert by_folder.device_ids.tolist() == [0, 0, 1]


def test_each_folder_is_a_class_if_the_target_is_the_label(tmp_path: Path) -> None:
    files = {f"{label}/{k}.txt": f"{label} {k}" for label in ("good", "bad") for k in range(3)}
    files["bad/0.txt"] += " and very much more"
    data = texts(tmp_path, files, unit="words", length=4)
    assert (data.labels, data.y.tolist()) == (("bad", "good"), [0, 0, 0, 1, 1, 1])
    assert (data.x.shape, data.y_shape, data.classes) == ((6, 4), (), 2)
    assert (data.x[1] != 0).tolist() == [True, True, False, False]
    assert data.notes == ("1 of 6 texts are cut to 4 words (data.text.length)",)


@pytest.mark.parametrize("form", ["table", "arrays"])
def test_texts_of_a_table_and_of_arrays_are_tokens(form: str, tmp_path: Path) -> None:
    rows = [("a fine day", "good", "ann"), ("rain, again", "bad", "tom"), ("fine", "good", "tom")]
    text, label, user = (list(column) for column in zip(*rows, strict=True))
    keys: dict[str, Any] = {"text": TextConfig(unit="words", length=3)}
    if form == "table":
        pytest.importorskip("pyarrow")
        lines = [f'"{text}",{label},{user}' for text, label, user in rows]
        (tmp_path / "a.csv").write_text("\n".join(["review,mood,who", *lines]))
        keys |= {"label": "mood", "device": "who"}
        keys["text"] = TextConfig(unit="words", length=3, column="review")
    else:
        np.savez(tmp_path / "a.npz", x=text, y=label, device=user)
    data = load(DataConfig(source=str(next(tmp_path.iterdir())), **keys), 0, {})
    assert (data.y.tolist(), data.labels) == ([1, 0, 1], ("bad", "good"))
    assert data.device_ids is not None
    assert data.device_ids.tolist() == [0, 1, 1]
    words = ("fine", ",", "a", "again", "day", "rain")
    assert isinstance(data.preparation, TextPreparation)
    assert data.preparation.vocabulary == words
    assert data.x.tolist() == [[4, 2, 6], [7, 3, 5], [2, 0, 0]]


def test_words_beyond_the_vocabulary_are_the_unknown_token(tmp_path: Path) -> None:
    data = texts(tmp_path, {"a.txt": "a b c a b a"}, unit="words", words=2, length=5)
    assert data.x.tolist() == [[2, 3, 1, 2, 3]]
    assert data.notes == (
        "20.0% of the words are not among the 2 most frequent and are token 1 (data.text.words)",
    )


def test_a_word_that_no_training_row_has_is_unknown(tmp_path: Path) -> None:
    words = " ".join(f"w{k}" for k in range(60))
    data = texts(tmp_path, {"a.txt": words}, unit="words", length=3)
    divided = FleetData(data, DataConfig(source="a.npz", partition=Iid()), devices=2, seed=0)
    found = divided.dataset
    rows = np.concatenate(divided.train_rows)
    np.testing.assert_array_equal(found.x[rows], data.x[rows])
    np.testing.assert_array_equal(found.y[rows], data.y[rows])
    known = {*data.x[rows].ravel().tolist(), *data.y[rows].ravel().tolist()}
    tests = np.concatenate(divided.test_rows)
    assert {*found.x[tests].ravel().tolist(), *found.y[tests].ravel().tolist()} <= known | {1}
    assert (found.x[tests] == 1).any()
    assert found.sha256 == data.sha256


def test_the_same_text_in_another_encoding_is_the_same_data(tmp_path: Path) -> None:
    plain = texts(tmp_path / "8", {"a.txt": "Grün\nis 綠"})
    wide = texts(tmp_path / "16", {"a.txt": "Grün\r\nis 綠".encode("utf-16")})
    assert plain.sha256 == wide.sha256


@pytest.mark.parametrize(
    ("files", "keys", "message"),
    [
        ({"a.txt": ""}, {}, "a.txt: must have at least 2 of its characters, got 0; remove it"),
        ({"a.txt": "ab", "b.txt": "a"}, {}, "b.txt: must have at least 2 of its characters, got 1"),
        ({"a.txt": b"\x89PNG\xff"}, {}, "a.txt: must be UTF-8 text, got byte 0x89 in row 1; save"),
        (
            {"a.txt": b"ab\0\0"},
            {},
            "a.txt: must be UTF-8 text, or UTF-16 with a byte order mark, g",
        ),
        ({"a.txt": "ab"}, {"target": "label"}, "must hold texts, or one folder of texts per class"),
        ({"a/1.txt": "ab"}, {}, "one folder of texts per class, got 1 folders; check the path"),
        ({"a/1.txt": "", "b/1.txt": "c"}, {}, "1.txt: must have at least 1 of its characters, got"),
        (
            {"a/1.txt": "ab"},
            {"source": "none.txt"},
            "none.txt: file must exist, got none; check da",
        ),
        ({"a.txt": "ab"}, {"source": "none"}, "none: folder must exist, got none; check the path"),
    ],
)
def test_refuses_in_one_line(
    files: dict[str, Any], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError) as raised:
        texts(tmp_path, files, **keys)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
