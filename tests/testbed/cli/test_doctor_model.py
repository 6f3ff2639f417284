"""`fairbed doctor --model`: what a model costs, or why it is refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

from fairbed import profiles
from fairbed.coordinator.state.memory import TaskMemory
from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.cli import doctor_model
from fairbed.testbed.cli.doctor_model import ModelFinding
from fairbed.testbed.cli.main import main
from fairbed.testbed.emulation.work import LengthCosts, StepCost, StepWork, WorkCosts
from fairbed.testbed.host.memory import SMALL_BYTES
from tests.testbed.cli.test_mistakes import error_of

MIB = 1 << 20
MODELS = """
import torch
from torch import nn

def plain(x_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

def next_token(x_shape, classes):
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, classes))

class Rare(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)

def refused(x_shape, classes):
    rare = [Rare(torch.erfinv), Rare(torch.lgamma)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.Sigmoid(), *rare)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "nets_of_test.py").write_text(MODELS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nets_of_test", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return "nets_of_test"


@pytest.mark.full
def test_an_exported_model_has_its_costs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--x-shape", "1x8x8", "--classes", "10", "--batch", "4"]
    assert main(["doctor", "--json", "--model", f"{model}:plain", *shape]) == 0
    lines = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert all(line["is_ok"] for line in lines.values())
    assert lines["values"]["values"] == {"n_values": 650.0, "round_bytes": 5200.0}
    assert lines["error"]["values"]["in_float64"] < 1e-6
    assert lines["error"]["values"]["in_float32"] < 1e-4
    assert lines["export"]["values"]["export_s"] > 0.0
    assert lines["operations"]["values"]["matrix_flops"] == 4 * 2 * 2 * 64 * 10
    assert lines["evaluation"]["values"]["matrix_flops"] == 2 * 64 * 10
    assert lines["step here"]["values"]["ratio"] > 0.0
    assert lines["on raspberry-pi-4b"]["values"]["step_s"] > 0.0
    assert lines["on raspberry-pi-4b"]["values"]["micro_batch"] == 4
    assert lines["memory"]["values"]["bound_bytes"] < SMALL_BYTES


NET = TaskMemory(fixed_bytes=250.0 * MIB, example_bytes=56.0 * MIB, least_bytes=440.0 * MIB)


def on_machines(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...] = (), **changes: object
) -> list[ModelFinding]:
    """Return the lines about memory and three boards of a model with these costs."""
    one = StepCost(fixed_s=1.0, per_example_s=1.0)
    costs = structs.replace(
        WorkCosts(train=one, evaluate=one, work=StepWork(moved_bytes=9.0)), **changes
    )
    speed = SimpleNamespace(core_speed=1.0)
    monkeypatch.setattr(doctor_model, "host_speed", lambda environ: speed)
    monkeypatch.setattr(doctor_model, "machine_costs_now", lambda probe, environ: costs)
    names = ("raspberry-pi-4b", "raspberry-pi-3b", "raspberry-pi-zero-2w")
    boards = [profiles.load(name) for name in names]
    task = doctor_model._Task("my:net", (1, 8, 8), 10, "classification", 16, None, boards)
    task = replace(task, lengths=lengths)
    return list(doctor_model._on_machines(load_task("cnn", (1, 8, 8), 10), task))


def test_the_peak_memory_and_the_parts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, *boards = on_machines(monkeypatch, memory=NET)
    assert memory.found == (
        "an agent needs 1146 MiB for 16 examples at once, 440 MiB for one at a time, and its data; "
        "predicted from two measured sizes"
    )
    assert [board.values["micro_batch"] for board in boards] == [16, 9, 0]
    evaluated = f", 256 evaluated in {boards[0].values['evaluation_s'] * 1e3:.3g} ms"
    assert boards[0].found.endswith(f"by arithmetic and memory traffic{evaluated}")
    assert boards[1].found.endswith(
        "; fits into 75% of its 1024 MiB with training.micro_batch of at most 9"
    )
    assert boards[2].found.endswith("; does not fit into 75% of its 512 MiB")


def test_shorter_lengths_have_their_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 16 examples of the longest takes 17 s here, one of the shorter 9.5 s."""
    half = StepCost(fixed_s=1.5, per_example_s=0.5)
    shorter = (LengthCosts(length=4, train=half, evaluate=half),)
    memory, here, pi, *_ = on_machines(monkeypatch, (4, 8), memory=NET, shorter=shorter)
    assert memory.found.startswith("an agent needs 1146 MiB for 16 examples of 8 tokens at once")
    assert here.found == (
        "16 examples here, with onnxruntime: 4 tokens in 9.5e+03 ms, 8 tokens in 1.7e+04 ms"
    )
    assert here.values == {"of_4_s": 9.5, "of_8_s": 17.0}
    assert pi.found.startswith(f"16 examples of 8 tokens in {pi.values['step_s'] * 1e3:.3g} ms, ")
    assert pi.found.endswith(f"; 4 tokens in {pi.values['step_s'] * 9.5 / 17.0 * 1e3:.3g} ms")


def test_memory_that_is_small_or_unknown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    small, *_ = on_machines(monkeypatch)
    assert small.found.endswith("by memory traffic: fits into every board")
    unknown, *_ = on_machines(monkeypatch, work=None)
    assert unknown.found == "unknown, as the steps cannot be counted; no board is checked"


@pytest.mark.full
def test_a_model_of_tokens_has_its_costs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--x-shape", "6", "--y-shape", "6", "--classes", "9", "--tokens", "9", "--batch", "4"]
    assert main(["doctor", "--json", "--model", f"{model}:next_token", *shape]) == 0
    lines = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert lines["error"]["values"]["in_float64"] < 1e-6
    assert lines["step here"]["values"]["ratio"] > 0.0


@pytest.mark.full
def test_a_refused_model_names_each_operation(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--x-shape", "1x8x8", "--classes", "8", "--batch", "4"]
    assert main(["doctor", "--model", f"{model}:refused", *shape]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [["REFUSED", "model", "export"]] * 2
    assert "model.3: aten.erfinv.default must have a rule, got none" in lines[0]
    assert "model.4: aten.lgamma.default must have a rule, got none" in lines[1]
    assert lines[1].endswith('or model.engine = "auto" with torch on the devices')


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            [],
            "--model: must have the shape of the data, got none; name an experiment file, or give "
            "--x-shape 3x96x96 --classes 10",
        ),
        (
            ["--x-shape", "3x4"],
            "--classes: must be given with --x-shape, got none; or --task regression",
        ),
        (
            ["--x-shape", "3y4", "--classes", "2"],
            "--x-shape: must be sizes such as 3x96x96, got '3y4'; separate them by x",
        ),
        (
            ["--x-shape", "4", "--classes", "2"],
            "model.name: no_such_module:Net must name an importable module, got none named "
            "'no_such_module'; correct the name, or run fairbed in its folder",
        ),
    ],
)
def test_what_the_command_needs(
    options: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--model", "no_such_module:Net", *options]) == 2
    assert error_of(capsys) == f"fairbed: {line}"
