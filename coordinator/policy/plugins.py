"""Selectors of others: found by entry point or by dotted path, and put under guard."""

import importlib
import os
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fairbed.coordinator.algorithms.selection.guarded import GuardedSelector, PluginError, guarded

GROUP = "fairbed.selectors"
"""Entry points of this group are policies by their names."""


def installed() -> dict[str, EntryPoint]:
    """Return the selectors that installed packages offer, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def is_path(policy: str) -> bool:
    """Tell whether a policy is named by `package.module:Name`."""
    return ":" in policy


def load_selector(policy: str, options: Mapping[str, Any]) -> GuardedSelector:
    """Return a third-party selector, without any memory yet.

    Args:
        policy: Name of an entry point of the group `fairbed.selectors`, or `package.module:Name` of
            a class or a function, on the import path or below the working directory.
        options: What it is called with, by keyword: `[selection.options]`.

    Raises:
        PluginError: There is none, it cannot be imported, or it does not take the options.
    """
    make = _factory(policy)
    try:
        selector = make(**options)
    except Exception as exc:  # a stranger's code may raise anything
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
            sys.path.append(os.getcwd())  # last: it hides nothing
        made = importlib.import_module(module)
        for part in name.split("."):
            made = getattr(made, part)
    except PluginError:
        raise
    except Exception as exc:  # importing runs a stranger's code
        raise PluginError(
            f"selector {policy}: must be importable as package.module:Name, got "
            f"{type(exc).__name__}: {_line(exc)}; install it, or run where it lies"
        ) from exc
    if not callable(made):
        raise PluginError(
            f"selector {policy}: must be a class or a function that makes one, "
            f"got {type(made).__name__}"
        )
    return made


def _line(exc: Exception) -> str:
    return " ".join(str(exc).split())[:200]
