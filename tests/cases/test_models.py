"""Modules of users: tokens, types that no engine trains, and the line of an error in their code."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: no module can be made")

import torch
from torch import nn

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.policy.config import ModelEngine
from fairbed.coordinator.policy.plugins import SELECTOR
from fairbed.coordinator.task.catalogue import build_task
from fairbed.coordinator.task.errors import TaskError, Unsupported
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.engines.torch import TorchEngine, make_module, named_tensors
from fairbed.device_agent.errors import EngineError
from fairbed.device_agent.local_training import make_rule
from fairbed.device_agent.trainer import train
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.function import load_function
from fairbed.testbed.replay.cohort.base import CohortJob
from fairbed.testbed.replay.cohort.devices import Unpaced
from fairbed.testbed.replay.cohort.functional import TorchTrainer
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.run.preflight import engine_findings
from fairbed.wire.artifact import (
    Artifact,
    XRange,
    decode_artifact,
    encode_artifact,
    initial_vector,
)
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.models import call_factory, factory_at
from fairbed.wire.plugins import PluginError
from tests.tiers import some_in_fast

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


VECTOR = {
    "F64": ["a.weight", "a.bias"],
    "Lazy": ["a.weight", "a.bias"],
    "Frozen": ["o.weight", "o.bias"],
    "Tied": ["a.weight", "a.bias", "b.bias", "o.weight", "o.bias"],
    "Unused": ["a.weight", "a.bias", "head2.weight", "head2.bias"],
}
UNUSED = (
    "head2.weight and 1 more: the loss must depend on every parameter, got one that it does not"
)


def plain_steps(name: str, task: Artifact, x: Vector, y: Ints) -> list[float]:
    """Return the losses of steps of torch's own SGD, and of one after them."""
    torch.manual_seed(0)
    model = call_factory(name, factory_at(name), (64,), 10)
    assert isinstance(model, nn.Module)
    inputs, labels, types = torch.from_numpy(x), torch.from_numpy(y), next(model.parameters()).dtype
    model(inputs.to(types))  # lazy layers
    views = task.spec.layout.views(initial_vector(task.spec, 1))
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            if label in views:
                parameter.copy_(torch.from_numpy(views[label]))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)  # also of one that is not used
    optimiser = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.5)
    losses = []
    for _ in range(4):
        optimiser.zero_grad(set_to_none=False)
        loss = torch.nn.functional.cross_entropy(model(inputs.to(types)), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.usefixtures("cases")
@pytest.mark.parametrize("name", some_in_fast(VECTOR, "Frozen", "Tied"))
def test_all_engines_take_the_steps_of_plain_torch(name: str) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((24, 64)).astype(np.float32), rng.integers(0, 10, 24)
    h = Hyperparameters(epochs=3, batch_size=24, learning_rate=0.1, momentum=0.9, weight_decay=0.5)
    found = {}
    for chosen in ("onnx", "torch"):
        task = decode_artifact(
            encode_artifact(build_task(f"mods:{name}", (64,), 10, engine=chosen))
        )
        assert [tensor.name for tensor in task.spec.layout.tensors] == VECTOR[name]
        assert any(UNUSED in remark for remark in task.remarks) is (name == "Unused")
        right = plain_steps(f"mods:{name}", task, x, y)
        engine = open_own_engine(task)
        self_check(engine)
        result = train(engine, initial_vector(task.spec, 1), x, y, h, 0, Unpaced(), lambda: False)
        assert engine.gradient(result.vector, x, y)[0] == pytest.approx(right[3], rel=2e-5)
        found[chosen] = result.vector
    np.testing.assert_allclose(found["onnx"], found["torch"], rtol=2e-4, atol=2e-6)
    assert isinstance(engine, TorchEngine)
    kept = {tensor.name for tensor in task.spec.layout.tensors}
    for label, parameter in make_module(task).named_parameters():
        now = named_tensors(engine._module)[label]
        assert bool((now == parameter).all()) is (label not in kept)
    dataset = Dataset(name="drawn", x=x, y=y, classes=10, description="", source="", origin="own")
    rows: tuple[Ints, ...] = (np.arange(24),)
    shards = Shards(SimpleNamespace(dataset=dataset, train_rows=rows), (64,))
    vectorised = TorchTrainer(make_module(task), task.spec, shards)
    [answer] = vectorised.train(initial_vector(task.spec, 1), [CohortJob(device=0, seed=0)], h)
    np.testing.assert_allclose(answer.vectors[0], result.vector, rtol=2e-4, atol=2e-6)


@pytest.mark.usefixtures("cases")
def test_a_device_takes_the_values_of_frozen_layers_from_the_task() -> None:
    task = build_task("mods:Frozen", (64,), 10, engine="torch")
    values = np.full(64 * 32, 0.25, "<f4")
    task = msgspec.structs.replace(task, fixed=task.fixed | {"a.weight": values.tobytes()})
    module = make_module(decode_artifact(encode_artifact(task)))
    assert bool((named_tensors(module)["a.weight"] == 0.25).all())
    short = msgspec.structs.replace(task, fixed={"a.weight": b"1234"})
    with pytest.raises(EngineError, match=r"got torch\.float32 \(32, 64\) for a\.weight"):
        make_module(short)


@pytest.mark.usefixtures("cases")
@pytest.mark.parametrize("name", ["Frozen", pytest.param("part:M", marks=pytest.mark.full)])
def test_a_replay_prints_the_reason_and_repeats_its_bits(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, net(forward="return torch.rrelu(self.a(x.flatten(1)), 0.1, 0.3, self.training)"))
    text = (MODELS / "m.toml").read_text("utf-8")
    text = text.replace("mods:BN1", name if ":" in name else f"mods:{name}")
    (folder / "m.toml").write_text(text.replace("part:M", "part:N"), encoding="utf-8")
    with (folder / "part.py").open("a", encoding="utf-8") as file:
        file.write("def N(x_shape, classes):\n    return M((64,), classes)\n")
    for out in ("one", "two"):
        assert main(["replay", "m.toml", "--out", out, "--json"]) == 0
        shown = capsys.readouterr().err
        refused = "aten.rrelu_with_noise_functional.default must have a rule, got none"
        assert (refused in shown) is (name == "part:M")
        assert ("devices train this model with torch" in shown) is (name == "part:M")
    first, second = (
        [file.read_bytes() for file in sorted((folder / out).rglob("*.safetensors"))]
        for out in ("one", "two")
    )
    assert first
    assert first == second


OTHER_MODULES = {
    "complex": (
        "self.w = nn.Parameter(torch.zeros(3, dtype=torch.complex64))",
        "must be float32, got complex64",
    ),
    "meta": ("self.w = nn.Linear(64, 10, device='meta')", "must be on the CPU, got meta"),
    "alias": (
        "self.w = nn.Linear(64, 10)\n        self.v = nn.Linear(64, 10)\n"
        "        self.v.weight = nn.Parameter(self.w.weight)",
        "must have memory of its own, got that of w.weight",
    ),
    "buffer": (
        "self.w = nn.Linear(64, 10)\n        self.register_buffer('v', self.w.weight.data)",
        "v: each parameter must have memory of its own, got that of w.weight",
    ),
    "nothing": ("pass", "the model must have parameters that are trained, got none"),
    "all frozen": (
        "self.w = nn.Linear(64, 10).requires_grad_(False)",
        "must have parameters that are trained, got 2 frozen ones",
    ),
    "lazy buffer": ("self.w = nn.LazyBatchNorm1d()", "got one that part:M-64-10 does not use"),
    "empty": ("self.w = nn.Parameter(torch.empty(0, 3))", "must have values, got the shape (0, 3)"),
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
    self_check(open_own_engine(task))


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


def test_integer_tokens_are_described_where_the_data_are_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens.npz"
    np.savez(file, x=TOKENS.astype(np.int64), y=np.arange(200) % 4)
    assert main(["data", "verify", str(file)]) == 0
    shown = capsys.readouterr().out
    assert f"of {int(TOKENS.max()) + 1} tokens, 4 classes" in shown
    assert "tokens: " in shown
    assert "0.0% padding (token 0)" in shown
    np.savez(file, x=TOKENS.astype(np.int64), y=np.where(TOKENS > 50, TOKENS % 3, -1).astype(int))
    assert main(["data", "verify", str(file)]) == 0
    shown = capsys.readouterr().out
    assert f"targets: shape (40,) per example; {(TOKENS > 50).mean():.1%} of the" in shown
    assert "classes by position: 0 " in shown


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


def net(init: str = "pass", forward: str = "return self.a(x)", more: str = "") -> str:
    """Return a module with one linear layer and these lines."""
    lines = [
        "import random, sys, threading, time",
        "import numpy",
        "import torch",
        "from torch import nn",
    ]
    lines += ["class M(nn.Module):", "    def __init__(self, x_shape, classes):"]
    lines += ["        super().__init__()", "        self.a = nn.Linear(x_shape[0], classes)"]
    lines += [f"        {line}" for line in init.splitlines()] + ["    def forward(self, x):"]
    lines += [f"        {line}" for line in forward.splitlines()]
    return "\n".join([*lines, *(f"    {line}" for line in more.splitlines())]) + "\n"


def made(body: str) -> str:
    """Return a factory of the module above."""
    return net() + f"Base = M\n{body}\n"


BUFFER = "self.register_buffer('b', {})"
ON_BUFFER = "return self.a(x * self.b)"
EMBED = "self.e = nn.Embedding(10, 4{})\nself.a = nn.Linear(32, classes)"
TOKEN = "return self.a(self.e(x.abs().clamp(0, 9).long()).flatten(1))"

REFUSED = {
    "integer x": (
        net(EMBED.format(""), "return self.a(self.e(x).flatten(1))"),
        "for B = 5; tokens are whole numbers in float32, so let forward() call x.long()",
    ),
    "two inputs": (
        net().replace("forward(self, x)", "forward(self, x, mask)"),
        "missing 1 required positional argument: 'mask' for B = 5; correct the module",
    ),
    "a tuple": (net(forward="return self.a(x), x"), "with a row per example, got tuple for B = 5"),
    "a dict": (net(forward="return {'y': self.a(x)}"), "got dict for B = 5"),
    "nothing": (net(forward="self.a(x)"), "got NoneType for B = 5"),
    "a scalar": (net(forward="return self.a(x).sum()"), "got float32 () for B = 5"),
    "one row": (net(forward="return self.a(x)[0]"), "got float32 (3,) for B = 5"),
    "a class": (net(forward="return self.a(x).argmax(1)"), "got int64 (5,) for B = 5"),
    "complex": (net(forward="return self.a(x).to(torch.complex64)"), "got complex64 (5, 3)"),
    "another width": (
        net("self.a = nn.Linear(8, classes + 1)"),
        "must return logits of shape (B, 3), got (B, 4); change its last layer",
    ),
    "one more axis": (net(forward="return self.a(x)[:, :, None]"), "got (B, 3, 1)"),
    "a fixed batch": (
        net(forward="return self.a(x.reshape(5, 8))"),
        "got RuntimeError: shape '[5, 8]' is invalid for input of size 24 (part.py, line 11) for B",
    ),
    "no gradient": (net(forward="return self.a(x).detach()"), "got one without a gradient"),
    "an argument": (
        net().replace("classes)", "classes, width)"),
        "no arguments but x_shape and cl",
    ),
    "a hook that fails": (
        net("self.a.register_forward_hook(lambda m, i, o: 1 / 0)"),
        "ZeroDivisionError: division by zero (part.py, line 9)",
    ),
    "a gradient hook that fails": (
        net("self.a.register_full_backward_hook(lambda m, i, o: o + 1)"),
        "torch must be able to train the model, got",
    ),
    "a hook of a parameter": (
        net("self.a.weight.register_hook(lambda g: g * 0.5)"),
        "a.weight: a parameter must have no hook on its gradient, got one of register_hook()",
    ),
    "recursion": (net(forward="return self.forward(x)"), "got RecursionError: maximum recursion"),
    "recursion of construction": (net("M(x_shape, classes)"), "got RecursionError"),
    "a lock": (net("self.l = threading.Lock()"), "TypeError: cannot pickle '_thread.lock' object"),
    "numpy's random numbers": (
        net(forward="return self.a(x) * float(numpy.random.rand())"),
        "two equal steps must have the same loss, got",
    ),
    "random numbers in evaluation": (
        net(forward="return self.a(x + torch.randn_like(x))"),
        "draw random numbers with torch, in training mode alone",
    ),
    "a count of its calls": (
        net("self.k = 0", "self.k += 1\nreturn self.a(x) * self.k"),
        "keep what changes from step to step in buffers",
    ),
    "random sizes": (
        net("self.c = nn.Linear(8, int(torch.randint(2, 99, ())))", "return self.a(x)"),
        "two calls must make the same tensors, got c.",
    ),
    "complex parameters": (
        net("self.w = nn.Parameter(torch.ones(8, dtype=torch.complex64))"),
        "w: each parameter must be float32, got complex64",
    ),
    "nan parameters": (
        net("self.w = nn.Parameter(torch.full((8,), torch.nan))"),
        "w: start values must be finite and at most 1e+06, got nan",
    ),
    "no finite loss": (
        net("self.w = nn.Parameter(torch.ones(8))", "return self.a(x * self.w.sqrt())"),
        "loss and gradient must be finite at x of normal numbers and at random parameters, got nan",
    ),
    "a frozen layer that changes": (
        net(
            "self.f = nn.Linear(8, 8).requires_grad_(False)",
            "self.f.weight.mul_(0.9)\nreturn self.a(self.f(x))",
        ),
        "f.weight: a frozen parameter must keep its value, got one that a training step changes",
    ),
    "a parameter that changes": (
        net(forward="with torch.no_grad(): self.a.weight.clamp_(-0.1, 0.1)\nreturn self.a(x)"),
        "a.weight: a parameter must keep its value in forward(), got one that it changes; compute",
    ),
    "the data of a parameter": (
        net(forward="self.a.weight.data = self.a.weight.data / 2\nreturn self.a(x)"),
        "a.weight: a parameter must keep its value in forward(), got one that it changes; compute",
    ),
    "a value changed in place": (
        net(forward="y = self.a(x).sigmoid()\ny *= 2\nreturn y"),
        "forward() must not change in place a value that a gradient needs, got the output of "
        "Sigmoid; write y = y * 2 for y *= 2",
    ),
    "trained statistics": (
        net(
            "self.n = nn.BatchNorm1d(8)\nself.n.running_mean.fill_(0.3)",
            "return self.a(self.n(x))",
        ),
        "n.running_mean: a buffer that training changes must start at all 0 or all 1, got others",
    ),
    "a lazy layer of training alone": (
        net("self.l = nn.LazyLinear(3)", "return self.l(x) if self.training else self.a(x)"),
        "l.weight: a lazy layer must be used in evaluation mode, in which it gets its sizes",
    ),
    "a lazy layer after a check": (
        net("self.l = nn.LazyLinear(3)", "assert x.any()\nreturn self.l(self.a(x))"),
        "the model must accept them, got AssertionError (part.py, line 11)",
    ),
    "a script": (
        made("def M(x_shape, classes):\n    return torch.jit.script(Base(x_shape, classes))"),
        "must be a module of Python, got one of torch.jit; return the module without torch.jit",
    ),
    "no forward": (net().replace("forward", "backward"), 'missing the required "forward" function'),
    "no super": (net().replace("super().__init__()", "pass"), "before Module.__init__() call"),
    "a generator": (
        made("def M(x_shape, classes):\n    yield Base(x_shape, classes)"),
        "generator;",
    ),
    "no module": ("class M:\n    def __init__(self, x_shape, classes): pass\n", "got M; correct"),
    "an instance": (made("M = Base((8,), 3)"), "got a module, a M; name its class"),
    "a class of layers": (made("def M(x_shape, classes):\n    return Base"), "got type; correct"),
    "a number": ("M = 3\n", "must name a factory in the module part, got int"),
    "no such name": ("N = 3\n", "must name a factory in the module part, got no such name"),
    "an exit of the import": ("import sys\nsys.exit(0)\n", "got SystemExit: 0 (part.py, line 2)"),
    "an absent package": ("import absent_one\n", "No module named 'absent_one' (part.py, line 1)"),
    "a wrong syntax": ("class M(:\n", "got SyntaxError: invalid syntax (part.py, line 1)"),
    "tabs": ("class M:\n\tx = 1\n        y = 2\n", "got TabError: inconsistent use of tabs"),
    "a base exception": (
        net("class S(BaseException): pass\nraise S('x')"),
        "S: x (part.py, line 10)",
    ),
    "colours": (
        net("raise ValueError('a\\n\\x1b[31mred')"),
        "ValueError: a ?[31mred (part.py, line 9)",
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_a_module_that_cannot_be_trained_has_one_true_line(folder: Path, kind: str) -> None:
    text, reason = REFUSED[kind]
    write(folder, text)
    with pytest.raises(TaskError) as caught:  # the exporter refuses first, and then torch
        build_task("part:M", (8,), 3, engine="auto")
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()
    assert "internal error" not in str(caught.value)


def test_a_mask_that_covers_all_tokens_has_one_true_line(folder: Path) -> None:
    layers = "self.e = nn.Embedding(20, 8)\nself.m = nn.MultiheadAttention(8, 1, batch_first=True)"
    covered = "h = self.e(x)\nh, _ = self.m(h, h, h, key_padding_mask=x >= 0)\n"
    text = net(layers, f"{covered}return self.a(h.mean(1))")
    write(folder, text.replace("x_shape[0], classes", "8, classes"))
    with pytest.raises(Unsupported) as caught:
        build_task("part:M", (6,), 3, x_classes=20)
    assert str(caught.value).endswith(
        "in int64, got an output that is not finite; let masks of attention leave a token that is "
        "not padding, and divide by no zero"
    )


def test_an_example_of_padding_alone_that_a_mask_covers_has_one_true_line(folder: Path) -> None:
    layers = "self.e = nn.Embedding(20, 8)\nself.m = nn.MultiheadAttention(8, 1, batch_first=True)"
    covered = "h = self.e(x)\nh, _ = self.m(h, h, h, key_padding_mask=x == 0)\n"
    text = net(layers, f"{covered}return self.a(h.mean(1))")
    write(folder, text.replace("x_shape[0], classes", "8, classes"))
    x = np.ones((4, 6), np.int64)
    x[2] = 0
    with pytest.raises(Unsupported) as caught:
        build_task("part:M", (6,), 3, x_classes=20, examples=x)
    assert str(caught.value).endswith(
        "the model must accept padding alone (token 0), as row 2 of the data is, got an output "
        "that is not finite; leave such examples out, or let masks of attention leave a token"
    )


UNEQUAL = "two equal steps must have the same loss, got"
NOT_RECORDED = {
    "a branch": (
        net(forward="return self.a(x) if x.sum() > 0 else self.a(-x)"),
        "got a branch, a loop or a size that depends on values (part.py, line 11); use torch.where",
    ),
    "a loop": (
        net(forward="for _ in range(int(x.sum())): x = x * 2\nreturn self.a(x)"),
        "got a branch, a loop or a size that depends on values (part.py, line 11); use torch.where",
    ),
    "a number": (
        net(forward="return self.a(x * x.max().item())"),
        "model: aten._local_scalar_dense.default must not occur, got a number of Python",
    ),
    "rows by value": (
        net(forward="return self.a(x) + x[x > 0].sum()"),
        "model: aten.index.Tensor must have integers as indices, got booleans; use other layers",
    ),
    "x in place": (
        net(forward="x.mul_(2)\nreturn self.a(x)"),
        "x: an evaluation must change nothing, got an input that it changes; let forward() leave",
    ),
    "a part of x in place": (
        net(forward="x[:, 0] = 0\nreturn self.a(x)"),
        "x: an evaluation must change nothing, got an input that it changes; let forward() leave",
    ),
    "numpy's random numbers": (
        net(forward="return self.a(x) * float(numpy.random.rand())"),
        UNEQUAL,
    ),
    "Python's random numbers": (net(forward="return self.a(x) * random.random()"), UNEQUAL),
    "a count of its calls": (net("self.k = 0", "self.k += 1\nreturn self.a(x) * self.k"), UNEQUAL),
    "random numbers in evaluation": (
        net(forward="return self.a(x + torch.randn_like(x))"),
        "model: aten.randn_like.default must have a rule, got none",
    ),
    "a mask in evaluation": (
        net(forward="return self.a(x * (torch.rand_like(x) < 0.5))"),
        "model: aten.rand_like.default must be a random mask of training with a row per example",
    ),
    "numpy": (
        net(forward="return self.a(torch.from_numpy(x.numpy() * 2))"),
        "torch must be able to record the model, got: .numpy() is not supported",
    ),
    "the size of a batch": (
        net(forward="return self.a(x) + torch.arange(len(x))[:, None]"),
        "the model must accept batches of any size, got a size that it makes an integer",
    ),
    "too many operations": (
        net(forward="for _ in range(40): x = torch.sin(x)\nreturn self.a(x)"),
        "a recording of the model must have at most 40 operations, got more in forward() alone; us",
    ),
}


@pytest.mark.parametrize("kind", some_in_fast(NOT_RECORDED, "a branch", "too many operations"))
def test_a_module_that_no_graph_expresses_has_one_true_line(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, reason = NOT_RECORDED[kind]
    if kind == "too many operations":
        monkeypatch.setattr("fairbed.coordinator.task.lowering.MOST_NODES", 40)
    write(folder, text)
    with pytest.raises(TaskError) as caught:
        build_task("part:M", (8,), 3, engine="onnx")
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()
    assert str(caught.value).endswith('or model.engine = "auto" with torch on the devices')


CONSTANT = BUFFER.format("torch.linspace(1, 2, 8)")
TRAINED = {
    "int buffer": (net(BUFFER.format("torch.arange(8)"), ON_BUFFER), "onnx"),
    "bool buffer": (net(BUFFER.format("torch.rand(8) > 0.5"), ON_BUFFER), "onnx"),
    "float mask": (net(BUFFER.format("torch.eye(8)[0]"), ON_BUFFER), "onnx"),
    "constant buffer": (net(CONSTANT, ON_BUFFER), "onnx"),
    "infinite buffer": (
        net(BUFFER.format("torch.full((8,), -torch.inf)"), "return self.a(x.maximum(self.b))"),
        "onnx",
    ),
    "float64 buffer": (
        net(
            BUFFER.format("torch.linspace(1, 2, 8).double()"), "return self.a((x * self.b).float())"
        ),
        "onnx",
    ),
    "complex buffer": (
        net(BUFFER.format("torch.ones(8) * 1j"), "return self.a((x * self.b).imag)"),
        "torch",
    ),
    "normalised weights": (
        net("self.a = torch.nn.utils.parametrizations.spectral_norm(self.a)"),
        "onnx",
    ),
    "transposed": (
        net("self.w = nn.Parameter(torch.randn(3, 8).t())", "return x @ self.w + self.a(x)"),
        "onnx",
    ),
    "expanded": (
        net("self.w = nn.Parameter(torch.ones(1).expand(8))", "return self.a(x * self.w)"),
        "onnx",
    ),
    "sparse gradients": (net(EMBED.format(", sparse=True"), TOKEN), "torch"),
    "float64 output": (net(forward="return self.a(x).double()"), "torch"),
    "short integers": (
        net(BUFFER.format("torch.arange(8, dtype=torch.int16)"), ON_BUFFER),
        "onnx",
    ),
    "a frozen layer of float16": (
        net(
            "self.f = nn.Linear(8, 8).half().requires_grad_(False)",
            "return self.a(self.f(x.half()).float())",
        ),
        "onnx",
    ),
    "frozen statistics": (
        net(
            "self.n = nn.BatchNorm1d(8).requires_grad_(False)\nself.n.running_mean.fill_(0.3)",
            "return self.a(self.n(x))",
            "def train(self, on=True):\n    super().train(on)\n    self.n.eval()\n    return self",
        ),
        "onnx",
    ),
    "nan at zero": (net(forward="return self.a(x / x.abs().sum(1, keepdim=True))"), "onnx"),
    "x in place": (net(forward="x.mul_(2)\nreturn self.a(x)"), "torch"),
    "a branch on x": (net(forward="return self.a(x) if x.sum() > 0 else self.a(-x)"), "torch"),
    "numpy": (net(forward="return self.a(torch.from_numpy(x.numpy() * 2))"), "torch"),
    "hooks": (net("self.a.register_forward_hook(lambda m, i, o: 2 * o)"), "onnx"),
    "several kinds": (
        net(
            "self.l = nn.LazyLinear(8)\nself.c = nn.Linear(8, 8)\nself.d = nn.Linear(8, 8)\n"
            "self.d.weight = self.c.weight\nself.c.bias.requires_grad_(False)",
            "return self.a(self.d(self.c(self.l(x))))",
        )
        + "Base = M\ndef M(x_shape, classes):\n    return Base(x_shape, classes).double()\n",
        "onnx",
    ),
}


@pytest.mark.parametrize("kind", some_in_fast(TRAINED, "transposed", "several kinds"))
def test_a_module_of_another_kind_trains_as_torch_does(folder: Path, kind: str) -> None:
    text, engine = TRAINED[kind]
    write(folder, text)
    task = decode_artifact(encode_artifact(build_task("part:M", (8,), 3)))
    assert task.engine == engine
    opened = open_own_engine(task)
    self_check(opened)
    rng, vector = np.random.default_rng(3), initial_vector(task.spec, 1)
    x, y = rng.standard_normal((24, 8)).astype(np.float32), rng.integers(0, 3, 24)
    torch.manual_seed(0)
    model = call_factory("part:M", factory_at("part:M"), (8,), 3)
    assert isinstance(model, nn.Module)
    shown = torch.from_numpy(x).to(next(model.parameters()).dtype)
    with torch.no_grad():
        model.eval()(shown.clone())
        tensors = named_tensors(model)
        for label, values in task.spec.layout.views(vector).items():
            tensors[label].data = torch.from_numpy(values.copy()).to(tensors[label].dtype)
    loss = torch.nn.functional.cross_entropy(model.train()(shown.clone()), torch.from_numpy(y))
    assert opened.gradient(vector, x, y)[0] == pytest.approx(loss.item(), rel=1e-5)
    h = Hyperparameters(epochs=20, batch_size=24, learning_rate=0.05)
    result = train(opened, vector, x, y, h, 0, Unpaced(), lambda: False)
    assert opened.evaluate(result.vector, x, y)[0] < opened.evaluate(vector, x, y)[0]


HALF = "self.a = self.a.{}()"
MIXED = "self.f = nn.Linear(8, 8).half()\nself.g = nn.Linear(8, 8).bfloat16()\nself.a.double()"
CASTS = {
    "half": (
        net(HALF.format("half"), "return self.a(x.half()).float()"),
        "a.weight and 1 more: each float of the model must be float32, got float16; all of its",
    ),
    "a type as an argument": (
        net(HALF.format("bfloat16"), "return self.a(x.to(dtype=torch.bfloat16))"),
        "a.weight and 1 more: each float of the model must be float32, got bfloat16",
    ),
    "mixed": (
        net(MIXED, "return self.a(self.g(self.f(x.half()).type(torch.bfloat16)).double())"),
        "a.weight and 5 more: each float of the model must be float32, got float64",
    ),
    "statistics": (
        net("self.n = nn.BatchNorm1d(8).half()", "return self.a(self.n(x.half()).float())"),
        "n.weight and 3 more: each float of the model must be float32, got float16",
    ),
    "a constant": (
        net(
            "self.k = torch.linspace(1, 2, 8).double()\nself.a.double()",
            "return self.a(x.double() * self.k)",
        ),
        "a.weight and 1 more: each float of the model must be float32, got float64",
    ),
}


@pytest.mark.parametrize("kind", some_in_fast(CASTS, "mixed"))
def test_floats_of_another_type_are_cast_alike_for_both_engines(folder: Path, kind: str) -> None:
    text, line = CASTS[kind]
    write(folder, text)
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((24, 8)).astype(np.float32), rng.integers(0, 3, 24)
    found = []
    for name in ("onnx", "torch"):
        task = decode_artifact(encode_artifact(build_task("part:M", (8,), 3, engine=name)))
        assert [remark[: len(line)] for remark in task.remarks] == [line]
        engine = open_own_engine(task)
        self_check(engine)
        vector = initial_vector(task.spec, 1)
        for _ in range(3):
            loss, gradient = engine.gradient(vector, x, y)
            vector[: len(gradient)] -= np.float32(0.1) * gradient
        found.append((task.spec.layout, loss, vector))
    (layout, loss, vector), (right_layout, right_loss, right) = found
    assert layout == right_layout
    assert loss == pytest.approx(right_loss, rel=1e-5)
    np.testing.assert_allclose(vector, right, rtol=1e-4, atol=1e-6)


STARTS = {
    "nn.PReLU()": ("constant", 0.25),
    "nn.Parameter(torch.full((3,), -1e-4))": ("constant", -1e-4),
    "nn.Parameter(torch.zeros(3))": ("zeros", None),
    "nn.Parameter(torch.rand(3))": ("uniform", None),
    "nn.Parameter(torch.rand(()))": ("uniform", None),
}


@pytest.mark.parametrize("part", STARTS)
def test_equal_values_that_a_module_sets_are_the_start(folder: Path, part: str) -> None:
    factor = "w.weight" if "PReLU" in part else "w"
    write(folder, net(f"self.w = {part}", f"return self.a(x) * self.{factor}.sum()"))
    task = build_task("part:M", (8,), 3, engine="torch")
    tensor = next(t for t in task.spec.layout.tensors if t.name == factor)
    kind, value = STARTS[part]
    assert tensor.init == kind
    if value is not None:
        start = task.spec.layout.views(initial_vector(task.spec, 5))[factor]
        assert start == pytest.approx(value)


REMARKS = {
    "trained": (
        net("self.a.weight.data = torch.linspace(0, 1, 24).view(3, 8)"),
        ["a.weight: training must start from random values, which seeds.init draws, got values"],
    ),
    "a count": (
        net(BUFFER.format("torch.tensor(0)"), "self.b += 1\nreturn self.a(x)"),
        ["b: a buffer that is no float must keep its value, got one that training changes"],
    ),
    "statistics": (net("self.n = nn.BatchNorm1d(8)", "return self.a(self.n(x))"), []),
    "mean statistics": (
        net("self.n = nn.BatchNorm1d(8, momentum=None)", "return self.a(self.n(x))"),
        ["n.num_batches_tracked: a buffer that is no float must keep its value"],
    ),
}


@pytest.mark.parametrize("kind", some_in_fast(REMARKS, "statistics"))
def test_what_a_run_does_otherwise_than_the_module_is_a_line(folder: Path, kind: str) -> None:
    text, lines = REMARKS[kind]
    write(folder, text)
    task = build_task("part:M", (8,), 3)
    found = [finding.text for finding in engine_findings(task) if finding.kind == "model"]
    assert len(found) == len(lines)
    assert all(line in text for line, text in zip(lines, found, strict=True))
