"""Models of the user by path, `package.module:factory`; coordinator and devices make them alike.

A factory is a subclass of `torch.nn.Module`, or a function that returns a module. It may take the
shape of an example and the number of classes. This module does not import torch: it returns
whatever the factory makes.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType

from fairbed.wire.plugins import PluginError


def factory_at(path: str) -> Callable[..., object]:
    """Return the factory that a path names.

    Raises:
        PluginError: The module cannot be imported, or has no such factory.
    """
    package, _, name = path.partition(":")
    return _factory_in(_imported(package, path), path, name)


X_SHAPE, CLASSES = "x_shape", ("classes", "num_classes")
"""Arguments of a factory by name: the shape of an example, and the number of classes."""


def call_factory(
    path: str, make: Callable[..., object], x_shape: tuple[int, ...], classes: int
) -> object:
    """Return what a factory makes.

    It is called with the arguments `x_shape` and `classes` (or `num_classes`) that it has, in any
    order; without arguments if it has neither and needs none; a function that needs two arguments
    of other names is called with both by position.

    Args:
        path: Its path, for messages.
        make: The factory.
        x_shape: Shape of an example.
        classes: Number of classes.

    Raises:
        PluginError: The factory needs another argument, or raises.
    """
    positional, named = _arguments(path, make, x_shape, classes)
    shown = ", ".join([X_SHAPE, CLASSES[0]] if positional else named)
    try:
        return make(*positional, **named)
    except Exception as exc:  # the user's code may raise anything
        raise PluginError(
            f"model.name: {path}({shown}) must return a torch.nn.Module, got "
            f"{type(exc).__name__}: {_line(exc)}; correct the factory"
        ) from exc


def _arguments(
    path: str, make: Callable[..., object], x_shape: tuple[int, ...], classes: int
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the positional arguments of a call of a factory, and those by name."""
    if hasattr(make, "named_parameters") and not isinstance(make, type):
        raise PluginError(
            f"model.name: {path} must be a class or a function that makes a module, got a module, "
            f"a {type(make).__name__}; name its class, or write a function that returns it"
        )
    both = (x_shape, classes)
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # a built-in one has none that Python can read
        return both, {}
    given = {X_SHAPE: x_shape, **dict.fromkeys(CLASSES, classes)}
    named = {
        parameter.name: given[parameter.name]
        for parameter in parameters
        if parameter.name in given and parameter.kind is not parameter.POSITIONAL_ONLY
    }
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.name not in named
        and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if not needed:
        return (), named
    is_pair = len(needed) == 2 and not any(p.kind is p.KEYWORD_ONLY for p in needed)
    takes_any = needed[0].kind is inspect.Parameter.VAR_POSITIONAL and len(needed) == 1
    if not named and not isinstance(make, type) and (is_pair or takes_any):
        return both, {}
    needed = [p for p in needed if p.kind is not p.VAR_POSITIONAL]
    if not needed:
        return (), named
    raise PluginError(
        f"model.name: {path} must need no arguments but x_shape and classes, got "
        f"{needed[0].name!r}; give it a default, or write a function of x_shape and classes"
    )


def _imported(package: str, path: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that it shadows no installed package
    try:
        return importlib.import_module(package)
    except Exception as exc:  # importing runs the user's code
        absent = exc.name if isinstance(exc, ModuleNotFoundError) else None
        if absent is not None and f"{package}.".startswith(f"{absent}."):
            raise PluginError(
                f"model.name: {path} must name an importable module, got none named "
                f"{package!r}; correct the name, or run fairbed in its folder"
            ) from exc
        raise PluginError(
            f"model.name: the module of {path} must be importable, got {type(exc).__name__} "
            f"in it: {_line(exc)}; correct the module or install what it needs"
        ) from exc


def _factory_in(module: ModuleType, path: str, name: str) -> Callable[..., object]:
    factory: Callable[..., object] | None = getattr(module, name, None)
    if not callable(factory):
        raise PluginError(
            f"model.name: {path} must name a factory in the module {module.__name__}, got "
            f"{'no such name' if factory is None else type(factory).__name__}; correct the name"
        )
    return factory


def _line(exc: Exception) -> str:
    return " ".join(str(exc).split())[:200]
