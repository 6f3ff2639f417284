"""The floor of a round: what it needs of a processor before any Python of 21 processes.

Bare operations of one round on arrays and sockets, one after another in this process: no broker, no
messages, no second process, no model that left the cache meanwhile.
"""

import dataclasses
import hashlib
import socket
import statistics
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.replay_training import CASES, bare_products

CHUNK = 256 * 1024
"""Bytes that are sent at once."""
HOPS = 2
"""A message goes to the broker and from there to its receiver."""


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of work of a round."""

    name: str
    times: int
    """How often a round of all devices does it."""
    once_s: float
    """Processor time of one, seconds."""

    @property
    def round_ms(self) -> float:
        """Processor time in a round, ms."""
        return 1e3 * self.times * self.once_s


def floor_of_round(devices: int, repeats: int = 5) -> list[Line]:
    """Return the floor of a round of the job of `round-time`, whose model has 1 MB.

    Args:
        devices: All are in the round.
        repeats: Measurements of each line, in turns; the result is their median.
    """
    case = dataclasses.replace(CASES["common"], clients=devices)
    vectors = 2 * devices
    rng = np.random.default_rng(0)
    vector = rng.standard_normal(case.n_values).astype(np.float32)
    gradient, total = vector * np.float32(1e-3), np.zeros(case.n_values)
    data = vector.tobytes()
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    copies = (vector.copy(), np.empty_like(vector))
    once: Mapping[str, tuple[int, Callable[[], object]]] = {
        "a step of SGD": (devices * case.steps, lambda: _sgd(copies[0], gradient, copies[1])),
        "sha256, once for a promise": (vectors + devices + 1, lambda: hashlib.sha256(data)),
        "crc32 of chunks": (vectors + devices + 1, lambda: [zlib.crc32(c) for c in chunks]),
        "add to the sum": (devices, lambda: np.add(total, vector, out=total)),
        "copy in memory": (0, lambda: np.copyto(copies[1], vector)),
    }
    found: dict[str, list[float]] = {name: [] for name in once}
    hops, products = list[float](), list[float]()
    with _Hop() as hop:
        for _ in range(repeats):
            products.append(bare_products(case, 1)["bare_cpu_s"])
            hops.append(_spent_s(lambda: hop.move(chunks)))
            for name, (_, do) in once.items():
                found[name].append(_spent_s(do))
    return [
        Line("matrix products", 1, statistics.median(products)),
        Line("a hop of a vector by TCP", HOPS * vectors, statistics.median(hops)),
        *(Line(name, times, statistics.median(found[name])) for name, (times, _) in once.items()),
    ]


def _sgd(values: np.ndarray, gradient: np.ndarray, buffer: np.ndarray) -> None:
    np.multiply(gradient, np.float32(0.05), out=buffer)
    np.subtract(values, buffer, out=values)


def _spent_s(do: Callable[[], object]) -> float:
    """Return the processor time of one call, of ten, after one that is not timed."""
    do()
    started_s = time.process_time()
    for _ in range(10):
        do()
    return (time.process_time() - started_s) / 10


class _Hop:
    """A connection on loopback with both ends in this process."""

    def __enter__(self) -> "_Hop":
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._sender = socket.create_connection(server.getsockname(), timeout=10.0)
            self._receiver, _ = server.accept()
        self._receiver.settimeout(10.0)
        self._buffer = bytearray(CHUNK)
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()
        self._receiver.close()

    def move(self, chunks: list[bytes]) -> None:
        """Send chunks and receive each before the next."""
        for chunk in chunks:
            # Loopback takes a part at a time, as its buffers are smaller than a chunk.
            rest = memoryview(chunk)
            while rest:
                sent = self._sender.send(rest[: 64 * 1024])
                rest = rest[sent:]
                while sent:
                    sent -= self._receiver.recv_into(self._buffer, sent)
