"""Labels in the file of a device: the classes of its task, or one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec import structs
from PIL import Image

from fairbed.device_agent.doctor import Finding, data_findings
from fairbed.device_agent.errors import DataError
from fairbed.device_agent.examples import OwnData
from fairbed.wire.artifact import Artifact, encode_artifact
from fairbed.wire.labels import Classes, LabelError
from fairbed.wire.messages import HeldOut
from tests.device_agent.softmax import softmax_artifact

Doctor = Callable[..., Finding]

TEN = Classes("classification", 10)
TWO = Classes("binary", 2)
PAIR = Classes("classification", 2)
TREES = Classes("classification", 3, ("ash", "elm", "oak"))
SHADES = Classes("classification", 3, ("Grün", "blau", "dark  red"))
SIGNS = Classes("binary", 2, ("-1", "1"))
GAPS = Classes("classification", 3, ("0", "1", "10"))
TRUTH = Classes("binary", 2, ("FALSE", "TRUE"))
TARGETS = Classes("regression", 1)

NAN, INF = float("nan"), float("inf")

ACCEPTED: list[tuple[Classes, Any, list[float]]] = [
    (TEN, [0, 9, 3], [0, 9, 3]),
    (TEN, np.array([0, 9, 3], np.uint8), [0, 9, 3]),
    (TEN, np.array([0, 9, 3], np.uint64), [0, 9, 3]),
    (TEN, [7, 7, 7], [7, 7, 7]),
    (TEN, [0.0, 9.0, 3.0], [0, 9, 3]),
    (TEN, np.array([-0.0, 1.0], np.float16), [0, 1]),
    (TEN, ["0", "9", "3"], [0, 9, 3]),
    (TEN, ["0.0", " 9.0 ", "+3"], [0, 9, 3]),
    (TEN, [*range(1, 10)], [*range(1, 10)]),
    (TEN, [True, False], [1, 0]),
    (Classes("classification", 11), ["0", "1", "10", "2"], [0, 1, 10, 2]),
    (Classes("classification", 1 << 31), [(1 << 31) - 1, 0], [(1 << 31) - 1, 0]),
    (TWO, [1, 0], [1, 0]),
    (TWO, [1.0, 0.0], [1, 0]),
    (TREES, ["oak", "elm", "oak"], [2, 1, 2]),
    (TREES, ["oak", "ash"], [2, 0]),
    (TREES, [" oak", "elm\n"], [2, 1]),
    (SHADES, ["blau", "Gru\u0308n"], [1, 0]),
    (SHADES, ["dark  red", "Grün"], [2, 0]),
    (SIGNS, [-1, 1, 1], [0, 1, 1]),
    (SIGNS, [1.0, -1.0], [1, 0]),
    (SIGNS, ["+1", "-1"], [1, 0]),
    (GAPS, [10, 0, 1], [2, 0, 1]),
    (GAPS, ["10", "1", "0"], [2, 1, 0]),
    (GAPS, [10.0, 10.0], [2, 2]),
    (TRUTH, [True, False], [1, 0]),
    (TRUTH, ["FALSE", "TRUE"], [0, 1]),
    (TARGETS, [0.5, -2.0], [0.5, -2.0]),
    (TARGETS, [1, 2, 3], [1, 2, 3]),
    (TARGETS, ["1.5", "-2"], [1.5, -2.0]),
    (TARGETS, [True, False], [1, 0]),
]

REFUSED: list[tuple[Classes, Any, str]] = [
    (TEN, [1, 10], "classes of the run, 0 .. 9, got 10 in row 1; if the labels count from 1"),
    (TEN, [*range(1, 11)], "got 10 in row 9; if the labels count from 1, subtract 1 from y"),
    (TEN, [0, 10], "got 10 in row 1; correct it, or remove the examples of this class"),
    (TEN, [-1, 3], "0 .. 9, got -1 in row 0; correct it"),
    (TEN, [3, 255], "got 255 in row 1"),
    (TEN, np.array([3, 2**63 + 1], np.uint64), "got 9223372036854775809 in row 1"),
    (TEN, [3.0, 1e20], "got 1e+20 in row 1"),
    (TEN, [0.0, 1.5], "must be classes, 0 .. 9, got 1.5 in row 1; write the class of each"),
    (TEN, [0.1, 0.9], "got 0.1 in row 0"),
    (TEN, [3.0, NAN], "must have a value in every row, got nan in row 1"),
    (TEN, [3.0, INF], "must be finite as float32, got inf in row 1"),
    (TEN, ["oak", "elm"], "0 .. 9, as the classes of the run have no names, got 'oak' in row 0"),
    (TEN, ["0", "elm"], "have no names, got 'elm' in row 1"),
    (TEN, ["1_0", "2"], "have no names, got '1_0' in row 0"),
    (TEN, ["True", "False"], "have no names, got 'True' in row 0"),
    *((TEN, ["3", gap], "must have a value in every row") for gap in ("", " ", "NA", "nan", "?")),
    (TEN, np.eye(10)[:3], "y must have the shape (n,) of the run, got (3, 10); write the labels"),
    (
        TEN,
        np.array([b"3", b"4"]),
        "must be integers, text or floats, shape (n, ...), no 0, got |S1",
    ),
    (TEN, np.array([1j, 2j]), "y must be integers, text or floats"),
    (TEN, np.array(["2020-01-01"], "M8[D]"), "y must be integers, text or floats"),
    (PAIR, [-1, 1], "0 .. 1, got -1 in row 0; if the classes are -1 and 1, change -1 to 0"),
    (TWO, [-1.0, 1.0], "got -1 in row 0; if the classes are -1 and 1, change -1 to 0"),
    (TWO, [1, 2], "got 2 in row 1; if the labels count from 1, subtract 1 from y"),
    (TREES, ["oak", "yew"], "of the run, 'ash', 'elm', 'oak', got 'yew' in row 1; correct it"),
    (TREES, ["Oak", "ash"], "must have the spelling of the run, 'oak', got 'Oak' in row 0"),
    (TREES, ["oak", "ELM "], "the spelling of the run, 'elm', got 'ELM' in row 1"),
    (TREES, [0, 1, 2], "names, 'ash', 'elm', 'oak', as the data of the run have, got 0 in row 0"),
    (TREES, [0.0, 1.0], "must be names, 'ash', 'elm', 'oak', as the data of the run have, got 0"),
    (TREES, ["0", "1"], "must be names, 'ash', 'elm', 'oak', as the data of the run have, got 0"),
    (TREES, ["oak", "1"], "'ash', 'elm', 'oak', got '1' in row 1"),
    (TREES, ["oak", "nan"], "must have a value in every row, got 'nan' in row 1"),
    (TREES, [True, False], "of the run, 'ash', 'elm', 'oak', got 'False' in row 1"),
    (SHADES, ["dark red"], "must have the spelling of the run, 'dark  red', got 'dark red'"),
    (SHADES, ["gru\u0308n"], "must have the spelling of the run, 'Grün', got 'grün' in row 0"),
    (SIGNS, [0, 1], "of the run, -1, 1, got 0 in row 0"),
    (GAPS, [0, 1, 2], "of the run, 0, 1, 10, got 2 in row 2; correct it"),
    (GAPS, ["ten"], "must be 0, 1, 10, as the classes of the run have no names, got 'ten'"),
    (TRUTH, [0, 1], "must be names, 'FALSE', 'TRUE', as the data of the run have, got 0 in row 0"),
    (TARGETS, ["oak", "1"], "must be numbers, as the run is a regression, got 'oak' in row 0"),
    (TARGETS, [0.5, NAN], "must have a value in every row, got nan in row 1"),
    (TARGETS, [0.5, 1e39], "must be finite as float32"),
]


def own(folder: Path, y: Any, classes: Classes | None = None, **more: Any) -> OwnData:
    labels = np.array(y)
    np.savez(folder / "own.npz", x=np.ones((len(labels), 2), np.float32), y=labels, **more)
    return OwnData(folder / "own.npz", classes)


class Storage:
    def step(self, n_examples: int, length: int | None = None) -> None: ...
    def read(self, n_bytes: int) -> None: ...


@pytest.mark.parametrize(("classes", "y", "expected"), ACCEPTED)
def test_labels_of_a_device_are_the_classes_of_its_task(
    tmp_path: Path, classes: Classes, y: Any, expected: list[float]
) -> None:
    data = own(tmp_path, y, classes)
    (_, found), _ = data.load(Storage())
    assert found.dtype == (np.float32 if classes is TARGETS else np.int64)
    assert found.tolist() == expected
    assert data.count() == len(expected)


@pytest.mark.parametrize(("classes", "y", "message"), REFUSED)
def test_labels_of_a_device_that_are_refused(
    tmp_path: Path, classes: Classes, y: Any, message: str
) -> None:
    with pytest.raises(DataError) as raised:
        own(tmp_path, y, classes).load(Storage())
    text = str(raised.value)
    assert message in text
    assert text.startswith(f"{tmp_path / 'own.npz'}: ")
    assert "\n" not in text
    assert "regression" not in text or classes is TARGETS


@pytest.mark.parametrize(
    ("classes", "y", "change"),
    [
        (TEN, range(1, 11), lambda y: y - 1),
        (TWO, [-1, 1], lambda y: np.where(y == -1, 0, y)),
        (TREES, ["Oak", "ash"], lambda y: np.where(y == "Oak", "oak", y)),
        (TREES, [2, 0], lambda y: np.array(TREES.names)[y]),
        (TEN, ["oak", "elm"], lambda y: np.where(y == "oak", 3, 7)),
        (TREES, ["oak", "yew"], lambda y: y[y != "yew"]),
    ],
)
def test_the_advice_works(classes: Classes, y: Any, change: Any) -> None:
    with pytest.raises(LabelError):
        classes.targets(np.array(y))
    assert len(classes.targets(change(np.array(y))))


@pytest.mark.parametrize(
    ("classes", "y", "doubt"),
    [
        (TEN, [*range(1, 10)], "no example has label 0; if the labels count from 1, subtract 1"),
        (TEN, [1, 2], "no example has label 0"),
        (TEN, [2, 3], ""),
        (TEN, [0, 1], ""),
        (TREES, ["elm", "oak"], ""),
        (SIGNS, [1, 1], ""),
        (TARGETS, [1.0, 2.0], ""),
    ],
)
def test_labels_that_may_count_from_1_are_named(classes: Classes, y: Any, doubt: str) -> None:
    found = classes.doubt([classes.targets(np.array(y))])
    assert doubt in found
    assert bool(doubt) == bool(found)


def test_names_are_held_out_in_proportion_and_test_labels_are_looked_up(tmp_path: Path) -> None:
    y = ["oak"] * 12 + ["elm"] * 28
    own(tmp_path, y)
    data = OwnData(tmp_path / "own.npz", TREES, HeldOut(fraction=0.25, seed=5), "pi-7")
    (_, training), tests = data.load(Storage())
    assert tests is not None
    assert np.bincount(tests[1]).tolist() == [0, 7, 3]
    assert np.bincount(training).tolist() == [0, 21, 9]
    x_test = np.ones((2, 2), np.float32)
    data = own(tmp_path, y, TREES, x_test=x_test, y_test=np.array(["ash", "oak"]))
    found = data.held_out()
    assert found is not None
    assert found[1].tolist() == [0, 2]
    data = own(tmp_path, y, TREES, x_test=x_test, y_test=np.array(["ash", "yew"]))
    with pytest.raises(DataError, match=r"own\.npz: y_test must be .* got 'yew' in row 1"):
        data.held_out()


@pytest.mark.parametrize("y", [["oak", "elm"], [0.5, 1.5], [-1, 1], [1, 2]])
def test_a_file_is_counted_before_its_task_is_known(tmp_path: Path, y: Any) -> None:
    assert own(tmp_path, y).count() == 2


@pytest.mark.parametrize("y", [["oak", ""], [0.0, NAN], np.array([b"a", b"b"]), [1j, 2j]])
def test_labels_that_no_task_can_have_end_the_agent(tmp_path: Path, y: Any) -> None:
    with pytest.raises(DataError, match="y must"):
        own(tmp_path, y).count()


# --- folders of pictures -------------------------------------------------------------------------


def pictures(folder: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        (folder / "own" / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), number).save(folder / "own" / name / f"{number}.png")
    return folder / "own"


@pytest.mark.parametrize(
    ("classes", "names", "expected"),
    [
        (TREES, ["oak", "elm"], [2, 1]),
        (TREES, ["oak"], [2]),
        (TREES, ["oak", ".cache"], [2]),
        (SHADES, ["blau", "Gru\u0308n"], [1, 0]),
        (GAPS, ["10", "0", "1"], [2, 0, 1]),
        (GAPS, ["10"], [2]),
        (Classes("classification", 11), ["0", "1", "10", "2"], [0, 1, 10, 2]),
        (TEN, ["00", "01", "09"], [0, 1, 9]),
        (SIGNS, ["-1", "1"], [0, 1]),
    ],
)
def test_names_of_folders_are_the_classes_of_the_task(
    tmp_path: Path, classes: Classes, names: list[str], expected: list[int]
) -> None:
    data = OwnData(pictures(tmp_path, names), classes)
    (x, y), _ = data.load(Storage())
    assert x.dtype == np.float32
    assert x.shape[1:] == (1, 2, 2)
    assert data.count() == len(expected)
    numbers = (x[:, 0, 0, 0] * 255).round().astype(int)
    assert y[np.argsort(numbers)].tolist() == expected


@pytest.mark.parametrize(
    ("classes", "names", "message"),
    [
        (TREES, ["oak", "yew"], "'ash', 'elm', 'oak', got 'yew' in row 1"),
        (TREES, ["Oak"], "must have the spelling of the run, 'oak', got 'Oak'"),
        (TREES, ["0", "1"], "must be names, 'ash', 'elm', 'oak', as the data of the run have"),
        (TEN, ["oak", "elm"], "0 .. 9, as the classes of the run have no names, got 'elm'"),
        (TEN, ["1", "10"], "got 10 in row 1; if the labels count from 1, subtract 1 from y"),
        (GAPS, ["0", "2"], "of the run, 0, 1, 10, got 2 in row 1"),
        (GAPS, ["1", "01"], "must name each class once, got '01' and '1'"),
        (TREES, [], "a folder must hold one folder per class, with .png or .jpg files, got 0"),
        (TREES, ["oak/north/far"], "got no picture in this folder"),
    ],
)
def test_folders_at_a_device_that_are_refused(
    tmp_path: Path, classes: Classes, names: list[str], message: str
) -> None:
    (tmp_path / "own").mkdir()
    with pytest.raises(DataError) as raised:
        OwnData(pictures(tmp_path, names), classes).load(Storage())
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "own"))


def test_pictures_of_a_device_need_pillow(tmp_path: Path) -> None:
    folder = pictures(tmp_path, ["oak"])
    with (
        mock.patch.dict("sys.modules", {"PIL": None}),
        pytest.raises(DataError, match=r"pillow must be installed .* -m pip install pillow"),
    ):
        OwnData(folder).count()


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a,y\n1,oak\n")
    with pytest.raises(DataError, match=r"or a folder that has a folder of pictures for each"):
        OwnData(tmp_path / "own.csv").count()


# --- device-agent doctor --data -------------------------------------------------------------------


def task_of(classes: Classes) -> Artifact:
    task = softmax_artifact(2, classes.count)
    if classes.kind != "classification":
        task = structs.replace(task, spec=structs.replace(task.spec, task=classes.kind))
    return structs.replace(task, labels=classes.names)


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Return a call of the doctor, which returns its finding about labels."""

    def call(y: Any, classes: Classes | None, **more: Any) -> Finding:
        data = own(tmp_path, y, **more)
        if classes is not None:
            (tmp_path / f"task-{'0' * 64}").write_bytes(encode_artifact(task_of(classes)))
        findings = data_findings(data.path, tmp_path)
        return next(finding for finding in findings if finding.check == "labels")

    return call


def test_the_doctor_lists_labels_without_a_task(doctor: Doctor) -> None:
    assert doctor(["oak", "elm", "oak"], None).found == "elm 1, oak 2"
    assert doctor([3.0, 4.0, 4.0], None).found == "3 1, 4 2"
    assert doctor([0.25, 4.0], None).found == "targets with fractions, 0.25 .. 4"
    many = doctor([*range(25)], None).found
    assert many.endswith("19 1, 5 more")


def test_the_doctor_compares_labels_with_the_task(doctor: Doctor) -> None:
    finding = doctor(["oak", "elm", "oak"], TREES)
    assert finding.state == "ok"
    assert finding.found == "elm 1, oak 2; 2 of 3 classes of softmax-2-3, no example of ash"
    finding = doctor(["oak", "Elm"], TREES)
    assert finding.state == "problem"
    assert finding.found == "y must have the spelling of the run, 'elm', got 'Elm' in row 1"
    assert finding.what_to_do == "correct the labels"
    finding = doctor([*range(1, 10)], TEN)
    assert finding.state == "warning"
    assert "no example has label 0" in finding.what_to_do
    finding = doctor([0, 1, 1], TEN)
    assert (finding.state, finding.found) == (
        "ok",
        "0 1, 1 2; 2 of 10 classes of softmax-2-10, no example of 2, 3, 4, 5, 6, 7, 8, 9",
    )
    assert doctor([True, False], TRUTH).found == "FALSE 1, TRUE 1; 2 of 2 classes of softmax-2-2"
    finding = doctor([0.5, 1.5], TARGETS)
    assert finding.found == "targets of regression, 0.5 .. 1.5"


def test_the_doctor_counts_test_examples_too(doctor: Doctor) -> None:
    tests = {"x_test": np.ones((1, 2), np.float32), "y_test": np.array(["ash"])}
    assert doctor(["oak", "elm"], TREES, **tests).found.startswith("ash 1, elm 1, oak 1")
    tests["y_test"] = np.array(["yew"])
    assert doctor(["oak", "elm"], TREES, **tests).found.startswith("y_test must be classes")
