"""How often each device may do something: a burst, then a steady rate. Pure.

The generic cell rate algorithm: each use costs `1 / per_s` seconds, paid from the present on; a
device may be `burst` uses ahead. Memory is one number per device, and bounded for any names.

Source:
    ITU-T I.371 (2004), annex A: the virtual scheduling form of the algorithm.
"""

from dataclasses import dataclass, field

MAX_KEYS = 20_000
"""Devices whose rate is remembered: twice the largest fleet."""

FORGET_S = 1.0
"""Shortest time between two searches for devices to forget, seconds: one takes a millisecond."""


@dataclass(slots=True)
class RateLimit:
    """A limit of its own for each device."""

    per_s: float
    """Uses per second in the long run."""
    burst: int
    """Uses at once, after a pause."""
    _paid_until_s: dict[str, float] = field(default_factory=dict)
    _forgot_at_s: float = float("-inf")

    def take(self, name: str, now: float) -> bool:
        """Use it once; return whether the device may.

        Args:
            name: The device.
            now: Monotonic clock, seconds.
        """
        cost_s = 1.0 / self.per_s
        paid_until = max(self._paid_until_s.get(name, now), now)
        if paid_until - now > (self.burst - 1) * cost_s + 1e-9:
            return False
        if name not in self._paid_until_s and len(self._paid_until_s) >= MAX_KEYS:
            if now - self._forgot_at_s >= FORGET_S:
                self._forget(now)
            if len(self._paid_until_s) >= MAX_KEYS:
                return False
        self._paid_until_s[name] = paid_until + cost_s
        return True

    def _forget(self, now: float) -> None:
        """Forget devices that have not used it for a while."""
        self._forgot_at_s = now
        self._paid_until_s = {key: at for key, at in self._paid_until_s.items() if at > now}
