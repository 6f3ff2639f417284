"""Modules of users: tokens, types that no engine trains, and the line of an error in their code."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fairbed.coordinator.policy.config import ModelEngine
from fairbed.coordinator.policy.plugins import SELECTOR
from fairbed.coordinator.task.catalogue import build_task
from fairbed.coordinator.task.errors import TaskError, Unsupported
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.torch import TorchEngine
from fairbed.device_agent.local_training import make_rule
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.datasets.function import load_function
from fairbed.wire.artifact import XRange, decode_artifact, encode_artifact
from fairbed.wire.plugins import PluginError

MODELS = Path(__file__).parent / "models"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory whose modules are forgotten after the test."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "part") -> None:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")


@pytest.fixture
def cases(folder: Path) -> None:
    for name in ("mods", "my"):
        write(folder, (MODELS / f"{name}.py").read_text(encoding="utf-8"), name)


@pytest.mark.usefixtures("cases")
@pytest.mark.parametrize("engine", ["onnx", "torch", "auto"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("F64", r"a\.weight: each parameter must be float32, got float64; make it float32"),
        ("F16", r"a\.weight: each parameter must be float32, got float16; make it float32"),
        ("Lazy", r"a\.weight: .* got a lazy layer, LazyLinear; give the sizes of its inputs"),
        ("Frozen", r"a\.weight: .* got a frozen one \(requires_grad is False\); "),
        ("Unused", r"head2\.weight: the loss must depend on every parameter"),
    ],
)
def test_a_module_that_no_engine_trains_has_the_true_reason(
    name: str, reason: str, engine: ModelEngine
) -> None:
    with pytest.raises(Unsupported, match=reason):
        build_task(f"mods:{name}", (64,), 10, engine=engine)


@pytest.mark.usefixtures("cases")
def test_tied_weights_are_named_and_torch_trains_them() -> None:
    reason = "got a.weight, which is the same parameter (tied weights)"
    task = build_task("mods:Tied", (64,), 10)
    assert task.module is not None
    assert reason in task.module.reason
    assert [tensor.name for tensor in task.spec.layout.tensors if "weight" in tensor.name] == [
        "a.weight",
        "o.weight",
    ]
    self_check(TorchEngine(task))


OTHER_MODULES = {
    "complex": (
        "self.w = nn.Parameter(torch.zeros(3, dtype=torch.complex64))",
        "must be float32, got complex64",
    ),
    "bfloat16": ("self.w = nn.Linear(64, 10).bfloat16()", "must be float32, got bfloat16"),
    "meta": ("self.w = nn.Linear(64, 10, device='meta')", "must be on the CPU, got meta"),
    "alias": (
        "self.w = nn.Linear(64, 10)\n        self.v = nn.Linear(64, 10)\n"
        "        self.v.weight = nn.Parameter(self.w.weight)",
        "must have memory of its own, got that of w.weight",
    ),
    "nothing": ("pass", "the model must have parameters, got none"),
    "lazy buffer": ("self.w = nn.LazyBatchNorm1d()", "got a lazy layer, LazyBatchNorm1d"),
}


@pytest.mark.parametrize("kind", OTHER_MODULES)
def test_another_module_that_no_engine_trains_has_the_true_reason(folder: Path, kind: str) -> None:
    body, reason = OTHER_MODULES[kind]
    write(
        folder,
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n"
        f"    def __init__(self):\n        super().__init__()\n        {body}\n"
        "    def forward(self, x):\n        return x\n",
    )
    with pytest.raises(Unsupported) as caught:
        build_task("part:M", (64,), 10)
    assert reason in str(caught.value)


def test_a_module_that_computes_in_float64_is_trained_with_torch(folder: Path) -> None:
    write(
        folder,
        "from torch import nn\nclass M(nn.Linear):\n    def __init__(self, x_shape, classes):\n"
        "        super().__init__(x_shape[0], classes)\n    def forward(self, x):\n"
        "        return super().forward((x.double() * 2.0).to(x.dtype))\n",
    )
    with pytest.raises(Unsupported, match="all tensors must be float32, int64 or bool, got fl"):
        build_task("part:M", (8,), 3, engine="onnx")
    task = build_task("part:M", (8,), 3)
    assert task.module is not None
    assert "got float64" in task.module.reason


TOKENS = np.random.default_rng(0).integers(3, 101, (200, 40)).astype(np.float32)


@pytest.mark.usefixtures("cases")
def test_the_check_of_a_model_of_tokens_draws_from_the_range_of_the_data() -> None:
    task = decode_artifact(encode_artifact(build_task("my:Gru", (40,), 4, examples=TOKENS)))
    assert task.spec.selfcheck.x == XRange(low=3.0, high=100.0, is_whole=True)
    self_check(TorchEngine(task))


@pytest.mark.usefixtures("cases")
@pytest.mark.parametrize("engine", ["onnx", "torch", "auto"])
def test_without_data_the_message_names_integers_and_its_advice_works(engine: ModelEngine) -> None:
    with pytest.raises(Unsupported, match=r"model of integers \(tokens, nn\.Embedding\)") as caught:
        build_task("my:Gru", (40,), 4, engine=engine)
    assert "index out of range in self (my.py, line 41)" in str(caught.value)
    assert "build_task(..., examples=x)" in str(caught.value)
    assert build_task("my:Gru", (40,), 4, engine="torch", examples=TOKENS).module is not None


@pytest.mark.usefixtures("cases")
def test_tokens_beyond_the_rows_of_an_embedding_are_named_with_their_range() -> None:
    with pytest.raises(Unsupported, match="whole numbers from 3 to 200, got IndexError"):
        build_task("my:Gru", (40,), 4, examples=np.append(TOKENS, TOKENS[:1] * 0 + 200, axis=0))


def test_a_model_of_positive_numbers_is_checked_on_numbers_of_the_data(folder: Path) -> None:
    write(
        folder,
        "from torch import nn\nclass M(nn.Linear):\n    def __init__(self, x_shape, classes):\n"
        "        super().__init__(x_shape[0], classes)\n    def forward(self, x):\n"
        "        return super().forward(x.log())\n",
    )
    x = np.linspace(0.5, 2.0, 80, dtype=np.float32).reshape(10, 8)
    found = build_task("part:M", (8,), 3, engine="torch", examples=x).spec.selfcheck
    assert found.x == XRange(low=0.5, high=2.0, is_whole=False)
    assert 0.0 < found.loss < 10.0


def test_integer_tokens_are_refused_where_the_data_are_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens.npz"
    np.savez(file, x=TOKENS.astype(np.int64), y=np.arange(200) % 4)
    assert main(["data", "verify", str(file)]) != 0
    assert "got int64 from 3 to 100 (integers are tokens" in "".join(capsys.readouterr())
    np.savez(file, x=TOKENS.astype("float32"), y=np.arange(200) % 4)
    assert main(["data", "verify", str(file)]) == 0


HEAD = "from torch import nn\n"
FORWARD = "class M(nn.Linear):\n    def __init__(self, x_shape, classes):\n        {init}\n"
FORWARD += "        super().__init__(8, 3)\n    def forward(self, x):\n        {forward}\n"
FORWARD += "        return super().forward(x)\n"
FAULTS = {
    "import": ("import absent_package\n" + HEAD, "absent_package' (part.py, line 1)"),
    "import exits": ("import sys\nsys.exit(3)\n", "SystemExit: 3 (part.py, line 2)"),
    "syntax": ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax (part.py, line 2)"),
    "construction": (
        HEAD + FORWARD.format(init="1 / 0", forward="pass"),
        "ZeroDivisionError: division by zero (part.py, line 4)",
    ),
    "construction exits": (
        HEAD + FORWARD.format(init="raise SystemExit", forward="pass"),
        "SystemExit (part.py, line 4)",
    ),
    "forward": (
        HEAD + FORWARD.format(init="pass", forward="raise OSError('no file')"),
        "no file (part.py, line 7)",
    ),
    "forward exits": (HEAD + FORWARD.format(init="pass", forward="exit(2)"), "(part.py, line 7)"),
    "copy": (
        HEAD + FORWARD.format(init="pass", forward="pass") + "    def __deepcopy__(self, memo):\n"
        "        raise TypeError('a lock')\n",
        "TypeError: a lock (part.py, line 10)",
    ),
    "parameters": (
        HEAD
        + FORWARD.format(init="pass", forward="pass")
        + "    def named_parameters(self, *a, **k):\n        raise KeyError('w')\n",
        "KeyError: 'w' (part.py, line 10)",
    ),
}


@pytest.mark.parametrize("engine", ["onnx", "torch", "auto"])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_of_the_code_of_a_model_is_one_line_with_its_place(
    folder: Path, fault: str, engine: ModelEngine
) -> None:
    text, place = FAULTS[fault]
    write(folder, text)
    with pytest.raises(TaskError) as caught:
        build_task("part:M", (8,), 3, engine=engine)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


PLUGIN_FAULTS = {
    "import": "raise ValueError('no\\nweights')\n",
    "call": "def make(**options):\n    raise ValueError('no\\nweights')\n",
    "exit": "def make(**options):\n    raise SystemExit('no\\nweights')\n",
}


@pytest.mark.parametrize("fault", PLUGIN_FAULTS)
def test_an_error_of_a_plug_in_or_data_function_is_one_line_with_its_place(
    folder: Path, fault: str
) -> None:
    text = PLUGIN_FAULTS[fault]
    write(folder, text)
    kind = "SystemExit" if fault == "exit" else "ValueError"
    place = f"got {kind}: no weights (part.py, line {len(text.splitlines())})"
    with pytest.raises(PluginError) as selector:
        SELECTOR.make("part:make", {})
    with pytest.raises(PluginError) as rule:
        make_rule("part:make", {})
    with pytest.raises(DatasetError) as data:
        load_function(DataConfig(source="part:make"))
    for caught in (selector, rule, data):
        assert place in str(caught.value)
        assert "\n" not in str(caught.value)


def test_debug_shows_the_traceback_of_the_code_of_a_user(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, HEAD + FORWARD.format(init="1 / 0", forward="pass"))
    write(folder, (MODELS / "m.toml").read_text("utf-8").replace("mods:BN1", "part:M"), "m")
    (folder / "m.py").rename(folder / "m.toml")
    assert main(["replay", "m.toml"]) == 2
    assert capsys.readouterr().err == (
        "fairbed: model.name: part:M(x_shape, classes) must return a torch.nn.Module, got "
        "ZeroDivisionError: division by zero (part.py, line 4); correct the factory\n"
    )
    assert main(["--debug", "replay", "m.toml"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert 'part.py", line 4, in __init__\n    1 / 0\n' in shown
