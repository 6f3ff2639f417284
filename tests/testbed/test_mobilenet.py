"""examples/mobilenet.toml: depthwise convolutions, live and replayed, on devices without torch."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the example is exported with torch")
pytest.importorskip("onnx", reason="the example is exported with onnx")

from examples import mobilenet
from tests.testbed.test_torch_script import CHANCE, result_of

pytestmark = pytest.mark.full


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user with the network and its experiment."""
    for name in ("mobilenet.py", "mobilenet.toml"):
        source = Path(mobilenet.__file__).parent / name
        (tmp_path / name).write_bytes(source.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "mobilenet.toml"
    sys.modules.pop("mobilenet", None)


@pytest.mark.slow
@pytest.mark.full
def test_it_trains_in_a_live_run_and_in_a_replay_from_one_export(experiment: Path) -> None:
    replayed = result_of(experiment, "replay", "rounds=4")
    (kept,) = (experiment.parent / "cache" / "fairbed" / "exports").iterdir()
    written = kept.stat().st_ino
    live = result_of(experiment, "run", "rounds=2", "fleet=[{name='pi', count=3}]")
    assert kept.stat().st_ino == written, "the run takes the export of the replay"
    for summary, rounds in ((replayed, 4), (live, 2)):
        assert summary.accuracy is not None
        assert summary.accuracy.mean is not None
        assert sum(summary.selected.values()) == 3 * rounds
    assert replayed.accuracy is not None
    assert replayed.accuracy.mean is not None
    assert replayed.accuracy.mean > 3 * CHANCE
