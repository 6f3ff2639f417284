import hashlib
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fairbed.wire import plugins
from fairbed.wire.artifact import ModuleSource
from fairbed.wire.models import (
    GROUP,
    call_factory,
    factory_at,
    path_of,
    source_hash,
    sourced_factory,
)
from fairbed.wire.plugins import PluginError, Registered

SHAPE, CLASSES = (1, 8, 8), 10


class Plain:
    def __init__(self, hidden: int = 32) -> None:
        self.got = hidden


class Inherits(Plain):
    pass


class Sized:
    def __init__(self, *, classes: int, x_shape: tuple[int, ...], hidden: int = 32) -> None:
        self.got = (x_shape, classes)


class Torchvision:
    def __init__(self, num_classes: int = 1000, **more: Any) -> None:
        self.got = num_classes


class PassesOn:
    """As a module without a constructor of its own: that of torch takes anything."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.got = arguments


class Wide:
    def __init__(self, inputs: int, outputs: int) -> None:
        self.got = (inputs, outputs)


class Module:
    def named_parameters(self) -> None: ...

    def __call__(self) -> None: ...


def by_position(shape: tuple[int, ...], n: int) -> Any:
    return shape, n


def anything(*arguments: Any) -> Any:
    return arguments


def nothing() -> Any:
    return ()


def fails(x_shape: tuple[int, ...]) -> Any:
    raise RuntimeError("no\nsuch layer")


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (Plain, 32),
        (Inherits, 32),
        (Sized, (SHAPE, CLASSES)),
        (Torchvision, CLASSES),
        (by_position, (SHAPE, CLASSES)),
        (anything, (SHAPE, CLASSES)),
        (nothing, ()),
        (lambda classes: classes, CLASSES),
        (lambda classes, *more: (classes, *more), (CLASSES,)),
        (PassesOn, ()),
    ],
)
def test_a_factory_gets_the_arguments_that_it_has(make: Any, got: object) -> None:
    made = call_factory("my.mod:make", make, SHAPE, CLASSES)
    assert getattr(made, "got", made) == got


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Wide, "my.mod:make must need no arguments but x_shape and classes, got 'inputs'; give"),
        (lambda a, classes: a, "must need no arguments but x_shape and classes, got 'a'; give it"),
        (lambda *, a, b: a, "must need no arguments but x_shape and classes, got 'a'"),
        (lambda a, b, c: a, "must need no arguments but x_shape and classes, got 'a'"),
        (Module(), "must be a class or a function that makes a module, got a module, a Module;"),
        (range, "my.mod:make(x_shape, classes) must return a torch.nn.Module, got TypeError"),
        (fails, "my.mod:make(x_shape) must return a torch.nn.Module, got RuntimeError: no such l"),
    ],
)
def test_refuses_another_factory_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(PluginError, match=re.escape(message)) as raised:
        call_factory("my.mod:make", make, SHAPE, CLASSES)
    assert "\n" not in str(raised.value)


def test_a_registered_model_has_a_path_if_other_processes_can_import_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def local() -> None: ...

    names = {"plain": Registered(Plain), "local": Registered(local)}
    monkeypatch.setattr(plugins, "_registered", {GROUP: names})
    assert path_of("plain") == f"{__name__}:Plain"
    assert factory_at(path_of("plain")) is Plain
    assert path_of("local") == "local"
    assert factory_at("local") is local
    assert path_of("softmax") == "softmax"
    assert path_of("my.mod:Net") == "my.mod:Net"


def test_an_installed_model_has_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", "their.mod:Net", GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    assert path_of("theirs") == "their.mod:Net"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of a user, who has modules in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


def test_a_module_in_the_working_directory_is_read_anew_when_its_file_changes(folder: Path) -> None:
    file = folder / "own_first.py"
    file.write_text("def make():\n    return 1\n")
    first = file.stat()
    assert factory_at("own_first:make")() == 1
    assert factory_at("own_first:make")() == 1
    file.write_text("def make():\n    return 2\n")
    os.utime(file, ns=(first.st_atime_ns, first.st_mtime_ns))  # as after a quick edit
    assert factory_at("own_first:make")() == 2


def test_a_device_makes_the_module_of_the_same_source_alone(folder: Path) -> None:
    source = b"def make():\n    return 1\n"
    (folder / "own_shared.py").write_bytes(source)
    path, sha256 = "own_shared:make", hashlib.sha256(source).digest()
    assert source_hash(path) == sha256
    assert sourced_factory(ModuleSource(path=path, sha256=sha256))() == 1
    message = (
        f"model {path}: the source of own_shared must be that of the coordinator (sha256 "
        f"{'00' * 6}), got {sha256.hex()[:12]} in {folder / 'own_shared.py'}; copy"
    )
    with pytest.raises(PluginError, match=re.escape(message)):
        sourced_factory(ModuleSource(path=path, sha256=bytes(32)))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_none:Net", "must name an importable module, got none named 'own_none'; correct"),
        ("own_none.inner:Net", "must name an importable module, got none named 'own_none.inner'"),
        (
            "own_faulty:Net",
            "got ZeroDivisionError: division by zero (own_faulty.py, line 1);",
        ),
        (
            "own_faulty.inner:Net",
            "got ZeroDivisionError: division by zero (own_faulty.py, line 1)",
        ),
        ("own_needs:Net", "must be importable, got ModuleNotFoundError: No module named"),
        ("own_good:Net", "must name a factory in the module own_good, got no such name; correct"),
        ("own_good:SIZE", "must name a factory in the module own_good, got int; correct"),
    ],
)
def test_a_module_that_is_no_use_is_one_line(folder: Path, path: str, message: str) -> None:
    (folder / "own_faulty.py").write_text("1 / 0\n")
    (folder / "own_needs.py").write_text("import own_absent\n")
    (folder / "own_good.py").write_text("SIZE = 3\n")
    with pytest.raises(PluginError, match=re.escape(message)) as raised:
        factory_at(path)
    assert "\n" not in str(raised.value)


def test_a_module_without_a_file_has_no_hash() -> None:
    with pytest.raises(PluginError, match="sys:Net must be in a Python file, got a module without"):
        source_hash("sys:Net")
