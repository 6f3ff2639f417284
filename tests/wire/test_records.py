"""Records of a client: they come back as they were, and bad bytes have one line."""

import json
import struct
from typing import Any

import numpy as np
import pytest

from fairbed.wire.records import DTYPES, Record, RecordsError, decode_records, encode_records


def raw(header: Any, *buffers: bytes) -> bytes:
    text = json.dumps(header).encode()
    return b"FBR1" + struct.pack("<I", len(text)) + text + b"".join(buffers)


@pytest.mark.parametrize("dtype", sorted(DTYPES - {"bytes"}))
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_of_each_type_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    found = decode_records(encode_records({"a": Record("arrays", {"x": array})}))
    assert found["a"].items["x"].dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found["a"].items["x"], array)


def test_an_array_in_another_order_of_bytes_or_memory_comes_back() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    found = decode_records(encode_records({"a": Record("arrays", {"x": array})}))
    np.testing.assert_array_equal(found["a"].items["x"], array)


def test_records_keep_order_kind_and_exact_values() -> None:
    records = {
        "second": Record("metrics", {"loss": 0.1, "n": 2**60, "each": [1.5, float("inf")]}),
        "first": Record("config", {"lr": 1e-300, "on": True, "key": b"\0\1", "names": ["a", "b"]}),
        "tree": Record("arrays", {"model": b"xgboost", "empty": b""}),
    }
    found = decode_records(encode_records(records))
    assert list(found) == ["second", "first", "tree"]
    assert found == records


def test_nan_comes_back() -> None:
    value = decode_records(encode_records({"m": Record("metrics", {"loss": float("nan")})}))
    assert np.isnan(value["m"].items["loss"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([object()]), "records: must"),
        (np.array(["text"]), "got dtype str"),
        (np.array([1 + 2j]), "got dtype complex128"),
    ],
)
def test_arrays_of_other_types_are_refused(value: Any, text: str) -> None:
    with pytest.raises(RecordsError, match=r"a\.x: must be an array") as caught:
        encode_records({"a": Record("arrays", {"x": value})})
    assert "\n" not in str(caught.value)
    assert text.rpartition(" ")[2] in str(caught.value) or "object" in str(caught.value)


def test_an_object_is_no_value() -> None:
    with pytest.raises(RecordsError, match=r"c\.x: must be a number, a text or bytes"):
        encode_records({"c": Record("config", {"x": object()})})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "must begin with FBR1"),
        (b"\x80\x04\x95pickled", "must begin with FBR1"),
        (b"FBR1\xff\xff\xff\xff", "the header must be in the bytes"),
        (b"FBR1\x02\0\0\0{]", "the header must be JSON"),
        (raw({}), "must be a list"),
        (raw([["a", "arrays"]]), "every entry must have 3 parts"),
        (raw([["a", "pickle", []]]), "must have a name and a kind"),
        (raw([["a", "config", [[1, 2]]]]), "a key must be a text"),
        (raw([["a", "config", [["k", {"object": 1}]]]]), "unknown value"),
        (raw([["a", "config", [["k", [[1]]]]]]), "unknown value"),
        (raw([["a", "config", [["k", {"bytes": "*"}]]]]), "unknown value"),
        (raw([["a", "arrays", [["k", "object", [1], 8]]]], bytes(8)), "unknown dtype"),
        (raw([["a", "arrays", [["k", "int8", [-1], 8]]]], bytes(8)), "whole numbers from 0"),
        (raw([["a", "arrays", [["k", "int8", [9], 9]]]], bytes(8)), "must be in the bytes"),
        (raw([["a", "arrays", [["k", "int16", [8], 8]]]], bytes(8)), "must have 16 bytes, got 8"),
        (raw([["a", "arrays", [["k", "bytes", [7], 8]]]], bytes(8)), r"must have the shape \[8\]"),
        (raw([], b"more"), "4 more"),
    ],
)
def test_bad_bytes_have_one_line(data: bytes, text: str) -> None:
    with pytest.raises(RecordsError, match=text) as caught:
        decode_records(data)
    assert "\n" not in str(caught.value)
