import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.ports import ShardSource
from fairbed.testbed.experiment.data import DataConfig, Dirichlet, Iid
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.shards import FleetData

NAMES = ("pi-01", "pi-02", "nano-01")
CONFIG = DataConfig(source="own.npz", partition=Dirichlet(alpha=1.0))


def dataset(n: int = 600, *, has_users: bool = False) -> Dataset:
    rng = np.random.default_rng(4)
    return Dataset(
        name="own",
        x=np.arange(n * 4, dtype=np.float32).reshape(n, 4),
        y=rng.integers(0, 5, n),
        classes=5,
        device_ids=np.arange(n, dtype=np.int64) % 6 if has_users else None,
        description="",
        source="",
        origin="own",
    )


def fleet(
    *,
    devices: int = 6,
    seed: int = 7,
    names: Sequence[str] = NAMES,
    assignments: Mapping[str, int] | None = None,
) -> FleetData:
    return FleetData(
        dataset(), CONFIG, devices=devices, seed=seed, names=names, assignments=assignments
    )


def test_is_a_shard_source() -> None:
    source: ShardSource = fleet()
    assert source.shard("pi-01") is not None


def test_a_shard_holds_the_training_part_only() -> None:
    data = fleet()
    shard = data.shard("pi-02")
    assert shard is not None
    x, y = shard.arrays()
    np.testing.assert_array_equal(x, data.dataset.x[data.train_rows[1]])
    np.testing.assert_array_equal(y, data.dataset.y[data.train_rows[1]])
    assert set(data.train_rows[1]).isdisjoint(data.test_rows[1])


def test_train_and_test_parts_cover_all_examples_once() -> None:
    data = fleet()
    np.testing.assert_array_equal(
        np.sort(np.concatenate(data.train_rows + data.test_rows)), np.arange(600)
    )
    assert all(len(rows) >= 1 for rows in data.test_rows)


def test_emulated_devices_hold_shards_in_fleet_order() -> None:
    assert fleet().assignments() == {"pi-01": 0, "pi-02": 1, "nano-01": 2}


def test_an_unknown_device_gets_a_free_shard_and_keeps_it() -> None:
    data = fleet()
    first = data.shard("kitchen-pi")
    assert data.assignments()["kitchen-pi"] in {3, 4, 5}
    assert data.shard("attic-pi") is not None
    assert data.shard("kitchen-pi") == first


def test_there_is_no_shard_when_all_are_assigned() -> None:
    data = fleet(devices=3)
    assert data.shard("kitchen-pi") is None
    assert "kitchen-pi" not in data.assignments()
    assert data.shard("pi-01") is not None


def test_a_resumed_fleet_has_the_same_shards() -> None:
    before = fleet()
    before.shard("attic-pi")
    kitchen = before.shard("kitchen-pi")
    after = fleet(assignments=before.assignments())
    assert after.shard("kitchen-pi") == kitchen
    assert after.shard("cellar-pi") is not None
    last = {3, 4, 5} - set(before.assignments().values())
    assert after.assignments() == {**before.assignments(), "cellar-pi": last.pop()}


def test_concurrent_requests_get_different_shards() -> None:
    data = fleet(devices=23)
    barrier = threading.Barrier(20, timeout=30)

    def ask(k: int) -> None:
        barrier.wait()
        data.shard(f"board-{k}")

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(ask, range(20)))
    assert sorted(data.assignments().values()) == list(range(23))


def test_the_division_depends_on_the_seed() -> None:
    first, again, other = (fleet(seed=seed).train_rows[0] for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_larger_test_part_leaves_the_division_alone() -> None:
    config = DataConfig(source="own.npz", partition=Dirichlet(alpha=1.0), test_fraction=0.5)
    a, b = fleet(), FleetData(dataset(), config, devices=6, seed=7)
    for k in range(6):
        assert set(a.train_rows[k]) | set(a.test_rows[k]) == (
            set(b.train_rows[k]) | set(b.test_rows[k])
        )


def test_data_with_users_are_divided_by_users_by_default() -> None:
    data = FleetData(dataset(has_users=True), DataConfig(source="own.npz"), devices=6, seed=1)
    assert all(len(set(rows % 6)) == 1 for rows in data.train_rows)


@pytest.mark.parametrize("names", [("a", "a"), tuple(f"pi-{k}" for k in range(7))])
def test_refuses_names_that_do_not_fit(names: Sequence[str]) -> None:
    with pytest.raises(DatasetError, match="fleet: device names must be distinct and at most 6"):
        fleet(names=names)


@pytest.mark.parametrize(
    "assignments", [{"pi-01": 2}, {"board": 0}, {"board": 6}, {"board": 4, "plank": 4}]
)
def test_refuses_assignments_of_another_fleet(assignments: Mapping[str, int]) -> None:
    with pytest.raises(DatasetError, match="fleet: stored shard assignments must fit the fleet"):
        fleet(assignments=assignments)


def parts(evaluated: Literal["test", "validation"], fold: int = 0) -> FleetData:
    config = msgspec.structs.replace(CONFIG, validation_fraction=0.25, evaluated=evaluated)
    return FleetData(dataset(), config, devices=20, seed=7, fold=fold)


def test_validation_examples_are_neither_trained_on_nor_tested() -> None:
    without, tests, validation = (
        FleetData(dataset(), CONFIG, devices=20, seed=7),
        parts("test"),
        parts("validation"),
    )
    for k in range(20):
        np.testing.assert_array_equal(without.test_rows[k], tests.test_rows[k])
        trained = tests.dataset.x[tests.train_rows[k]]
        np.testing.assert_array_equal(trained, validation.dataset.x[validation.train_rows[k]])
        validated = validation.dataset.x[validation.test_rows[k]]
        both = np.sort(np.concatenate([trained, validated])[:, 0])
        np.testing.assert_array_equal(both, without.dataset.x[without.train_rows[k]][:, 0])


def test_data_for_validation_have_no_test_example() -> None:
    tests, validation = parts("test"), parts("validation")
    left = tests.dataset.x[np.concatenate(tests.test_rows), 0]
    assert not set(left.tolist()) & set(validation.dataset.x[:, 0].tolist())
    assert validation.dataset.n == 600 - len(left)


def test_small_validation_parts_are_folds_and_test_parts_stay() -> None:
    first, second = parts("test", 10_000), parts("test", 10_001)
    small = [len(a) + len(b) for a, b in zip(first.train_rows, first.test_rows, strict=True)]
    assert max(small) > 0
    for k in range(20):
        np.testing.assert_array_equal(first.test_rows[k], second.test_rows[k])
    changed = [not np.array_equal(first.train_rows[k], second.train_rows[k]) for k in range(20)]
    assert any(changed)


def test_devices_without_a_validation_example_are_named_in_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = msgspec.structs.replace(
        CONFIG, validation_fraction=0.25, evaluated="validation", partition=Iid(), min_examples=2
    )
    data = FleetData(dataset(50), config, devices=20, seed=7)
    sizes = [len(rows) for rows in data.test_rows]
    assert set(sizes) == {0, 1}
    assert f"{sizes.count(0)} of 20 devices have no validation example" in caplog.text


def test_validation_needs_a_share() -> None:
    with pytest.raises(ValueError, match="validation_fraction must be above 0 with evaluated"):
        DataConfig(evaluated="validation")
