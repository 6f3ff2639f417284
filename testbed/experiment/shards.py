"""The data of a whole fleet: who holds which examples, to train on and to be judged by.

Which device was given which shard, kept in the run's folder so that a restart gives the same.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.testbed.experiment.data import DataConfig, Iid, Natural
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.loading import Draw, generator
from fairbed.testbed.experiment.partition import divide, rows_by_owner, split
from fairbed.wire.shard import Shard, make_shard


class FleetData:
    """A data set divided over the devices of a fleet; a `coordinator.ports.ShardSource`.

    Emulated devices are known by name from the start. A device that is not takes the next free
    shard when it first asks, and keeps it. Any thread may call; shards are built when asked for.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: DataConfig,
        *,
        devices: int,
        seed: int,
        names: Sequence[str] = (),
        assignments: Mapping[str, int] | None = None,
    ) -> None:
        """Divide the data.

        Args:
            dataset: All examples.
            config: How to divide them.
            devices: Number of shards.
            seed: What the division depends on.
            names: Devices known beforehand, in fleet order: name i holds shard i.
            assignments: What `assignments()` returned in an earlier life of the same run.

        Raises:
            DataError: The data cannot be divided so, or the assignments do not fit.
        """
        self.dataset = dataset
        self._assigned = _merged(devices, names, assignments or {})
        self._lock = threading.Lock()
        partition = config.partition or (Iid() if dataset.device_ids is None else Natural())
        owner = divide(
            partition,
            dataset.y,
            dataset.device_ids,
            devices,
            config.min_examples,
            generator(seed, Draw.PARTITION),
        )
        parts = [
            split(rows, dataset.y[rows], config.test_fraction, generator(seed, Draw.SPLIT, k))
            for k, rows in enumerate(rows_by_owner(owner, devices))
        ]
        self.train_rows: tuple[Ints, ...] = tuple(train for train, _ in parts)
        """Rows of the data set that each shard trains on."""
        self.test_rows: tuple[Ints, ...] = tuple(test for _, test in parts)
        """Rows of the data set that each shard holds out."""

    def shard(self, device: str) -> Shard | None:
        """Return the training data of `device`, or None when all shards are taken."""
        number = self._number(device)
        if number is None:
            return None
        rows = self.train_rows[number]
        return make_shard(self.dataset.x[rows], self.dataset.y[rows])

    def assignments(self) -> dict[str, int]:
        """Return the shard number of each device that has one, to be given back on resume."""
        with self._lock:
            return dict(self._assigned)

    def _number(self, device: str) -> int | None:
        with self._lock:
            if device not in self._assigned:
                taken = set(self._assigned.values())
                free = next((k for k in range(len(self.train_rows)) if k not in taken), None)
                if free is None:
                    return None
                self._assigned[device] = free
            return self._assigned[device]


def _merged(devices: int, names: Sequence[str], assignments: Mapping[str, int]) -> dict[str, int]:
    """Return the shard of each device, known beforehand or assigned in an earlier life."""
    if len(names) > devices or len(set(names)) != len(names):
        raise DatasetError(
            "fleet",
            f"names must be distinct and at most {devices}, got {len(names)}",
            "give every device its own name and shard",
        )
    known = {name: k for k, name in enumerate(names)}
    merged = dict(assignments) | known
    strays = [n for n, k in assignments.items() if merged[n] != k or not 0 <= k < devices]
    if strays or len(set(merged.values())) != len(merged):
        raise DatasetError(
            "fleet",
            f"shards handed out before must fit the fleet, got {strays or sorted(assignments)}",
            "resume with the experiment that the run was started with",
        )
    return merged


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
