import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Floats, Ints
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
from fairbed.testbed.experiment.partition import (
    by_class,
    class_mix,
    consecutive_classes,
    dirichlet,
    divide,
    natural,
    rows_by_owner,
)

ALL: list[Partition] = [
    Iid(),
    Dirichlet(alpha=0.5),
    ClassMix(gamma=1.0),
    ByClass(classes_per_device=3),
    ConsecutiveClasses(classes_per_device=10),
    Natural(),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels(n: int = 2000, classes: int = 10, seed: int = 1) -> Ints:
    return rng(seed).integers(0, classes, n)


def users(n: int = 2000, n_users: int = 30) -> Ints:
    return np.arange(n, dtype=np.int64) % n_users


@pytest.mark.parametrize("partition", ALL)
@pytest.mark.parametrize("devices", [1, 4, 12, 30])
def test_every_example_goes_to_exactly_one_device(partition: Partition, devices: int) -> None:
    if devices == 1 and isinstance(partition, ByClass):
        partition = ByClass(classes_per_device=10)
    rows = rows_by_owner(divide(partition, labels(), users(), devices, 10, rng()), devices)
    assert len(rows) == devices
    assert min(len(r) for r in rows) >= 10
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(2000))


@pytest.mark.parametrize("partition", ALL)
def test_the_same_seed_gives_the_same_division(partition: Partition) -> None:
    first, again, other = (
        divide(partition, labels(), users(), 12, 10, rng(seed)) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("partition", ALL)
def test_leaves_its_inputs_alone(partition: Partition) -> None:
    y, device_ids = labels(), users()
    y.flags.writeable = device_ids.flags.writeable = False
    divide(partition, y, device_ids, 12, 10, rng())


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = np.bincount(divide(Iid(), labels(1797), None, 12, 10, rng()))
    assert sizes.max() - sizes.min() <= 1


def test_dirichlet_shares_have_the_moments_of_the_distribution() -> None:
    # The share of one class at one device: mean 1/K, variance (1/K)(1 - 1/K)/(K alpha + 1).
    devices, alpha, y = 5, 0.5, np.zeros(1000, np.int64)
    generator = rng(3)
    shares = np.array(
        [
            np.bincount(dirichlet(y, devices, alpha, 0, generator), minlength=devices) / len(y)
            for _ in range(2000)
        ]
    )
    np.testing.assert_allclose(shares.mean(axis=0), 1 / devices, atol=0.015)
    expected = (1 / devices) * (1 - 1 / devices) / (devices * alpha + 1)
    np.testing.assert_allclose(shares.var(axis=0), expected, rtol=0.1)


def test_a_smaller_alpha_gives_more_uneven_classes() -> None:
    def unevenness(alpha: float) -> float:
        y = labels(20_000)
        owner = dirichlet(y, 10, alpha, 10, rng())
        counts = np.zeros((10, 10))
        np.add.at(counts, (y, owner), 1)
        return float((counts / counts.sum(axis=1, keepdims=True)).std())

    assert unevenness(0.1) > unevenness(1.0) > unevenness(100.0)


def test_dirichlet_redraws_until_every_device_has_enough() -> None:
    y = labels(1797)
    assert np.bincount(dirichlet(y, 12, 0.3, 0, rng(8)), minlength=12).min() < 60
    assert np.bincount(dirichlet(y, 12, 0.3, 60, rng(8)), minlength=12).min() >= 60


@pytest.mark.full
@pytest.mark.parametrize("alpha", [1e-3, 1e-300])
def test_an_impossible_dirichlet_ends_with_one_line(alpha: float) -> None:
    with pytest.raises(DatasetError, match=r"no such draw among 10000 .* raise alpha") as raised:
        dirichlet(labels(400), 40, alpha, 10, rng())
    assert "\n" not in str(raised.value)


@given(
    devices=st.integers(1, 40),
    each=st.integers(1, 10),
    classes=st.integers(2, 12),
    seed=st.integers(0, 1000),
)
def test_by_class_gives_each_device_exactly_its_number_of_classes(
    devices: int, each: int, classes: int, seed: int
) -> None:
    weights = rng(seed).dirichlet(np.full(classes, 3.0))
    enough = np.repeat(np.arange(classes), 40)
    y = np.concatenate([enough, rng(seed).choice(classes, 3000, p=weights)])
    if not classes / devices <= each <= classes:
        with pytest.raises(DatasetError, match="classes_per_device must be"):
            by_class(y, devices, each, rng(seed))
        return
    owner = by_class(y, devices, each, rng(seed))
    assert [len(np.unique(y[r])) for r in rows_by_owner(owner, devices)] == [each] * devices


def test_by_class_needs_an_example_for_each_holder() -> None:
    y = np.concatenate([np.zeros(500, np.int64), [1, 1, 1]])
    with pytest.raises(
        DatasetError, match="class 1 must have an example for each of its 9 devices"
    ):
        by_class(y, 9, 2, rng())


@pytest.mark.parametrize(("devices", "each"), [(10, 2), (20, 2), (20, 5), (100, 3)])
def test_by_class_sizes_are_even_where_the_classes_permit(devices: int, each: int) -> None:
    y = np.repeat(np.arange(10), 600)
    sizes = np.bincount(by_class(y, devices, each, rng()), minlength=devices)
    assert sizes.max() - sizes.min() <= each


def test_by_class_balances_classes_of_unequal_size() -> None:
    y = np.repeat(np.arange(10), np.arange(200, 1200, 100))
    sizes = np.bincount(by_class(y, 25, 4, rng()), minlength=25)
    assert sizes.max() < 1.25 * sizes.min()


def mixtures(gamma: float, y: Ints, devices: int = 40) -> Floats:
    """Return the share of each class at each device, shape (K, C)."""
    owner = class_mix(y, devices, gamma, rng())
    counts = np.zeros((devices, int(y.max()) + 1))
    np.add.at(counts, (owner, y), 1.0)
    found: Floats = counts / counts.sum(axis=1, keepdims=True)
    return found


def test_class_mix_has_the_spread_of_its_concentration() -> None:
    y = np.arange(20_000, dtype=np.int64) % 10
    for gamma in (1.0, 10.0, 100.0):
        # Var q_c = m (1 - m) / (gamma + 1), m = 1/10; bending to the class sizes takes a little
        spread = float((mixtures(gamma, y, 200) - 0.1).std())
        assert spread == pytest.approx(np.sqrt(0.09 / (gamma + 1.0)), rel=0.1), gamma


@pytest.mark.parametrize("gamma", [0.01, 1.0, 10.0, 1e6])
def test_class_mix_gives_all_devices_equally_many(gamma: float) -> None:
    y = np.arange(12_000, dtype=np.int64) % 10
    sizes = np.bincount(class_mix(y, 40, gamma, rng()), minlength=40)
    assert sizes.sum() == 12_000
    assert np.abs(sizes - 300).max() <= 10, sizes


def test_class_mix_takes_any_labels() -> None:
    y = np.array([0, 0, 3, 3, 3, 3, 3, 3])
    assert np.bincount(class_mix(y, 2, 0.5, rng())).sum() == 8


def test_by_class_ignores_labels_that_do_not_occur() -> None:
    y = np.repeat(np.array([0, 3, 7]), 100)
    owner = by_class(y, 6, 2, rng())
    assert [len(np.unique(y[r])) for r in rows_by_owner(owner, 6)] == [2] * 6


def test_natural_gives_one_user_to_each_device_in_order() -> None:
    np.testing.assert_array_equal(natural(users(90, 9), 9, rng()), users(90, 9))


def test_natural_never_divides_a_user() -> None:
    ids = users(2000, 30)
    owner = natural(ids, 12, rng())
    holders = [np.unique(owner[ids == user]) for user in range(30)]
    assert all(len(h) == 1 for h in holders)
    assert set(np.bincount(np.concatenate(holders))) == {2, 3}


@pytest.mark.parametrize(
    ("partition", "device_ids", "devices", "message"),
    [
        (Iid(), None, 201, "201 devices need 2010 examples .* got 2000; use fewer"),
        (Natural(), None, 4, "natural needs the user of each example, got data without users"),
        (Natural(), users(), 31, "natural needs a user for each of 31 devices, got 30 users"),
        (
            Natural(),
            np.repeat([0, 1, 2], [5, 995, 1000]),
            3,
            r"must hold 10 examples .* got 5 at device 1 of 3; lower data.min_examples",
        ),
        (ByClass(classes_per_device=11), None, 20, r"must be 1 \.\. 10 for 10 classes"),
        (ByClass(classes_per_device=2), None, 4, r"must be 3 \.\. 10 for 10 classes"),
    ],
)
def test_data_that_cannot_be_divided_are_one_line(
    partition: Partition, device_ids: Ints | None, devices: int, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        divide(partition, labels(), device_ids, devices, 10, rng())


def test_consecutive_classes_of_ditto() -> None:
    y = np.repeat(np.arange(10), 7_000)
    owner = consecutive_classes(y, 500, 5, 1.0, rng())
    counts = np.bincount(owner * 10 + y, minlength=5_000).reshape(500, 10)
    for device in (0, 7, 499):
        held = {(device + j) % 10 for j in range(5)}
        assert set(np.flatnonzero(counts[device]).tolist()) == held
    sizes = counts.sum(axis=1)
    assert sizes.min() >= 10, "data.min_examples"
    # 10 + exp(N(3, 1)), scaled: log-normal, so the mean is far above the median
    drawn = 10.0 + np.random.default_rng(1).lognormal(3.0, 1.0, 100_000)
    drawn *= 140.0 / drawn.mean()
    np.testing.assert_allclose(
        np.quantile(sizes, [0.1, 0.5, 0.9]), np.quantile(drawn, [0.1, 0.5, 0.9]), rtol=0.15
    )
    equal = consecutive_classes(y, 500, 5, 0.0, rng())
    assert np.ptp(np.bincount(equal)) <= 10, "sigma = 0 gives equal sizes"


@pytest.mark.parametrize(
    ("devices", "each", "message"),
    [
        (4, 6, r"classes_per_device must be 7 \.\. 10 for 10 classes on 4 devices, got 6"),
        (40, 11, r"classes_per_device must be 1 \.\. 10 for 10 classes on 40 devices, got 11"),
        (400, 5, "class 0 must have an example for each of its 200 devices, got 100"),
    ],
)
def test_consecutive_classes_that_do_not_fit(devices: int, each: int, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        consecutive_classes(np.repeat(np.arange(10), 100), devices, each, 1.0, rng())
