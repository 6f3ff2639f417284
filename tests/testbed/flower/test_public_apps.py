"""Flower's own examples, unchanged: of a folder that `FAIRBED_FLOWER_EXAMPLES` names.

It is `examples/` of the repository adap/flower; nothing of it is in ours. They need torch,
scikit-learn and tensorboard beside flwr, and two of them import what flwr 1.42 no longer has. What
downloads or sends is in `shims/`.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairbed.testbed.flower.reading import read_app
from fairbed.wire.client_folder import files_of
from tests.testbed.flower.app_run import AppRun

pytestmark = pytest.mark.full

FOLDER = os.environ.get("FAIRBED_FLOWER_EXAMPLES", "")
SHIMS = Path(__file__).with_name("shims")

APPS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "quickstart-numpy": ("quickstart_numpy", (), {}),
    "quickstart-pytorch": ("pytorchexample", ("import torch",), {}),
    "quickstart-sklearn": ("sklearnexample", ("import sklearn",), {"num-server-rounds": 3}),
    "advanced-pytorch": (
        "pytorch_example",
        ("import torch", "from flwr.common.typing import UserConfig"),
        {"num-server-rounds": 3, "fraction-train": 0.5},
    ),
    "custom-mods": (
        "custom_mods",
        ("import torch, tensorboard", "import flwr.client.typing"),
        {},
    ),
}


@pytest.mark.parametrize("name", APPS)
def test_an_example_of_flower_runs_unchanged(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    if not Path(FOLDER, name).is_dir():
        pytest.skip("Flower's examples are not here; FAIRBED_FLOWER_EXAMPLES names their folder")
    module, needs, config = APPS[name]
    flower_python: str = request.getfixturevalue("flower_python")
    for statement in needs:
        argv = [flower_python, "-c", statement]
        if subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode:
            pytest.skip(f"{flower_python}: cannot {statement}, which this example needs")
    folder = tmp_path / name
    shutil.copytree(Path(FOLDER, name), folder)
    app, before = read_app(folder, config), files_of(folder)
    run = AppRun(flower_python, app.folder, module, devices=4, run_config=app.config, shims=SHIMS)()
    assert run.events[-1] == {"is": "done", "rounds": 3}, run.events[-1]
    failed = [answer for _, answer in run.replies if answer["is"] == "failed"]
    assert not failed, failed[0]
    assert [each["round"] for each in run.of("aggregated")] == [1, 2, 3]
    assert all(each["metrics"] for each in run.of("aggregated"))
    assert run.last, "the arrays at the end"
    assert files_of(folder) == before, "its hash is that of the start"
    if name == "advanced-pytorch":  # a strategy with a `start` of its own, which samples half
        assert [len(e["messages"]) for e in run.of("push") if e["type"] == "train"] == [2, 2, 2]
        assert "wandb.log" in run.output
