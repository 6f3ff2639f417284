"""Own data of a device on another scale than the data set of its run."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from fairbed.coordinator.state.alerts import other_scales
from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent.cli import main
from fairbed.device_agent.config import default_cache_folder
from fairbed.device_agent.trainer import divergence_error
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.loading import load
from fairbed.testbed.replay.cohort.batches import Batches
from fairbed.testbed.replay.cohort.progress import Progress
from fairbed.wire.artifact import encode_artifact
from fairbed.wire.codec import decode_from_device, encode
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import DataScale, Hyperparameters
from fairbed.wire.scale import BLOCK, Scale, other_scale, scale_of

Pixels = NDArray[np.floating[Any]]

RAW255 = Path(__file__).parent / "labels" / "raw255.npz"
DIGITS = load(DataConfig(dataset="digits"), 0, {})
RAW: Pixels = DIGITS.x.astype(np.float32)
PLAIN = Hyperparameters(epochs=1, batch_size=10, learning_rate=1.0)
MEAN, SPREAD = np.float32(RAW.mean()), np.float32(RAW.std())
NORMAL: Pixels = (RAW - MEAN) / SPREAD

DIVIDED = "not divided by 255"
BY = "larger values than the data of the run; divide it by"
SMALLER = "smaller values"
NEGATIVE = "negative values"
UNLIKE = "another mean or spread"
NOT_NORMAL = "not normalised"


def scale(x: Pixels) -> Scale:
    found = scale_of(x.astype(np.float32))
    assert found is not None
    return found


OTHER = {
    "255": (RAW * 255, RAW, DIVIDED),
    "256": (RAW * 256, RAW, DIVIDED),
    "200, a dark picture": (RAW * 200, RAW, DIVIDED),
    "255, first 5": (RAW[:5] * 255, RAW, DIVIDED),
    "255 of a normalised run": (RAW * 255, NORMAL, DIVIDED),
    "255 inverted": (255 - RAW * 255, RAW, DIVIDED),
    "65535": (RAW * 65535, RAW, BY),
    "16": (RAW * 16, RAW, f"{BY} 16"),
    "percent": (RAW * 100, RAW, f"{BY} 100"),
    "milli": (RAW * 1000, RAW, f"{BY} 1000"),
    "6": (RAW * 6, RAW, f"{BY} about 6"),
    "1e6": (RAW * 1e6, RAW, f"{BY} about 1e"),
    "divided twice": (RAW / 255, RAW, SMALLER),
    "a thousandth": (RAW / 1000, RAW, SMALLER),
    "a tenth": (RAW / 10, RAW, SMALLER),
    "all zero": (RAW * 0, RAW, SMALLER),
    "twice": (RAW * 2, RAW, UNLIKE),
    "three times": (RAW * 3, RAW, UNLIKE),
    "plus 5": (RAW + 5, RAW, UNLIKE),
    "plus 1": (RAW + 1, RAW, UNLIKE),
    "inverted": (1 - RAW, RAW, UNLIKE),
    "-1..1": (2 * RAW - 1, RAW, NEGATIVE),
    "centred, and twice": (2 * (RAW - MEAN), RAW, NEGATIVE),
    "normalised": (NORMAL, RAW, NEGATIVE),
    "ImageNet mean": ((RAW - 0.485) / 0.229, RAW, NEGATIVE),
    "MNIST mean": ((RAW - 0.1307) / 0.3081, RAW, NEGATIVE),
    "centred": (RAW - MEAN, RAW, NEGATIVE),
    "minus 1": (RAW - 1, RAW, NEGATIVE),
    "minus": (-RAW, RAW, NEGATIVE),
    "raw in a normalised run": (RAW, NORMAL, NOT_NORMAL),
    "16 in a normalised run": (RAW * 16, NORMAL, NOT_NORMAL),
    "percent in a normalised run": (RAW * 100, NORMAL, NOT_NORMAL),
    "inverted in a normalised run": (1 - RAW, NORMAL, NOT_NORMAL),
    "centred alone": (RAW - MEAN, NORMAL, NOT_NORMAL),
    "scaled alone": (RAW / SPREAD + 1, NORMAL, NOT_NORMAL),
    "normalised twice": (NORMAL / SPREAD, NORMAL, NOT_NORMAL),
    "divided by the variance": (NORMAL / SPREAD**2, NORMAL, NOT_NORMAL),
    "normalised plus 5": (NORMAL + 5, NORMAL, NOT_NORMAL),
    "raw beside 0..255": (
        RAW,
        RAW * 255,
        f"{SMALLER} than the data of the run; multiply it by 255",
    ),
    "raw beside 0..16": (RAW, RAW * 16, f"{SMALLER} than the data of the run; multiply it by 16"),
    "normalised beside 0..255": (NORMAL, RAW * 255, SMALLER),
    "16 beside -1..1": (RAW * 16, 2 * RAW - 1, BY),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_scale_has_its_likely_cause(name: str) -> None:
    own, task, cause = OTHER[name]
    assert cause in other_scale(scale(own), scale(task))


@pytest.mark.parametrize("task", [RAW, NORMAL, RAW * 255], ids=["0..1", "normalised", "0..255"])
def test_devices_of_one_class_or_of_few_examples_raise_no_alarm(task: Pixels) -> None:
    for label in range(10):
        own = task[DIGITS.y == label]
        for part in (own, own[:5]):
            assert other_scale(scale(part), scale(task)) == ""


def test_the_advice_works_when_it_is_followed() -> None:
    run, normal = scale(RAW), scale(NORMAL)
    assert other_scale(scale(RAW * 255 / 255), run) == ""
    pixels = scale_of((RAW * 255).astype(np.uint8))
    assert pixels is not None
    assert other_scale(pixels, run) == ""
    assert other_scale(scale((RAW * 255 / 255 - MEAN) / SPREAD), normal) == ""
    assert other_scale(scale(NORMAL * SPREAD + MEAN), run) == ""


def test_tokens_and_infinite_values_have_no_scale() -> None:
    assert scale_of(np.zeros((2, 3), np.int64)) is None
    assert scale_of(np.array([[1.0, np.inf]])) is None
    assert scale_of(np.array([[1.0, np.nan]])) is None
    many = np.ones((3, BLOCK), np.float32)
    many[2, 5] = np.nan
    assert scale_of(many) is None


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_scale_is_that_of_all_values_at_once(dtype: str) -> None:
    x = np.random.default_rng(0).normal(100.0, 20.0, (7, BLOCK // 3)).clip(0, 255).astype(dtype)
    values = x.astype(np.float64) / (255.0 if dtype == "uint8" else 1.0)
    found = scale_of(x)
    assert found is not None
    assert (found.low, found.high) == (values.min(), values.max())
    assert (found.mean, found.spread) == pytest.approx((values.mean(), values.std()), rel=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "mean", "spread"),
    [
        (0, 1, 2, 0.1),
        (0, 1, -1, 0.1),
        (1, 0, 0.5, 0.0),
        (0, 1, 0.5, 0.7),
        (0, 1e39, 1, 0),
        (0, 1, 0.5, -0.1),
    ],
)
def test_a_report_that_no_data_can_have_is_refused(
    low: float, high: float, mean: float, spread: float
) -> None:
    valid = encode(DataScale(boot=1, low=0.0, high=1.0, mean=0.5, spread=0.1))
    assert decode_from_device(valid) == DataScale(boot=1, low=0, high=1, mean=0.5, spread=0.1)
    numbers = {"low": low, "high": high, "mean": mean, "spread": spread}
    forged = msgspec.msgpack.encode({"m": "data-scale", "boot": 1, **numbers})
    with pytest.raises(DecodeError):
        decode_from_device(forged)


def test_an_alert_names_device_cause_and_numbers() -> None:
    run = scale(RAW)
    own = [("pi-1", run), ("pi-2", scale(RAW * 256)), ("pi-3", scale(RAW * 16))]
    text = other_scales(own, run)
    assert text is not None
    assert text.startswith("pi-2: x is not divided by 255; divide it by 255")
    assert "x is 0 to 256" in text
    assert text.endswith("; likewise pi-3")
    assert other_scales(own[:1], run) is None
    assert other_scales(own, None) is None


def test_nan_of_unscaled_data_does_not_advise_a_lower_learning_rate() -> None:
    with np.load(RAW255) as arrays:
        text = str(divergence_error("the loss", float("nan"), 6, arrays["x"]))
    assert "scale them first" in text
    assert "learning_rate" not in text
    assert "lower learning_rate" in str(divergence_error("the loss", float("nan"), 6, RAW))


def doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: Path
) -> dict[str, str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    main(["doctor", "--json", "--data", str(data)])
    found = json.loads(capsys.readouterr().out)
    return next(finding for finding in found if finding["check"] == "data")


def test_the_doctor_compares_own_data_with_the_last_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = doctor(tmp_path, monkeypatch, capsys, RAW255)
    assert finding["state"] == "warning"
    assert "no task to compare with" in finding["found"]
    task = load_task("softmax", DIGITS.x_shape, DIGITS.classes)
    folder = default_cache_folder() / "main" / "pi-7"
    folder.mkdir(parents=True)
    blob = encode_artifact(msgspec.structs.replace(task, scale=scale_of(DIGITS.x)))
    (folder / f"task-{'0' * 64}").write_bytes(blob)
    finding = doctor(tmp_path, monkeypatch, capsys, RAW255)
    assert finding["state"] == "problem"
    assert "200 examples" in finding["found"]
    assert finding["what_to_do"].startswith("x is not divided by 255; divide it by 255")
    with np.load(RAW255) as arrays:
        np.savez(tmp_path / "mine.npz", x=arrays["x"] / 255, y=arrays["y"])
    finding = doctor(tmp_path, monkeypatch, capsys, tmp_path / "mine.npz")
    assert finding["state"] == "ok"
    assert finding["what_to_do"] == ""


@pytest.mark.parametrize(("factor", "advice"), [(255, "scale them first"), (1, "learning_rate")])
def test_a_replay_gives_the_advice_of_a_live_device(factor: int, advice: str) -> None:
    x = (RAW[:10] * factor).astype(np.float32)

    def x_of(device: int) -> NDArray[np.float32]:
        return x

    progress = Progress([1, 1], x_of)
    batches = Batches([1, 2], [np.arange(10)] * 2, PLAIN)
    progress.record(0, batches.next(progress.active(0)), np.ones(2))
    vectors = np.full((2, 3), np.nan, np.float32)
    live = str(divergence_error("every parameter", float("nan"), 1, x))
    assert advice in live
    assert progress.results([0, 1], vectors, {}, {}).problems == (live, live)
