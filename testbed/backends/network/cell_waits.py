"""Time that devices lose to others of their cells, from the byte counters of their links.

Ten times a second a thread reads `/proc/PID/net/dev` of a process in the hub. In a period of dt a
device that carried x bit/s, and would carry a bit/s alone, has lost

    dt (1 - x / a)    if x is at least `LEAST_BYTES` per period, and its cell or one in front of it
                      carried `BUSY_RATIO` of its rate; else 0

So the slow start of TCP is not counted, nor is a device that gets nothing at all, behind others of
an earlier priority.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fairbed.testbed.backends.network.plan.htb import wire_bps
from fairbed.testbed.backends.network.plan.names import hub_side
from fairbed.testbed.emulation.cell import DeviceCells, Direction
from fairbed.testbed.emulation.queues import FRAME_BYTES

PERIOD_S = 0.1
LEAST_BYTES = 3 * FRAME_BYTES
BUSY_RATIO = 0.9

DIRECTIONS: tuple[Direction, ...] = ("down", "up")


class CellWaits:
    """What the devices of a network have lost; instants are arguments.

    Args:
        cells: Of each device in a cell, the cell with those in front of it, and its priority.
    """

    def __init__(self, cells: DeviceCells) -> None:
        self._paths = {name: path for name, (path, _) in cells.items()}
        self._lost_s = dict.fromkeys(cells, 0.0)
        self._last: tuple[float, Mapping[str, tuple[int, int]]] | None = None

    def counted(self, name: str) -> Mapping[str, float]:
        """Return what was counted of a device so far, by column of the exchange."""
        return {"cell_wait_s": self._lost_s[name]} if name in self._lost_s else {}

    def add(self, now: float, carried: Mapping[str, tuple[int, int]]) -> None:
        """Add a reading: the bytes that each device has carried so far, down and up."""
        last, self._last = self._last, (now, carried)
        if last is None or now <= last[0]:
            return
        elapsed_s = now - last[0]
        for at, direction in enumerate(DIRECTIONS):
            sent = {name: carried[name][at] - last[1][name][at] for name in self._paths}
            self._count(elapsed_s, direction, sent)

    def _count(self, elapsed_s: float, direction: Direction, sent: Mapping[str, int]) -> None:
        loads: dict[str, float] = {}
        for name, path in self._paths.items():
            for cell in path:
                bps = 8.0 * sent[name] / elapsed_s
                loads[cell.name] = loads.get(cell.name, 0.0) + bps
        for name, path in self._paths.items():
            if sent[name] < LEAST_BYTES:
                continue
            rates = {cell.name: wire_bps(cell.bps(direction), FRAME_BYTES) for cell in path}
            if any(loads[one] >= BUSY_RATIO * bps for one, bps in rates.items()):
                share = 8.0 * sent[name] / elapsed_s / min(rates.values())
                self._lost_s[name] += elapsed_s * max(0.0, 1.0 - share)

    @contextmanager
    def reading(self, pid: int, indices: Mapping[str, int]) -> Iterator[None]:
        """Read the counters in a thread while the context lasts.

        Args:
            pid: A process in the hub.
            indices: Index of each device.
        """
        is_over, file = threading.Event(), Path(f"/proc/{pid}/net/dev")

        def read() -> None:
            while not is_over.wait(PERIOD_S):
                try:
                    text = file.read_text(encoding="utf-8")
                except OSError:  # the process has ended, as at the end of a run
                    return
                counted = parse_net_dev(text)
                links = {name: counted[hub_side(index)] for name, index in indices.items()}
                self.add(time.monotonic(), {name: links[name] for name in self._paths})

        thread = threading.Thread(target=read, name="testbed.cell-waits", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def parse_net_dev(text: str) -> dict[str, tuple[int, int]]:
    """Return the bytes towards and from the device at each link of the hub."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        columns = numbers.split()
        found[name.strip()] = int(columns[8]), int(columns[0])
    return found
