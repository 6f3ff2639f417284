"""A flat vector keeps its values, and a layout has no gaps."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fairbed.wire.errors import DecodeError
from fairbed.wire.tensors import Layout, Tensor, vector_from_bytes, vector_to_bytes
from tests.wire.test_artifact import LAYOUT

VECTORS = hnp.arrays(
    np.float32,
    st.integers(1, 50),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(VECTORS)
def test_a_decoded_vector_equals_the_encoded_one(vector: NDArray[np.float32]) -> None:
    data = vector_to_bytes(vector)
    back = vector_from_bytes(data, len(vector))
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, vector)


def test_is_sent_little_endian() -> None:
    assert bytes(vector_to_bytes(np.array([1.0], dtype=">f4"))) == b"\x00\x00\x80\x3f"


def test_copies_nothing_on_a_little_endian_machine() -> None:
    vector = np.ones(4, dtype=np.float32)
    assert np.shares_memory(vector, np.frombuffer(vector_to_bytes(vector), np.float32))
    buffer = bytearray(16)
    assert np.shares_memory(vector_from_bytes(buffer, 4), np.frombuffer(buffer, np.float32))


def test_encodes_a_strided_vector() -> None:
    strided = np.arange(8, dtype=np.float32)[::2]
    np.testing.assert_array_equal(vector_from_bytes(vector_to_bytes(strided), 4), strided)


@pytest.mark.parametrize("size", [0, 4, 11, 13, 16])
def test_refuses_a_vector_of_another_size(size: int) -> None:
    with pytest.raises(DecodeError) as caught:
        vector_from_bytes(bytes(size), 3)
    assert str(caught.value) == f"vector: must hold 3 float32 (12 bytes), got {size} bytes"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_refuses_a_value_that_is_not_finite(value: float) -> None:
    vector = np.array([0.0, 1.0, value, 2.0, np.nan], dtype=np.float32)
    with pytest.raises(DecodeError) as caught:
        vector_from_bytes(vector_to_bytes(vector), 5)
    assert str(caught.value) == f"vector: every value must be finite, got {value} at 2"


def test_a_layout_counts_parameters_and_buffers() -> None:
    assert (LAYOUT.n_values, LAYOUT.n_params, LAYOUT.size_bytes) == (16, 15, 64)


def test_the_views_share_the_memory_of_the_vector() -> None:
    vector = np.arange(16, dtype=np.float32)
    views = LAYOUT.views(vector)
    assert {name: view.shape for name, view in views.items()} == {
        "weight": (3, 4),
        "bias": (3,),
        "norm": (),
    }
    views["bias"] += 100
    np.testing.assert_array_equal(vector[12:15], [112, 113, 114])


def _tensor(name: str = "w", offset: int = 0, size: int = 2, role: str = "param") -> Tensor:
    return Tensor(name=name, shape=(size,), offset=offset, role=role)  # type: ignore[arg-type]  # one of the two


BROKEN = [
    ([_tensor(offset=1)], "w: offset must be 0, got 1"),
    ([_tensor("a"), _tensor("b", 3)], "b: offset must be 2, got 3"),
    (
        [_tensor("a", role="buffer"), _tensor("b", 2)],
        "layout: all parameters must come before all buffers",
    ),
    ([_tensor("a"), _tensor("a", 2)], "layout: every tensor must have a unique name"),
    (
        [_tensor(size=1 << 30)],
        "layout: must fit into 2147483648 bytes, got 1073741824 values",
    ),
]


@pytest.mark.parametrize(("tensors", "line"), BROKEN, ids=[line for _, line in BROKEN])
def test_refuses_a_broken_layout(tensors: list[Tensor], line: str) -> None:
    with pytest.raises(ValueError, match=r"must") as caught:
        Layout(tensors=tuple(tensors))
    assert str(caught.value) == line
    with pytest.raises(msgspec.ValidationError, match=r"must") as refused:
        msgspec.convert({"tensors": [msgspec.to_builtins(t) for t in tensors]}, Layout)
    assert str(refused.value) == line
