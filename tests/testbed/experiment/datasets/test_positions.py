"""Integer x, and y of any shape: arrays in a file, their division over devices, poisoned labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.testbed.emulation.malicious import poison_labels
from fairbed.testbed.experiment.data import ByClass, DataConfig, Dirichlet, Iid
from fairbed.testbed.experiment.datasets import Dataset, DatasetError, load
from fairbed.testbed.experiment.datasets.catalogue import PositionStats
from fairbed.testbed.experiment.shards import FleetData

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 9, (40, 6))
TOKENS[0, 0] = 8
TAGS = np.where(TOKENS == 0, -1, TOKENS % 3)
FLOATS = RNG.normal(size=(40, 2, 3)).astype(np.float32)
LABELS = RNG.integers(0, 2, (40, 4))
ONE_HOT = np.eye(4, dtype=np.int64)[np.arange(40) % 4]


def own(folder: Path, x: Any = TOKENS, y: Any = TAGS, task: Any = None, **keys: Any) -> Dataset:
    arrays = {"x": x} if y is None else {"x": x, "y": y}
    np.savez(folder / "own.npz", **arrays)
    return load(DataConfig(source=str(folder / "own.npz"), **keys), 0, {}, task=task)


def test_integers_are_tokens_with_a_class_per_position(tmp_path: Path) -> None:
    data = own(tmp_path)
    assert (data.x.dtype.name, data.x_classes) == ("int64", 9)
    assert (data.kind, data.classes, data.y_shape) == ("classification", 3, (6,))
    np.testing.assert_array_equal(data.y, TAGS)
    expected = np.bincount(TAGS[TAGS >= 0])
    assert data.class_counts() == [(str(k), n) for k, n in enumerate(expected)]
    assert data.description == (
        "40 examples of shape (6,) of 9 tokens, 3 classes, labels of shape (6,)"
    )


def test_the_sizes_may_be_larger_than_what_occurs(tmp_path: Path) -> None:
    data = own(tmp_path, vocabulary=20, classes=5)
    assert (data.x_classes, data.classes, data.labels) == (20, 5, ())
    np.testing.assert_array_equal(data.y, TAGS)
    gaps = np.where(TAGS < 0, -1, TAGS * 7)
    np.testing.assert_array_equal(own(tmp_path, y=gaps, classes=15).y, gaps)


def test_numbers_with_gaps_are_classes_in_their_order(tmp_path: Path) -> None:
    values = np.where(TAGS < 0, -1, TAGS * 100)
    data = own(tmp_path, y=values)
    assert data.labels == (0, 100, 200)
    assert "labels are the numbers 0, 100, 200" in data.guess
    np.testing.assert_array_equal(data.y, TAGS)


@pytest.mark.parametrize(
    ("y", "task", "kind", "classes"),
    [
        (FLOATS, None, "regression", 1),
        (np.abs(TAGS), "regression", "regression", 1),
        (LABELS, "multi-label", "multi-label", 4),
        (ONE_HOT, "multi-label", "multi-label", 4),
        (LABELS, "classification", "classification", 2),
        (LABELS, "binary", "binary", 2),
        (LABELS[:, :1].astype(np.float32) / 3 + FLOATS[:, :1, 0], None, "regression", 1),
    ],
)
def test_targets_of_any_shape_are_those_of_the_task(
    y: Any, task: Any, kind: str, classes: int, tmp_path: Path
) -> None:
    data = own(tmp_path, y=y, task=task)
    assert (data.kind, data.classes) == (kind, classes)
    assert data.y.dtype == (np.float32 if kind == "regression" else np.int64)
    np.testing.assert_array_equal(data.y, y[:, 0] if y.shape[1:] == (1,) else y)


def test_several_labels_are_counted_each(tmp_path: Path) -> None:
    data = own(tmp_path, y=LABELS, task="multi-label")
    assert [n for _, n in data.class_counts()] == LABELS.sum(axis=0).tolist()


def test_what_frequencies_alone_predict_is_the_perplexity_of_their_entropy(tmp_path: Path) -> None:
    shares = np.bincount(TAGS[TAGS >= 0]) / (TAGS >= 0).sum()
    expected = np.exp(-(shares * np.log(shares)).sum())
    assert PositionStats.of(own(tmp_path)).perplexity == pytest.approx(expected)
    for y, task in ((LABELS, "multi-label"), (FLOATS, None)):
        assert PositionStats.of(own(tmp_path, y=y, task=task)).perplexity is None


PIXELS = RNG.integers(0, 256, (40, 1, 2, 3), np.uint8)


@pytest.mark.parametrize(
    ("x", "y", "expected", "classes"),
    [
        (FLOATS, None, FLOATS, 1),
        (PIXELS, TAGS[:, 0] * 0, PIXELS / np.float32(255), 1),
        (TOKENS, None, TOKENS, 9),
    ],
)
def test_an_autoencoder_needs_no_labels(
    x: Any, y: Any, expected: Any, classes: int, tmp_path: Path
) -> None:
    data = own(tmp_path, x=x, y=y, target="x")
    assert (data.is_autoencoder, data.classes, data.y_shape) == (True, classes, x.shape[1:])
    np.testing.assert_array_equal(data.y, expected)


@pytest.mark.parametrize(
    ("arrays", "keys", "message"),
    [
        ({"y": TAGS - 2}, {}, "y must be classes 0, 1, ..., or -1 where a position has no label, "),
        ({"y": TAGS * 0 - 1}, {}, "y must have a labelled position in every row, got only -1 in"),
        ({"y": TAGS[:, :0]}, {}, "y must be integers, text or floats, shape (n, ...), no 0, got"),
        ({"y": TAGS * 0}, {}, "y must hold two or more classes, or targets, got 0 in all 40 rows"),
        ({"y": np.where(FLOATS > 2, np.nan, FLOATS)}, {}, "y must have a value in every row, got"),
        ({"y": TAGS.astype(str)}, {}, "y must be numbers where an example has several labels, got"),
        ({"y": TAGS[:9]}, {}, "x and y must have equal length, got 40 and 9"),
        ({"y": LABELS}, {}, 'got 0 and 1 of shape (40, 4); set [model] task = "multi-label" or "'),
        ({"y": ONE_HOT}, {}, "one 1 in each row; save y.argmax(axis=1), the class of each example"),
        ({"y": TAGS}, {"task": "multi-label"}, "multi-label must have y of 0 and 1, shape (n, la"),
        ({"y": TAGS}, {"task": "binary"}, "binary must have 2 classes, got 3 in own"),
        ({"x": TOKENS - 1}, {}, "integers in x are tokens and must be 0 .. 16,777,215, got -1 to"),
        ({"x": TOKENS * 10**8}, {}, "got 0 to 800000000; number the tokens from 0"),
        ({}, {"vocabulary": 5}, "x must be tokens 0 .. 4, as data.vocabulary has, got 8 (the firs"),
        ({}, {"classes": 2}, "y must be classes 0 .. 1, as data.classes has, got 2; raise data.c"),
        ({"x": FLOATS}, {"vocabulary": 5}, "data.vocabulary must be set for integer x only, got "),
        ({"y": FLOATS}, {"classes": 5}, "data.classes must be set for numbered classes only, got"),
        (
            {"x": FLOATS},
            {"target": "x", "task": "classification"},
            "got the numbers of x (data.targ",
        ),
        ({"x": np.array(["a", "b"] * 20)}, {}, "x must be texts, shape (n,), with [data.text], a"),
    ],
)
def test_refuses_in_one_line(
    arrays: dict[str, Any], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError) as raised:
        own(tmp_path, **arrays, **keys)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def fleet(dataset: Dataset, partition: Any, **more: Any) -> FleetData:
    config = DataConfig(source="own.npz", partition=partition, min_examples=2)
    return FleetData(dataset, config, devices=4, seed=0, **more)


def test_the_most_frequent_label_divides_examples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tags = np.repeat(np.arange(40) % 4, 6).reshape(40, 6)
    tags[:, 0], tags[:, 1] = -1, 0
    divided = fleet(own(tmp_path, y=tags, classes=4), ByClass(classes_per_device=1))
    for rows in divided.train_rows:
        assert len(np.unique(tags[rows, 2])) == 1
    assert "by-class divides the examples by the most frequent label of each" in caplog.text


@pytest.mark.parametrize(
    ("y", "keys", "problem"),
    [
        (LABELS, {"task": "multi-label"}, "got several labels per example"),
        (FLOATS, {}, r"got targets of shape \(2, 3\)"),
        (None, {"target": "x"}, r"got targets of shape \(6,\)"),
        (TAGS * 0 + (np.arange(6) == 5), {"task": "classification"}, "got 0 for all"),
    ],
)
def test_a_division_by_class_needs_one_class_per_example(
    y: Any, keys: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    data = own(tmp_path, y=y, **keys)
    with pytest.raises(DatasetError, match=rf"dirichlet must have .*{problem}.*; use iid, or nat"):
        fleet(data, Dirichlet())
    assert sum(map(len, fleet(data, Iid()).train_rows)) == 32


def test_poisoned_labels_keep_positions_without_a_label(tmp_path: Path) -> None:
    divided = fleet(own(tmp_path), Iid(), poisoned=[0])
    changed = (divided.dataset.y != TAGS).any(axis=1)
    assert changed.any()
    assert set(np.flatnonzero(changed)) <= set(divided.train_rows[0].tolist())
    assert ((divided.dataset.y < 0) == (TAGS < 0)).all()
    flipped = poison_labels(LABELS * 2 - 1, 2, RNG)
    np.testing.assert_array_equal(flipped, np.where(LABELS, 0, -1))
