from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets import DatasetError, load
from fairbed.testbed.experiment.datasets.dataset import Dataset

X = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
Y = np.arange(40) % 4


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return path


def loaded(path: Path, **keys: Any) -> Dataset:
    return load(DataConfig(source=str(path), **keys), 0, {})


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (X, np.float32),
        (X.astype(np.float64), np.float32),
        (X.astype(np.float16), np.float32),
        (np.arange(120, dtype=np.uint8).reshape(40, 3), np.uint8),
    ],
)
def test_takes_floats_and_pixels(tmp_path: Path, x: Any, dtype: Any) -> None:
    data = loaded(saved(tmp_path, x=x, y=Y.astype(np.uint8)))
    assert (data.x.dtype, data.x_shape, data.n, data.classes) == (dtype, (3,), 40, 4)
    np.testing.assert_array_equal(data.x, x.astype(dtype))
    assert data.y.dtype == np.int64


def test_pools_the_test_part(tmp_path: Path) -> None:
    data = loaded(saved(tmp_path, x=X[:30], y=Y[:30], x_test=X[30:], y_test=Y[30:]))
    np.testing.assert_array_equal(data.x, X)
    np.testing.assert_array_equal(data.y, Y)


@pytest.mark.parametrize(
    "device", [np.repeat([7, 3], 20), np.repeat(["tram", "bus"], 20), np.repeat([b"b", b"a"], 20)]
)
def test_users_are_numbered_in_order_of_their_names(tmp_path: Path, device: Any) -> None:
    if device.dtype.kind == "S":
        device = device.astype(str)
    data = loaded(saved(tmp_path, x=X, y=Y, device=device))
    assert data.device_ids is not None
    assert data.device_ids.tolist() == [1] * 20 + [0] * 20


def test_users_have_a_test_part_too(tmp_path: Path) -> None:
    arrays = {"x": X, "y": Y, "device": Y, "x_test": X, "y_test": Y}
    data = loaded(saved(tmp_path, **arrays, device_test=Y + 4))
    assert data.device_ids is not None
    assert data.device_ids.max() == 7
    with pytest.raises(DatasetError, match=r"with device, device_test"):
        loaded(saved(tmp_path, **arrays))


def test_a_subsample_leaves_no_user_without_examples(tmp_path: Path) -> None:
    path = saved(tmp_path, x=X, y=Y, device=np.arange(40))
    data = load(DataConfig(source=str(path), max_examples=12), 0, {})
    assert data.device_ids is not None
    assert data.device_ids.tolist() == list(range(12))


def test_the_folder_setting_is_where_a_relative_path_starts(tmp_path: Path) -> None:
    saved(tmp_path, x=X, y=Y)
    assert load(DataConfig(source="own.npz", folder=str(tmp_path)), 0, {}).n == 40


NAN = X.copy()
NAN[7, 1] = np.nan


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "must hold x and y, got x; add y"),
        ({"a": X}, "unknown array 'a'; valid names are x, y, x_test, y_test, device"),
        ({"x": X, "y": Y[:-1]}, "x and y must have equal length, got 40 and 39"),
        ({"x": X, "y": X.astype(str)}, "y must be numbers where an example has several labels"),
        ({"x": X, "y": NAN[:, 1]}, "y must have a value in every row, got nan in row 7"),
        ({"x": X, "y": Y * 1e300}, "y must be finite as float32, got 1e+300 in row"),
        (
            {"x": X[:0], "y": Y[:0]},
            "y must be integers, text or floats, shape (n, ...), no 0, got int64 (0,)",
        ),
        ({"x": X, "y": Y * 0}, "y must hold two or more classes, or targets, got 0 in all 40 rows"),
        ({"x": X, "y": np.array(3)}, "y must have one row per example, got a scalar"),
        ({"x": X[:, 0], "y": Y}, "x must have shape (n, ...), no 0, got (40,)"),
        ({"x": X[:, :0], "y": Y}, "x must have shape (n, ...), no 0, got (40, 0)"),
        ({"x": NAN, "y": Y}, "x must be finite as float32, got NaN or infinity in row 7"),
        ({"x": X.astype(float) * 1e300, "y": Y}, "x must be finite as float32"),
        ({"x": X.astype(complex), "y": Y}, "x must be float, uint8 or integer, got complex128"),
        ({"x": X.astype(str), "y": Y}, "x must be float, uint8 or integer, got <U"),
        (
            {"x": -np.ones((40, 3), int), "y": Y},
            "integers in x are tokens and must be 0 .. 16,777,215, got -1 to -1; number the",
        ),
        ({"x": X.astype(object), "y": Y}, "plain arrays, got: Object arrays cannot be loaded"),
        ({"x": X, "y": Y, "x_test": X}, "a test part must have x_test, y_test and"),
        ({"x": X, "y": Y, "device_test": Y}, "a test part must have"),
        (
            {"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y},
            "x_test must have the type and row shape",
        ),
        ({"x": X, "y": Y, "device": Y[:9]}, "device must be integers or strings, shape (40,)"),
        ({"x": X, "y": Y, "device": X[:, 0]}, "device must be integers or strings"),
    ],
)
def test_refuses_in_one_line(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = saved(tmp_path, **arrays)
    with pytest.raises(DatasetError) as raised:
        loaded(path)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"none.npz: file must exist, got none; check"):
        loaded(tmp_path / "none.npz")


def test_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(DatasetError, match=r"a.npz: must be readable, got: "):
        loaded(tmp_path / "a.npz")


def test_a_single_array_is_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(DatasetError, match=r"must be an .npz archive, got one array; use np.savez"):
        loaded(tmp_path / "a.npz")


@given(cut=st.integers(0, 2000), flips=st.lists(st.tuples(st.integers(0), st.integers(1, 255))))
def test_damage_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    path = saved(tmp_path_factory.getbasetemp(), x=X, y=Y)
    content = bytearray(path.read_bytes())
    for place, mask in flips:
        content[place % len(content)] ^= mask
    path.write_bytes(content[: len(content) - cut])
    try:
        loaded(path)
    except DatasetError as exc:
        assert "\n" not in str(exc)  # noqa: PT017  # damage may also go unnoticed


def test_float_targets_are_those_of_regression(tmp_path: Path) -> None:
    data = loaded(saved(tmp_path, x=X, y=X[:, 0].astype(np.float64)))
    assert (data.kind, data.classes, data.y.dtype.name) == ("regression", 1, "float32")
    np.testing.assert_array_equal(data.y, X[:, 0])
    assert data.description.startswith("40 examples of shape (3,), targets -")


def own(folder: Path, y: Any, task: Any) -> Dataset:
    return load(DataConfig(source=str(saved(folder, x=X, y=y))), 0, {}, task=task)


def test_the_task_of_the_model_decides_over_the_type_of_the_targets(tmp_path: Path) -> None:
    counts = own(tmp_path, Y, "regression")
    assert (counts.kind, counts.classes, counts.y.dtype.name) == ("regression", 1, "float32")
    labels = own(tmp_path, Y.astype(float), "classification")
    assert (labels.kind, labels.classes, labels.y.dtype.name) == ("classification", 4, "int64")
    np.testing.assert_array_equal(labels.y, Y)
    binary = own(tmp_path, Y % 2, "binary")
    assert (binary.kind, binary.classes) == ("binary", 2)
    assert binary.take(np.arange(3)).kind == "binary"
    assert own(tmp_path, Y % 2, None).kind == "classification"


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (Y, "binary", 'model.task: binary must have 2 classes, got 4 in own; set task = "class'),
        (X[:, 0], "classification", "must have classes as targets, got 40 numbers"),
        (-Y.astype(float), "binary", "model.task: binary must have 2 classes, got 4 in own"),
    ],
)
def test_targets_that_do_not_fit_the_task_are_one_line(
    y: Any, task: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=message):
        own(tmp_path, y, task)
