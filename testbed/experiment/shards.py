"""The shards of a whole fleet: the training and held-out examples of each device.

The assignment of shards to devices is stored in the run's folder, so that a restart repeats it.
"""

import hashlib
import logging
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints, distinct
from fairbed.coordinator.ports import EarlierNames, no_earlier_names
from fairbed.coordinator.task.catalogue import load_task
from fairbed.coordinator.task.errors import TaskError
from fairbed.testbed.emulation.malicious import POISONS_LABELS, poison_labels
from fairbed.testbed.experiment.data import (
    ByClass,
    ClassMix,
    ConsecutiveClasses,
    DataConfig,
    Dirichlet,
    Iid,
    Natural,
    Partition,
)
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.labels import class_text
from fairbed.testbed.experiment.datasets.loading import Draw, generator, load
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.partition import divide, rows_by_owner
from fairbed.wire.artifact import Artifact, initial_vector
from fairbed.wire.labels import shortened
from fairbed.wire.shard import Shard, make_shard, split, split_validation, strata

if TYPE_CHECKING:
    from fairbed.coordinator.task.changes import ModelChanges

_log = logging.getLogger(__name__)

COLUMNS_LOG = f"{__name__}.columns"
"""Logger of the lines about columns of a table. They depend on the file only, so the processes of a
grid, which prints them when it checks its arms, turn it off."""


def task_of(experiment: Experiment, dataset: Dataset) -> Artifact:
    """Return the task of the model of an experiment on a data set.

    Raises:
        TaskError: The model is not available, or does not fit the data; or a client replaces it.
    """
    model = experiment.model
    if (client := experiment.training.client) is not None:
        raise TaskError(
            f"training.client: must be left out where Fairbed itself trains or measures a model, "
            f"got {client!r}; only live runs have clients (fairbed run)"
        )
    return load_task(
        model.name,
        dataset.x_shape,
        dataset.classes,
        dataset.kind,
        engine=model.engine,
        examples=dataset.x,
        targets=dataset.y,
        x_classes=dataset.x_classes,
        y_shape=dataset.y.shape[1:],
        classes_axis=model.classes_axis,
        batch_norm=model.batch_norm,
        lengths=dataset.buckets,
        changes=changes_of(experiment),
        personal=model.personal,
        loss=model.loss,
        loss_options=model.loss_options,
        metrics=experiment.evaluation.metrics,
        bounded_by=bounding_part_of(experiment),
    )


def bounding_part_of(experiment: Experiment) -> str:
    """Return key and value of what takes a loss of the user as at least 0; empty if nothing does.

    Empty, too, without such a loss.
    """
    if not experiment.model.has_own_loss:
        return ""
    from fairbed.coordinator.policy.factories import bounding_part

    return bounding_part(experiment.selection, experiment.aggregation)


def changes_of(experiment: Experiment) -> "ModelChanges | None":
    """Return what an experiment changes of the module of its model; None: nothing."""
    model = experiment.model
    if model.weights is None and model.adaptation is None:
        return None
    from fairbed.coordinator.task.changes import ModelChanges

    return ModelChanges(model.weights, model.fresh, model.adaptation)


def first_model(experiment: Experiment, artifact: Artifact) -> NDArray[np.float32]:
    """Return the model before round 1, shape (n_values,).

    Raises:
        TaskError: The weights are not there, or do not fit.
    """
    seed, changes = experiment.seed_for("init"), changes_of(experiment)
    if changes is None or changes.weights is None:
        return initial_vector(artifact.spec, seed)
    from fairbed.coordinator.task.catalogue import changed_module

    return changes.first_vector(artifact.spec, changed_module(artifact.spec, changes), seed)


def load_examples(
    experiment: Experiment, environment: Mapping[str, str], *, always_twice: bool = False
) -> Dataset:
    """Return the examples of an experiment, as `load` does with its seed and its task.

    What the labels leave open, and a class that `max_examples` left without examples, is logged.

    Raises:
        DatasetError: The data are not available, or there are none.
    """
    if experiment.data.has_none:
        raise DatasetError(
            "data.dataset",
            'must be a data set, got "none", which only live runs of a client can have',
            "choose one",
        )
    dataset = load(
        experiment.data,
        experiment.seed_for("data"),
        environment,
        task=experiment.model.task,
        always_twice=always_twice,
    )
    if dataset.guess:
        _log.warning("%s: %s", dataset.source, dataset.guess)
    for note in dataset.notes:
        logging.getLogger(COLUMNS_LOG).warning("%s: %s", dataset.source, note)
    absent = [label for label, count in dataset.class_counts() if not count]
    if absent and not dataset.predicts_tokens:
        _log.warning("%s: no example has the class %s", dataset.source, shortened(absent))
    return dataset


def preferred_shards(device: str, names: Sequence[str], devices: int, seed: int) -> list[int]:
    """Return all shards in the order in which a device takes the first free one.

    A device of the fleet begins with its place there. Another one whose name ends with a number
    begins with the shard of that number, counted from 1: `pi-3` with the third. The rest is drawn
    with seed and name, and places of the fleet come last: their devices may still join.

    Args:
        device: Name of the device.
        names: Names of the fleet in its order, at most `devices`.
        devices: Number of shards.
        seed: Seed of the division.
    """
    if device in names:
        first = [names.index(device)]
    else:
        number = re.search(r"(?<![0-9])[0-9]{1,9}\Z", device)
        place = int(number[0]) - 1 if number else -1
        first = [place] if len(names) <= place < devices else []
    digest = hashlib.sha256(f"{seed}:{device}".encode()).digest()
    drawn = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32)).permutation(devices)
    rest = sorted(drawn.tolist(), key=lambda shard: shard < len(names))
    return first + [shard for shard in rest if shard not in first]


class Places:
    """Numbers of devices, each of which is that of a shard if there are shards; thread-safe.

    Devices that are expected have their number from the start. Another device gets one at its first
    request, by its name (`preferred_shards`), and keeps it.

    Args:
        count: Number of places.
        seed: Seed of the preferences.
        names: Devices that are known from the start, in fleet order: name i has number i.
        planned: Names of a fleet that is not expected: one that joins has number i, too, but
            another device can take it before.
        earlier_names: Of a renamed device, which keeps its number.
        assignments: Result of `assignments()` before a restart of the same run.

    Raises:
        DatasetError: The assignments do not fit.
    """

    def __init__(
        self,
        count: int,
        seed: int,
        *,
        names: Sequence[str] = (),
        planned: Sequence[str] = (),
        earlier_names: EarlierNames = no_earlier_names,
        assignments: Mapping[str, int] | None = None,
    ) -> None:
        self.count = count
        self._names, self._seed, self._earlier_names = names or planned, seed, earlier_names
        self._assigned = _merged(count, names, assignments or {}, earlier_names)
        self._lock = threading.Lock()

    def assignments(self) -> dict[str, int]:
        """Return the number of each device that has one, for a resumed run."""
        with self._lock:
            return dict(self._assigned)

    def number(self, device: str) -> int | None:
        """Return the number of a device, from 0; None if all are taken."""
        with self._lock:
            if device in self._assigned:
                return self._assigned[device]
        earlier = self._earlier_names(device)
        with self._lock:
            old = next((name for name in earlier if name in self._assigned), None)
            if old is not None:
                self._assigned[device] = self._assigned.pop(old)
            if device not in self._assigned and not self._assign(device, earlier):
                return None
            return self._assigned[device]

    def _assign(self, device: str, earlier: Sequence[str]) -> bool:
        """Give a device the first free number of its preference; return whether there was one."""
        name = next((old for old in earlier if old in self._names), device)
        order = preferred_shards(name, self._names, self.count, self._seed)
        holders = {shard: holder for holder, shard in self._assigned.items()}
        free = next((shard for shard in order if shard not in holders), None)
        if free is None:
            return False
        self._assigned[device] = free
        if free != order[0]:
            _log.warning(
                "%s: gets shard %d, because %s joined first and has the shard of its name; list "
                "both in fleet.physical, and the shards do not depend on the order of joining",
                device,
                free + 1,
                holders[order[0]],
            )
        return True


class FleetData:
    """A data set divided over the devices of a fleet; a `coordinator.ports.ShardSource`.

    Each device has the shard of its number (`Places`). Any thread may call; a shard is built at
    each request.
    """

    def __init__(
        self,
        dataset: Dataset,
        config: DataConfig,
        *,
        devices: int,
        seed: int,
        names: Sequence[str] = (),
        planned: Sequence[str] = (),
        earlier_names: EarlierNames = no_earlier_names,
        assignments: Mapping[str, int] | None = None,
        places: Places | None = None,
        poisoned: Collection[int] = (),
        poison_seed: int = 0,
        sends_held_out: bool = False,
        fold: int = 0,
    ) -> None:
        """Divide the data.

        Args:
            dataset: All examples.
            config: The partition and its options.
            devices: Number of shards.
            seed: Seed of the division.
            names: As in `Places`, like the next three.
            planned: Of a fleet that is not expected.
            earlier_names: Of a renamed device.
            assignments: Before a restart of the same run.
            places: Made before, in the place of these four.
            poisoned: Shards whose training labels are poisoned, not their held-out labels.
            poison_seed: Seed of the poisoned labels.
            sends_held_out: Devices receive their held-out examples, too, to evaluate their personal
                models, or one of which they keep some values.
            fold: Which fold validates on devices with few validation examples.

        Raises:
            DatasetError: The data cannot be divided so, or the assignments do not fit.
        """
        self._sends_held_out = sends_held_out
        self.places = places or Places(
            devices,
            seed,
            names=names,
            planned=planned,
            earlier_names=earlier_names,
            assignments=assignments,
        )
        partition = config.partition or (Iid() if dataset.device_ids is None else Natural())
        classes = strata(dataset.y)
        _check_division(dataset, partition, classes)
        owner = divide(
            partition,
            classes,
            dataset.device_ids,
            devices,
            config.min_examples,
            generator(seed, Draw.PARTITION),
        )
        parts = [
            split(rows, classes[rows], config.test_fraction, generator(seed, Draw.SPLIT, k))
            for k, rows in enumerate(rows_by_owner(owner, devices))
        ]
        if config.validation_fraction:
            parts = _with_validation(parts, classes, config, seed, fold)
            if config.evaluated == "validation":
                dataset, parts = _without_others(dataset, parts)
        self.train_rows: tuple[Ints, ...] = tuple(train for train, _ in parts)
        """Rows of `dataset` that each shard trains on."""
        self.test_rows: tuple[Ints, ...] = tuple(held_out for _, held_out in parts)
        """Rows of `dataset` on which the models of each shard are evaluated: test examples, or
        validation examples with `data.evaluated`, which may be none."""
        self.dataset = dataset = dataset.fitted(np.concatenate(self.train_rows))
        """All examples, or those without test examples with `data.evaluated = "validation"`; fitted
        on the training rows, with poisoned labels where a shard has them."""
        if untrained := self._untrained():
            _log.warning(
                "%s: no device trains on the class %s: all its examples are held out for tests; "
                "lower data.test_fraction, or add examples",
                dataset.source,
                shortened(untrained),
            )
        if poisoned:
            if dataset.is_regression:
                raise DatasetError(
                    "fleet.malicious",
                    f"{', '.join(POISONS_LABELS)} need classes, got the targets of regression",
                    "choose another kind of malicious device",
                )
            y = dataset.y.astype(np.int64)
            n_labels = 2 if dataset.is_multi_label else dataset.classes
            for k in poisoned:
                rows, rng = self.train_rows[k], generator(poison_seed, Draw.POISON, k)
                y[rows] = poison_labels(y[rows], n_labels, rng)
            self.dataset = replace(dataset, y=y)

    def _untrained(self) -> list[str]:
        """Return the labels of the classes that have examples, but none in a training part."""
        trained = self.dataset.class_counts(np.concatenate(self.train_rows))
        counts = zip(self.dataset.class_counts(), trained, strict=True)
        return [label for (label, n), (_, n_trained) in counts if n and not n_trained]

    def shard(self, device: str) -> Shard | None:
        """Return the examples of `device`; None if all shards are taken."""
        number = self.places.number(device)
        if number is None:
            return None
        rows, held_out = self.train_rows[number], self.test_rows[number]
        shard = make_shard(self.dataset.x[rows], self.dataset.y[rows])
        if self._sends_held_out and len(held_out):
            tests = make_shard(self.dataset.x[held_out], self.dataset.y[held_out])
            shard = msgspec.structs.replace(shard, held_out=tests)
        return shard

    def assignments(self) -> dict[str, int]:
        """Return the shard number of each device that has one, for a resumed run."""
        return self.places.assignments()


def _with_validation(
    parts: Sequence[tuple[Ints, Ints]], classes: Ints, config: DataConfig, seed: int, fold: int
) -> list[tuple[Ints, Ints]]:
    """Return the rows of each shard that train and those that are evaluated.

    Args:
        parts: Rows of each shard without the test part, and of the test part.
        classes: Of all rows, shape (n,).
        config: The shares, and the part that is evaluated.
        seed: Seed of the division.
        fold: Which fold validates where it is small.
    """
    found = []
    for k, (rows, tests) in enumerate(parts):
        rng = generator(seed, Draw.VALIDATION, k)
        training, validation = split_validation(
            rows, classes[rows], config.validation_fraction, fold, rng
        )
        found.append((training, validation if config.evaluated == "validation" else tests))
    if config.evaluated == "validation" and (lacking := sum(not len(own) for _, own in found)):
        _log.warning(
            "data.validation_fraction: %d of %d devices have no validation example, because one "
            "example alone is left for training; they do not count",
            lacking,
            len(found),
        )
    return found


def _without_others(
    dataset: Dataset, parts: Sequence[tuple[Ints, Ints]]
) -> tuple[Dataset, list[tuple[Ints, Ints]]]:
    """Return the examples of some parts alone, and the places of the parts there."""
    kept = np.sort(np.concatenate([rows for pair in parts for rows in pair]))
    return dataset.take(kept), [
        (np.searchsorted(kept, own), np.searchsorted(kept, held_out)) for own, held_out in parts
    ]


def _check_division(dataset: Dataset, partition: Partition, classes: Ints) -> None:
    """Refuse a division by class of examples that have none; state which class is theirs.

    Args:
        dataset: The examples.
        partition: The division.
        classes: What `strata` has returned, shape (n,).

    Raises:
        DatasetError: They have no classes, or all the same one.
    """
    if not dataset.y_shape or not isinstance(
        partition, Dirichlet | ClassMix | ByClass | ConsecutiveClasses
    ):
        return
    kind = type(partition).__struct_config__.tag
    problem = ""
    if dataset.is_multi_label:
        problem = "examples of one class each, got several labels per example"
    elif dataset.is_regression or dataset.predicts_tokens:
        problem = f"examples of one class each, got targets of shape {dataset.y_shape}"
    elif len(distinct(classes)) < 2:
        problem = (
            "examples with different most frequent labels, got "
            f"{class_text(dataset.labels, int(classes[0]))} for all"
        )
    if problem:
        raise DatasetError(
            "data.partition", f"{kind} must have {problem}", "use iid, or natural with users"
        )
    _log.warning(
        "%s: %s divides the examples by the most frequent label of each", dataset.source, kind
    )


def _merged(
    devices: int,
    names: Sequence[str],
    assignments: Mapping[str, int],
    earlier_names: EarlierNames,
) -> dict[str, int]:
    """Return the shard of each device, known from the start or assigned before a restart."""
    if len(names) > devices or len(set(names)) != len(names):
        raise DatasetError(
            "fleet",
            f"device names must be distinct and at most {devices}, got {len(names)}",
            "give every device its own name and shard",
        )
    known = {name: k for k, name in enumerate(names)}
    for name, shard in assignments.items():
        old = names[shard] if 0 <= shard < len(names) else name
        if old != name and old in earlier_names(name):
            del known[old]
    merged = dict(assignments) | known
    misfits = [n for n, k in assignments.items() if merged[n] != k or not 0 <= k < devices]
    if misfits or len(set(merged.values())) != len(merged):
        raise DatasetError(
            "fleet",
            f"stored shard assignments must fit the fleet, got {misfits or sorted(assignments)}",
            "resume with the experiment that the run was started with",
        )
    return merged


ASSIGNMENTS_FILE = "shards.json"


class StoredPlaces:
    """Numbers of devices that are stored in a file when they are new; thread-safe."""

    def __init__(self, places: Places, folder: Path) -> None:
        self._places = places
        self._path = folder / ASSIGNMENTS_FILE
        self._written: dict[str, int] = {}
        self._writing = threading.Lock()

    @property
    def count(self) -> int:
        """Number of places."""
        return self._places.count

    def number(self, device: str) -> int | None:
        """Return the number of a device, from 0; None if all are taken."""
        number = self._places.number(device)
        self._store()
        return number

    def _store(self) -> None:
        with self._writing:
            assignments = self._places.assignments()
            if assignments != self._written:
                scratch = self._path.with_suffix(".tmp")
                scratch.write_bytes(msgspec.json.encode(assignments))
                scratch.replace(self._path)
                self._written = assignments

    @staticmethod
    def read(folder: Path) -> dict[str, int] | None:
        """Return the assignments that the run stored before a restart; None if there are none."""
        try:
            content = (folder / ASSIGNMENTS_FILE).read_bytes()
            return msgspec.json.decode(content, type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            return None


class StoredShards(StoredPlaces):
    """A `coordinator.ports.ShardSource` that stores new assignments in a file; thread-safe."""

    def __init__(self, data: FleetData, folder: Path) -> None:
        super().__init__(data.places, folder)
        self._data = data

    def shard(self, device: str) -> Shard | None:
        """Return the training data of `device`; None if all shards are taken."""
        shard = self._data.shard(device)
        self._store()
        return shard
