"""Columns of tables that a user brings: numbers, categories, left out with a line, or refused."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent.doctor import data_findings
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.examples import same_columns
from fairbed.device_agent.training_work import _check_data
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets import DatasetError, load
from fairbed.testbed.experiment.datasets.columns import MAX_TEXTS
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.experiment.shards import FleetData, load_examples
from fairbed.testbed.provenance import data_sha256, provenance
from fairbed.wire.artifact import encode_artifact
from tests.coordinator.task.test_catalogue import needs_torch

CASES = Path(__file__).parent / "labels"
N = 120
RNG = np.random.default_rng(5)
A, B = RNG.normal(size=N).round(3), RNG.normal(size=N).round(3)
Y: Any = RNG.integers(0, 3, N)
USER = np.sort(RNG.integers(0, 6, N))
NAMES = ("ash", "elm", "oak")
PERMUTED = RNG.permutation(N)
Columns = Mapping[str, Any]


def write(folder: Path, columns: Columns, name: str = "own.csv") -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.table(columns), path)
        return path
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(
    folder: Path, columns: Columns, *, name: str = "own.csv", task: Any = None, **keys: Any
) -> Dataset:
    """Return the data set of columns beside two features and the label `y`."""
    columns = {"a": A, **columns, "b": B, "y": Y} | ({"y": columns["y"]} if "y" in columns else {})
    path = write(folder, columns, name)
    return load(DataConfig(source=str(path), label="y", **keys), 0, {}, task=task)


def use_of(data: Dataset, name: str) -> str:
    assert data.encoding is not None
    return next(feature.use for feature in data.encoding.features if feature.name == name)


def assert_only_a_and_b(data: Dataset) -> None:
    np.testing.assert_array_equal(data.x, np.column_stack([A, B]).astype(np.float32))


def restarting(size: int) -> list[int]:
    return [k % size for k in range(N)]


def within(groups: np.ndarray[Any, Any], first: int = 0) -> list[int]:
    """Return the number of each row among those of its group."""
    seen: dict[int, int] = {}
    found = []
    for group in groups.tolist():
        seen[group] = seen.get(group, first - 1) + 1
        found.append(seen[group])
    return found


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("", range(N), "no name, as the index that pandas writes"),
        (" ", range(N), "no name"),
        ('""', range(1, N + 1), "no name"),
        ("", PERMUTED, "no name"),
        ("", RNG.integers(0, 9, N), "no name"),
        ("Unnamed: 0", range(N), "no name"),
        ("Unnamed: 0.1", range(N), "no name"),
        ("__index_level_0__", RNG.choice(5000, N, replace=False), "no name"),
        ("index", range(N), "counts the rows, from 0 by 1"),
        ("index", np.sort(RNG.choice(9000, N, replace=False)), "identifies the examples"),
        ("index", restarting(40), "counts rows, and begins again"),
        ("level_0", restarting(50), "counts rows, and begins again"),
        ("rownames", [*range(70), *range(50)], "counts rows, and begins again"),
        ("k", range(1, N + 1), "counts the rows, from 1 by 1"),
        ("k", range(N - 1, -1, -1), "counts the rows, from 119 by -1"),
        ("k", range(N, 0, -1), "counts the rows, from 120 by -1"),
        ("k", range(500, 500 + N), "counts the rows, from 500 by 1"),
        ("k", range(0, 10 * N, 10), "counts the rows, from 0 by 10"),
        ("k", [f"{k}.0" for k in range(N)], "counts the rows"),
        ("k", [f"{k:04d}" for k in range(N)], "counts the rows"),
        ("k", [f"  {k} " for k in range(N)], "counts the rows"),
        ("k", ["" if k == 7 else k for k in PERMUTED], "identifies the examples"),
        ("k", PERMUTED, "numbers the rows, 0 .. 119 in another order"),
        ("k", PERMUTED + 1, "numbers the rows, 1 .. 120 in another order"),
        ("k", PERMUTED + 7_000_000_000, "numbers the rows, 7000000000 .. 7000000119"),
        ("k", RNG.choice(1000, N, replace=False), "identifies the examples: 120 different whole"),
        (
            "k",
            [k - (k % 30 == 29) for k in range(N)],
            "identifies the examples: 116 different whol",
        ),
        ("k", 16_777_216 + RNG.choice(900, N, replace=False), "identifies the examples"),
        ("id", RNG.choice(10**7, N, replace=False), "identifies the examples"),
        ("PassengerId", RNG.choice(10**7, N, replace=False), "identifies the examples"),
        ("customer_id", RNG.choice(10**7, N, replace=False), "identifies the examples"),
        ("n", [10**17 + 977 * k * k for k in PERMUTED.tolist()], "identifies the examples"),
        ("s", [f"sample {k}" for k in range(N)], "identifies the examples: 120 different texts"),
        ("s", [f"{k:08x}-beef-4bad-9{k:03x}-{k:012x}" for k in range(N)], "identifies"),
        ("s", [f"n{k}" for k in RNG.integers(0, N, N)], "identifies the examples"),
        ("s", [f"2024-03-{1 + k % 28:02d}" for k in range(N)], "dates or times"),
        ("s", [f"{k % 24:02d}:30" for k in range(N)], "dates or times"),
        ("s", [f"2024-03-01T{k % 24:02d}:00:00Z" for k in range(N)], "dates or times"),
        ("c", [7] * N, "only one value"),
        ("c", ["0.0"] * N, "only one value"),
        ("c", ["on"] * N, "only one value"),
        ("c", ["", *["on"] * (N - 1)], "only one value"),
        ("c", ["NA", *[3] * (N - 1)], "only one value"),
        ("c", [""] * N, "no value"),
        ("c", ["nan", "?"] * (N // 2), "no value"),
        ("l", Y, "repeats the label"),
        ("l", Y + 1, "repeats the label"),
        ("l", 10 - 3 * Y, "repeats the label"),
        ("l", [NAMES[k] for k in Y], "repeats the label"),
        ("l", ["" if k < 9 else NAMES[y] for k, y in enumerate(Y)], "repeats the label"),
        ("l", ["" if k < 9 else y for k, y in enumerate(Y)], "repeats the label"),
    ],
)
def test_a_column_that_tells_nothing_is_left_out(
    tmp_path: Path, name: str, values: Sequence[Any], reason: str
) -> None:
    data = read(tmp_path, {name: values})
    shown = name.strip(' "') or "Unnamed: 1"
    assert_only_a_and_b(data)
    assert use_of(data, shown).startswith(f"left out: {reason}")
    (note,) = data.notes
    assert note.startswith(f"column {shown!r} left out: {reason}")
    use = 'to use it, list the columns in data.features, or ["*"] for all'
    assert note.endswith("; fill it" if reason == "no value" else f"; {use}")


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("u", [f"user {k}" for k in USER], "repeats data.device"),
        ("u", USER + 100, "repeats data.device"),
        ("frame", within(USER), "counts rows, and begins again"),
        ("frame", within(USER, 1), "counts rows, and begins again"),
        ("frame", within(Y), "counts rows, and begins again"),
    ],
)
def test_a_column_that_repeats_or_counts_the_users_is_left_out(
    tmp_path: Path, name: str, values: Sequence[Any], reason: str
) -> None:
    data = read(tmp_path, {name: values, "user": USER}, device="user")
    assert_only_a_and_b(data)
    assert use_of(data, name) == f"left out: {reason}"


@pytest.mark.parametrize("first", [0, 1])
def test_one_hot_columns_of_the_label_are_left_out(tmp_path: Path, first: int) -> None:
    columns = {f"is_{NAMES[k]}": (k == Y).astype(int) for k in range(first, 3)}
    data = read(tmp_path, columns)
    assert_only_a_and_b(data)
    assert "repeats the label, as one of its one-hot columns" in data.notes[0]


@pytest.mark.parametrize(
    ("name", "values", "note"),
    [
        ("v", RNG.normal(size=N).round(2), ""),
        ("v", RNG.integers(0, 256, N), ""),
        ("v", RNG.choice(10**6, N, replace=False), ""),
        ("v", [1e300 if False else k for k in RNG.integers(-5, 5, N)], ""),
        ("v", RNG.integers(0, 2, N), ""),
        ("v", [f"{k}e-3" for k in RNG.integers(1, 50, N)], ""),
        ("v", (A > 0).astype(int), ""),
        ("feathers", (Y == 1).astype(int), "follows from the label: one class has a value"),
        ("v", [(0, 0, 5)[k] for k in Y], "follows from the label"),
        ("v", 10 * Y + RNG.integers(0, 3, N), "decides the label: each of its 9 values has one"),
        ("hour", restarting(24), "counts up and begins again, as the number of a row"),
        ("t", [f"{0.5 * k:.1f}" for k in range(N)], "rises evenly over the rows"),
        ("v", np.where(RNG.random(N) < 0.1, -999, RNG.integers(0, 60, N)), "has -999 in "),
        ("v", np.where(RNG.random(N) < 0.1, 9999, RNG.integers(0, 60, N)), "has 9999 in "),
        ("zip", [f"0{k}" for k in RNG.integers(1000, 1040, N)], "has codes such as '0"),
        ("v", np.where(np.arange(N) == 9, -999, RNG.integers(0, 60, N)), "has -999 in 1 rows"),
        ("v", np.where(RNG.random(N) < 0.1, -99, RNG.integers(0, 60, N)), "has -99 in "),
        ("v", np.where(RNG.random(N) < 0.1, 9.96921e36, A), "has 9.96921e+36 in "),
        ("v", np.where(RNG.random(N) < 0.1, 1e20, A), "has 1e+20 in "),
        ("v", np.where(RNG.random(N) < 0.1, 99, RNG.integers(0, 100, N)), ""),
        ("day", [f"2024{1 + k % 12:02d}{1 + k % 28:02d}" for k in PERMUTED], "looks like dates, 2"),
        ("t", [1_700_000_000 + int(k) for k in RNG.integers(0, 86_400, N)], "is rounded by up to "),
        ("phone", [f"+49{k:010d}" for k in RNG.integers(0, 10**10, N)], "may identify the examp"),
        ("bytes", RNG.integers(0, 10**8, N), ""),
        ("store_id", RNG.integers(0, 30, N), "has the name of an identifier"),
    ],
)
def test_other_numbers_are_features_with_a_line_where_they_are_unusual(
    tmp_path: Path, name: str, values: Sequence[Any], note: str
) -> None:
    data = read(tmp_path, {name: values})
    assert use_of(data, name) == "number"
    np.testing.assert_array_equal(data.x[:, 1], np.array(values, np.float64).astype(np.float32))
    assert [note in line for line in data.notes] == ([True] if note else [])
    if note:
        assert data.notes[0].endswith(f'set data.features = ["!{name}"]')
        assert_only_a_and_b(read(tmp_path, {name: values}, features=(f"!{name}",)))


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (lambda y: y, "left out: repeats the label"),
        (lambda y: 1.8 * y + 32, "rises or falls with the label in every row"),
        (lambda y: -np.exp(y), "rises or falls with the label in every row"),
        (lambda y: y + RNG.normal(size=N), ""),
    ],
)
def test_a_copy_of_the_target_of_regression(
    tmp_path: Path, make: Callable[[Any], Any], note: str
) -> None:
    y = RNG.normal(size=N).round(4)
    data = read(tmp_path, {"v": make(y), "y": y})
    assert data.is_regression
    assert [note in line for line in data.notes] == ([True] if note else [])


RED = ["red", "green", "blue"] * (N // 3)


@pytest.mark.parametrize(
    ("values", "keys", "names"),
    [
        (RED, {}, ["blue", "green", "red"]),
        ([f" {v}  " for v in RED], {}, ["blue", "green", "red"]),
        (["yes", "no"] * (N // 2), {}, ["no", "yes"]),
        (["1a", "12", "b"] * (N // 3), {}, ["12", "1a", "b"]),
        ([f"c{k % 50:02d}" for k in range(N)], {}, [f"c{k:02d}" for k in range(50)]),
        ([10, 9, 2] * (N // 3), {"categories": ("v",)}, ["2", "9", "10"]),
        (["1", "1.0", "2"] * (N // 3), {"categories": ("v",)}, ["1", "2"]),
        ([f"c{k % 60:02d}" for k in range(N)], {"categories": ("[v]",)}, [*map(str, range(60))]),
        ([f"id {k}" for k in range(N)], {"categories": ("v",)}, [""] * N),
        ([5, 5, 6, "x"] * (N // 4), {"categories": ("v*",)}, ["5", "6", "x"]),
        (["2024-01-01", "2024-01-02"] * (N // 2), {"categories": ("v",)}, ["", ""]),
        ([f"{k % 3} kg" for k in range(N)], {"categories": ("v",)}, ["0 kg", "1 kg", "2 kg"]),
    ],
)
def test_categories_are_one_hot_in_their_order(
    tmp_path: Path, values: Sequence[Any], keys: dict[str, Any], names: list[str]
) -> None:
    data = read(tmp_path, {"v": values}, **keys)
    k = len(names)
    assert data.x_shape == (2 + k,)
    assert use_of(data, "v") == f"one-hot of {k}"
    np.testing.assert_array_equal(data.x[:, 1 : k + 1].sum(axis=1), np.ones(N))
    np.testing.assert_array_equal(data.x[:, [0, k + 1]], np.column_stack([A, B]).astype("f4"))
    assert len(data.notes) == (0 if keys else 1)
    if names[0].isalpha():
        column = names.index(str(values[0]).strip())
        assert data.x[0, 1 + column] == 1.0


@pytest.mark.parametrize(
    ("values", "keys", "message"),
    [
        (
            [f"c{k % 55}" for k in range(N)],
            {},
            "at most 50 categories, got 55 different texts; set",
        ),
        ([f"c{k % 55}" for k in range(N)], {}, 'data.categories = ["v"] to make 55 columns of x'),
        ([f"{k} kg" for k in range(N)], {}, "without unit or separator, got '0 kg'; write plain"),
        ([f"${k % 7}" for k in range(N)], {}, "without unit or separator, got '$0'"),
        ([f"{k % 9} %" for k in range(N)], {}, "without unit or separator"),
        ([1, 2, 3, "error"] * (N // 4), {}, "finite number in every row, got 'error' in row 4"),
        ([1, 2, 3, "inf"] * (N // 4), {}, "finite number in every row, got 'inf' in row 4"),
        ([1, 2, 3, "1e39"] * (N // 4), {}, "got '1e39' in row 4"),
        (["1 234", "12 345"] * (N // 2), {}, "without unit or separator, got"),
        ([1, 2, 3, "#DIV/0!"] * (N // 4), {}, "got '#DIV/0!' in row 4"),
        (["cm", *range(N - 1)], {}, "got 'cm' in row 1"),
        (RED, {"features": ("z",)}, "data.features must name its columns besides label"),
        (RED, {"features": ("y",)}, "data.features must name its columns besides label"),
        (RED, {"categories": ("w*",)}, "data.categories must name its columns"),
        (RED, {"features": ("!*",)}, "data.features must leave a column, got none"),
    ],
)
def test_other_text_is_refused_in_one_line(
    tmp_path: Path, values: Sequence[Any], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(DatasetError) as raised:
        read(tmp_path, {"v": values}, **keys)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_advice_about_text_works(tmp_path: Path) -> None:
    values = {"v": [f"c{k % 55}" for k in range(N)]}
    assert read(tmp_path, values, categories=("v",)).x_shape == (57,)
    assert_only_a_and_b(read(tmp_path, values, features=("!v",)))
    wide = {
        "v": [f"c{k}" for k in range(1001)],
        "a": [*range(7)] * 143,
        "y": [0, 1, 2] * 333 + [0, 1],
    }
    path = write(tmp_path, wide)
    with pytest.raises(DatasetError, match=r"at most 1,000 categories, got 1,001 different texts"):
        load(DataConfig(source=str(path), label="y", categories=("v",)), 0, {})


def test_a_table_of_one_useless_column_names_the_key_that_uses_it(tmp_path: Path) -> None:
    path = write(tmp_path, {"k": range(N), "y": Y})
    with pytest.raises(DatasetError, match=r"'k' is left out: counts .* data.features = \[\"k\"\]"):
        load(DataConfig(source=str(path), label="y"), 0, {})
    data = load(DataConfig(source=str(path), label="y", features=("k",)), 0, {})
    assert (data.x[:, 0].tolist(), data.notes) == (list(range(N)), ())


def test_a_table_without_values_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"k": [""] * N, "y": Y})
    with pytest.raises(DatasetError, match=r"'k' is left out: no value; add columns$"):
        load(DataConfig(source=str(path), label="y"), 0, {})


def test_a_named_category_of_one_value_is_one_column_of_ones(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": [7] * N, "y": Y})
    config = DataConfig(source=str(path), label="y", features=("a",), categories=("a",))
    assert load(config, 0, {}).x.tolist() == [[1.0]] * N


def test_named_columns_are_features_whatever_they_hold(tmp_path: Path) -> None:
    columns = {"": range(N), "c": [7] * N, "l": Y, "id": PERMUTED}
    assert read(tmp_path, columns).x_shape == (2,)
    everything = read(tmp_path, columns, features=("*",))
    assert (everything.x_shape, everything.notes) == ((6,), ())
    some = read(tmp_path, columns, features=("?", "i*", "!b"))
    assert some.encoding is not None
    assert some.encoding.columns_of_x(500) == "a, c, l, id"
    assert use_of(some, "Unnamed: 1") == "left out by data.features"


@pytest.mark.parametrize("gap", ["", " ", "NA", "nan", "NaN", "N/A", "null", "NULL", "?", "#N/A"])
@pytest.mark.parametrize("others", ["1.5", "3", "true", "red"])
def test_a_missing_value_is_no_value(tmp_path: Path, gap: str, others: str) -> None:
    other = {"1.5": "2.5", "3": "8", "true": "false", "red": "blue"}[others]
    values = [gap if k % 10 == 0 else (others, other)[k % 3 == 0] for k in range(N)]
    data = read(tmp_path, {"v": values})
    assert data.encoding is not None
    assert data.encoding.features[1].missing == N // 10
    assert "12 missing values ('v' 12): a number becomes" in data.notes[-1]
    if others == "red":
        assert not data.x[::10, 1:3].any()
    else:
        assert data.encoding.gaps is not None
        np.testing.assert_array_equal(np.flatnonzero(data.encoding.gaps[:, 1]), range(0, N, 10))


@pytest.mark.parametrize("gap", ["none", "None", "-", "--", ".", "n.a.", "1.#QNAN", "#NA", r"\N"])
def test_other_marks_are_gaps_among_numbers_only(tmp_path: Path, gap: str) -> None:
    data = read(tmp_path, {"v": [gap, *RNG.normal(size=N - 1)]})
    assert "1 missing values" in data.notes[0]
    data = read(tmp_path, {"v": [gap, "red", "blue"] * (N // 3)})
    assert data.x_shape == (5,)


def fleet(data: Dataset, **keys: Any) -> FleetData:
    return FleetData(data, DataConfig(min_examples=2), devices=4, seed=1, **keys)


def with_gaps(folder: Path) -> Dataset:
    v = [f"{k % 9 + (100 if k > 60 else 0)}" if k % 3 else "" for k in range(N)]
    c = ["rare" if k == 50 else "" if k % 7 == 0 else RED[k] for k in range(N)]
    return read(folder, {"v": v, "c": c})


def test_missing_numbers_are_the_median_of_training_rows(tmp_path: Path) -> None:
    data = with_gaps(tmp_path)
    divided = fleet(data)
    train = np.concatenate(divided.train_rows)
    assert data.encoding is not None
    assert data.encoding.gaps is not None
    gaps = data.encoding.gaps[:, 1]
    known = train[~gaps[train]]
    assert set(divided.dataset.x[gaps, 1]) == {np.median(data.x[known, 1])}
    np.testing.assert_array_equal(divided.dataset.x[~gaps, 1], data.x[~gaps, 1])
    assert data.x[gaps, 1][0] == np.median(data.x[~gaps, 1])


def test_a_category_that_no_training_row_has_is_all_zeros(tmp_path: Path) -> None:
    data = with_gaps(tmp_path)
    column = 2 + ["blue", "green", "rare", "red"].index("rare")
    assert data.x[50, column] == 1.0
    for seed in range(20):
        divided = FleetData(data, DataConfig(min_examples=2), devices=4, seed=seed)
        is_trained = 50 in np.concatenate(divided.train_rows)
        assert divided.dataset.x[50, 2:6].sum() == is_trained
        assert data_sha256(divided) == data.sha256
        if not is_trained:
            break
    else:
        pytest.fail("no seed holds the row out")


def test_the_hash_is_of_the_data_before_the_fit_and_after_poisoning(tmp_path: Path) -> None:
    data = with_gaps(tmp_path)
    assert data_sha256(fleet(data)) == data.sha256
    poisoned = fleet(data, poisoned=[0])
    assert data_sha256(poisoned) != data.sha256
    np.testing.assert_array_equal(poisoned.dataset.x, fleet(data).dataset.x)
    other = read(tmp_path, {"v": [1.5, *RNG.normal(size=N - 1)]})
    assert other.encoding is not None
    assert other.fitted(np.arange(N)) is other


def test_shards_of_late_and_resumed_devices_have_the_same_values(tmp_path: Path) -> None:
    data = with_gaps(tmp_path)
    first, resumed = fleet(data), fleet(data, assignments={"late": 2})
    expected = first.dataset.x[first.train_rows[2]]
    shard = resumed.shard("late")
    assert shard is not None
    np.testing.assert_array_equal(shard.arrays()[0], expected)


def test_a_draw_keeps_the_gaps_of_its_rows(tmp_path: Path) -> None:
    whole = with_gaps(tmp_path)
    source = DataConfig(source=str(tmp_path / "own.csv"), label="y", max_examples=60)
    some = load(source, 0, {})
    assert whole.encoding is not None
    assert some.encoding is not None
    assert some.encoding.gaps is not None
    assert (some.n, some.x_shape) == (60, whole.x_shape)
    assert some.whole_sha256 == whole.sha256
    assert np.isnan(some.encoding.as_read(some.x)).sum() == some.encoding.gaps.sum() > 0


def test_a_column_without_a_value_in_training_rows_is_zero(tmp_path: Path) -> None:
    data = read(tmp_path, {"v": [1, 2, *[""] * (N - 2)]})
    x = data.fitted(np.arange(2, N)).x
    assert x[:, 1].tolist() == [1, 2, *[0] * (N - 2)]


def test_a_header_without_the_names_of_rows_has_true_advice(tmp_path: Path) -> None:
    rows = "".join(f"{k},{a},{y}\n" for k, (a, y) in enumerate(zip(A, Y, strict=True)))
    (tmp_path / "own.csv").write_text("a,y\n" + rows)
    with pytest.raises(DatasetError, match=r"name every column in the header, and give each row"):
        load(DataConfig(source=str(tmp_path / "own.csv"), label="y"), 0, {})
    (tmp_path / "own.csv").write_text(",a,y\n" + rows)
    assert load(DataConfig(source=str(tmp_path / "own.csv"), label="y"), 0, {}).x_shape == (1,)


def test_types_of_parquet(tmp_path: Path) -> None:
    columns = {
        "flag": pa.array([True, False, None] * 40),
        "kind": pa.array(RED).dictionary_encode(),
        "large": pa.array(RED, pa.large_string()),
        "when": pa.array(range(N), pa.timestamp("s")),
        "none": pa.nulls(N),
        "gaps": pa.array([None if k % 4 else k % 3 for k in range(N)], pa.int16()),
        "__index_level_0__": pa.array(PERMUTED),
    }
    data = read(tmp_path, columns, name="own.parquet")
    assert data.encoding is not None
    uses = {feature.name: feature.use for feature in data.encoding.features}
    assert uses == {
        "a": "number",
        "flag": "number",
        "kind": "one-hot of 3",
        "large": "one-hot of 3",
        "when": "left out: dates or times, which are no numbers",
        "none": "left out: no value",
        "gaps": "number",
        "__index_level_0__": "left out: no name, as the index that pandas writes",
        "b": "number",
    }


def test_an_index_with_a_name_is_known_from_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    index = pandas.Index(RNG.choice(10**6, N), name="plot")
    pandas.DataFrame({"a": A, "b": B, "y": Y}, index=index).to_parquet(tmp_path / "own.parquet")
    data = load(DataConfig(source=str(tmp_path / "own.parquet"), label="y"), 0, {})
    assert_only_a_and_b(data)
    assert data.notes[0].startswith("column 'plot' left out: the index of the table in pandas;")


def test_markers_are_named_also_in_columns_that_the_user_has_named(tmp_path: Path) -> None:
    values = {"v": [-999, *range(N - 1)], "y2": Y}
    data = read(tmp_path, values, features=("a", "v", "y2"))
    assert [note[:30] for note in data.notes] == ["column 'v' has -999 in 1 rows,"]


def test_constant_pixels_are_one_line(tmp_path: Path) -> None:
    pixels = {f"p{k}": [0] * N if k < 30 else RNG.integers(0, 17, N) for k in range(64)}
    data = read(tmp_path, pixels)
    assert data.x_shape == (36,)
    (note,) = data.notes
    assert note.startswith(
        "30 columns, 'p0', 'p1', 'p2', 'p3', 'p4' and 25 more, left out: only one"
    )


def test_text_that_begins_late_in_a_long_table(tmp_path: Path) -> None:
    n = MAX_TEXTS + 50_000
    y = np.arange(n) % 2
    v = ["7"] * (n - 3) + ["x", "7", "x"]
    path = write(
        tmp_path, {"a": np.arange(n) % 11, "v": v, "w": ["x", "z", "x"] * (n // 3), "y": y}
    )
    with pytest.raises(DatasetError, match=rf"'v' must .* got 'x' in row {n - 2};"):
        load(DataConfig(source=str(path), label="y"), 0, {})
    data = load(DataConfig(source=str(path), label="y", categories=("v",)), 0, {})
    assert data.x[-4:, 1].tolist() == [1, 0, 1, 0]


@needs_torch
def test_the_index_of_pandas_costs_no_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("base.toml", "good.csv", "pandas.csv"):
        shutil.copy(CASES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    good, pandas = (
        load(DataConfig(source=f"{name}.csv", label="lab"), 0, {}) for name in ("good", "pandas")
    )
    np.testing.assert_array_equal(good.x, pandas.x)
    fleet = 'fleet=[{model="linear",theta=[1.0,1.0,1.0],count=4}]'  # no costs are measured
    settings = ["rounds=20", "selection.per_round=4", "data.source=pandas.csv", fleet]
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert main(["replay", "base.toml", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "accuracy   mean 0.838" in shown
    assert "columns    column 'Unnamed: 0' left out: no name" in shown


def test_verify_lists_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {"id": range(N), "v": ["" if k % 5 else k % 3 for k in range(N)], "c": RED}
    write(tmp_path, {"a": A, **columns, "y": Y})
    assert main(["data", "verify", "own.csv", "--label", "y"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "feature type values missing x used as" in lines
    assert f"a number {A.min():.6g} .. {A.max():.6g} 0 0 number" in lines
    assert "id whole 0 .. 119 0 left out: counts the rows, from 0 by 1" in lines
    assert "v whole 0 .. 2 96 1 number" in lines
    assert "c text blue, green, red 0 2 .. 4 one-hot of 3" in lines
    arguments = ["--features", "a, v,c", "--categories", "v", "--json"]
    assert main(["data", "verify", "own.csv", "--label", "y", *arguments]) == 0
    (status,) = msgspec.json.decode(capsys.readouterr().out)
    assert [feature["width"] for feature in status["features"]] == [1, 0, 3, 3]
    write(tmp_path, {**{f"p{k}": RNG.integers(0, 17, N) for k in range(200)}, "y": Y}, "wide.csv")
    assert main(["data", "verify", "wide.csv", "--label", "y"]) == 0
    assert "p0 .. p199 (200)  whole  0 .. 16" in capsys.readouterr().out


def test_a_run_shows_and_keeps_what_was_decided(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {"a": A, "id": range(N), "y": Y})
    path = tmp_path / "e.toml"
    path.write_text(
        f'name = "e"\nrounds = 1\n[data]\nsource = "{tmp_path}/own.csv"\nlabel = "y"\n'
        'features = ["!z*", "*"]\ncategories = ["id"]\n'
    )
    with pytest.raises(DatasetError, match=r"data\.features must name .* got 'z\*'"):
        load_examples(load_experiment(path), {})
    path.write_text(path.read_text().replace('features = ["!z*", "*"]\ncategories = ["id"]\n', ""))
    with caplog.at_level(logging.WARNING):
        data = load_examples(load_experiment(path), {})
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/own.csv: {data.notes[0]}"
    ]
    assert provenance(tmp_path, fleet(data)).data_notes == data.notes


def test_own_data_of_a_device_are_refused_with_the_columns_of_the_run(tmp_path: Path) -> None:
    constant = {f"p{k}": [k] * N if k < 3 else RNG.integers(0, 17, N) for k in range(58)}
    data = read(
        tmp_path, {**constant, "c": RED, "d": [f"{k % 4}d" for k in range(N)]}, categories=("d",)
    )
    assert data.encoding is not None
    assert data.x_shape == (64,)
    columns = data.encoding.columns_of_x(500)
    task = msgspec.structs.replace(load_task("softmax", (64,), 10), columns=columns)
    (tmp_path / f"task-{'0' * 64}").write_bytes(encode_artifact(task))
    np.savez(tmp_path / "mine.npz", x=np.zeros((20, 62), np.float32), y=np.arange(20) % 10)
    labels, finding = data_findings(tmp_path / "mine.npz", tmp_path)
    assert labels.state == "ok"
    assert finding.state == "problem"
    assert (
        "(62,); x must have the columns of the run's table in this order: a, p3, p4,"
        in finding.found
    )
    assert "p57, c=blue, c=green, c=red, d=0d, d=1d, d=2d, d=3d, b" in finding.found
    assert "got float32 (5,); x must" in check_message(np.zeros((2, 5), np.float32), columns)


def check_message(x: Any, columns: str) -> str:
    """Return the error of an agent about examples that do not fit its task."""
    engine = open_own_engine(load_task("softmax", (64,), 10))
    with pytest.raises(ValueError, match="examples must be") as raised:
        _check_data(engine, x, np.zeros(2, np.int64), columns=columns)
    return str(raised.value)


def test_many_columns_are_cut_to_the_length_of_a_text(tmp_path: Path) -> None:
    wide = read(tmp_path, {f"pixel {k}": RNG.integers(0, 17, N) for k in range(99)})
    assert wide.encoding is not None
    text = wide.encoding.columns_of_x(500)
    assert len(text) == 500
    assert text.endswith(", ... (101 in all)")
    assert same_columns("") == ""


@pytest.mark.parametrize("key", ["features", "categories"])
def test_arrays_have_no_columns(key: str) -> None:
    keys: dict[str, Any] = {key: ("a",)}
    with pytest.raises(
        ValueError, match=rf"{key} must not be set for 'x.npz', got \['a'\]; remove"
    ):
        DataConfig(source="x.npz", **keys)
