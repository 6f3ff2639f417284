"""What the fault tests measured: time lost and memory taken, printed at the end of a session."""

import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio
import psutil
import pytest

SAMPLE_S = 0.02
MEGABYTE = 1e6
GARBAGE_BYTES = 10 * MEGABYTE
"""Growth of this process, since its garbage was last collected, from which on it is collected
before it counts: among all that a worker has imported, Python seldom does."""
LARGEST = 8
"""Lines that hold most, named if memory grew too much."""


def _held(process: psutil.Process) -> int:
    """Resident memory of another process, without files, which the kernel loads and drops."""
    memory = process.memory_info()
    return memory.rss - memory.shared


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """Yield what returns the bytes that this process has allocated since, and holds.

    What tests before have left, and what malloc keeps of it, does not count.
    """
    begun = not tracemalloc.is_tracing()
    if begun:
        tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        if begun:
            tracemalloc.stop()


@dataclass
class Ledger:
    """One line for each fault on each broker."""

    lines: list[str] = field(default_factory=list)

    def note(self, broker: str, fault: str, *, lost_s: float, peaks: "Peaks | None" = None) -> None:
        """Write down how much longer it took than without the fault, and what grew by how much."""
        memory = "" if peaks is None else f", memory {peaks}"
        self.lines.append(f"{broker:<10}{fault:<44}{lost_s:+8.2f} s{memory}")


LEDGER = pytest.StashKey[Ledger]()


@dataclass
class Peaks:
    """How much memory of processes grew at most, bytes; by name."""

    grown: dict[str, int] = field(default_factory=dict)
    holders: str = ""
    """Lines of this process that held most at its peak."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {n / MEGABYTE:+.1f} MB" for name, n in self.grown.items())

    def stay_below(self, megabytes: float) -> None:
        """Check that nothing grew by more."""
        assert max(self.grown.values()) < megabytes * MEGABYTE, f"{self}\n{self.holders}"


@asynccontextmanager
async def watch_memory(**pids: int) -> AsyncIterator[Peaks]:
    """Sample the memory of this process and of others for the length of a block.

    A process that a test restarts is watched as long as it lives.
    """
    peaks = Peaks()

    async def sample_own(traced: Callable[[], int]) -> None:
        live = 0
        while True:
            await anyio.sleep(SAMPLE_S)
            grown = traced()
            if grown > live + GARBAGE_BYTES:
                gc.collect()
                grown = live = traced()
                if grown > peaks.grown["tests"] + GARBAGE_BYTES:
                    lines = tracemalloc.take_snapshot().statistics("lineno")[:LARGEST]
                    peaks.holders = "\n".join(map(str, lines))
            peaks.grown["tests"] = max(peaks.grown["tests"], grown)

    async def sample(name: str, process: psutil.Process, start: int) -> None:
        while True:
            await anyio.sleep(SAMPLE_S)
            try:
                peaks.grown[name] = max(peaks.grown[name], _held(process) - start)
            except psutil.NoSuchProcess:
                return

    with _traced() as traced:
        async with anyio.create_task_group() as group:
            peaks.grown["tests"] = 0
            group.start_soon(sample_own, traced)
            for name, pid in pids.items():
                process = psutil.Process(pid)
                peaks.grown[name] = 0
                group.start_soon(sample, name, process, _held(process))
            yield peaks
            group.cancel_scope.cancel()
