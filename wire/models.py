"""Models of the user by path, `package.module:factory`; coordinator and devices make them alike.

A factory is called with the shape of an example and the number of classes, and returns a
`torch.nn.Module`. This module does not import torch: it returns whatever the factory makes.
"""

import importlib
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


def call_factory(path: str, make: Callable[..., object], *arguments: object) -> object:
    """Return what a factory makes.

    Args:
        path: Its path, for messages.
        make: The factory.
        arguments: x_shape and classes.

    Raises:
        PluginError: The factory raises.
    """
    try:
        return make(*arguments)
    except Exception as exc:  # the user's code may raise anything
        raise PluginError(
            f"model.name: {path}(x_shape, classes) must return a torch.nn.Module, got "
            f"{type(exc).__name__}: {_line(exc)}; correct the factory"
        ) from exc


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
