"""Third-party selectors, loaded by entry point or path, and checked on every call."""

import importlib
import os
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fairbed.coordinator.algorithms.selection.guarded import GuardedSelector, PluginError, guarded

GROUP = "fairbed.selectors"
"""Group of entry points; the name of each one is a policy."""


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of installed selectors, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def is_path(policy: str) -> bool:
    """Return whether a policy is written as `package.module:Name`."""
    return ":" in policy


def load_selector(policy: str, options: Mapping[str, Any]) -> GuardedSelector:
    """Return a third-party selector, with empty state.

    Args:
        policy: Name of an entry point of the group `fairbed.selectors`, or `package.module:Name` of
            a class or a function, on the import path or below the working directory.
        options: Its keyword arguments: `[selection.options]`.

    Raises:
        PluginError: It is not installed, cannot be imported, or does not take the options.
    """
    make = _factory(policy)
    try:
        selector = make(**options)
    except Exception as exc:  # third-party code may raise anything
        raise PluginError(
            f"selector {policy}: must be made from selection.options {dict(options)}, "
            f"got {type(exc).__name__}: {_line(exc)}; correct the options"
        ) from exc
    return guarded(policy, selector)


def _factory(policy: str) -> Any:
    try:
        if not is_path(policy):
            found = installed()
            if policy not in found:
                names = ", ".join(sorted(found)) or "none"
                raise PluginError(
                    f"selector {policy}: must be installed, got no such entry point of "
                    f"{GROUP}; there are: {names}"
                )
            return found[policy].load()
        module, _, name = policy.partition(":")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last, so that it shadows no installed package
        made = importlib.import_module(module)
        for part in name.split("."):
            made = getattr(made, part)
    except PluginError:
        raise
    except Exception as exc:  # importing runs third-party code
        raise PluginError(
            f"selector {policy}: must be importable as package.module:Name, got "
            f"{type(exc).__name__}: {_line(exc)}; install it, or run fairbed in its folder"
        ) from exc
    if not callable(made):
        raise PluginError(
            f"selector {policy}: must be a class or a function that makes one, "
            f"got {type(made).__name__}"
        )
    return made


def _line(exc: Exception) -> str:
    return " ".join(str(exc).split())[:200]
