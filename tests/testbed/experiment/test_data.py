from typing import Any

import msgspec
import pytest

from fairbed.testbed.experiment.data import (
    ByClass,
    DataConfig,
    Dirichlet,
    Iid,
    Natural,
    SyntheticConfig,
)


def decode(**section: Any) -> DataConfig:
    return msgspec.convert(section, DataConfig)


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ({"kind": "iid"}, Iid()),
        ({"kind": "dirichlet", "alpha": 0.3}, Dirichlet(alpha=0.3)),
        ({"kind": "by-class", "classes_per_device": 3}, ByClass(classes_per_device=3)),
    ],
)
def test_kind_selects_the_partition(partition: dict[str, Any], expected: object) -> None:
    assert decode(partition=partition).partition == expected


def test_defaults_need_no_download() -> None:
    assert decode() == DataConfig(dataset="digits", test_fraction=0.2, min_examples=10)


def test_natural_needs_data_with_users() -> None:
    natural = {"kind": "natural"}
    assert decode(dataset="synthetic", partition=natural).partition == Natural()
    assert decode(dataset="own.npz", partition=natural).partition == Natural()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"dataset": "cifar"}, "dataset must be a known name or end in .npz, got 'cifar'; use"),
        ({"dataset": "digits", "folder": "x"}, "folder must not be set for dataset 'digits'"),
        ({"synthetic": {"users": 3}}, "synthetic must not be set for dataset 'digits'"),
        ({"partition": {"kind": "natural"}}, "partition must not be 'natural'"),
        ({"partition": {"kind": "shards"}}, "Invalid value 'shards' - at `$.partition.kind`"),
        ({"partition": {"kind": "dirichlet", "alpha": 0.0}}, "at `$.partition.alpha`"),
        ({"partition": {"kind": "dirichlet", "alpha": float("nan")}}, "at `$.partition.alpha`"),
        ({"partition": {"kind": "dirichlet", "alpha": float("inf")}}, "at `$.partition.alpha`"),
        ({"partition": {"kind": "iid", "alpha": 1.0}}, "unknown field `alpha`"),
        ({"partition": {"kind": "by-class", "classes_per_device": 0}}, "classes_per_device"),
        ({"test_fraction": 0.0}, "at `$.test_fraction`"),
        ({"test_fraction": 1.0}, "at `$.test_fraction`"),
        ({"min_examples": 1}, "at `$.min_examples`"),
        ({"max_examples": 0}, "at `$.max_examples`"),
        ({"alpha": 0.3}, "unknown field `alpha`"),
        (
            {"dataset": "synthetic", "synthetic": {"variant": "iid"}},
            "beta must be 0 for variant 'iid', got 1.0; set beta = 0.0",
        ),
    ],
)
def test_refuses_in_one_line(section: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        decode(**section)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_iid_variant_has_no_feature_shift() -> None:
    assert SyntheticConfig(variant="iid", alpha=0.0, beta=0.0).variant == "iid"
