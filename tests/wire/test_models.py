import re
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from fairbed.wire import plugins
from fairbed.wire.models import GROUP, call_factory, factory_at, path_of
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
