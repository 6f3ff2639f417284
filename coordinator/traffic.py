"""Bytes that are no model: shards on their way down, link probes both ways."""

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Counts until it is taken."""

    down_bytes: int = 0
    up_bytes: int = 0

    def take(self) -> tuple[int, int]:
        """Return (down, up) since the last call, and begin anew."""
        taken = self.down_bytes, self.up_bytes
        self.down_bytes = self.up_bytes = 0
        return taken
