"""Modules that an agent process loads only on first use, to save memory."""

import importlib
import importlib.util
import sys
import urllib
from pathlib import Path
from types import ModuleType
from typing import Any

PROXIES = "urllib.request"


def spare_memory() -> None:
    """Have `urllib.request` load when it is first used; call it before the MQTT client loads.

    paho imports it, and with it `http.client` and `email` (4 MiB), to look for proxies in case
    that PySocks is installed. `importlib.util.LazyLoader` would not do: until Python 3.12 the
    mere statement `import urllib.request` makes it load.
    """
    if PROXIES not in sys.modules:
        later = _Later(PROXIES)
        later.__spec__ = importlib.util.find_spec(PROXIES)
        sys.modules[PROXIES] = later
        setattr(urllib, "request", later)  # noqa: B010  # what the import statement binds


class _Later(ModuleType):
    """Stands for a module until its first attribute is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None.

    It stands in the name of its record folder; `importlib.metadata` would read the record with
    `email`, `zipfile` and more (3 MiB).
    """
    name = distribution.replace("-", "_")
    for place in sys.path:
        for record in sorted(Path(place or ".").glob(f"{name}-*.dist-info")):
            return record.name.removesuffix(".dist-info").removeprefix(f"{name}-")
    return None
