from pathlib import Path
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
    data_config,
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


@pytest.mark.parametrize(
    ("what", "is_own", "is_function", "is_table"),
    [
        ("digits", False, False, False),
        ("my.mod:load", True, True, False),
        ("C:\\data\\a.npz", True, False, False),
        ("a.npz", True, False, False),
        ("a.csv", True, False, True),
        ("a.parquet", True, False, True),
    ],
)
def test_a_word_names_a_data_set_or_own_data(
    what: str, is_own: bool, is_function: bool, is_table: bool
) -> None:
    config = data_config(what, label="y" if is_table else None)
    assert (config.name, config.source is not None) == (what, is_own)
    assert (config.is_own, config.is_function, config.is_table) == (is_own, is_function, is_table)
    assert msgspec.convert(msgspec.to_builtins(config), DataConfig) == config


def test_an_existing_folder_is_own_data(tmp_path: Path) -> None:
    assert data_config(str(tmp_path)).source == str(tmp_path)
    with pytest.raises(ValueError, match="got 'photos'; own data are set as source"):
        data_config("photos")


def test_natural_needs_data_with_users() -> None:
    natural = {"kind": "natural"}
    assert decode(dataset="synthetic", partition=natural).partition == Natural()
    assert decode(source="own.npz", partition=natural).partition == Natural()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"dataset": "cifar"}, "vehicle, shakespeare, got 'cifar'; own data are set as source"),
        ({"dataset": "a.npz"}, "shakespeare, got 'a.npz'; write source = \"a.npz\" instead"),
        ({"dataset": "my.mod:load"}, 'write source = "my.mod:load" instead'),
        ({"dataset": "digits", "source": "a.npz"}, "dataset and source must not both be set"),
        ({"source": "a.pkl"}, "source must be package.module:function, end in .npz, .csv, .tsv"),
        ({"source": ""}, "or be a folder, got ''"),
        ({"source": "a.csv"}, "label must name the column of the labels in a.csv, got none; set"),
        ({"source": "a.npz", "label": "y"}, "label must not be set for 'a.npz', got 'y'; remove"),
        ({"source": "my.mod:load", "device": "u"}, "only .csv, .tsv and .parquet have columns"),
        ({"dataset": "digits", "folder": "x"}, "folder must not be set for dataset 'digits'"),
        ({"synthetic": {"users": 3}}, "synthetic must not be set for 'digits'; remove it"),
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
        ({"classes": 3}, "classes must not be set for dataset 'digits', which has its own; remove"),
        ({"source": "a.npz", "masks": {}}, "masks must be set for a folder only, got 'a.npz'; rem"),
        ({"source": "d", "masks": {}, "audio": {}}, "may be set, got masks and audio; keep one"),
        ({"source": "a.npz", "target": "next"}, "target must be 'next' for texts only, got 'a.np"),
        ({"source": "a.csv", "label": "y", "text": {}}, "text.column must name the column of the"),
        ({"source": "a.npz", "text": {"column": "x"}}, "text.column is for tables only, got 'x'"),
        ({"source": "a.txt", "text": {"length": 0}}, "at `$.text.length`"),
        (
            {"source": "a.txt", "text": {"words": 9}},
            "words must be set for unit 'words' only, got 9",
        ),
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
