"""Fairbed: an edge-device federated-learning testbed with a terminal control room.

    import fairbed

    run = fairbed.replay("quickstart.toml", set={"selection.policy": "uniform"})
    run.table("round").pandas()

docs/python.md describes the functions. They load when they are first used: the agent of a device
imports this module, too.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairbed.testbed.api.compare import ComparedRuns as ComparedRuns
    from fairbed.testbed.api.compare import compare as compare
    from fairbed.testbed.api.register import register as register
    from fairbed.testbed.api.replay import replay as replay
    from fairbed.testbed.api.run import Run as Run
    from fairbed.testbed.api.run import runs as runs
    from fairbed.testbed.api.shape import ShapedCommand as ShapedCommand
    from fairbed.testbed.api.shape import shape as shape
    from fairbed.testbed.api.start import run as run
    from fairbed.testbed.errors import RunError as RunError
    from fairbed.testbed.errors import UsageError as UsageError

__all__ = [
    "ComparedRuns",
    "Run",
    "RunError",
    "ShapedCommand",
    "UsageError",
    "compare",
    "register",
    "replay",
    "run",
    "runs",
    "shape",
]

_MODULES = {
    "ComparedRuns": "api.compare",
    "Run": "api.run",
    "RunError": "errors",
    "ShapedCommand": "api.shape",
    "UsageError": "errors",
    "compare": "api.compare",
    "register": "api.register",
    "replay": "api.replay",
    "run": "api.start",
    "runs": "api.run",
    "shape": "api.shape",
}
"""Where each exported name is, below `fairbed.testbed`."""


def __getattr__(name: str) -> object:
    """Import an exported name (PEP 562).

    Raises:
        AttributeError: There is no such name.
        ImportError: It needs a package that is not installed; the message names the command.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'fairbed' has no attribute {name!r}")
    from importlib import import_module

    try:
        value: object = getattr(import_module(f"fairbed.testbed.{_MODULES[name]}"), name)
    except ModuleNotFoundError as exc:
        from fairbed.testbed.install import what_to_install

        if (advice := what_to_install(exc)) is None:
            raise
        raise ImportError(f"fairbed.{name}: {advice}", name=exc.name) from exc
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the exported names."""
    return sorted({*globals(), *_MODULES})
