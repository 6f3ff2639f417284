"""Own data of a device as tokens, with labels by position, and as files that a task reads."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fairbed.device_agent.doctor import data_findings
from fairbed.device_agent.errors import DataError
from fairbed.device_agent.examples import OwnData
from fairbed.testbed.experiment.data import DataConfig, TextConfig
from fairbed.testbed.experiment.datasets import Dataset, load
from fairbed.wire.artifact import Artifact, decode_artifact, encode_artifact
from fairbed.wire.labels import Classes
from fairbed.wire.messages import HeldOut
from tests.device_agent.softmax import softmax_artifact

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 9, (40, 6))
TAGS = np.where(TOKENS == 0, -1, TOKENS % 3)


class Storage:
    def step(self, n_examples: int, length: int | None = None) -> None: ...
    def read(self, n_bytes: int) -> None: ...


def files(folder: Path, kind: str) -> Path:
    """Write the run's data of a kind."""
    for k, label in enumerate(("elm", "oak")):
        place = folder / ("x" if kind in ("users", "masks") else label)
        if kind in ("users", "masks"):
            place = folder
        place.mkdir(parents=True, exist_ok=True)
        if kind in ("users", "text"):
            (place / f"{label}.txt").write_text(f"the {label}, which is a tree {k} " * (k + 1))
        elif kind == "audio":
            with wave.open(str(place / "a.wav"), "wb") as out:
                out.setparams((1, 2, 8000, 0, "NONE", ""))
                out.writeframes(bytes(range(20 - 8 * k)))
        else:
            images = pytest.importorskip("PIL.Image", reason="writes pictures with Pillow")
            for part in ("images", "masks") if kind == "masks" else ("",):
                pixels = RNG.integers(0, 3, (4, 5), np.uint8)
                (place / part).mkdir(exist_ok=True)
                images.fromarray(pixels).save(place / part / f"{label}.png")
    return folder


def task_of(dataset: Dataset) -> Artifact:
    """Return a task for a data set; its graphs are not used."""
    task = softmax_artifact()
    spec = structs.replace(
        task.spec,
        x_shape=dataset.x_shape,
        x_dtype="int64" if dataset.x_classes else "float32",
        x_classes=dataset.x_classes,
        classes=dataset.classes,
        task=dataset.kind,
        positions=dataset.y_shape,
    )
    return structs.replace(
        task,
        spec=spec,
        labels=tuple(map(str, dataset.labels)),
        preparation=dataset.preparation,
        is_autoencoder=dataset.is_autoencoder,
    )


def own(path: Path, task: Artifact, held_out: HeldOut | None = None) -> OwnData:
    task = decode_artifact(encode_artifact(task))
    classes = Classes.of(task)
    return OwnData(path, classes, held_out, "pi-7", task.preparation, task.is_autoencoder)


@pytest.mark.parametrize("kind", ["users", "text", "masks", "audio", "pictures"])
@pytest.mark.parametrize("target", [None, "x"])
def test_files_become_the_arrays_of_the_run(kind: str, target: Any, tmp_path: Path) -> None:
    path = files(tmp_path / "own", kind)
    text = TextConfig(unit="words", length=5) if kind in ("users", "text") else None
    data = load(DataConfig(source=str(path), text=text, target=target), 0, {})
    mine = own(path, task_of(data))
    (x, y), _ = mine.load(Storage())
    expected = data.x / np.float32(255) if data.x.dtype == np.uint8 else data.x
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, data.y)
    assert (x.dtype.kind, y.dtype) == (expected.dtype.kind, data.y.dtype)
    assert mine.count() == data.n
    assert OwnData(path).count() >= data.n


def test_a_device_counts_units_that_the_run_lacks_as_unknown(tmp_path: Path) -> None:
    data = load(DataConfig(source=str(files(tmp_path / "run", "users"))), 0, {})
    (tmp_path / "own.txt").write_text("a tree? Ö")
    (x, y), _ = own(tmp_path / "own.txt", task_of(data)).load(Storage())
    assert (x[0, 6], y[0, 5], x[0, 8], y[0, 7], y[0, 8]) == (1, 1, 0, 1, -1)


def test_labels_by_position_are_divided_into_training_and_test(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=TOKENS, y=TAGS)
    data = load(DataConfig(source=str(tmp_path / "own.npz")), 0, {})
    mine = own(tmp_path / "own.npz", task_of(data), HeldOut(fraction=0.25, seed=1))
    (x, y), tests = mine.load(Storage())
    assert tests is not None
    assert (x.shape, y.shape, tests[1].shape) == ((30, 6), (30, 6), (10, 6))
    np.testing.assert_array_equal(y, np.where(x == 0, -1, x % 3))


def test_an_autoencoder_needs_x_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((4, 3)), x_test=np.zeros((2, 3)))
    data = load(DataConfig(source=str(files(tmp_path / "run", "pictures")), target="x"), 0, {})
    task = task_of(data)
    task = structs.replace(task, spec=structs.replace(task.spec, x_shape=(3,), positions=(3,)))
    mine = own(tmp_path / "own.npz", task)
    (x, y), _ = mine.load(Storage())
    np.testing.assert_array_equal(x, y)
    assert y.dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": TAGS[:, 0] % 3}, r"y must have the shape \(n, 6\) of the run, got \(40,\)"),
        ({"y": TAGS + 1}, "y must be classes of the run, 0 .. 2, got 3 in row 0"),
        ({"y": TAGS - 5}, "y must be classes 0, 1, ..., or -1 where a position has no label, got"),
        ({"y": TAGS * 0 - 1}, "y must have a labelled position in every row, got only -1 in row 0"),
        (
            {"y": TAGS[:0], "x": TOKENS[:0]},
            r"must be \(n, ...\) and y \(n,\) or \(n, ...\) with one",
        ),
        ({"x": None}, "must hold arrays x and y, got y"),
    ],
)
def test_refuses_arrays_in_one_line(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "run.npz", x=TOKENS, y=TAGS)
    task = task_of(load(DataConfig(source=str(tmp_path / "run.npz")), 0, {}))
    mine = {"x": TOKENS, "y": TAGS} | arrays
    np.savez(tmp_path / "own.npz", **{key: a for key, a in mine.items() if a is not None})
    with pytest.raises(DataError, match=message) as raised:
        own(tmp_path / "own.npz", task).load(Storage())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("of_run", "of_device", "message"),
    [
        ("users", "audio", "must be text, as the run's data, got audio"),
        ("masks", "pictures", "must be masks, as the run's data, got pictures"),
        ("pictures", "masks", "must be pictures or arrays, as the run's data, got masks"),
    ],
)
def test_files_of_another_kind_are_one_line(
    of_run: str, of_device: str, message: str, tmp_path: Path
) -> None:
    task = task_of(load(DataConfig(source=str(files(tmp_path / "run", of_run))), 0, {}))
    with pytest.raises(DataError, match=message) as raised:
        own(files(tmp_path / "own", of_device), task).load(Storage())
    assert "\n" not in str(raised.value)


def test_another_rate_and_an_empty_text_are_one_line(tmp_path: Path) -> None:
    audio = task_of(load(DataConfig(source=str(files(tmp_path / "a", "audio"))), 0, {}))
    with wave.open(str(tmp_path / "a" / "elm" / "a.wav"), "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes(bytes(8))
    with pytest.raises(DataError, match="must have the 8,000 samples per second of the task, got"):
        own(tmp_path / "a", audio).load(Storage())
    text = task_of(load(DataConfig(source=str(files(tmp_path / "t", "users"))), 0, {}))
    (tmp_path / "t" / "oak.txt").write_text("")
    with pytest.raises(DataError, match=r"oak.txt: must have at least 2 of its characters, got 0"):
        own(tmp_path / "t", text).load(Storage())


def test_the_doctor_states_what_fits(tmp_path: Path) -> None:
    path = files(tmp_path / "own", "users")
    data = load(DataConfig(source=str(path)), 0, {})
    assert [found.state for found in data_findings(path, tmp_path)] == ["problem"]
    (tmp_path / f"task-{'0' * 64}").write_bytes(encode_artifact(task_of(data)))
    labels, found = data_findings(path, tmp_path)
    assert (labels.state, found.state) == ("ok", "ok")
    assert labels.found.startswith("' ' 21, ',' 3, ")
    assert labels.found.endswith(
        "17 of 19 classes of softmax-6-3; 49.4% of 160 positions have a label"
    )
    assert found.found == (
        "2 examples of shape (80,), tokens 0 to 18, 50.6% padding (0), 0.0% unknown (1), fits "
        "softmax-6-3"
    )
    (tmp_path / "own.txt").write_text("?" * 30)
    assert [found.state for found in data_findings(tmp_path / "own.txt", tmp_path)] == ["ok", "ok"]
    np.savez(tmp_path / "own.npz", x=data.x + 50, y=data.y)
    _, found = data_findings(tmp_path / "own.npz", tmp_path)
    assert (found.state, found.what_to_do) == ("problem", "number the tokens as the run's data")
