"""Labels that a user brings: classes 0, 1, ..., names, or one line."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.data import GROUP, DataConfig
from fairbed.testbed.experiment.datasets import DatasetError, load
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.experiment.shards import FleetData, load_examples
from fairbed.wire import plugins

CASES = Path(__file__).parent / "labels"
ROWS = 60


def repeated(*labels: Any) -> list[Any]:
    return [labels[k % len(labels)] for k in range(ROWS)]


def by_table(folder: Path, labels: list[Any], task: Any = None) -> Dataset:
    rows = "".join(f"{k % 7},{label}\n" for k, label in enumerate(labels))
    (folder / "own.csv").write_text("a,y\n" + rows)
    return load(DataConfig(source=str(folder / "own.csv"), label="y"), 0, {}, task=task)


def by_npz(folder: Path, labels: list[Any], task: Any = None) -> Dataset:
    np.savez(folder / "own.npz", x=np.ones((len(labels), 2), np.float32), y=np.array(labels))
    return load(DataConfig(source=str(folder / "own.npz")), 0, {}, task=task)


def by_function(folder: Path, labels: list[Any], task: Any = None) -> Dataset:
    registered = plugins.Registered(lambda: (np.ones((len(labels), 2)), labels))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plugins._registered, GROUP, {"mine": registered})
        return load(DataConfig(dataset="mine"), 0, {}, task=task)


def by_pictures(folder: Path, labels: list[Any], task: Any = None) -> Dataset:
    for number, label in enumerate(labels):
        (folder / "own" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2)).save(folder / "own" / str(label) / f"{number}.png")
    return load(DataConfig(source=str(folder / "own")), 0, {}, task=task)


Way = Callable[..., Dataset]
TEXT: list[Way] = [by_table, by_npz, by_function]


@pytest.mark.parametrize("way", TEXT)
@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        ((0, 1, 2), [("0", 20), ("1", 20), ("2", 20)]),
        ((2, 1, 0, 0), [("0", 30), ("1", 15), ("2", 15)]),
        (("0", "1"), [("0", 30), ("1", 30)]),
        (("00", "01", "10", "02", *"3456789"), None),
        (("oak", "ash"), [("ash", 30), ("oak", 30)]),
        (("class 2", "class 10"), [("class 10", 30), ("class 2", 30)]),
        (("none", "fault"), [("fault", 30), ("none", 30)]),
        (("a", " b "), [("a", 30), ("b", 30)]),
        ((True, False), None),
    ],
)
def test_labels_that_are_classes(
    tmp_path: Path, way: Way, labels: Any, counts: list[tuple[str, int]] | None
) -> None:
    data = way(tmp_path, repeated(*labels))
    assert (data.kind, data.guess) == ("classification", "")
    assert data.classes == len(set(labels))
    assert counts is None or data.class_counts() == counts


@pytest.mark.parametrize("way", TEXT)
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((9,), "y must hold two or more classes, or targets, got 9 in all 60 rows"),
        (("oak",), "y must hold two or more classes, got 'oak' in all 60 rows"),
        ((1.5,), "got 1.5 in all 60 rows; add examples of another class"),
        (range(100, 100 + ROWS // 2), "may be classes or targets, got 30 different whole numbers"),
        (
            [3 * k for k in range(21)],
            '0 .. 60; set [model] task = "classification" or',
        ),
        (("Oak", "oak"), "y must spell each class in one way, got 'Oak' and 'oak'"),
        (("big oak", "big  oak"), "y must spell each class in one way"),
        (range(ROWS), "several examples each, got 60 different labels in 60 rows; name the column"),
        ([f"id {k}" for k in range(ROWS)], "got 60 different labels in 60 rows"),
        (("oak", "1"), "numbers or names, not both"),
        *((("oak", gap), "in row") for gap in ("NA", "nan", "N/A", "?", "null", "<NA>", "#N/A")),
    ],
)
def test_labels_that_are_refused(tmp_path: Path, way: Way, labels: Any, message: str) -> None:
    with pytest.raises(DatasetError) as raised:
        way(tmp_path, repeated(*labels))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("way", TEXT)
@pytest.mark.parametrize(
    ("labels", "names", "said"),
    [
        ((1, 2, 3), (1, 2, 3), "labels are the numbers 1, 2, 3, which are the classes in this"),
        ((0, 1, 3), (0, 1, 3), "in this order; no example has label 2"),
        ((0, 2, 3, 5), (0, 2, 3, 5), "no example has label 1, 4"),
        ((1, -1), (-1, 1), "labels are the numbers -1, 1, which"),
        (("+1", "-1"), (-1, 1), "labels are the numbers -1, 1, which"),
        ((-1, 0, 1), (-1, 0, 1), "labels are the numbers -1, 0, 1, which"),
        ((20, 10), (10, 20), "labels are the numbers 10, 20, which"),
        ((1 << 40, 1), (1, 1 << 40), "labels are the numbers 1, 1099511627776, which"),
        ((2.0, 1.0), (1, 2), "labels are the numbers 1, 2, which"),
        ((-1.0, 1.0), (-1, 1), "labels are the whole numbers -1, 1 and are read as classes"),
        (("10", "1", "0"), (0, 1, 10), "labels are the numbers 0, 1, 10, which"),
    ],
)
@pytest.mark.parametrize("task", [None, "classification"])
def test_other_whole_numbers_are_classes_with_a_line(
    tmp_path: Path, way: Way, labels: Any, names: Any, said: str, task: Any
) -> None:
    data = way(tmp_path, repeated(*labels), task)
    assert data.classes == len(names)
    assert [label for label, _ in data.class_counts()] == [str(name) for name in names]
    assert [data.labels[k] for k in data.y] == [int(label) for label in repeated(*labels)]
    assert said in data.guess or task == "classification"
    assert "which are the classes in this order" in data.guess


@pytest.mark.parametrize("gap", ["", " ", "NA", "nan", "NaN", "?", "null"])
@pytest.mark.parametrize("label", ["1", "0.0", "oak"])
def test_a_missing_label_of_a_table_has_its_row(tmp_path: Path, label: str, gap: str) -> None:
    with pytest.raises(DatasetError, match=r"'y' must have a value in every row, got .* in row 3;"):
        by_table(tmp_path, [label, label, gap, "2", label])


@pytest.mark.parametrize("way", TEXT)
def test_the_advice_works(tmp_path: Path, way: Way) -> None:
    many = repeated(*range(18, 48))
    chosen = way(tmp_path, many, "classification")
    assert [int(label) for label, _ in chosen.class_counts()] == list(range(18, 48))
    targets = way(tmp_path, many, "regression")
    assert (targets.kind, sorted(set(targets.y.tolist()))) == ("regression", list(range(18, 48)))
    whole = [float(k) for k in many]
    assert way(tmp_path, whole).guess.endswith('set [model] task = "classification"')
    assert way(tmp_path, whole, "classification").classes == 30
    assert "'class 0.5'" in way(tmp_path, repeated(0.5, 1.5)).guess
    named = way(tmp_path, repeated("class 0.5", "class 1.5"))
    assert (named.kind, named.classes) == ("classification", 2)


@pytest.mark.parametrize("way", TEXT)
@pytest.mark.parametrize("task", ["classification", "binary"])
@pytest.mark.parametrize("labels", [[0.5, 1.5], [float(k) for k in range(ROWS)]])
def test_a_task_of_classes_gets_no_advice_of_regression(
    tmp_path: Path, way: Way, labels: Any, task: Any
) -> None:
    with pytest.raises(DatasetError, match="class") as raised:
        way(tmp_path, repeated(*labels), task)
    assert "regression" not in str(raised.value)
    with pytest.raises(DatasetError, match=r"or set \[model\] task = .regression"):
        way(tmp_path, [int(label * 2) for label in range(ROWS)], None)


@pytest.mark.parametrize("way", TEXT)
@pytest.mark.parametrize(
    ("labels", "kind", "said"),
    [
        ((0.0, 1.0, 2.0), "classification", "are read as classes; for regression set [model] task"),
        ((0.0, -0.0, 1.0), "classification", "whole numbers 0, 1 and are read as classes"),
        ([float(k) for k in range(30)], "regression", "30 different whole numbers, 0 .. 29"),
        ((0.5, 1.5), "regression", "only 2 different values, 0.5, 1.5"),
        ([k / 7 for k in range(50)], "regression", ""),
    ],
)
def test_a_line_states_how_floats_are_read(
    tmp_path: Path, way: Way, labels: Any, kind: str, said: str
) -> None:
    data = way(tmp_path, repeated(*labels))
    assert data.kind == kind
    assert said in data.guess
    assert bool(said) == bool(data.guess)
    chosen = way(tmp_path, repeated(*labels), "regression")
    assert (chosen.kind, chosen.guess) == ("regression", "")


@pytest.mark.parametrize("way", TEXT)
def test_names_are_no_targets_of_regression(tmp_path: Path, way: Way) -> None:
    with pytest.raises(DatasetError, match=r"got the names 'ash', 'oak', \.\.\. in"):
        way(tmp_path, repeated("oak", "ash"), "regression")


def test_folders_that_are_numbers_are_in_the_order_of_the_numbers(tmp_path: Path) -> None:
    data = by_pictures(tmp_path, [*range(12)] * 2)
    assert data.class_counts() == [(str(k), 2) for k in range(12)]


def test_the_cases_are_read_right_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify", str(CASES / "floatlab2.csv"), "--label", "lab"]) == 0
    shown = capsys.readouterr().out
    assert "3 classes" in shown
    assert "classes: 0 " in shown
    assert "note: labels are the whole numbers 0, 1, 2 and are read as classes" in shown
    assert main(["data", "verify", str(CASES / "good.csv"), "--label", "lab"]) == 0
    assert "classes: ash " in capsys.readouterr().out
    assert main(["data", "verify", str(CASES / "twos.npz")]) == 1
    assert "got 9 in all 120 rows; add examples of another class" in capsys.readouterr().out


def test_an_experiment_is_verified_with_its_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{k % 7},{18 + k % 50}\n" for k in range(300))
    (tmp_path / "ages.csv").write_text("a,age\n" + rows)
    text = (CASES / "base.toml").read_text().replace("floatlab.csv", str(tmp_path / "ages.csv"))
    text = text.replace('"lab"', '"age"')
    for task, shown in (
        (None, 'set [model] task = "classification" or "regression"'),
        ("regression", "targets 18 .. 67"),
        ("classification", "50 classes"),
    ):
        model = "[model]" if task is None else f'[model]\ntask = "{task}"'
        (tmp_path / "e.toml").write_text(text.replace("[model]", model))
        assert main(["data", "verify", str(tmp_path / "e.toml")]) == (task is None)
        assert shown in capsys.readouterr().out


def test_a_run_logs_how_it_read_the_labels(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    text = (CASES / "base.toml").read_text().replace("floatlab.csv", str(CASES / "floatlab2.csv"))
    (tmp_path / "e.toml").write_text(text)
    with caplog.at_level(logging.WARNING):
        load_examples(load_experiment(tmp_path / "e.toml"), {})
    assert "are read as classes" in caplog.text


def test_a_class_that_the_draw_left_out_is_named(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    by_table(tmp_path, ["ash", *repeated("elm", "oak")])
    text = (CASES / "base.toml").read_text().replace("floatlab.csv", str(tmp_path / "own.csv"))
    text = text.replace('label = "lab"', 'label = "y"\nmax_examples = 20')
    (tmp_path / "e.toml").write_text(text)
    with caplog.at_level(logging.WARNING):
        assert load_examples(load_experiment(tmp_path / "e.toml"), {}).classes == 3
    assert "no example has the class ash" in caplog.text


@pytest.mark.parametrize(
    ("labels", "fraction", "line"),
    [
        (["ash", *["elm"] * 30, *["oak"] * 30], 0.9, "no device trains on the class ash: all its"),
        (["ash", "elm", *["oak"] * 60], 0.9, "no device trains on the class ash, elm: all its"),
        (["ash"] * 8 + ["oak"] * 30, 0.2, ""),
        ([5, *[3] * 30, *[4] * 30], 0.9, "no device trains on the class 5: all its"),
    ],
)
def test_a_class_that_is_held_out_everywhere_is_named(
    labels: list[Any], fraction: float, line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = by_npz(tmp_path, labels)
    config = DataConfig(source="own.npz", test_fraction=fraction, min_examples=2)
    with caplog.at_level(logging.WARNING):
        fleet = FleetData(data, config, devices=2, seed=0)
    assert line in caplog.text
    assert bool(line) == bool(caplog.text)
    if line:
        trained = np.concatenate(fleet.train_rows)
        assert len(np.unique(data.y[trained])) < data.classes
        caplog.clear()
        lower = DataConfig(source="own.npz", test_fraction=0.1, min_examples=2)
        FleetData(data, lower, devices=2, seed=0)
        assert not caplog.text, "the advice works"


# --- folders of pictures -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "counts", "said"),
    [
        (["oak", "ash"], [("ash", 2), ("oak", 2)], ""),
        ([*range(12)], [(str(k), 2) for k in range(12)], ""),
        (["00", "01", "02"], [("0", 2), ("1", 2), ("2", 2)], ""),
        (["10", "0", "1"], [("0", 2), ("1", 2), ("10", 2)], "labels are the numbers 0, 1, 10, "),
        (["1", "2", "3"], [("1", 2), ("2", 2), ("3", 2)], "labels are the numbers 1, 2, 3, "),
        (["0", "1", "3"], [("0", 2), ("1", 2), ("3", 2)], "no example has label 2"),
        (["-1", "1"], [("-1", 2), ("1", 2)], "labels are the numbers -1, 1, "),
        (["class 2", "class 10"], [("class 10", 2), ("class 2", 2)], ""),
        (["gr\u00fcn", "blau"], [("blau", 2), ("gr\u00fcn", 2)], ""),
        (["1_0", "2_0"], [("1_0", 2), ("2_0", 2)], ""),
        (["inf", "x"], [("inf", 2), ("x", 2)], ""),
    ],
)
@pytest.mark.parametrize("task", [None, "classification"])
def test_folders_that_are_classes(
    tmp_path: Path, folders: list[Any], counts: list[tuple[str, int]], said: str, task: Any
) -> None:
    data = by_pictures(tmp_path, folders * 2, task)
    assert data.class_counts() == counts
    assert said in data.guess
    assert bool(said) == bool(data.guess)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["oak"], "got 1 folder"),
        ([], "got 0 folders"),
        (["Oak", "oak"], "y must spell each class in one way, got 'Oak' and 'oak'; correct the"),
        (["gr\u00fcn", "gru\u0308n", "blau"], "must name each class once, got"),
        (["big oak", "big  oak"], "y must spell each class in one way"),
        (["01", "1", "0"], "must name each class once, got '01' and '1'"),
        (["oak", "1"], "y must hold numbers or names, not both, got '1' and 'oak'"),
        (["NA", "oak"], "must have a value in every row, got 'NA'"),
        (["0.5", "1.5"], "names or whole numbers, got '0.5'; rename it, such as 'class 0.5'"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, folders: list[str], message: str) -> None:
    (tmp_path / "own").mkdir()
    with pytest.raises(DatasetError) as raised:
        by_pictures(tmp_path, folders * 2)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "own"))
    assert "\n" not in str(raised.value)


def test_an_empty_folder_of_a_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own" / "elm").mkdir(parents=True)
    with pytest.raises(DatasetError, match=r"own/elm: .* got no picture in this folder; add pict"):
        by_pictures(tmp_path, ["ash", "oak"])
    (tmp_path / "own" / "elm" / "notes.txt").write_text("none")
    with pytest.raises(DatasetError, match="got no picture in this folder"):
        by_pictures(tmp_path, ["ash", "oak"])


def test_pictures_in_deeper_folders_are_refused_and_hidden_ones_left_out(tmp_path: Path) -> None:
    (tmp_path / "own" / ".thumbnails").mkdir(parents=True)
    (tmp_path / "own" / "readme.txt").write_text("none")
    data = by_pictures(tmp_path, ["ash", "oak"] * 2)
    assert data.class_counts() == [("ash", 2), ("oak", 2)]
    Image.new("L", (2, 2)).save(tmp_path / "own" / "ash" / "._1.png")
    assert by_pictures(tmp_path, ["ash", "oak"] * 2).class_counts() == [("ash", 2), ("oak", 2)]
    (tmp_path / "own" / "oak" / "north").mkdir()
    Image.new("L", (2, 2)).save(tmp_path / "own" / "oak" / "north" / "1.png")
    with pytest.raises(DatasetError, match=r"own/oak: .* got 1\.png and north/1\.png; move"):
        by_pictures(tmp_path, ["ash", "oak"] * 2)
