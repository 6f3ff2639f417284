"""Raw arrays merge by their rule, exactly, in any order; bytes only where a rule can take them."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.raw import (
    Arrays,
    OwnMerge,
    RawRule,
    RawUpdate,
    decode_raw,
    encode_raw,
)
from fairbed.coordinator.policy.config import RAW_RULES
from fairbed.wire.artifact import ClientArray
from fairbed.wire.plugins import PluginError

COUNT = ClientArray(name="count", dtype="int64", shape=(2,))
FLAG = ClientArray(name="flag", dtype="bool", shape=())
TREES = ClientArray(name="trees", dtype="bytes")
WEIGHT = ClientArray(name="w", dtype="float32", shape=(3,))


def counts(*values: int) -> dict[str, Any]:
    return {"count": np.array(values, np.int64)}


def merged(rule: RawRule, old: Arrays, *updates: tuple[Arrays, int]) -> Arrays:
    parts = [RawUpdate(f"d{k}", n, encode_raw(arrays)) for k, (arrays, n) in enumerate(updates)]
    return decode_raw(rule.merge(encode_raw(old), parts)[0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean", [2, -2]),
        ("largest", [3, -3]),
        ("first", [1, -2]),
        ("sum", [7, -6]),
        ("max", [3, -1]),
    ],
)
def test_a_rule_merges_integers(name: str, expected: list[int]) -> None:
    rule = RawRule(name, [WEIGHT, COUNT])
    assert rule.problem() == ""
    got = merged(rule, counts(9, 9), (counts(1, -2), 1), (counts(3, -3), 4), (counts(3, -1), 3))
    mean = [Fraction(1 + 12 + 9, 8), Fraction(-2 - 12 - 3, 8)]  # 2.75 and -2.125
    assert got["count"].tolist() == ([round(x) for x in mean] if name == "mean" else expected)
    assert got["count"].dtype == np.int64


def test_half_is_rounded_to_even() -> None:
    rule = RawRule("mean", [COUNT])
    got = merged(rule, counts(0, 0), (counts(1, -1), 1), (counts(2, -2), 1))
    assert got["count"].tolist() == [2, -2]
    got = merged(rule, counts(0, 0), (counts(2, -2), 1), (counts(3, -3), 1))
    assert got["count"].tolist() == [2, -2]


LARGE = np.iinfo(np.int64).max


@given(
    st.lists(
        st.tuples(st.integers(-LARGE - 1, LARGE), st.integers(1, 1 << 40)), min_size=1, max_size=6
    )
)
def test_the_mean_is_exact_for_all_of_int64(updates: list[tuple[int, int]]) -> None:
    given_ = [(counts(value, 0), n) for value, n in updates]
    expected = Fraction(sum(v * n for v, n in updates), sum(n for _, n in updates))
    assert merged(RawRule("mean", [COUNT]), counts(0, 0), *given_)["count"][0] == round(expected)


def test_a_sum_beyond_the_type_is_clipped_and_said() -> None:
    small = ClientArray(name="s", dtype="int8", shape=(2,))
    rule = RawRule("sum", [small])
    parts = [RawUpdate("d", 1, encode_raw({"s": np.array([100, -100], np.int8)})) for _ in range(2)]
    raw, notes = rule.merge(b"", parts)
    assert decode_raw(raw)["s"].tolist() == [127, -128]
    assert "exceeds int8" in notes[0].text
    _, notes = rule.merge(b"", parts[:1])
    assert not notes


def test_unsigned_integers_do_not_pass_through_signed_ones() -> None:
    one = ClientArray(name="u", dtype="uint64", shape=(1,))
    top = np.array([(1 << 64) - 1], np.uint64)
    for name in RAW_RULES:
        got = merged(RawRule(name, [one]), {"u": top}, ({"u": top}, 1), ({"u": top}, 2))
        assert got["u"].tolist() == top.tolist(), name


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mean", True), ("largest", True), ("first", False), ("sum", True), ("max", True)],
)
def test_booleans_count_as_numbers(name: str, expected: bool) -> None:
    rule = RawRule(name, [FLAG])
    no, yes = {"flag": np.array(False)}, {"flag": np.array(True)}
    raw, notes = rule.merge(
        b"",
        [
            RawUpdate("a", 1, encode_raw(no)),
            RawUpdate("b", 3, encode_raw(yes)),
            RawUpdate("c", 2, encode_raw(yes)),
        ],
    )
    got = decode_raw(raw)["flag"]
    assert got.dtype == np.bool_
    assert got.shape == ()
    assert bool(got) is expected
    assert not notes


@pytest.mark.parametrize("name", ["mean", "sum", "max"])
def test_bytes_have_no_arithmetic(name: str) -> None:
    problem = RawRule(name, [COUNT, TREES]).problem()
    assert "aggregation.raw" in problem
    assert "'trees'" in problem


def test_bytes_of_the_largest_update_win_and_a_draw_goes_to_the_first() -> None:
    rule = RawRule("largest", [TREES])
    got = merged(
        rule, {"trees": b""}, ({"trees": b"a"}, 2), ({"trees": b"bb"}, 5), ({"trees": b"c"}, 5)
    )
    assert got == {"trees": b"bb"}


@pytest.mark.parametrize("name", RAW_RULES)
def test_without_an_update_nothing_changes(name: str) -> None:
    assert merged(RawRule(name, [COUNT]), counts(4, 5))["count"].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({}, "must have the raw arrays of the model, differs in 'count'"),
        ({"count": np.zeros(2, np.int64), "x": b""}, "differs in 'x'"),
        ({"count": np.zeros(2, np.int32)}, "int64 of shape (2,), got int32 of shape (2,)"),
        ({"count": np.zeros(3, np.int64)}, "got int64 of shape (3,)"),
        ({"count": b"1234567812345678"}, "got bytes"),
    ],
)
def test_an_update_with_other_arrays_is_a_fault(arrays: Arrays, fault: str) -> None:
    rule = RawRule("mean", [WEIGHT, COUNT])
    found = rule.fault(encode_raw(arrays))
    assert found is not None
    assert fault in found
    assert rule.fault(encode_raw(counts(1, 2))) is None
    assert rule.fault(b"FBR1....") is not None


def own(function: OwnMerge) -> RawRule:
    return RawRule("m:merge", [COUNT, TREES], function)


OLD: Arrays = {"count": np.array([1, 1], np.int64), "trees": b"old"}


def test_a_function_of_the_user_gets_arrays_examples_and_devices() -> None:
    def merge(old: Arrays, updates: list[tuple[Arrays, int, str]]) -> Arrays:
        old["count"] += sum(n for _, n, _ in updates)  # its arrays are its own
        names = "".join(device for *_, device in updates).encode()
        return {"count": old["count"], "trees": old["trees"] + names}

    rule = own(merge)
    assert rule.problem() == ""
    got = merged(rule, OLD, (OLD, 3), (OLD, 4))
    assert got["count"].tolist() == [8, 8]
    assert got["trees"] == b"oldd0d1"
    assert merged(rule, OLD)["trees"] == b"old", "without an update it is not called"


@pytest.mark.parametrize(
    ("returned", "rule"),
    [
        (None, "must return a dict"),
        ({"trees": b""}, "must return the names of the old arrays, differs in 'count'"),
        ({"count": np.array([1.0, 2.0]), "trees": b""}, "must return 'count' as int64"),
        ({"count": np.zeros(2, np.int64), "trees": "x"}, "must return 'trees' as bytes, got str"),
    ],
)
def test_a_broken_function_is_named(returned: Any, rule: str) -> None:
    with pytest.raises(PluginError, match=rule) as error:
        merged(own(lambda old, updates: returned), OLD, (OLD, 1))
    assert "m:merge" in str(error.value)
    assert "aggregation.raw" in str(error.value)


def test_a_function_that_raises_is_named() -> None:
    def merge(old: Arrays, updates: list[tuple[Arrays, int, str]]) -> Arrays:
        raise ValueError("no trees")

    with pytest.raises(PluginError, match="must not raise, got ValueError: no trees"):
        merged(own(merge), OLD, (OLD, 1))
