"""The example apps learn; the numpy one computes what Flower's own simulation computes."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.testbed.flower.reading import FlowerApp, read_app
from tests.testbed.flower import simulation
from tests.testbed.flower.app_run import AppRun

pytestmark = pytest.mark.full

SIMULATION = os.environ.get("FAIRBED_FLOWER_SIMULATION", "")
"""An interpreter with `flwr[simulation]`."""

NODES = 20


def final_accuracy(python: str, app: FlowerApp, module: str) -> float:
    """Run an app on four devices; return the accuracy on devices after the last round."""
    run = AppRun(python, app.folder, module, devices=4, run_config=app.config)()
    assert run.events[-1]["is"] == "done", run.events[-1]
    failed = [answer for _, answer in run.replies if answer["is"] == "failed"]
    assert not failed, failed[0]
    measured = [each for each in run.of("metrics") if each["where"] == "devices"]
    return float(measured[-1]["metrics"]["accuracy"])


@pytest.mark.parametrize(
    ("name", "package", "changes", "at_least"),
    [
        ("torch", "torch", {"num-server-rounds": 3}, 0.5),
        ("sklearn", "sklearn", {"num-server-rounds": 2}, 0.85),
        ("xgboost", "xgboost", {"num-server-rounds": 2}, 0.85),
    ],
)
def test_an_example_learns(
    flower_python: str,
    examples: Path,
    name: str,
    package: str,
    changes: dict[str, Any],
    at_least: float,
) -> None:
    argv = [flower_python, "-c", f"import sklearn, {package}"]
    if subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode:
        pytest.skip(f"{package} and scikit-learn are not installed in {flower_python}")
    app = read_app(examples / f"flower-{name}", changes)
    assert final_accuracy(flower_python, app, f"flower_{name}") > at_least


@pytest.mark.timeout(300)
def test_the_arrays_are_those_of_the_simulation_of_flower(
    flower_python: str, examples: Path, tmp_path: Path
) -> None:
    if not SIMULATION:
        pytest.skip("FAIRBED_FLOWER_SIMULATION names no interpreter with flwr[simulation]")
    app = read_app(examples / "flower-numpy")
    output = tmp_path / "arrays.npz"
    arguments = [str(app.folder), "flower_numpy", str(NODES), json.dumps(app.config), str(output)]
    variables = {k: x for k, x in os.environ.items() if k != "PYTHONPATH"}
    ended = subprocess.run(
        [SIMULATION, simulation.__file__, *arguments],
        capture_output=True,
        timeout=280,
        check=False,
        text=True,
        env=variables,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    run = AppRun(flower_python, app.folder, "flower_numpy", NODES, dict(app.config))()
    with np.load(output) as wanted:
        assert set(wanted) == set(run.last) != set()
        for key in wanted:
            np.testing.assert_allclose(run.last[key], wanted[key], rtol=0.0, atol=1e-6)
