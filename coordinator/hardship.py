"""For how long the machine that emulates a device has kept others waiting in an exchange."""

from collections.abc import Callable, Collection

from coordinator.exchange import Exchange, Starved
from coordinator.ports import HostWatch, Waiting


class Hardship:
    """Looks at a device when it is asked to train, and when its exchange is at an end.

    Args:
        watch: Watches the machine; None where nothing is emulated.
        now: Monotonic seconds.
    """

    def __init__(self, watch: HostWatch | None, now: Callable[[], float]) -> None:
        self._watch = watch
        self._now = now
        self._before: dict[str, Waiting] = {}
        """What each device had suffered when it was asked to train."""

    def begin(self, device: str) -> None:
        """A device is being asked to train."""
        self._before.pop(device, None)
        waiting = None if self._watch is None else self._watch.waiting(device)
        if waiting is not None:
            self._before[device] = waiting

    def keep(self, devices: Collection[str]) -> None:
        """Forget all others."""
        self._before = {k: waiting for k, waiting in self._before.items() if k in devices}

    def note(self, exchange: Exchange) -> None:
        """Write into an exchange what its device has suffered since it was asked to train."""
        before = self._before.get(exchange.device)
        after = None if self._watch is None else self._watch.waiting(exchange.device)
        if before is not None and after is not None:
            exchange.starved = Starved(
                device_s=max(0.0, after.device_s - before.device_s),
                path_s=max(0.0, after.path_s - before.path_s),
                watched_s=self._now() - exchange.dispatched,
            )
