"""An export is kept, and no change of a model finds an earlier one."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import torch
from torch import nn

from fairbed.coordinator.task.catalogue import build_task
from fairbed.coordinator.task.export import export_task
from fairbed.coordinator.task.kept import SUFFIX, ExportCache, Unreadable, export_key
from fairbed.coordinator.task.selfcheck import ExportFigures
from fairbed.wire.artifact import Artifact

pytestmark = pytest.mark.full

SOURCE = """
import math, os
import torch
from torch import nn
from torch.nn import functional
import kept_parts
from kept_parts import squash

SCALE = 2.0
FLAGS = {"bias": True}
WIDTH = int(os.environ.get("WIDTH_OF_TEST", "3"))

def twice(x):
    return SCALE * x

class Net(nn.Module):
    power = 1.0

    def __init__(self, x_shape=(4,), classes=3):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, classes)
        self.register_buffer("mask", torch.ones(4))
        self.act = lambda x: torch.relu(x) + self.shift
        self.shift = 0.0
        self.width = WIDTH

    def forward(self, x):
        h = self.act(twice(self.first(x))) ** self.power * self.mask
        h = squash(h) + kept_parts.shifted(h)
        return self.last(h) * math.sqrt(SCALE) if FLAGS["bias"] else self.last(h)
"""

PARTS = """
import torch
STEP = 1.0
def squash(x):
    return torch.tanh(x)
def shifted(x):
    return x + STEP
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., nn.Module]:
    """Return a function that writes the model with changes, and makes it anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("kept_net", "kept_parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def made(*changes: tuple[str, str]) -> nn.Module:
        source, parts = SOURCE, PARTS
        for old, new in changes:
            assert old in source + parts, "the change must change something"
            source, parts = source.replace(old, new), parts.replace(old, new)
        (tmp_path / "kept_parts.py").write_text(parts, encoding="utf-8")
        (tmp_path / "kept_net.py").write_text(source, encoding="utf-8")
        for name in ("kept_net", "kept_parts"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        torch.manual_seed(0)
        module: nn.Module = importlib.import_module("kept_net").Net()
        return module

    return made


def test_the_same_model_has_the_same_key(write: Callable[..., nn.Module]) -> None:
    assert export_key([write()], (4,), 3) == export_key([write()], (4,), 3)


@pytest.mark.parametrize(
    "change",
    [
        ("torch.relu(x)", "torch.sigmoid(x)"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ('"bias": True', '"bias": False'),
        ("power = 1.0", "power = 2.0"),
        ("torch.ones(4)", "torch.tensor([1.0, 0.0, 1.0, 1.0])"),
        ("self.shift = 0.0", "self.shift = 0.5"),
        ("nn.Linear(4, 4)", "nn.Linear(4, 4, bias=False)"),
        ("torch.tanh(x)", "torch.sin(x)"),
        ("STEP = 1.0", "STEP = 2.0"),
        ("math.sqrt(SCALE)", "math.exp(SCALE)"),
    ],
)
def test_a_change_of_the_source_is_another_model(
    change: tuple[str, str], write: Callable[..., nn.Module]
) -> None:
    assert export_key([write()]) != export_key([write(change)])


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_recurrent_layer_which_refers_to_its_weights_weakly_is_read(
    layer: Callable[[int, int], nn.Module],
) -> None:
    torch.manual_seed(0)
    first = layer(2, 3)
    torch.manual_seed(0)
    same, other = layer(2, 3), layer(2, 3)
    assert export_key([first]) == export_key([same]) != export_key([other])


def test_a_change_that_no_source_shows_is_another_model(
    write: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = write()
    keys = [export_key([model]), export_key([model], (4,))]
    model.shift = 0.25
    keys.append(export_key([model]))
    sys.modules["kept_net"].FLAGS["bias"] = False
    keys.append(export_key([model]))
    model.first.register_forward_hook(lambda module, args, out: out * 2.0)
    keys.append(export_key([model]))
    with torch.no_grad():
        model.mask[1] = 0.0
    keys.append(export_key([model]))
    model.first.weight.requires_grad_(False)
    keys.append(export_key([model]))
    factor = 2.0
    model.act = lambda x: x * factor
    keys.append(export_key([model]))
    factor = 3.0
    keys.append(export_key([model]))
    monkeypatch.setattr(type(model), "power", 3.0)
    keys.append(export_key([model]))
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("torch.relu(x)", 'torch.relu(x) * len(os.environ["HOME"])'), "it uses os"),
        (("return SCALE * x", "import time; return x * time.time()"), "twice imports time"),
        (("return SCALE * x", "return x * len(open('f').read())"), "twice calls open()"),
        (("return SCALE * x", "return x * torch.load('f')"), "twice may read a file by load()"),
        (("self.shift = 0.0", "self.shift = torch.Generator()"), "it has an object of type torch"),
    ],
)
def test_a_model_that_depends_on_more_is_not_kept(
    change: tuple[str, str], reason: str, write: Callable[..., nn.Module]
) -> None:
    with pytest.raises(Unreadable) as caught:
        export_key([write(change)])
    assert str(caught.value).startswith(reason)


@pytest.fixture(scope="module")
def exported() -> tuple[Artifact, ExportFigures]:
    torch.manual_seed(0)
    found = list[ExportFigures]()
    return export_task(nn.Linear(2, 2), "t", "t", (2,), 2, report=found.append), found[0]


def test_a_damaged_entry_is_exported_again(
    tmp_path: Path, exported: tuple[Artifact, ExportFigures]
) -> None:
    cache, calls = ExportCache(tmp_path), list[str]()
    model = nn.Linear(2, 2)

    def export(report: Callable[[ExportFigures], None]) -> Artifact:
        calls.append("export")
        report(exported[1])
        return exported[0]

    def get() -> Artifact:
        seen = list[ExportFigures]()
        artifact = cache.exported("m", [model], ["s"], export, seen.append)
        assert seen == [exported[1]]
        return artifact

    def damage(change: Callable[[bytes], bytes]) -> None:
        (file,) = tmp_path.glob(f"*{SUFFIX}")
        file.write_bytes(change(file.read_bytes()))

    assert get() == get() == exported[0]
    assert len(calls) == 1
    damage(lambda blob: blob[:-3] + b"?" + blob[-2:])
    assert get() == get() == exported[0]
    assert len(calls) == 2
    damage(lambda blob: blob[:40])
    assert get() == exported[0]
    assert len(calls) == 3


def test_the_cache_is_bounded(tmp_path: Path, exported: tuple[Artifact, ExportFigures]) -> None:
    def export(report: Callable[[ExportFigures], None]) -> Artifact:
        report(exported[1])
        return exported[0]

    def entries(max_bytes: int) -> int:
        for width in range(4):
            cache = ExportCache(tmp_path, max_bytes)
            cache.exported("m", [nn.Linear(2, 2)], [width], export, None)
        return len(list(tmp_path.glob(f"*{SUFFIX}")))

    assert entries(1 << 20) == 4
    size = max(file.stat().st_size for file in tmp_path.glob(f"*{SUFFIX}"))
    assert entries(2 * size) == 2


def test_a_model_by_path_is_exported_once(
    tmp_path: Path, write: Callable[..., nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "coordinator")
    cache = ExportCache(tmp_path / "cache")
    write()

    def built() -> Artifact:
        return build_task("kept_net:Net", (4,), 3, engine="onnx", kept=cache)

    first = built()
    assert built() == first
    assert [line for line in caplog.messages if "exported before" in line] == [
        f"model kept_net:Net: exported before, read from {tmp_path / 'cache'}"
    ]
    write(("torch.tanh(x)", "torch.sin(x)"))
    assert built().train != first.train
