"""How a data set is divided over devices, as numbers and as a picture of text. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.testbed.experiment.data import Iid, Natural, Partition
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.datasets.labels import class_text
from fairbed.testbed.experiment.datasets.loading import Draw, generator
from fairbed.testbed.experiment.partition import divide
from fairbed.wire.shard import strata

SHADES = " .:-=#@"
"""Of the share of a class in the examples of a device, from none to all."""
STEPS = (0.0, 0.05, 0.15, 0.3, 0.5, 0.75)
"""Shares above which the next shade begins."""
ROWS, COLUMNS, BAR = 40, 62, 20
"""Most devices and classes in a picture, and the length of the longest bar."""


@dataclass(frozen=True, slots=True)
class Division:
    """The examples of each device by class."""

    counts: Ints
    """Examples of each class, shape (devices, classes); one class for regression."""
    classes: tuple[str, ...]
    """Label of each class; for regression the tenths of the targets in their order."""
    partition: str
    """Its kind."""

    @property
    def sizes(self) -> Ints:
        """Examples of each device, shape (devices,)."""
        found: Ints = self.counts.sum(axis=1)
        return found

    @property
    def held(self) -> Ints:
        """Classes of which a device has an example, shape (devices,)."""
        found: Ints = (self.counts > 0).sum(axis=1)
        return found


def divided(
    dataset: Dataset, partition: Partition | None, devices: int, least: int, seed: int
) -> Division:
    """Return the division of a data set, as a run with this seed makes it.

    Args:
        dataset: All examples.
        partition: The kind of division; None: natural if there are users, and iid otherwise.
        devices: Number of devices.
        least: Fewest examples of a device.
        seed: Seed of the division.

    Raises:
        DatasetError: The data cannot be divided so.
    """
    if partition is None:
        partition = Iid() if dataset.device_ids is None else Natural()
    y = strata(dataset.y)
    rng = generator(seed, Draw.PARTITION)
    owner = divide(partition, y, dataset.device_ids, devices, least, rng)
    n_classes = (
        int(y.max()) + 1 if dataset.is_regression else max(dataset.classes, int(y.max()) + 1)
    )
    flat = np.bincount(owner * n_classes + y, minlength=devices * n_classes)
    if dataset.is_regression:
        labels = tuple(f"tenth {k + 1}" for k in range(n_classes))
    else:
        labels = tuple(class_text(dataset.labels, k) for k in range(n_classes))
    kind = type(partition).__struct_config__.tag
    return Division(flat.reshape(devices, n_classes), labels, str(kind))


def picture(division: Division) -> Iterator[str]:
    """Yield a picture of a division as lines, a device per line, and what it shows in words."""
    sizes, shown = division.sizes, shown_devices(division)
    n = len(sizes)
    more = "" if len(shown) == n else f" ({len(shown)} of {n:,}, evenly by size)"
    width = min(len(division.classes), COLUMNS)
    cut = "" if width == len(division.classes) else f" (the first {width} of them)"
    yield (
        f"devices{more}, examples, and classes {division.classes[0]} .. {division.classes[-1]}{cut}"
    )
    digits, places = len(f"{sizes.max():,}"), len(str(n))
    for device in shown:
        bar = "#" * max(1, round(BAR * sizes[device] / sizes.max()))
        cells = "".join(shade(share) for share in shares(division)[device, :width])
        yield f"{device + 1:>{places}}  {sizes[device]:>{digits},}  {bar:<{BAR}}  |{cells}|"
    limits = " ".join(
        f"'{shade}' above {step:.0%}" for shade, step in zip(SHADES[1:], STEPS, strict=True)
    )
    yield f"share of a class in the examples of a device: {limits}"
    yield from summary(division)


def summary(division: Division) -> Iterator[str]:
    """Yield lines about sizes and classes."""
    sizes, held = division.sizes, division.held
    yield (
        f"examples per device: {sizes.min():,} .. {sizes.max():,}, median {np.median(sizes):,g}, "
        f"standard deviation {sizes.std():,.4g}"
    )
    yield (
        f"classes per device: {held.min()} .. {held.max()} of {len(division.classes)}, median "
        f"{np.median(held):g}"
    )
    if alone := int((held == 1).sum()):
        yield (
            f"{alone} of {len(sizes)} devices have one class alone: AUROC and its like are "
            "undefined there"
        )


def shown_devices(division: Division) -> Sequence[int]:
    """Return the devices in a picture: all, or some at even places in the order of size."""
    n = len(division.sizes)
    if n <= ROWS:
        return range(n)
    order = np.argsort(-division.sizes, kind="stable")
    found: list[int] = order[np.linspace(0, n - 1, ROWS).round().astype(np.int64)].tolist()
    return found


def shares(division: Division) -> NDArray[np.float64]:
    """Return the share of each class in the examples of a device, shape (devices, classes)."""
    return division.counts / np.maximum(division.sizes, 1)[:, np.newaxis]


def shade(share: float) -> str:
    """Return the character of a share, from 0 to 1."""
    return SHADES[int(np.searchsorted(STEPS, share, side="left"))]
