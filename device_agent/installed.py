"""What this device has installed, found without importing it: an agent waits without it."""

import importlib.util
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fairbed.device_agent.errors import EngineError
from fairbed.wire.messages import LOCAL_RULES, LOCAL_RULES_GROUP

if TYPE_CHECKING:
    from fairbed.wire.artifact import EngineName

DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")
"""Distributions with the module `onnxruntime`; Jetson boards often have the second."""


RECORDS = (".dist-info", ".egg-info")
"""Ends of the names of what records an installation, usually a folder."""


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None.

    Reads it from the name of the `.dist-info` folder, or of the `.egg-info` of a Linux
    distribution: `importlib.metadata` would import `email`, `zipfile` and more (3 MiB).
    """
    return _versions(*sys.path).get(distribution.replace("-", "_"))


def installed_entry_points(group: str) -> list[str]:
    """Return the names of the installed entry points of a group, sorted.

    Reads the files of the folders, for the reason of `installed_version`.
    """
    return sorted(_entry_points(group, *sys.path))


@lru_cache(maxsize=1)
def _records(*path: str) -> tuple[str, ...]:
    """Return what records an installation, in the order of a path, read once per process."""
    found: list[str] = []
    for folder in path:
        with suppress(OSError):  # a path may have folders that do not exist
            names = sorted(n for n in os.listdir(folder or ".") if n.endswith(RECORDS))
            found += [os.path.join(folder or ".", name) for name in names]
    return tuple(found)


@lru_cache(maxsize=1)
def _versions(*path: str) -> dict[str, str]:
    """Return the version of each distribution; the first one on the path counts."""
    found: dict[str, str] = {}
    for record in _records(*path):
        name, _, rest = os.path.basename(record).rpartition(".")[0].partition("-")
        found.setdefault(name, rest.partition("-py")[0])
    return found


@lru_cache(maxsize=1)
def _entry_points(group: str, *path: str) -> frozenset[str]:
    """Return the names in a group of all distributions; read once, as `_records`."""
    return frozenset(name for record in _records(*path) for name in _names(record, group))


def _names(record: str, group: str) -> Iterator[str]:
    """Yield the names in one group of a distribution."""
    try:
        text = Path(record, "entry_points.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    section = ""
    for line in map(str.strip, text.splitlines() if group in text else ()):
        if line.startswith("["):
            section = line
        elif section == f"[{group}]" and "=" in line and not line.startswith("#"):
            yield line.partition("=")[0].strip()


def agent_version() -> str:
    """Return the version of Fairbed, or `unknown` if it is not installed."""
    return installed_version("fairbed") or "unknown"


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
