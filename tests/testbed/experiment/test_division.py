"""The division of a data set as numbers and as a picture of text."""

import os

import numpy as np
import pytest

from fairbed.testbed.experiment.data import ByClass, DataConfig
from fairbed.testbed.experiment.datasets import load
from fairbed.testbed.experiment.division import Division, divided, picture, shade, shown_devices
from fairbed.testbed.experiment.shards import FleetData


def test_the_division_is_that_of_a_run() -> None:
    data = load(DataConfig(), 0, os.environ)
    config = DataConfig(partition=ByClass(classes_per_device=2))
    found = divided(data, config.partition, 20, config.min_examples, seed=3)
    fleet = FleetData(data, config, devices=20, seed=3)
    for device in range(20):
        rows = np.concatenate([fleet.train_rows[device], fleet.test_rows[device]])
        expected = np.bincount(data.y[rows].astype(np.int64), minlength=10)
        assert found.counts[device].tolist() == expected.tolist()


def test_a_picture_has_a_line_per_device_and_the_shades_of_its_classes() -> None:
    division = Division(np.array([[8, 0, 0], [1, 1, 2]]), ("a", "b", "c"), "by-class")
    lines = list(picture(division))
    assert lines[1:3] == [
        "1  8  ####################  |@  |",
        "2  4  ##########            |--=|",
    ]
    assert "examples per device: 4 .. 8, median 6, standard deviation 2" in lines
    assert "classes per device: 1 .. 3 of 3, median 2" in lines
    assert lines[-1].startswith("1 of 2 devices have one class alone: AUROC")


def test_of_many_devices_some_are_shown_from_the_largest_to_the_smallest() -> None:
    sizes = np.random.default_rng(0).permutation(np.arange(1, 501))
    shown = shown_devices(Division(sizes[:, np.newaxis], ("a",), "iid"))
    assert len(shown) == 40
    assert [int(sizes[device]) for device in shown[:: len(shown) - 1]] == [500, 1]
    assert next(picture(Division(sizes[:, np.newaxis], ("a",), "iid"))).startswith(
        "devices (40 of 500, evenly by size)"
    )


@pytest.mark.parametrize(("share", "expected"), [(0.0, " "), (1e-9, "."), (0.5, "="), (1.0, "@")])
def test_a_class_without_examples_is_empty_and_no_other(share: float, expected: str) -> None:
    assert shade(share) == expected


def test_targets_of_regression_are_shown_by_tenths() -> None:
    data = load(DataConfig(dataset="diabetes"), 0, os.environ)
    found = divided(data, None, 4, 10, 1)
    assert found.classes[0] == "tenth 1"
    assert found.counts.sum() == 442
