"""Models of the user by path, `package.module:Name`; coordinator and devices make them alike.

A factory is a subclass of `torch.nn.Module`, or a function that returns a module. It may take the
shape of an example and the number of classes. This module does not import torch: it returns
whatever the factory makes.
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import MethodType
from typing import Any, Final

from msgspec import UnsetType

from fairbed.wire.artifact import Artifact, ModuleSource
from fairbed.wire.plugins import (
    PluginError,
    Registered,
    installed,
    is_path,
    registered,
    users_code,
)

GROUP: Final = "fairbed.models"
"""Group of entry points, and of `fairbed.register`, of models with a name."""


def path_of(name: str) -> str:
    """Return the path of an installed or registered model, by which other processes find it, too.

    Returns:
        The name itself, if it is no such model, or one that no other process can import.
    """
    found = None if is_path(name) else installed(GROUP).get(name)
    if found is None:
        return name
    if not isinstance(found, Registered):
        return f"{found.module}:{found.attr}"
    module, attribute = found.factory.__module__, getattr(found.factory, "__qualname__", "")
    is_importable = module != "__main__" and "." not in attribute
    if is_importable and getattr(sys.modules.get(module), attribute, None) is found.factory:
        return f"{module}:{attribute}"
    return name


_hashes: dict[str, bytes] = {}
"""Hash of the source of each module that `factory_at` imported, by its name."""


def package_of(path: str) -> str:
    """Return the name of the Python module in a path `package.module:Name`."""
    return path.partition(":")[0]


def modules_of(artifact: Artifact) -> tuple[str, ...]:
    """Return the Python modules whose code a device runs for a task; empty for graphs.

    They are those of the model, and of a loss and metrics of the user.
    """
    if artifact.module is None:
        return ()
    spec = artifact.spec
    sources = [each.source for each in spec.named_metrics]
    sources += [] if isinstance(spec.loss, UnsetType) else [spec.loss]
    paths = [artifact.module.path, *(each.path for each in sources if each.is_own)]
    return tuple(dict.fromkeys(map(package_of, paths)))


def factory_at(path: str) -> Callable[..., object]:
    """Return the factory that a path names, or that this process registered under a name.

    A module whose file has changed since this function imported it is executed again.

    Raises:
        PluginError: The module cannot be imported, or has no such factory.
    """
    if not is_path(path) and path in registered(GROUP):
        return registered(GROUP)[path].factory
    package, name = package_of(path), path.partition(":")[2]
    file = _file_of(path)
    source = b"" if file is None else _read(file)
    got = hashlib.sha256(source).digest()
    with _importing(path):
        module = importlib.import_module(package)
        if file is not None and _hashes.get(package, got) != got:
            with suppress(FileNotFoundError):  # by its date it may be that of the former source
                os.unlink(importlib.util.cache_from_source(file))
            module = importlib.reload(module)
    _hashes[package] = got
    factory: Callable[..., object] | None = getattr(module, name, None)
    if not callable(factory):
        raise PluginError(
            f"model.name: {path} must name a factory in the module {package}, got "
            f"{'no such name' if factory is None else type(factory).__name__}; correct the name"
        )
    return factory


def sourced_factory(source: ModuleSource) -> Callable[..., object]:
    """Return the factory of a task, if the source file here has the hash that the task names.

    Raises:
        PluginError: The module is absent, differs, cannot be imported, or has no such factory.
    """
    package, got = package_of(source.path), source_hash(source.path)
    if got != source.sha256:
        raise PluginError(
            f"model {source.path}: the source of {package} must be that of the coordinator "
            f"(sha256 {source.sha256.hex()[:12]}), got {got.hex()[:12]} in "
            f"{_file_of(source.path)}; copy the coordinator's file to this device"
        )
    return factory_at(source.path)


def source_hash(path: str) -> bytes:
    """Return the SHA-256 of the source file of the Python module in a path.

    Other files that the module imports do not count.

    Raises:
        PluginError: There is no such module, or it is no Python file.
    """
    file = _file_of(path)
    if file is None:
        raise PluginError(
            f"model.name: {path} must be in a Python file, got a module without one; name the "
            "module that defines it"
        )
    return hashlib.sha256(_read(file)).digest()


X_SHAPE, CLASSES, X_CLASSES = "x_shape", ("classes", "num_classes"), "x_classes"
"""Arguments of a factory by name: the shape of an example, the number of classes, and that of the
tokens of x, 0 for other x."""


def call_factory(
    path: str,
    make: Callable[..., object],
    x_shape: tuple[int, ...],
    classes: int,
    x_classes: int = 0,
) -> object:
    """Return what a factory makes.

    It is called with the arguments `x_shape`, `classes` (or `num_classes`) and `x_classes` that it
    has, in any order; without arguments if it has none and needs none; a function that needs two
    arguments of other names is called with x_shape and classes by position.

    Args:
        path: Its path, for messages.
        make: The factory.
        x_shape: Shape of an example.
        classes: Number of classes.
        x_classes: Number of tokens of x; 0 for other x.

    Raises:
        PluginError: The factory needs another argument, or raises.
    """
    positional, named = _arguments(path, make, x_shape, classes, x_classes)
    shown = ", ".join([X_SHAPE, CLASSES[0]] if positional else named)

    def broken(problem: str) -> PluginError:
        return PluginError(
            f"model.name: {path}({shown}) must return a torch.nn.Module, got {problem}; correct "
            "the factory"
        )

    with users_code(broken):
        return make(*positional, **named)


def _arguments(
    path: str, make: Callable[..., object], x_shape: tuple[int, ...], classes: int, x_classes: int
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
    given = {X_SHAPE: x_shape, X_CLASSES: x_classes, **dict.fromkeys(CLASSES, classes)}
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


def _file_of(path: str) -> str | None:
    """Return the source file of the Python module in a path; imports the packages around it.

    Raises:
        PluginError: There is no such module.
    """
    importlib.invalidate_caches()  # a file may be newer than this process
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that it shadows no installed package
    with _importing(path):  # the packages around it
        spec = importlib.util.find_spec(package_of(path))
    if spec is None:
        raise _absent(path)
    return spec.origin if spec.has_location else None


def _read(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read()


@contextmanager
def _importing(path: str) -> Iterator[None]:
    """Turn what an import raises into one line.

    Raises:
        PluginError: The module is absent, or its code or an import in it fails.
    """

    def broken(problem: str) -> PluginError:
        return PluginError(
            f"model.name: the module of {path} must be importable, got {problem}; correct the "
            "module or install what it needs"
        )

    try:
        with users_code(broken):
            yield
    except PluginError as exc:
        absent = getattr(exc.__cause__, "name", None)
        is_absent = isinstance(exc.__cause__, ModuleNotFoundError) and absent is not None
        if is_absent and f"{package_of(path)}.".startswith(f"{absent}."):
            raise _absent(path) from exc.__cause__
        raise


def _absent(path: str) -> PluginError:
    return PluginError(
        f"model.name: {path} must name an importable module, got none named "
        f"{package_of(path)!r}; correct the name, or run fairbed in its folder"
    )


def normalisation_layers(module: Any) -> dict[str, Any]:
    """Return the layers of a torch module that have running statistics, or may have, by name.

    They are those of batch normalisation, and of instance normalisation that tracks them.
    """
    return {
        name: layer
        for name, layer in module.named_modules()
        if "running_mean" in getattr(layer, "_buffers", ())
        and (layer.running_mean is not None or "BatchNorm" in type(layer).__name__)
    }


def freeze_statistics(module: Any) -> None:
    """Keep layers with running statistics in evaluation mode, whatever the mode of the module."""
    for layer in normalisation_layers(module).values():
        if layer.running_mean is not None:
            layer.eval()
            layer.train = MethodType(_stay, layer)


def is_frozen(layer: Any) -> bool:
    """Return whether `freeze_statistics` froze a layer."""
    return "train" in vars(layer)


def _stay(layer: Any, mode: bool = True) -> Any:
    """Replace `torch.nn.Module.train` of a frozen layer."""
    return layer
