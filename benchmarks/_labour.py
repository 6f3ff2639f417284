"""One process that works as a device would, and says how long that took.

python -m benchmarks._labour < Labour in JSON > Wages in JSON
"""

import os
import sys
import threading
import time
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from testbed.backends.cell import Cell, enter
from testbed.emulation.device import EmulatedDevice
from testbed.host_watch import run_delay_s
from testbed.launcher import host_for

IDLE_S = 0.3
"""Before each step that comes first: longer than any period."""

PIECE = 160
"""Rows of the matrices whose product is the work: 0.1 to 0.2 ms a piece."""


class Labour(Struct, frozen=True, kw_only=True):
    """What to do."""

    kind: Literal["share", "steady", "first"]
    """Work without a pause, and without a pace; steps of one section; steps after idling."""
    speed_ratio: float
    cell: Cell | None
    step_s: float = 0.0
    """Processor time of a step."""
    steps: int = 0
    duration_s: float = 0.0
    """Of `share`."""


class Wages(Struct, frozen=True, kw_only=True):
    """What came of it."""

    ratios: list[float]
    """Achieved / target: of the share, or of the time of each step."""
    waited_s: float
    """Ready to run, and not running, whatever the reason."""


def measure(labour: Labour) -> Wages:
    """Do it."""
    if labour.cell is not None:
        enter(labour.cell)
    time.sleep(IDLE_S)
    if labour.kind == "share":
        threads = 2 if labour.speed_ratio > 1.0 else 1
        ratios = [_share(labour.duration_s, threads) / labour.speed_ratio]
    else:
        ratios = _steps(labour)
    return Wages(ratios=ratios, waited_s=run_delay_s(os.getpid()))


def _share(duration_s: float, threads: int) -> float:
    """Return the cores that threads get which never pause."""
    started, used = time.monotonic(), time.process_time()
    ends = started + duration_s
    workers = [threading.Thread(target=_work_until, args=(ends,)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (time.process_time() - used) / (time.monotonic() - started)


def _steps(labour: Labour) -> list[float]:
    device = EmulatedDevice(
        title="benchmark",
        cores=4,
        memory_bytes=1 << 30,
        background_load=0.0,
        engine_threads=1,
        speed_ratio=labour.speed_ratio,
        storage_read_bytes_per_s=1e9,
    )
    pace = host_for(device, cell=labour.cell).pace
    ratios: list[float] = []
    if labour.kind == "steady":
        with pace.section("train") as meter:
            before = time.monotonic()
            for _ in range(labour.steps):
                cpu_s = _work(labour.step_s)
                meter.step(1)
                now = time.monotonic()
                ratios.append((now - before) * labour.speed_ratio / cpu_s)
                before = now
    else:
        for _ in range(labour.steps):
            time.sleep(IDLE_S)
            before = time.monotonic()
            with pace.section("train") as meter:
                cpu_s = _work(labour.step_s)
                meter.step(1)
            ratios.append((time.monotonic() - before) * labour.speed_ratio / cpu_s)
    return ratios


def _work(cpu_s: float) -> float:
    """Work for some processor time; return how much it was, up to a piece more."""
    started = time.thread_time()
    while (used_s := time.thread_time() - started) < cpu_s:
        _ = _MATRIX @ _MATRIX
    return used_s


def _work_until(instant: float) -> None:
    while time.monotonic() < instant:
        _ = _MATRIX @ _MATRIX


_MATRIX = np.ones((PIECE, PIECE), dtype=np.float32)


def main() -> int:
    """Do what stdin says; print what came of it."""
    wages = measure(msgspec.json.decode(sys.stdin.buffer.read(), type=Labour))
    sys.stdout.write(msgspec.json.encode(wages).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
