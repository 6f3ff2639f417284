"""Divide examples over devices: every example goes to exactly one device.

A division is one array, `owner`: the device of each example, shape (n,), values 0 .. devices - 1.
Pure: all randomness comes from the generator in the arguments.
"""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.testbed.experiment.data import (
    ByClass,
    ClassMix,
    ConsecutiveClasses,
    Dirichlet,
    Iid,
    Natural,
    Partition,
)
from fairbed.testbed.experiment.datasets.dataset import DatasetError

MAX_REDRAWS = 10_000
MAX_DRAWN_VALUES = 50_000_000
"""Limits a Dirichlet search without success to a few seconds, also for many devices."""
LEAST_SHARE = 1e-9
"""Smallest share of a class in a mixture: tiny concentrations draw zeros, which do not scale."""
BALANCING_STEPS = 200
"""By-class sizes converge within tens of steps; the others cost microseconds."""


def divide(
    partition: Partition,
    y: Ints,
    device_ids: Ints | None,
    devices: int,
    min_examples: int,
    rng: np.random.Generator,
) -> Ints:
    """Return the owner of each example under a partition.

    Args:
        partition: The kind of division.
        y: Class of each example, shape (n,).
        device_ids: Natural user of each example, shape (n,), or None.
        devices: Number of devices.
        min_examples: Fewest examples of a device.
        rng: Source of randomness.

    Returns:
        Owner of each example, shape (n,).

    Raises:
        DatasetError: The data cannot be divided so.
    """
    if len(y) < devices * min_examples:
        raise DatasetError(
            "data.partition",
            f"{devices} devices need {devices * min_examples} examples "
            f"(min_examples = {min_examples} each), got {len(y)}",
            "use fewer devices, a lower data.min_examples or a higher data.max_examples",
        )
    owner = _owner(partition, y, device_ids, devices, min_examples, rng)
    sizes = np.bincount(owner, minlength=devices)
    if sizes.min() < min_examples:
        raise DatasetError(
            "data.partition",
            f"every device must hold {min_examples} examples (data.min_examples), "
            f"got {sizes.min()} at device {sizes.argmin() + 1} of {devices}",
            "lower data.min_examples, or use fewer devices",
        )
    return owner


def rows_by_owner(owner: Ints, devices: int) -> list[Ints]:
    """Return the rows of the examples of each device, ascending, one array per device."""
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=devices))
    return np.split(order, ends[:-1])


def iid(n: int, devices: int, rng: np.random.Generator) -> Ints:
    """Divide `n` shuffled examples over `devices`; sizes differ by at most one."""
    return rng.permutation(np.arange(n, dtype=np.int64) % devices)


def dirichlet(
    y: Ints, devices: int, alpha: float, min_examples: int, rng: np.random.Generator
) -> Ints:
    """Divide each class over the devices by its own Dirichlet draw.

        q_c ~ Dirichlet(alpha 1_K) for each class c; redraw all until min_k n_k >= min_examples

    A draw with NaN, which a tiny alpha can give, counts as failed.

    Args:
        y: Class of each example, shape (n,).
        devices: K.
        alpha: Concentration, > 0.
        min_examples: Fewest examples of a device.
        rng: Source of randomness.

    Returns:
        Owner of each example, shape (n,).

    Raises:
        DatasetError: No draw within a bounded number reached the minimum.

    Source:
        Yurochkin et al., ICML 2019; Li et al. (NIID-Bench), ICDE 2022, without its rebalancing.
    """
    class_sizes = np.bincount(y)
    draws = max(1, min(MAX_REDRAWS, MAX_DRAWN_VALUES // (devices * len(class_sizes))))
    for _ in range(draws):
        shares = rng.dirichlet(np.full(devices, alpha), len(class_sizes))
        if not np.isfinite(shares).all():
            continue
        counts = _whole_counts(shares, class_sizes)
        if counts.sum(axis=0).min() >= min_examples:
            return _assign(y, counts, rng)
    raise DatasetError(
        "data.partition",
        f"each of {devices} devices must get {min_examples} examples, got no such draw among "
        f"{draws} with alpha = {alpha:g}",
        "raise alpha, lower data.min_examples or use fewer devices",
    )


def class_mix(y: Ints, devices: int, gamma: float, rng: np.random.Generator) -> Ints:
    """Give each device its own mixture of the classes, and all devices equally many examples.

        q_k ~ Dirichlet(gamma / C 1_C) for each device k of K, then n_ck near q_ck n / K

    Every example is assigned, so the drawn mixtures are scaled to the sizes of the classes
    (iterative proportional fitting); the sizes of the devices are as close to n/K as possible.

    Args:
        y: Class of each example, shape (n,).
        devices: K.
        gamma: Concentration, > 0: with a smaller value, a device holds more of a single class.
        rng: Source of randomness.

    Returns:
        Owner of each example, shape (n,).

    Source:
        Hsu, Qi & Brown, arXiv:1909.06335, with a uniform prior.
    Deviates:
        The source draws examples class by class until a class is empty, so that the last devices
        get the remaining classes.
    """
    class_sizes = np.bincount(y)
    present = class_sizes > 0
    mixtures = np.zeros((len(class_sizes), devices))
    shares = rng.dirichlet(np.full(int(present.sum()), gamma / present.sum()), devices)
    mixtures[present] = np.maximum(shares, LEAST_SHARE).T
    fitted = _fit_proportions(mixtures, len(y) / devices, class_sizes)
    return _assign(y, _whole_counts(fitted, class_sizes), rng)


def by_class(y: Ints, devices: int, classes_per_device: int, rng: np.random.Generator) -> Ints:
    """Give each device exactly `classes_per_device` classes, and sizes as even as possible.

    Each class gets a number of devices in proportion to its size. Then the examples of a class are
    divided over its devices, at least one each, so that the sizes of the devices are as close to
    n/K as possible (iterative proportional fitting).

    Args:
        y: Class of each example, shape (n,).
        devices: K.
        classes_per_device: Classes of each device.
        rng: Source of randomness.

    Returns:
        Owner of each example, shape (n,).

    Raises:
        DatasetError: There are too few classes, devices or examples.
    """
    class_sizes = np.bincount(y)
    present = np.flatnonzero(class_sizes)
    if not len(present) / devices <= classes_per_device <= len(present):
        raise DatasetError(
            "data.partition",
            f"classes_per_device must be {-(-len(present) // devices)} .. {len(present)} for "
            f"{len(present)} classes on {devices} devices, got {classes_per_device}",
            "choose a number in that range",
        )
    holds = np.zeros((len(class_sizes), devices), np.bool_)
    holds[present] = _holders(class_sizes[present], devices, classes_per_device, rng)
    short = np.flatnonzero(holds.sum(axis=1) > class_sizes)
    if len(short):
        raise DatasetError(
            "data.partition",
            f"class {short[0]} must have an example for each of its {holds[short[0]].sum()} "
            f"devices, got {class_sizes[short[0]]}",
            "use fewer devices or classes per device, or more examples",
        )
    return _assign(y, _balanced_counts(holds, class_sizes), rng)


LEAST_SIZE, LOG_SIZE_MEAN, LOG_SHARE_MEAN = 10.0, 3.0, 1.0
"""Of the sizes and shares that Ditto draws, before they are scaled to the number of examples."""


def consecutive_classes(
    y: Ints, devices: int, classes_per_device: int, sigma: float, rng: np.random.Generator
) -> Ints:
    """Give device k the classes k, k + 1, ... modulo their number, with log-normal sizes.

        n_k = 10 + exp(N(3, sigma)),   q_jk = exp(N(1, sigma)) of its j-th class, both scaled

    Every example is assigned, so the drawn sizes are scaled to those of the classes (iterative
    proportional fitting): a device holds about its size, and its classes exactly.

    Args:
        y: Class of each example, shape (n,).
        devices: K, enough for each class to have a device.
        classes_per_device: Classes of each device.
        sigma: Deviation of the logarithms, >= 0.
        rng: Source of randomness.

    Returns:
        Owner of each example, shape (n,).

    Raises:
        DatasetError: There are too few classes, devices or examples.

    Source:
        Li, Hu, Beirami, Smith, Ditto, ICML 2021: Fashion-MNIST with 500 devices, 5 classes and
        sigma = 1, as in the authors' generator.
    Deviates:
        The source begins a class again when its examples are used up, so that devices share some;
        here no two devices share one. Its features are standardised by pixel; ours are not.
    """
    class_sizes = np.bincount(y)
    present = np.flatnonzero(class_sizes)
    least = max(1, len(present) - devices + 1)
    if not least <= classes_per_device <= len(present):
        raise DatasetError(
            "data.partition",
            f"classes_per_device must be {least} .. {len(present)} for {len(present)} classes on "
            f"{devices} devices, got {classes_per_device}",
            "choose a number in that range",
        )
    sizes = LEAST_SIZE + rng.lognormal(LOG_SIZE_MEAN, sigma, devices)
    shares = rng.lognormal(LOG_SHARE_MEAN, sigma, (classes_per_device, devices))
    places = (np.arange(classes_per_device)[:, np.newaxis] + np.arange(devices)) % len(present)
    wanted = np.zeros((len(class_sizes), devices))
    columns = np.broadcast_to(np.arange(devices), places.shape)
    wanted[present[places], columns] = shares / shares.sum(axis=0)
    holds = wanted > 0.0
    short = np.flatnonzero(holds.sum(axis=1) > class_sizes)
    if len(short):
        raise DatasetError(
            "data.partition",
            f"class {short[0]} must have an example for each of its {holds[short[0]].sum()} "
            f"devices, got {class_sizes[short[0]]}",
            "use fewer devices or classes per device, or more examples",
        )
    spare = class_sizes - holds.sum(axis=1)
    targets = np.maximum(sizes * len(y) / sizes.sum() - holds.sum(axis=0), 0.0)
    counts: Ints = holds + _whole_counts(_fit_proportions(wanted, targets, spare), spare)
    return _assign(y, counts, rng)


def natural(device_ids: Ints | None, devices: int, rng: np.random.Generator) -> Ints:
    """Give each device whole users: one each, or several random ones if there are more users.

    Args:
        device_ids: Natural user of each example, 0 .. users - 1, shape (n,).
        devices: Number of devices, at most the number of users.
        rng: Source of randomness; not used if there are as many users as devices.

    Returns:
        Owner of each example, shape (n,): user k at device k when the numbers are equal.

    Raises:
        DatasetError: The data have no users, or fewer than there are devices.
    """
    if device_ids is None:
        raise DatasetError(
            "data.partition",
            "natural needs the user of each example, got data without users",
            "add the array device to the .npz file, or use iid, dirichlet, class-mix, by-class or "
            "consecutive-classes",
        )
    users = int(device_ids.max()) + 1
    if users < devices:
        raise DatasetError(
            "data.partition",
            f"natural needs a user for each of {devices} devices, got {users} users",
            f"use at most {users} devices, or another partition",
        )
    device_of_user = np.arange(users, dtype=np.int64)
    if users > devices:
        device_of_user = rng.permutation(device_of_user) % devices
    return device_of_user[device_ids]


def _owner(
    partition: Partition,
    y: Ints,
    device_ids: Ints | None,
    devices: int,
    min_examples: int,
    rng: np.random.Generator,
) -> Ints:
    match partition:
        case Iid():
            return iid(len(y), devices, rng)
        case Dirichlet():
            return dirichlet(y, devices, partition.alpha, min_examples, rng)
        case ClassMix():
            return class_mix(y, devices, partition.gamma, rng)
        case ByClass():
            return by_class(y, devices, partition.classes_per_device, rng)
        case ConsecutiveClasses():
            each, sigma = partition.classes_per_device, partition.sigma
            return consecutive_classes(y, devices, each, sigma, rng)
        case Natural():
            return natural(device_ids, devices, rng)


def _whole_counts(shares: Floats, class_sizes: Ints) -> Ints:
    """Return whole counts (C, K) with row sums `class_sizes` (C,), from shares (C, K).

    A share of exactly 0 gets a count of 0.
    """
    ends = np.cumsum(shares, axis=1)
    ends /= np.where(ends[:, -1:] > 0.0, ends[:, -1:], 1.0)
    cuts = np.floor(ends * class_sizes[:, np.newaxis]).astype(np.int64)
    return np.diff(cuts, axis=1, prepend=0)


def _assign(y: Ints, counts: Ints, rng: np.random.Generator) -> Ints:
    """Return owners (n,) so that device k gets `counts[c, k]` random examples of class c."""
    owner = np.empty(len(y), np.int64)
    devices = np.arange(counts.shape[1])
    for c, row in enumerate(counts):
        owner[rng.permutation(np.flatnonzero(y == c))] = np.repeat(devices, row)
    return owner


def _holders(class_sizes: Ints, devices: int, each: int, rng: np.random.Generator) -> Bools:
    """Return which devices hold which class, shape (C, K).

    A device holds `each` classes, a class is held by 1 to K devices. The slots of all classes are
    listed class after class, and slot j goes to device j mod K, so a device gets a class once.
    """
    slots = np.ones(len(class_sizes), np.int64)
    for _ in range(devices * each - len(class_sizes)):
        per_slot = np.where(slots < devices, class_sizes / slots, -1.0)
        slots[np.argmax(per_slot)] += 1
    order = rng.permutation(len(class_sizes))
    classes = np.repeat(order, slots[order])
    slot_devices = rng.permutation(devices)[np.arange(devices * each) % devices]
    holds = np.zeros((len(class_sizes), devices), np.bool_)
    holds[classes, slot_devices] = True
    return holds


def _balanced_counts(holds: Bools, class_sizes: Ints) -> Ints:
    """Return counts (C, K), >= 1 where held, with row sums `class_sizes` and even column sums."""
    spare = class_sizes - holds.sum(axis=1)
    target = class_sizes.sum() / holds.shape[1] - holds.sum(axis=0)
    fitted = _fit_proportions(holds.astype(np.float64), target, spare)
    counts: Ints = holds + _whole_counts(fitted, spare)
    return counts


def _fit_proportions(flow: Floats, column_sums: Floats | float, row_sums: Ints) -> Floats:
    """Return shares of each row (C, K): times `row_sums`, they have about these column sums.

    Iterative proportional fitting: zeros stay zeros.
    """
    for _ in range(BALANCING_STEPS):
        flow = flow * (column_sums / np.maximum(flow.sum(axis=0), 1e-300)).clip(0.0)
        flow *= (row_sums / np.maximum(flow.sum(axis=1), 1e-300))[:, np.newaxis]
    shares: Floats = flow / np.maximum(flow.sum(axis=1, keepdims=True), 1e-300)
    return shares
