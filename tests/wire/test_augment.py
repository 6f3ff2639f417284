"""Augmentations: what they do, that their bits depend on their key alone, and what is refused."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fairbed.wire import augment
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.augment import Augmenter, list_problem, make, permission_problem, requested
from fairbed.wire.messages import Augment
from fairbed.wire.plugins import PluginError
from tests.wire.test_artifact import ARTIFACT

HERE = "tests.wire.test_augment"
IMAGE = (3, 8, 10)
B = 64


class Task:
    """What an augmentation reads of a task."""

    def __init__(self, x_shape: tuple[int, ...], **fields: Any) -> None:
        self.x_shape, self.name = x_shape, "test"
        self.x_dtype, self.y_shape, self.kind = "float32", (), "classification"
        self.buckets, self.x_classes = (), 0
        self.__dict__ |= fields


def images() -> NDArray[np.float32]:
    return np.random.default_rng(1).uniform(0.5, 1.0, (B, *IMAGE)).astype(np.float32)


def augmented(
    *tables: dict[str, Any], x: NDArray[Any], y: NDArray[Any], step: int = 3, **fields: Any
) -> augment.Augmented:
    task: Any = Task(x.shape[1:], y_shape=y.shape[1:], **fields)
    return Augmenter([requested(one) for one in tables], task).batch(x.copy(), y.copy(), 5, step)


LABELS = np.arange(B) % 4


@pytest.mark.parametrize("axis", ["horizontal", "vertical"])
def test_a_flip_mirrors_a_share_of_the_examples_with_the_targets_of_their_pixels(axis: str) -> None:
    x, pixels = images(), np.random.default_rng(2).integers(0, 4, (B, 8, 10))
    found = augmented({"kind": "flip", "axis": axis}, x=x, y=pixels)
    mirrored, labels = (np.flip(a, -1 if axis == "horizontal" else -2) for a in (x, pixels))
    is_new = (found.x == mirrored).reshape(B, -1).all(axis=1)
    assert 15 < is_new.sum() < 49
    np.testing.assert_array_equal(found.x[~is_new], x[~is_new])
    np.testing.assert_array_equal(found.y[is_new], labels[is_new])
    np.testing.assert_array_equal(found.y[~is_new], pixels[~is_new])


def test_a_crop_moves_pixels_and_their_targets_and_fills_with_nothing() -> None:
    x, pixels = images(), np.tile(np.arange(80).reshape(8, 10), (B, 1, 1))
    x[:, 0] = pixels + 1.0
    found = augmented({"kind": "crop", "padding": 3}, x=x, y=pixels)
    np.testing.assert_array_equal(np.where(found.y < 0, 0, found.y + 1), found.x[:, 0])
    assert len({int(labels.max()) for labels in found.y}) > 5


def test_colour_and_noise_have_their_size() -> None:
    x = images()
    grey = augmented({"kind": "colour", "brightness": 0.0, "contrast": 0.5}, x=x, y=LABELS).x
    mean, new = x.mean(axis=(1, 2, 3)), grey.mean(axis=(1, 2, 3))
    np.testing.assert_allclose(mean, new, rtol=1e-5)
    ratio = grey.std(axis=(1, 2, 3)) / x.std(axis=(1, 2, 3))
    assert 0.5 <= ratio.min() < 0.7 < 1.3 < ratio.max() <= 1.5001
    bright = augmented({"kind": "colour", "contrast": 0.0}, x=x, y=LABELS).x / x
    assert 0.7999 <= bright.min() < bright.max() <= 1.2001
    added = augmented({"kind": "noise", "std": 0.3}, x=x, y=LABELS).x - x
    assert added.std() == pytest.approx(0.3, rel=0.05)


def test_masks_and_erased_rectangles_are_zero_and_bounded() -> None:
    x = images()
    erased = augmented({"kind": "erase", "share": 1.0, "area": 0.5}, x=x, y=LABELS).x
    share = (erased == 0).mean(axis=(1, 2, 3))
    assert 0.0 < share.min() < share.max() <= 0.65, "rounded to pixels"
    for axis, place in (("time", -1), ("frequency", -2)):
        masked = augmented({"kind": "mask", "axis": axis, "width": 3}, x=x, y=LABELS).x
        bands = (masked == 0).all(axis=(1, 5 + place if place == -2 else 2))
        widths = bands.sum(axis=1)
        assert set(widths.tolist()) == {0, 1, 2, 3}
        assert ((masked == x) | (masked == 0)).all()


def test_sequences_are_cut_and_masked_without_losing_their_last_label() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(2, 30, (B, 12))
    lengths = rng.integers(1, 13, B)
    x[np.arange(12) >= lengths[:, None]] = 0
    y = np.where(x > 0, x, -1)
    of: dict[str, Any] = {"x_dtype": "int64", "x_classes": 30}
    found = augmented({"kind": "truncate", "least": 0.25}, x=x, y=y, **of)
    left = (found.x > 0).sum(axis=1)
    assert (left >= np.ceil(0.25 * lengths)).all()
    assert (left >= 1).all()
    assert (left < lengths).mean() > 0.5
    np.testing.assert_array_equal(found.y, np.where(found.x > 0, found.x, -1))
    masked = augmented({"kind": "mask-tokens", "share": 0.4}, x=x, y=LABELS, step=8, **of).x
    assert (masked[x == 0] == 0).all()
    assert (masked[x > 0] == 1).mean() == pytest.approx(0.4, abs=0.08)


def test_mixup_mixes_examples_and_names_both_targets() -> None:
    x = images()
    found = augmented({"kind": "mixup", "alpha": 1.0}, x=x, y=LABELS)
    assert found.other is not None
    assert 0.0 < found.share < 1.0
    assert sorted(found.other.tolist()) == sorted(LABELS.tolist())
    np.testing.assert_allclose(found.x.sum(), x.sum(), rtol=1e-4)


@pytest.mark.parametrize("kind", ["flip", "crop", "colour", "noise", "erase", "mask", "mixup"])
def test_the_bits_depend_on_seed_step_and_place_alone(kind: str) -> None:
    x, table = images(), {"kind": kind}
    one = augmented(table, x=x, y=LABELS)
    again = augmented(table, x=x, y=LABELS)
    assert one.x.tobytes() == again.x.tobytes()
    assert one.x.tobytes() != augmented(table, x=x, y=LABELS, step=4).x.tobytes()
    noise = {"kind": "noise"}
    twice = augmented(noise, noise, x=x, y=LABELS).x - x
    once = augmented(noise, x=x, y=LABELS).x - x
    assert not np.allclose(twice, 2.0 * once, atol=1e-3), "each place has draws of its own"


def shifted(x: NDArray[Any], y: NDArray[Any], draws: np.random.Generator, by: float = 1.0) -> Any:
    return x + np.float32(by) * draws.standard_normal(x.shape, dtype=np.float32), y


def wider(x: NDArray[Any], y: NDArray[Any], draws: np.random.Generator) -> Any:
    return x.astype(np.float64)


def failing(x: NDArray[Any], y: NDArray[Any], draws: np.random.Generator) -> Any:
    raise KeyError("no such picture")


def test_a_function_of_the_user_gets_its_options_and_its_own_draws() -> None:
    x = images()
    found = augmented({"kind": f"{HERE}:shifted", "by": 0.5}, x=x, y=LABELS)
    draws = augment.draws_of(5, 3, 0)
    np.testing.assert_array_equal(found.x, shifted(x, LABELS, draws, 0.5)[0])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wider", "must return x as float32 of shape (64, 3, 8, 10), got float64 of shape"),
        ("failing", "must not raise, got KeyError: 'no such picture'"),
        ("absent", "must be importable as package.module:Name, got AttributeError"),
    ],
)
def test_a_function_that_breaks_its_contract_is_one_line(name: str, line: str) -> None:
    with pytest.raises(PluginError) as caught:
        augmented({"kind": f"{HERE}:{name}"}, x=images(), y=LABELS)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_device_runs_only_functions_that_its_owner_allows_in_their_version() -> None:
    path = f"{HERE}:shifted"
    wanted = [Augment(kind="flip"), requested({"kind": path})]
    assert wanted[1].sha256 == hashlib.sha256(Path(__file__).read_bytes()).digest()
    assert permission_problem(wanted, [path]) == ""
    assert permission_problem(wanted[:1], []) == ""
    assert "must be allowed by this device, got a path that is not; start the agent with " in (
        permission_problem(wanted, [])
    )
    other = [Augment(kind=path, sha256=bytes(32))]
    assert "must be that of the coordinator, got another hash" in permission_problem(other, [path])


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        ([{"padding": 2}], "training.augment[0]: must have a kind, got none"),
        ([{"kind": "flop"}], "kind must be one of flip, crop, colour"),
        ([{"kind": "crop", "pading": 2}], "crop must have the options padding: "),
        ([{"kind": "flip", "share": 1.5}], "flip must have the options share, axis: "),
        ([{"kind": "mixup"}, {"kind": "flip"}], "mixup must be last and once"),
    ],
)
def test_a_list_that_is_none_is_one_line(tables: list[dict[str, Any]], line: str) -> None:
    assert line in list_problem(tables)
    assert list_problem([{"kind": "flip"}, {"kind": "mixup"}, {"kind": "x:y"}][:2]) == ""


@pytest.mark.parametrize(
    ("kind", "task", "line"),
    [
        ("flip", Task((60,)), "float examples of (..., height, width), got float32 (60,)"),
        ("flip", Task(IMAGE, y_shape=(4,)), "one target for each example or pixel, got y of (4,)"),
        ("crop", Task(IMAGE, y_shape=(8, 10), kind="regression"), "labels, not numbers"),
        ("mask", Task((5,)), "more than 8 cells of time, got 5"),
        ("mixup", Task((9,), x_dtype="int64"), "float examples, got int64"),
        ("truncate", Task((9,), x_dtype="int64", buckets=(4, 9)), "sequences of one length"),
        ("mask-tokens", Task((9,), x_dtype="int64", x_classes=1), "a token below the 1 of"),
        ("noise", Task((9,), x_dtype="int64"), "float examples, got int64"),
    ],
)
def test_an_augmentation_that_does_not_fit_the_task_is_one_line(
    kind: str, task: Any, line: str
) -> None:
    with pytest.raises(PluginError, match="remove it for test") as caught:
        Augmenter([Augment(kind=kind)], task)
    assert f"training.augment: {kind} must have {line}" in str(caught.value)


def test_saturation_needs_three_channels() -> None:
    spec: TaskSpec = ARTIFACT.spec
    assert "3 channels" in make(Augment(kind="colour", options=(("saturation", 0.1),))).problem(
        spec
    )
