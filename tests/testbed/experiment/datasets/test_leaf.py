"""LEAF's JSON: users and their examples of numbers, texts, pictures and sequences."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from fairbed.testbed.experiment.data import DataConfig, data_config
from fairbed.testbed.experiment.datasets import Dataset, DatasetError, load


def document(of: dict[str, tuple[list[Any], list[Any]]], **changes: Any) -> bytes:
    found: dict[str, Any] = {
        "users": list(of),
        "num_samples": [len(y) for _, y in of.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in of.items()},
    }
    return msgspec.json.encode({**found, **changes})


def loaded(path: Path, content: bytes, **keys: Any) -> Dataset:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return load(DataConfig(source=str(path), **keys), 0, {})


def users_of(data: Dataset) -> list[int]:
    assert data.device_ids is not None
    found: list[int] = data.device_ids.tolist()
    return found


def test_parts_and_files_are_pooled_by_the_name_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    (tmp_path / "train" / "a.json").write_bytes(
        document({"tom": ([[1.0, 2.0]], [0]), "ann": ([[3.0, 4.0]] * 2, [1, 0])})
    )
    (tmp_path / "test" / "a.json").write_bytes(document({"tom": ([[5.0, 6.0]], [1])}))
    data = load(data_config(str(tmp_path)), 0, {})
    assert users_of(data) == [0, 0, 1, 1], "ann comes first"
    assert data.x.tolist() == [[3, 4], [3, 4], [1, 2], [5, 6]]
    assert data.y.tolist() == [1, 0, 0, 1]


def test_784_numbers_are_a_picture_with_a_line(tmp_path: Path) -> None:
    data = loaded(tmp_path / "f.json", document({"w": ([[0.5] * 784] * 2, [0, 1])}))
    assert data.x.shape == (2, 1, 28, 28)
    assert "read as a picture of 28 x 28" in data.notes[0]


def test_one_character_as_label_is_the_next_one(tmp_path: Path) -> None:
    data = loaded(tmp_path / "s.json", document({"r": (["ab ", "b a"], ["a", " "])}))
    assert (data.x.shape, data.x_classes, data.classes) == ((2, 3), 5, 3)
    assert data.x.tolist() == [[3, 4, 2], [4, 2, 3]]
    assert data.y.tolist() == [1, 0], "' ' is class 0, 'a' class 1"


def test_a_tweet_is_its_fifth_field(tmp_path: Path) -> None:
    rows = [["1", "Mon", "NO", "u", text, "training"] for text in ("good day", "bad day")]
    data = loaded(tmp_path / "t.json", document({"u": (rows, ["4", "0"])}))
    assert data.x.shape == (2, 25)
    assert data.x[:, 1].tolist() == [2, 2], "day is the most frequent word"
    assert data.y.tolist() == [1, 0]


def test_names_of_pictures_are_read_from_a_folder_beside_it(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("1.png", "2.png"):
        Image.fromarray(np.full((4, 5, 3), int(name[0]), np.uint8)).save(tmp_path / "images" / name)
    content = document({"c": (["1.png", "2.png"], [0, 1])})
    data = loaded(tmp_path / "c.json", content)
    assert (data.x.shape, data.x.dtype.name) == ((2, 3, 4, 5), "uint8")
    outside = content.replace(b"2.png", b"../x.png")
    with pytest.raises(
        DatasetError, match=r"must be in a folder images beside it, got none for \.\./x"
    ):
        loaded(tmp_path / "c.json", outside)


def test_sequences_have_the_next_word_of_each(tmp_path: Path) -> None:
    x = [[["a", "b", "<PAD>"], ["b", "b", "c"]], [["a", "c", "b"]]]
    y = [
        {"target_tokens": [["b", "<PAD>", "<PAD>"], ["b", "c", "d"]]},
        {"target_tokens": [["c", "b", "a"]]},
    ]
    data = loaded(tmp_path / "r.json", document({"u": (x[:1], y[:1]), "v": (x[1:], y[1:])}))
    assert data.x.shape == data.y.shape == (3, 3)
    assert data.x.tolist() == [[3, 2, 0], [2, 2, 4], [3, 4, 2]]
    assert data.y.tolist() == [[2, -1, -1], [2, 4, 1], [4, 2, 3]]
    assert users_of(data) == [0, 0, 1]


def test_a_user_without_an_example_is_left_out_with_a_line(tmp_path: Path) -> None:
    content = document({"ann": ([[1.0]] * 2, [0, 1]), "bob": ([], [])})
    data = loaded(tmp_path / "l.json", content)
    assert users_of(data) == [0, 0]
    assert data.notes == ("users without an example are left out: bob",)


GOOD = {"ann": ([[1.0], [2.0]], [0, 1]), "bob": ([[1.0]], [0])}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (document(GOOD)[:-9], "must be JSON with users, user_data and x and y of each user, got: "),
        (b'{"x": [1]}', "must be JSON with users, user_data and x and y"),
        (document(GOOD, users=["ann"]), "users and user_data must name the same users, got bob "),
        (document(GOOD, users=["ann", "bob", "ann"]), "users must differ, got ann twice"),
        (document(GOOD, num_samples=[2]), "num_samples must have 2 numbers, got 1"),
        (document(GOOD, num_samples=[2, 7]), "got 1 and 1, and num_samples 7 for bob; get"),
        (document({"ann": ([[1.0]], [])}, num_samples=None), "got 1 and 0 for ann"),
        (document({"ann": ([], [])}), "must hold a user with examples, got none"),
        (document({"a": ([[1.0], [1.0, 2.0]], [0, 1])}), "must be lists of equally many numbers"),
        (document({"a": ([[1.0], [2.0]], [0, "b"])}), "y must be numbers, or texts, got str in ex"),
        (document({"a": (["text", 1.0], [0, 1])}), "x must be of one kind, got float in example 1"),
        (document({"a": ([[["a"]]], [{}])}), "x must be sequences of words and y hold target_tok"),
        (document({"a": ([[["a"]]], [{"target_tokens": [["a", "b"]]}])}), "of one length and num"),
    ],
)
def test_another_layout_is_refused_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(DatasetError) as raised:
        loaded(tmp_path / "bad.json", content)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "bad.json"))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"none.json: must be readable, got: No such file"):
        load(DataConfig(source=str(tmp_path / "none.json")), 0, {})
