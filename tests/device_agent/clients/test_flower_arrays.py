"""Floats of a Flower app as the vector of a task, and back, in any interpreter."""

from typing import Any

import numpy as np
import pytest

from fairbed.device_agent.clients.child.flower import (
    join_arrays,
    node_id,
    run_id,
    split_arrays,
)
from fairbed.device_agent.clients.child.kinds import ClientError
from fairbed.wire.records import Record

LAYOUT: list[tuple[str, str, tuple[int, ...]]] = [
    ("w", "float64", (2, 2)),
    ("steps", "int64", ()),
    ("b", "float16", (3,)),
]


def records(**changes: Any) -> dict[str, Record]:
    """Return the records of a reply."""
    items = {
        "w": np.arange(4.0).reshape(2, 2),
        "steps": np.array(9),
        "b": np.array([0.5, 1.0, 2.0], np.float16),
    }
    return {"metrics": Record("metrics", {"n": 3}), "model": Record("arrays", items | changes)}


def test_floats_are_the_vector_and_come_back_in_their_types_and_order() -> None:
    vector, rest = split_arrays(records(), LAYOUT)
    assert vector.dtype == np.float32
    np.testing.assert_array_equal(vector, [0, 1, 2, 3, 0.5, 1, 2])
    assert list(rest["model"].items) == ["steps"]
    assert rest["metrics"].items == {"n": 3}
    again = join_arrays(vector.tobytes(), rest, LAYOUT)
    assert list(again["model"].items) == ["w", "steps", "b"]
    for key, array in records()["model"].items.items():
        np.testing.assert_array_equal(again["model"].items[key], array, strict=True)


def test_without_a_layout_all_is_raw() -> None:
    vector, rest = split_arrays(records(), [])
    assert vector.size == 0
    assert rest["model"] is join_arrays(b"", rest, [])["model"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"w": np.array([[1.0, 2.0], [np.inf, 4.0]])},
            "model.w: must be finite, got inf at place 2",
        ),
        ({"w": np.full((2, 2), 1e300)}, "model.w: must be finite, got inf at place 0"),
        (
            {"w": np.zeros((2, 3))},
            "model.w: must be float64 of shape [2, 2], got float64 of shape [2",
        ),
        ({"steps": np.array(1.0)}, "model.steps: must be int64 of shape [], got float64"),
        ({"steps": b"12345678"}, "model.steps: must be int64 of shape [], got bytes"),
        ({"more": np.zeros(1)}, "model: must have the arrays w, steps, b, got w, steps, b, more"),
    ],
)
def test_what_is_not_in_the_layout_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ClientError) as caught:
        split_arrays(records(**change), LAYOUT)
    assert says in str(caught.value)


def test_one_record_of_arrays_can_be_merged() -> None:
    two = records() | {"second": Record("arrays")}
    with pytest.raises(ClientError, match="must have one record of arrays to merge, got 2"):
        split_arrays(two, LAYOUT)
    _, rest = split_arrays(records(), LAYOUT)
    with pytest.raises(ClientError, match="must have 7 values, as the layout, got 6"):
        join_arrays(np.zeros(6, "<f4").tobytes(), rest, LAYOUT)


def test_ids_are_those_of_the_names() -> None:
    assert node_id("pi-0") == node_id("pi-0") != node_id("pi-1")
    assert all(1 < node_id(f"pi-{at}") < 1 << 63 for at in range(100))
    assert 0 < run_id("a") != run_id("b")
