"""Arrays, state and metrics of a client, and what its class must have."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fairbed.device_agent.clients.child import own
from fairbed.device_agent.clients.child.kinds import ClientError
from fairbed.wire.records import RecordsError

FLOATS = st.sampled_from(["float16", "float32", "float64"])
OTHERS = st.sampled_from(["int8", "int64", "uint16", "bool"])


def value(dtype: str) -> Any:
    shapes = array_shapes(min_dims=0, max_dims=3, max_side=4)
    if dtype.startswith("float"):
        numbers = st.floats(-100.0, 100.0, width=16)
        return arrays(dtype, shapes, elements=numbers)
    return arrays(dtype, shapes)


ARRAYS = st.lists(st.one_of(FLOATS.flatmap(value), OTHERS.flatmap(value), st.binary(max_size=9)))


@given(values=ARRAYS, is_list=st.booleans())
def test_arrays_come_back_as_they_were(values: list[Any], is_list: bool) -> None:
    named = {f"a{i}": one for i, one in enumerate(values)}
    made = SimpleNamespace(initial=lambda config: values if is_list else named, __name__="C")
    answer, parts = own.initial(made, {})  # type: ignore[arg-type]
    layout = own.Layout.of(dict(answer))
    joined = layout.joined(*(memoryview(bytearray(parts[name])) for name in ("vector", "raw")))
    assert isinstance(joined, list) == is_list
    found = joined if isinstance(joined, list) else [joined[name] for name in named]
    assert len(found) == len(values)
    for one, other in zip(found, values, strict=True):
        if isinstance(other, bytes):
            assert one == other
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.array_equal(one, other)
        assert one.flags.writeable
    again = layout.split(joined, "fit")
    assert bytes(again[0].data) == bytes(parts["vector"])
    assert again[1] == parts["raw"]


LAYOUT = own.Layout((("w", "float32", (2,)), ("n", "int32", (1,)), ("b", "bytes", ())), False)
GOOD: dict[str, Any] = {"w": np.ones(2), "n": np.ones(1, np.int32), "b": b""}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"w": np.ones(2, np.int64)}, "array w: must be float32, got int64"),
        ({"w": np.array([1.0, np.inf])}, "must be finite as float32, got inf at (1,)"),
        ({"w": np.array([1e300, 1.0])}, "must be finite as float32, got 1e+300 at (0,)"),
        ({"w": np.ones(2, np.longdouble)}, "array w: must have at most 64 bits"),
        ({"w": [[1.0], [2.0, 3.0]]}, "array w: must be an array, got list"),
        ({"w": "text"}, "must be an array of floats, integers or booleans, got dtype str"),
        ({"n": np.ones(1)}, "array n: must be int32, got float64"),
        ({"b": "text"}, "array b: must be bytes, got str"),
        ({"x": 1}, "must have the arrays that fit was given, but 'x' is unknown"),
    ],
)
def test_another_array_is_refused_by_its_name(changed: dict[str, Any], line: str) -> None:
    LAYOUT.split(GOOD, "fit")
    with pytest.raises(ClientError) as caught:
        LAYOUT.split({**GOOD, **changed}, "fit")
    assert line in str(caught.value)
    with pytest.raises(ClientError, match="must have 3 arrays, got 2"):
        LAYOUT.split([1, 2], "fit")
    with pytest.raises(ClientError, match="must be a list or a dict of arrays, got NoneType"):
        LAYOUT.split(None, "fit")


def test_a_client_may_change_its_arrays_without_changing_the_model() -> None:
    vector, raw = LAYOUT.split(GOOD, "fit")
    sent = bytearray(vector.tobytes())
    joined = LAYOUT.joined(memoryview(sent), memoryview(raw))
    assert isinstance(joined, dict)
    joined["n"][0] = 9
    assert LAYOUT.joined(memoryview(sent), memoryview(raw))["n"][0] == 1  # type: ignore[call-overload]


@given(
    state=st.dictionaries(
        st.text(max_size=5),
        st.one_of(
            st.integers(-(2**60), 2**60),
            st.floats(allow_nan=False),
            st.text(max_size=5),
            st.booleans(),
            st.binary(max_size=5),
            st.lists(st.integers(-9, 9), max_size=3),
            value("int16"),
        ),
        max_size=5,
    )
)
def test_state_comes_back_as_it_was(state: dict[str, Any]) -> None:
    found = own.decode_state(own.encode_state(state))
    assert found.keys() == state.keys()
    for name, one in state.items():
        assert np.array_equal(found[name], one)
        assert type(found[name]) is type(one)


@pytest.mark.parametrize("state", [{"a": object()}, {1: 2}, [1], {"a": {"b": 1}}])
def test_other_state_is_refused(state: Any) -> None:
    with pytest.raises((ClientError, RecordsError), match="must be"):
        own.encode_state(state)


def test_metrics_that_cannot_be_sent_are_named() -> None:
    found, lines = own._metrics(
        {
            "good": np.float32(0.5),
            "one": np.array([2]),
            "yes": True,
            "nan": float("nan"),
            "text": "0.5",
            "many": np.zeros(2),
            "x" * 65: 1.0,
            "a\nb": 1.0,
        },
        "fit",
    )
    assert found == {"good": 0.5, "one": 2.0, "yes": 1.0}
    assert len(lines) == 5
    assert all("\n" not in line for line in lines)
    many, lines = own._metrics({str(i): 1.0 for i in range(70)}, "fit")
    assert (len(many), len(lines)) == (64, 6)
    with pytest.raises(ClientError, match="must be a dict of numbers by name, got list"):
        own._metrics([1], "fit")


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3", None])
def test_a_count_of_examples_is_a_whole_number_from_1(count: Any) -> None:
    assert own._count(np.int32(3), "fit", 1) == own._count(3.0, "fit", 1) == 3
    with pytest.raises(ClientError, match="must be a whole number from 1"):
        own._count(count, "fit", 1)


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("", "mine", "must be package.module:Class, got 'mine'"),
        ("Client = 3", "mine:Client", "must have the class Client; it has none"),
        ("class Client: pass", "mine:Client", "must have the method fit(arrays, config)"),
    ],
)
def test_a_module_without_a_client_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, path: str, line: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(ClientError) as caught:
        own.load(str(tmp_path), path, {})
    assert line in str(caught.value)
    sys.modules.pop("mine", None)


class Plain:
    """A client without a context, `evaluate` and `initial`."""

    def fit(self, arrays: list[Any], config: dict[str, Any]) -> Any:
        return [2 * array for array in arrays], 3, {"rate": config["learning_rate"]}


def test_a_class_needs_nothing_but_fit() -> None:
    about = {"arrays": [["0", "float32", [2]]], "is_list": True}
    client = own.open_client(Plain, about, b"", lambda share: None, lambda: False)
    assert not client.has_evaluate
    assert client.n_examples is None
    header = {"hyperparameters": {"learning_rate": 0.5}, "round": 1, "deadline_s": 5.0}
    vector = memoryview(bytearray(np.array([1.0, 2.0], np.float32).tobytes()))
    empty = memoryview(b"")
    answer, parts = client.fit(header, {"vector": vector, "raw": empty, "config": empty})
    assert (answer["n"], answer["metrics"]) == (3, {"rate": 0.5})
    assert np.frombuffer(parts["vector"], np.float32).tolist() == [2.0, 4.0]
    assert (parts["raw"], parts["state"]) == (b"", b"")
    with pytest.raises(ClientError, match=r"must have a static method initial\(config\)"):
        own.initial(Plain, {})
