"""How much room uploads get: in memory, and in the broker. Pure."""

from wire.messages import Manifest

UPLOAD_MEMORY_BYTES = 256_000_000
MIN_SLOTS, MAX_SLOTS = 2, 16
"""G = clamp(256 MB / vector, 2, 16) updates in memory at the same time (design.md, Transfer)."""

FLIGHT_BYTES = 8 << 20
"""What granted uploads together may have waiting for us in the broker."""

LARGE_CHUNK_BYTES = 128 * 1024


def slots(update_bytes: int) -> int:
    """Return how many updates of this size may be in memory at the same time."""
    return min(max(UPLOAD_MEMORY_BYTES // max(update_bytes, 1), MIN_SLOTS), MAX_SLOTS)


def upload_window(manifest: Manifest) -> int:
    """Return how many chunks of an upload may be un-acknowledged: 4, of large ones 2."""
    return 4 if manifest.chunk_bytes <= LARGE_CHUNK_BYTES else 2


def flight_bytes(manifest: Manifest) -> int:
    """Return how much of an upload may wait for us in the broker."""
    return min(upload_window(manifest) * manifest.chunk_bytes, manifest.size_bytes)
