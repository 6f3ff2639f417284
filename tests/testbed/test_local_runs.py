"""The examples of local rules with emulated devices, and replayed: they agree, and learn."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
SGD = ("training.rule=sgd", "training.rule_options={}")


@pytest.fixture(autouse=True)
def in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in the folder of the examples, as their first lines say."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))


def run(verb: str, name: str, folder: Path, *settings: str) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--headless"] if verb == "run" else []
    assert main([verb, f"{name}.toml", "--out", str(folder), *words]) == 0


def model(folder: Path, round_id: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    (vector,) = load_file(folder / "models" / f"round-{round_id:05d}.safetensors").values()
    return np.asarray(vector, dtype=np.float64)


def accuracy(folder: Path) -> tuple[float, float]:
    """Return mean accuracy and that of the worst tenth of the devices, at the end."""
    with RunReader(folder) as reader:
        last = reader.metrics()[-1]
    assert last.accuracy_mean is not None
    assert last.accuracy_worst10 is not None
    return last.accuracy_mean, last.accuracy_worst10


@pytest.mark.full
@pytest.mark.parametrize("name", ["scaffold", "feddyn", "propfair-client", "adamw"])
def test_a_live_run_has_the_model_of_its_replay(name: str, tmp_path: Path) -> None:
    for verb in ("run", "replay"):
        run(verb, name, tmp_path / verb, "rounds=4")
    with RunReader(tmp_path / "run") as reader:
        assert [row.aggregated for row in reader.rounds()] == [4] * 4
    live, replayed = (model(tmp_path / verb, 4) for verb in ("run", "replay"))
    assert np.linalg.norm(live - replayed) < 1e-5 * np.linalg.norm(live)


def test_propfair_changes_the_model_and_learns(tmp_path: Path) -> None:
    run("replay", "propfair-client", tmp_path / "rule")
    run("replay", "propfair-client", tmp_path / "sgd", *SGD)
    first, second = (model(tmp_path / folder, 30) for folder in ("rule", "sgd"))
    assert np.linalg.norm(first - second) > 0.01 * np.linalg.norm(first)
    assert accuracy(tmp_path / "rule")[0] > 0.8


@pytest.mark.full
@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_devices_with_unlike_data_gain(name: str, tmp_path: Path) -> None:
    """Two of ten classes per device: the worst tenth gains most."""
    run("replay", name, tmp_path / "rule")
    run("replay", name, tmp_path / "sgd", *SGD)
    (mean, worst), (mean_sgd, worst_sgd) = (accuracy(tmp_path / x) for x in ("rule", "sgd"))
    assert mean > mean_sgd + 0.03
    assert worst > worst_sgd + 0.08
