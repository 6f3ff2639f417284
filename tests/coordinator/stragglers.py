"""Devices whose training time a test controls."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import anyio.from_thread

from fairbed.device_agent.host import Host, Meter, Section
from fairbed.device_agent.sensors import real_host
from tests.idle_time import add_busy_threads, sleep_in_thread

LONGEST_S = 30.0
"""Longest time that a gate holds training."""


class Gate:
    """A pace that holds training while the gate is shut."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self._waiting = 0
        self.held = 0
        """How often training was held."""

    def host(self) -> Host:
        """Return this machine, with this pace."""
        return replace(real_host(), pace=self)

    def shut(self) -> None:
        """Hold all training that starts after this."""
        self._is_open.clear()

    def open(self) -> None:
        """Let all training continue."""
        self._is_open.set()
        add_busy_threads(+self._waiting)
        self._waiting = 0

    @contextmanager
    def section(self, name: Section) -> Iterator[Meter]:
        """Enter a compute section."""
        if name == "train" and not self._is_open.is_set():
            self.held += 1
            anyio.from_thread.run_sync(self._begin_to_wait)
            self._is_open.wait(LONGEST_S)
        yield _Free()

    def _begin_to_wait(self) -> None:
        if not self._is_open.is_set():
            self._waiting += 1
            add_busy_threads(-1)


class SlowTraining:
    """A pace with a fixed training time, which limits the number of rounds during a wait."""

    def __init__(self, train_s: float) -> None:
        self._train_s = train_s

    def host(self) -> Host:
        """Return this machine, with this pace."""
        return replace(real_host(), pace=self)

    @contextmanager
    def section(self, name: Section) -> Iterator[Meter]:
        """Enter a compute section."""
        if name == "train":
            sleep_in_thread(self._train_s)
        yield _Free()


class _Free:
    def step(self, n_examples: int, length: int | None = None) -> None:
        pass

    def read(self, n_bytes: int) -> None:
        pass
