"""What the fault tests measured: time lost and memory taken, printed at the end of a session."""

import ctypes
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import psutil
import pytest

SAMPLE_S = 0.02
MEGABYTE = 1e6
GARBAGE_BYTES = 10 * MEGABYTE
"""Growth of this process from which on it gives back what it does not use, before it counts."""


def _held(process: psutil.Process) -> int:
    """Resident memory of a process without files, which the kernel loads and drops as it likes."""
    memory = process.memory_info()
    return memory.rss - memory.shared


def _give_back() -> None:
    """Free garbage, which Python seldom collects in a worker that has imported so much."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


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

    def __str__(self) -> str:
        return ", ".join(f"{name} {n / MEGABYTE:+.1f} MB" for name, n in self.grown.items())

    def stay_below(self, megabytes: float) -> None:
        """Check that nothing grew by more."""
        assert max(self.grown.values()) < megabytes * MEGABYTE, str(self)


@asynccontextmanager
async def watch_memory(**pids: int) -> AsyncIterator[Peaks]:
    """Sample the memory of this process and of others for the length of a block.

    A process that a test restarts is watched as long as it lives.
    """
    peaks = Peaks()

    async def sample(name: str, process: psutil.Process, start: int) -> None:
        while True:
            await anyio.sleep(SAMPLE_S)
            try:
                grown = _held(process) - start
                if process.pid == os.getpid() and grown > peaks.grown[name] + GARBAGE_BYTES:
                    _give_back()
                    grown = _held(process) - start
                peaks.grown[name] = max(peaks.grown[name], grown)
            except psutil.NoSuchProcess:
                return

    watched = {"tests": os.getpid()} | pids
    async with anyio.create_task_group() as group:
        for name, pid in watched.items():
            process = psutil.Process(pid)
            peaks.grown[name] = 0
            group.start_soon(sample, name, process, _held(process))
        yield peaks
        group.cancel_scope.cancel()
