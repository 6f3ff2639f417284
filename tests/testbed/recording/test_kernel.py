"""Training the reference step in processes of their own."""

import time
from pathlib import Path

import pytest

from fairbed.testbed.host.speed import REFERENCE_STEP_S
from fairbed.testbed.recording.analysis.findings import NotMeasured
from fairbed.testbed.recording.kernel import Kernels, kernels
from fairbed.testbed.recording.session import training_speeds

LIMIT_S = 60.0


def _wait(running: Kernels) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while not running.is_over():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


def test_a_kernel_writes_windows_and_leaves_no_file(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with kernels(1, 1.0, tmp_path) as running:
        _wait(running)
        windows = running.windows()
    assert windows
    assert all(window.steps > 0 and window.cpu_s > 0.0 for window in windows)
    assert sum(window.wall_s for window in windows) >= 0.99
    assert list(tmp_path.iterdir()) == []
    speeds = training_speeds(windows, began_s)
    assert speeds[0].t_s > 0.0
    assert speeds[0].reference_s == pytest.approx(windows[0].steps * REFERENCE_STEP_S)


def test_a_kernel_that_is_stopped_leaves_no_file(tmp_path: Path) -> None:
    with kernels(2, 600.0, tmp_path) as running:
        assert not running.is_over()
        with pytest.raises(NotMeasured, match="it took too long"):
            running.windows()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_a_one_line_error(tmp_path: Path) -> None:
    with (
        pytest.raises(NotMeasured, match="training cannot be started here: No such file"),
        kernels(1, 1.0, tmp_path / "none"),
    ):
        pass


def test_a_failed_step_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('no wheel for this board')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    out = tmp_path / "out"
    out.mkdir()
    with kernels(1, 1.0, out) as running:
        _wait(running)
        with pytest.raises(NotMeasured, match="no wheel for this board"):
            running.windows()
