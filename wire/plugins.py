"""Loading of third-party parts by entry point or path; both sides of the wire have them."""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class PluginError(Exception):
    """A plug-in cannot be loaded or violates its contract; the message states how.

    `fault` is the violation alone, without the name of the plug-in and the advice.
    """

    def __init__(self, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.fault = fault or message


def is_path(name: str) -> bool:
    """Return whether a plug-in is written as `package.module:Name`."""
    return ":" in name


def installed(group: str) -> dict[str, "EntryPoint"]:
    """Return the entry points of installed plug-ins of a group, by name."""
    from importlib.metadata import entry_points  # with it comes `email`: 3 MiB of an agent

    return {point.name: point for point in entry_points(group=group)}


def factory_of(noun: str, group: str, name: str, choices: str) -> Any:
    """Return the class, or the function that makes one, that a name stands for.

    Args:
        noun: What it is, as in "selector", for messages.
        group: Group of entry points.
        name: Name of an entry point, or `package.module:Name` on the import path or below the
            working directory.
        choices: What the name may be, for messages.

    Raises:
        PluginError: It is not installed, or cannot be imported.
    """
    try:
        if not is_path(name):
            found = installed(group)
            if name not in found:
                raise PluginError(
                    f"{noun} {name}: must be {choices}, got no entry point {name!r} of {group}; "
                    "install it"
                )
            return found[name].load()
        module, _, path = name.partition(":")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last, so that it shadows no installed package
        made = importlib.import_module(module)
        for part in path.split("."):
            made = getattr(made, part)
    except PluginError:
        raise
    except Exception as exc:  # importing runs third-party code
        raise PluginError(
            f"{noun} {name}: must be importable as package.module:Name, got "
            f"{one_line(exc)}; install it, or run fairbed in its folder"
        ) from exc
    if not callable(made):
        raise PluginError(
            f"{noun} {name}: must be a class or a function that makes one, "
            f"got {type(made).__name__}"
        )
    return made


def one_line(exc: Exception, length: int = 200) -> str:
    """Return type and message of an exception of third-party code on one line."""
    return f"{type(exc).__name__}: {' '.join(str(exc).split())[:length]}"


def described(value: object) -> str:
    """Return type and shape of a value in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return type(value).__name__
