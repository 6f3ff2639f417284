"""How much room uploads get: what may be waiting for us in the broker. Pure."""

from wire.messages import Manifest

FLIGHT_BYTES = 8 << 20
"""What granted uploads together may have waiting for us in the broker."""

LARGE_CHUNK_BYTES = 128 * 1024


def upload_window(manifest: Manifest) -> int:
    """Return how many chunks of an upload may be un-acknowledged: 4, of large ones 2."""
    return 4 if manifest.chunk_bytes <= LARGE_CHUNK_BYTES else 2


def flight_bytes(manifest: Manifest) -> int:
    """Return how much of an upload may wait for us in the broker."""
    return min(upload_window(manifest) * manifest.chunk_bytes, manifest.size_bytes)
