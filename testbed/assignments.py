"""Which device was given which shard, kept in the run's folder so that a restart gives the same."""

import threading
from pathlib import Path

import msgspec

from testbed.shards import FleetData
from wire.shard import Shard

FILE = "shards.json"


class RememberedShards:
    """A `coordinator.ports.ShardSource` that writes new assignments down; any thread may ask."""

    def __init__(self, data: FleetData, folder: Path) -> None:
        self._data = data
        self._path = folder / FILE
        self._written: dict[str, int] = {}
        self._lock = threading.Lock()

    def shard(self, device: str) -> Shard | None:
        """Return the training data of `device`, or None when all shards are taken."""
        shard = self._data.shard(device)
        with self._lock:
            assignments = self._data.assignments()
            if assignments != self._written:
                scratch = self._path.with_suffix(".tmp")
                scratch.write_bytes(msgspec.json.encode(assignments))
                scratch.replace(self._path)
                self._written = assignments
        return shard

    @staticmethod
    def read(folder: Path) -> dict[str, int] | None:
        """Return the assignments of an earlier life of the run; None if there was none."""
        try:
            return msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            return None
