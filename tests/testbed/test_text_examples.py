"""examples/char-lstm.toml and transformer.toml: next characters, live and replayed."""

import gzip
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the examples are exported with torch")
pytest.importorskip("onnx", reason="the examples are exported with onnx")

from examples import char_lstm
from fairbed.testbed.experiment.datasets import load
from fairbed.testbed.experiment.file import load_experiment
from tests.testbed.test_torch_script import result_of

pytestmark = pytest.mark.full

EXAMPLES = Path(char_lstm.__file__).parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user with both networks, their experiments, and the texts."""
    for name in ("char_lstm.py", "char-lstm.toml", "transformer.py", "transformer.toml"):
        (tmp_path / name).write_bytes((EXAMPLES / name).read_bytes())
    shutil.copytree(EXAMPLES / "shakespeare", tmp_path / "shakespeare")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    for module in ("char_lstm", "transformer"):
        sys.modules.pop(module, None)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", ["char-lstm", "transformer"])
def test_it_learns_more_than_frequencies_without_torch_on_devices(folder: Path, name: str) -> None:
    path = folder / f"{name}.toml"
    found = load(load_experiment(path).data, 0, {})
    counts = np.bincount(found.y[found.y >= 0])
    shares = counts[counts > 0] / counts.sum()
    of_frequencies = np.exp(-(shares * np.log(shares)).sum())
    graphs = "model.engine='onnx'"  # refuses what graphs cannot express
    replayed = result_of(path, "replay", graphs)
    live = result_of(path, "run", graphs, "rounds=2", "fleet=[{name='pi', count=3}]")
    assert replayed.positions is not None
    assert replayed.positions.perplexity is not None
    assert replayed.positions.perplexity < 0.75 * of_frequencies
    assert live.positions is not None
    assert sum(live.selected.values()) == 3 * 2


def test_speakers_of_the_larger_text_are_users(tmp_path: Path) -> None:
    speech = "To be, or not to be.\n" * 80
    with gzip.open(tmp_path / "tinyshakespeare.txt.gz", "wt", encoding="utf-8") as file:
        file.write(f"FIRST:\n{speech}\nSECOND:\nNo.\n\nTHIRD:\n{speech}\nFIRST:\nAy.\n")
    found = char_lstm.load(str(tmp_path))
    assert found["device"].tolist() == ["FIRST", "THIRD"], "the second has too few characters"
    assert found["x"][0] == f"{speech}Ay.\n"
