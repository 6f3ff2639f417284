"""Optimised graphs on the disk of a device: a session opens with what an earlier one has made.

The runtime rewrites a graph for its kernels and for this processor each time it opens a session.
The result is kept in the cache of the device, named by a hash of the graph, the version of the
runtime and the features of the processor. It is never taken on trust: the graph of the coordinator
passes `check_graph` each time, the file has a checksum, and the self-check of the task runs on the
session that was opened from the file.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.installed import engine_version

_log = logging.getLogger(__name__)

MIN_GRAPH_BYTES = 16 * 1024
"""A smaller graph is not kept: the runtime optimises it in less than 10 ms."""

_FORMAT = b"1 ORT all optimisations"
"""How the file is made. It has the format of the runtime, which needs no type inference."""

OpenSession: TypeAlias = Callable[[bytes, Path | None, bool], Any]
"""Opens a session of a graph; a path receives the optimised graph; True: it is optimised."""


@dataclass(frozen=True, slots=True)
class OptimisedGraphs:
    """Optimised graphs in the cache of a device."""

    cache: BlobCache
    min_bytes: int = MIN_GRAPH_BYTES
    """Size of the graphs from which on they are kept."""

    def session(self, graph: bytes, open_session: OpenSession) -> Any:
        """Return a session of a graph, from the optimised one if it is worth it.

        A graph that was not kept is optimised, kept, and opened again from the kept one, so that
        the self-check covers what later rounds run. Any fault of the file is one line of the log.

        Raises:
            Exception: The runtime does not accept the graph.
        """
        if len(graph) < self.min_bytes:
            return open_session(graph, None, False)
        name = self.name_of(graph)
        kept = self.cache.get_made(name)
        if kept is None:
            kept = self._made(name, graph, open_session)
        if kept is not None:
            try:
                return open_session(kept, None, True)
            except Exception as exc:  # the runtime's errors share no base class
                _log.warning(
                    "engine: the optimised graph must load, got %s; it is made again at the next "
                    "start",
                    (str(exc).splitlines() or [type(exc).__name__])[0],
                )
                self.cache.remove_made(name)
        return open_session(graph, None, False)

    def forget(self, graph: bytes) -> bool:
        """Remove the optimised graph of a graph; return whether there was one."""
        name = self.name_of(graph)
        found = self.cache.get_made(name) is not None
        self.cache.remove_made(name)
        return found

    def name_of(self, graph: bytes) -> str:
        """Return the name of the file of a graph on this machine."""
        key = hashlib.sha256(graph)
        for part in (_FORMAT, engine_version().encode(), _processor()):
            key.update(hashlib.sha256(part).digest())
        return f"graph-{key.hexdigest()}"

    def _made(self, name: str, graph: bytes, open_session: OpenSession) -> bytes | None:
        """Optimise a graph and keep it; None if the disk does not take it."""
        try:
            self.cache.folder.mkdir(parents=True, exist_ok=True)
            path = self.cache.folder / f"{name}.{os.getpid()}.ort"
            try:
                open_session(graph, path, False)
                optimised = path.read_bytes()
            finally:
                path.unlink(missing_ok=True)
            self.cache.put_made(name, optimised)
        except Exception as exc:  # of the disk, or of the runtime, which writes the file
            _log.warning(
                "engine: the optimised graph cannot be kept: %s; each cold start takes longer",
                (str(exc).splitlines() or [type(exc).__name__])[0],
            )
            return None
        return optimised


def _processor() -> bytes:
    """Return what the runtime chooses its kernels by: architecture and features."""
    machine = os.uname().machine.encode()
    with suppress(OSError), Path("/proc/cpuinfo").open("rb") as file:
        for line in file:
            if line.lower().startswith((b"flags", b"features")):
                return machine + line
    return machine + os.uname().version.encode()
