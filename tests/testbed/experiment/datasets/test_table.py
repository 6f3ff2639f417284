from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv

from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets import DatasetError, load
from fairbed.testbed.experiment.datasets.table import load_table

X = np.random.default_rng(0).standard_normal((40, 3))
Y = np.arange(40) % 4
Writer = Callable[[Path, dict[str, Any]], Path]


def as_csv(folder: Path, columns: dict[str, Any]) -> Path:
    csv.write_csv(pa.table(columns), folder / "own.csv")
    return folder / "own.csv"


def as_parquet(folder: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), folder / "own.parquet", row_group_size=7)
    return folder / "own.parquet"


def features(**more: Any) -> dict[str, Any]:
    return {"a": X[:, 0], "kind": Y, "b": X[:, 1], "c": X[:, 2], **more}


@pytest.fixture(params=[as_csv, as_parquet])
def write(request: pytest.FixtureRequest) -> Writer:
    return cast(Writer, request.param)


def test_columns_that_are_no_labels_are_features(tmp_path: Path, write: Writer) -> None:
    data = load_table(write(tmp_path, features()), "kind", None)
    assert (data.x.dtype.name, data.x_shape, data.n, data.classes) == ("float32", (3,), 40, 4)
    np.testing.assert_array_equal(data.x, X.astype(np.float32))
    np.testing.assert_array_equal(data.y, Y)
    assert data.device_ids is None


@pytest.mark.parametrize("user", [[f"user {k}" for k in (30, 4, 5, 6)] * 10, [30, 4, 5, 6] * 10])
def test_names_of_classes_and_users_are_numbered_in_order(
    tmp_path: Path, write: Writer, user: list[Any]
) -> None:
    names = ["oak", "ash", "elm", "fir"] * 10
    path = write(tmp_path, {"x": X[:, 0], "tree": names, "user": user})
    config = DataConfig(source=path.name, label="tree", device="user", folder=str(tmp_path))
    data = load(config, 0, {})
    assert data.y[:4].tolist() == [3, 0, 1, 2]
    assert data.device_ids is not None
    assert data.device_ids[:4].tolist() == ([0, 1, 2, 3] if user[0] == "user 30" else [3, 0, 1, 2])


def test_labels_with_fractions_are_targets_of_regression(tmp_path: Path, write: Writer) -> None:
    data = load_table(write(tmp_path, features(price=X[:, 0] / 3)), "price", None)
    assert (data.is_regression, data.y.dtype.name, data.x_shape) == (True, "float32", (4,))
    np.testing.assert_array_equal(data.y, (X[:, 0] / 3).astype(np.float32))


def test_other_types_of_numbers_are_features(tmp_path: Path) -> None:
    columns = {
        "flag": pa.array([True, False, True]),
        "half": pa.array(np.array([1, 2, 3], np.float16)),
        "whole": pa.array([1, 2, 3], pa.uint8()),
        "exact": pa.array([1, 2, 3]).cast(pa.decimal128(21, 2)),
        "y": pa.array([0, 1, 1], pa.int8()),
        "user": pa.array(["b", "a", "b"]).dictionary_encode(),
    }
    data = load_table(as_parquet(tmp_path, columns), "y", "user")
    assert data.device_ids is not None
    assert data.device_ids.tolist() == [1, 0, 1]
    assert data.x.tolist() == [[1, 1, 1, 1], [0, 2, 2, 2], [1, 3, 3, 3]]


def test_quotes_spaces_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text('a,"b, too",y\r\n 1 ,2e1,"x\ny"\r\n3,-4, z\r\n', encoding="utf-8-sig")
    data = load_table(path, "y", None)
    assert data.x.tolist() == [[1, 20], [3, -4]]
    assert data.classes == 2


def test_row_numbers_count_over_batches(tmp_path: Path) -> None:
    n = 200_000
    column = [str(k) for k in range(n)]
    column[n - 2] = "many"
    path = as_csv(tmp_path, {"a": column, "y": np.arange(n) % 2})
    with pytest.raises(DatasetError, match=r"'a' must .*, got 'many' in row 199999; replace it"):
        load_table(path, "y", None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (features(d=[*X[:-1, 0], np.inf]), "column 'd' must hold a finite number in every row"),
        (features(d=[*X[:-1, 0], 1e300]), "1e+300"),
        (features(d=[*X[:-1, 0], -np.inf]), "in row 40; replace it (an empty field is a missing"),
        (features(d=["3"] * 39 + ["three"]), "got 'three' in row 40"),
        (features(d=["x" * 99, *["3"] * 39]), "got '" + "x" * 37 + "...' in row 1"),
        (features(kind=["1"] * 38 + ["", "two"]), "'kind' must have a value in every row, got"),
        (features(kind=[None, *Y[1:].tolist()]), "'kind' must have a value in every row, got none"),
        (features(kind=["1"] * 39 + ["two"]), "numbers or names, not both, got '1' and, in row 40"),
        (features(kind=Y * 0), "y must hold two or more classes, or targets, got 0 in all 40 rows"),
        ({"kind": Y}, "must have columns for features besides label and device, got kind"),
        ({"a": X[:, 0]}, "data.label must be one of its columns (a), got 'kind'; correct the name"),
        ({"a": X[:0, 0], "kind": Y[:0]}, "must have rows, got none"),
    ],
)
def test_refuses_in_one_line(
    tmp_path: Path, write: Writer, columns: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, columns)
    with pytest.raises(DatasetError) as raised:
        load_table(path, "kind", None)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must have a header and rows, got none; add examples"),
        (b"a,y\n1,0\n2\n", "Expected 2 columns, got 1: 2"),
        (b"a,y\n\xff,0\n", "row 2: must be UTF-8 text, got byte 0xff; save it as UTF-8"),
        (b"a,a,y\n1,2,0\n", "columns must have different names, got 'a' twice; rename one"),
        (b"a:y\n1:0\n", "data.label must be one of its columns (a:y), got 'y'"),
    ],
)
def test_refuses_a_damaged_csv_file_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes(content)
    with pytest.raises(DatasetError) as raised:
        load_table(path, "y", None)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_a_missing_file_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match=rf"{name}: file must exist, got none; check data.sour"):
        load_table(tmp_path / name, "y", None)
    (tmp_path / name).mkdir()
    with pytest.raises(DatasetError, match=rf"{name}: must be a readable .{name[5:]} file, got: "):
        load_table(tmp_path / name, "y", None)


def test_nested_columns_are_no_features(tmp_path: Path) -> None:
    path = as_parquet(tmp_path, {"a": [[1, 2]] * 4, "y": [0, 1] * 2})
    with pytest.raises(DatasetError, match=r"'a' must hold a finite number .* got \[1, 2\] in row"):
        load_table(path, "y", None)
    with pytest.raises(DatasetError, match=r"'a' must hold numbers or text, got list<"):
        load_table(path, "a", None)


def test_a_file_too_large_for_this_machine_is_not_read(
    tmp_path: Path, write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, features())
    monkeypatch.setattr(
        "fairbed.testbed.experiment.datasets.own.free_bytes", lambda: 40 * 3 * 4 * 2 - 1
    )
    with pytest.raises(DatasetError, match="must fit into half of the free memory"):
        load_table(path, "kind", None)


@given(cut=st.integers(0, 2000), flips=st.lists(st.tuples(st.integers(0), st.integers(1, 255))))
@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_damage_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory,
    write: Writer,
    cut: int,
    flips: list[tuple[int, int]],
) -> None:
    path = write(tmp_path_factory.getbasetemp(), features())
    content = bytearray(path.read_bytes())
    for place, mask in flips:
        content[place % len(content)] ^= mask
    path.write_bytes(content[: len(content) - cut])
    try:
        load_table(path, "kind", None)
    except DatasetError as exc:
        assert "\n" not in str(exc)  # noqa: PT017  # damage may also go unnoticed
