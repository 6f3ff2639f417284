"""Until when one piece of work may go on: what is common to a round and to a question."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from device_agent.host import Clock


class Deadline:
    """Ends the work in its `scope` when its time is up, or when it is told to.

    Args:
        clock: The agent's.
        at: When the time is up, on that clock.
        outage_s: How long the work may go on without coordinator and broker.
    """

    def __init__(self, clock: Clock, at: float, outage_s: float) -> None:
        self.scope = anyio.CancelScope()
        self.is_stopped = False
        """It was told to end."""
        self._clock = clock
        self._at = at
        self._outage_s = outage_s
        self._held_since: float | None = None
        self._given_s = 0.0
        """What absences have added so far."""
        self._set(at)

    def stop(self) -> None:
        """End the work at once; what the training thread still does is thrown away."""
        self.is_stopped = True
        self.scope.cancel()

    def is_over(self) -> bool:
        """Tell whether nobody wants the work any more; asked from the training thread, too."""
        return self.is_stopped or self._left_s() <= 0.0

    def hold(self) -> None:
        """Nobody is there to hear us: `outage_s` more, of which `go_on` takes back the rest."""
        if self._held_since is None:
            self._held_since = self._clock.now()
            self._give(self._outage_s)

    def go_on(self) -> None:
        """The coordinator is on again."""
        held_since, self._held_since = self._held_since, None
        if held_since is not None:
            self._give(min(self._clock.now() - held_since - self._outage_s, 0.0))

    @contextmanager
    def waiting(self, limit_s: float) -> Iterator[None]:
        """Wait inside for the coordinator: it may last `limit_s`, and is none of our time."""
        began, at = self._clock.now(), self._at
        self._set(began + limit_s)
        yield
        self._set(at + self._clock.now() - began)

    def _give(self, more_s: float) -> None:
        self._given_s += more_s
        self._set(self._at)

    def _set(self, at: float) -> None:
        self._at = at
        self.scope.deadline = anyio.current_time() + self._left_s()

    def _left_s(self) -> float:
        return self._at + self._given_s - self._clock.now()
