"""A frozen model with adapters: live and replayed, one copy for all devices, exported again."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import onnxruntime
import torch
from msgspec import UNSET, UnsetType
from safetensors.torch import load_file

from fairbed.coordinator.report.quantities import size
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.host.broker_process import find_mosquitto
from tests.cases.fine_tuning.networks import Pictures

needs_broker = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")

EXPERIMENT = f"""
name = "tuned"
rounds = 2
[data]
dataset = "digits"
[model]
name = "{Pictures.__module__}:Pictures"
weights = "module"
fresh = ["head.*"]
trainable = ["head.*"]
lora = {{ rank = 1, on = ["body.2"] }}
personal = ["head.bias"]
[training]
learning_rate = 0.05
batch_size = 40
personal_epochs = 1
[selection]
policy = "uniform"
per_round = 3
[round]
deadline_s = 60.0
[emulation]
backend = "process"
[replay]
costs_from = "measured"
[[fleet]]
name = "pi"
count = 3
"""


def play(command: str, folder: Path, *more: str) -> int:
    file = folder / "tuned.toml"
    profile = 'profile = "raspberry-pi-4b"\n' if command == "replay" else ""
    file.write_text(EXPERIMENT + profile, encoding="utf-8")
    headless = ["--headless"] if command == "run" else []
    return main([command, str(file), "--out", str(folder / command), *headless, *more])


def device_rows(folder: Path) -> list[tuple[int, float | None]]:
    with closing(sqlite3.connect(folder / "run.db")) as store:
        return store.execute("SELECT base_bytes, base_s FROM device ORDER BY name").fetchall()


@needs_broker
def test_a_live_run_sends_the_frozen_part_once_and_adapters_each_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play("run", tmp_path) == 0
    assert play("replay", tmp_path) == 0
    live, replayed = tmp_path / "run", tmp_path / "replay"
    frozen = sum(p.numel() for p in Pictures((1, 8, 8), 10).body.parameters())
    n_trained = 64 * 10 + 10 + (32 * 9 + 64)
    with RunReader(live) as one, RunReader(replayed) as other:
        models = [run.final_model() for run in (one, other)]
        exchanges = one.exchanges(0)
        summary = summarise_run(one)
    assert summary.personal_part == (
        "head.bias on each device, trained alone for 1 pass before the other part (FedRep)"
    )
    assert summary.optimiser is UNSET
    assert not isinstance(summary.frozen, UnsetType)
    assert (summary.frozen.bytes, summary.frozen.devices) == (4 * frozen, 3)
    assert models[0] is not None
    assert models[1] is not None
    assert len(models[0][1]) == n_trained + 128, "two buffers of batch norm follow"
    assert np.array_equal(models[0][1], models[1][1]), "bit for bit"
    assert {row.bytes_up for row in exchanges} == {4 * len(models[0][1])}
    out = tmp_path / "page.html"
    assert main(["report", str(live), str(replayed), "--no-figures", "--out", str(out)]) == 0
    page = out.read_text(encoding="utf-8").replace("&nbsp;", " ")
    assert "What was sent, and how long it took" in page
    row = page[page.index("its download, s") :]
    assert f"{len(models[0][1]):,}" in row
    assert size(4 * frozen) in row
    assert re.search(r"\d to [0-9.]+, 3 devices", row)
    found = device_rows(live)
    assert {size for size, _ in found} == {4 * frozen} == {s for s, _ in device_rows(replayed)}
    assert all(took is not None and took > 0.0 for _, took in found)
    assert all(took is not None for _, took in device_rows(replayed))

    state = tmp_path / "state"
    capsys.readouterr()
    assert main(["export-model", str(live), "--out", str(state), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["round"] == 2
    tensors = load_file(about["file"])
    module = Pictures((1, 8, 8), 10)
    module.load_state_dict(tensors)
    x = torch.randn(5, 1, 8, 8)
    assert main(["export-model", str(live), "--out", str(tmp_path / "onnx"), "--to", "onnx"]) == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    (output,) = session.run(None, {"x": x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(output, module.eval()(x).numpy(), rtol=1e-5, atol=1e-5)
    card = (state / "README.md").read_text(encoding="utf-8")
    assert f"trained values | {n_trained:,} of" in card
    assert "Each device of the run keeps values of its own" in card
    assert main(["export-model", str(live), "--out", str(state)]) == 2
    assert main(["export-model", str(live), "--round", "9", "--out", str(tmp_path / "n")]) == 2
    assert "must be a round whose model is stored, got 9; the last ones are 1, 2" in (
        capsys.readouterr().err
    )
