"""Contiguous laps: no moment between the start and the last lap belongs to no phase."""

from device_agent.host import Clock


class Stopwatch:
    """Measures the phases of one round; each lap begins where the one before ended."""

    def __init__(self, clock: Clock, started_s: float) -> None:
        self._clock = clock
        self._last_s = started_s
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> float:
        """End a lap and return its duration in seconds."""
        now = self._clock.now()
        self._laps[name] = max(0.0, now - self._last_s)
        self._last_s = now
        return self._laps[name]

    def __getitem__(self, name: str) -> float:
        return self._laps[name]
