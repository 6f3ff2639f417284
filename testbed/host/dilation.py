"""Time dilation: a second of the fleet lasts k seconds of this machine.

On a `DilatedLoop` every wait lasts k times as long, and the clock shows seconds of the fleet. So
the coordinator's deadlines, the agents' contexts and all recorded durations are in seconds of the
fleet, and no other code needs to know the dilation.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Mapping
from typing import Any


class _DilatedSelector(selectors.BaseSelector):
    """Waits k times as long as requested."""

    def __init__(self, inner: selectors.BaseSelector, dilation: float) -> None:
        self._inner, self._dilation = inner, dilation

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return self._inner.select(None if timeout is None else timeout * self._dilation)

    def close(self) -> None:
        self._inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()


class DilatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds last `dilation` seconds of this machine."""

    def __init__(self, dilation: float) -> None:
        self._dilation = dilation
        super().__init__(_DilatedSelector(selectors.DefaultSelector(), dilation))

    def time(self) -> float:
        """Return seconds of the fleet."""
        return super().time() / self._dilation


def loop_factory(dilation: float) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a factory of event loops with dilated time; plain ones for a dilation of 1."""
    return asyncio.new_event_loop if dilation == 1.0 else lambda: DilatedLoop(dilation)


def dilated(clock: Callable[[], float], dilation: float) -> Callable[[], float]:
    """Return a clock that shows seconds of the fleet."""
    return clock if dilation == 1.0 else lambda: clock() / dilation


class DilatedClock:
    """The clock of an emulated device; a `device_agent.host.Clock`."""

    def __init__(self, dilation: float) -> None:
        self._dilation = dilation

    def now(self) -> float:
        """Return monotonic seconds of the fleet."""
        return time.monotonic() / self._dilation
