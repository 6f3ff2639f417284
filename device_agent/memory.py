"""Measures that keep the memory of a process small: one heap, deferred and avoided imports."""

import configparser
import ctypes
import importlib
import importlib.util
import sys
import urllib
from pathlib import Path
from types import ModuleType
from typing import Any

PROXIES = "urllib.request"

M_ARENA_MAX = -8
"""Parameter number of `mallopt`, from glibc's malloc.h."""


def share_one_heap() -> None:
    """Make all threads allocate from one heap, so that they reuse freed pages.

    It saves 1 MB of an agent, and the growth of a coordinator, 0.2 kB a round, whose threads
    otherwise fill a heap each. Call it before the first thread is started.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_ARENA_MAX, 1)


def defer_urllib() -> None:
    """Defer the import of `urllib.request` to its first use; call it before importing paho.

    paho imports it, and with it `http.client` and `email` (4 MiB), to find proxies in case PySocks
    is installed. `importlib.util.LazyLoader` does not help: until Python 3.12 the statement
    `import urllib.request` itself loads the module.
    """
    if PROXIES not in sys.modules:
        lazy = _LazyModule(PROXIES)
        lazy.__spec__ = importlib.util.find_spec(PROXIES)
        sys.modules[PROXIES] = lazy
        setattr(urllib, "request", lazy)  # noqa: B010  # the name that an import binds


class _LazyModule(ModuleType):
    """Placeholder that imports the real module when an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


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
