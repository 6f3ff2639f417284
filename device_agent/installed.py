"""What this device has installed, found without importing it: an agent waits without it."""

import configparser
import importlib.util
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from fairbed.device_agent.errors import EngineError
from fairbed.wire.messages import LOCAL_RULES, LOCAL_RULES_GROUP

if TYPE_CHECKING:
    from fairbed.wire.artifact import EngineName

DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")
"""Distributions with the module `onnxruntime`; Jetson boards often have the second."""


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None.

    Reads it from the name of the `.dist-info` folder: `importlib.metadata` would import `email`,
    `zipfile` and more (3 MiB).
    """
    name = distribution.replace("-", "_")
    for folder in sys.path:
        for record in sorted(Path(folder or ".").glob(f"{name}-*.dist-info")):
            return record.name.removesuffix(".dist-info").removeprefix(f"{name}-")
    return None


def installed_entry_points(group: str) -> list[str]:
    """Return the names of the installed entry points of a group, sorted.

    Reads the files of the `.dist-info` folders, for the reason of `installed_version`.
    """
    names = set[str]()
    for folder in sys.path:
        for file in Path(folder or ".").glob("*.dist-info/entry_points.txt"):
            found = configparser.ConfigParser(delimiters=("=",), interpolation=None)
            found.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
            try:
                found.read(file, encoding="utf-8")
            except (configparser.Error, UnicodeDecodeError):
                continue
            if found.has_section(group):
                names.update(found.options(group))
    return sorted(names)


def engine_version() -> str:
    """Return the engine's name and version, such as `onnxruntime 1.31.1`, without importing it.

    Raises:
        EngineError: onnxruntime is not installed.
    """
    for name in DISTRIBUTIONS:
        version = installed_version(name)
        if version is not None:
            return f"onnxruntime {version}"
    raise EngineError("engine: onnxruntime must be installed; run `pip install onnxruntime`")


def installed_engines() -> "tuple[EngineName, ...]":
    """Return the engines of this device beside the one that every agent needs; imports none."""
    return ("onnx", "torch") if importlib.util.find_spec("torch") is not None else ("onnx",)


def known_rules(allowed: Collection[str]) -> tuple[str, ...]:
    """Return the names of the local rules of this device, for its `Capabilities`.

    Args:
        allowed: Paths `package.module:Name` that the device's owner allows.
    """
    return tuple(sorted({*LOCAL_RULES, *installed_entry_points(LOCAL_RULES_GROUP), *allowed}))
