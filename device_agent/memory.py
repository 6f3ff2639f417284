"""What keeps the memory of a process small: one heap, a deferred import, freed pages returned."""

import ctypes
import gc
import importlib
import importlib.util
import sys
import urllib
from collections.abc import Callable
from functools import cache
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


def release_memory() -> None:
    """Return the memory of dropped engines to the system; call it after dropping the last one."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return freed pages to the system, which glibc does not do by itself.

    A closed session frees the arena of the runtime (about 30 MB for a CNN), and loading data needs
    a multiple of its size for a short time. Does nothing without glibc.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
