"""Only graphs as Fairbed's exporter writes them reach the runtime of a device."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator import task
from fairbed.wire.artifact import decode_artifact
from fairbed.wire.errors import DecodeError
from fairbed.wire.graphs import OPERATIONS, check_graph

onnx = pytest.importorskip("onnx")
helper, TensorProto = onnx.helper, onnx.TensorProto

SHIPPED = sorted(Path(task.__file__).parent.glob("artifacts/*.task"))
GRAPH = decode_artifact(SHIPPED[0].read_bytes()).train


def model(*nodes: Any, constants: tuple[Any, ...] = (), **fields: Any) -> Any:
    """Return a small model: x to y, both float32, by the nodes."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph(list(nodes), "task", value[:1], value[1:], list(constants))
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets, **fields)


def relu(**attributes: Any) -> Any:
    return helper.make_node("Relu", ["x"], ["y"], **attributes)


def constant(**fields: Any) -> Any:
    made = helper.make_tensor("c", TensorProto.FLOAT, [2], bytes(8), raw=True)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_accepts_the_graphs_of_every_shipped_task(path: Path) -> None:
    artifact = decode_artifact(path.read_bytes())
    check_graph(artifact.train)
    check_graph(artifact.evaluate)
    parsed = onnx.ModelProto.FromString(artifact.train)
    assert {node.op_type for node in parsed.graph.node} <= OPERATIONS


def test_accepts_a_small_model() -> None:
    check_graph(model(relu(), constants=(constant(),)).SerializeToString())


def _external() -> Any:
    made = constant()
    made.ClearField("raw_data")
    made.data_location = TensorProto.EXTERNAL
    made.external_data.add(key="location", value="/etc/passwd")
    return model(relu(), constants=(made,))


def _with_function() -> Any:
    made = model(relu())
    made.functions.append(
        helper.make_function("evil", "F", ["a"], ["b"], [relu()], [helper.make_opsetid("", 20)])
    )
    return made


def _with_training() -> Any:
    made = model(relu())
    made.training_info.add()
    return made


def _with_operator_set() -> Any:
    made = model(relu())
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def _sequence() -> Any:
    made = model(relu())
    made.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    return made


def _sparse() -> Any:
    made = model(relu())
    made.graph.sparse_initializer.add()
    return made


NESTED = model(relu()).graph

HOSTILE: dict[str, Callable[[], Any]] = {
    "external data": _external,
    "function": _with_function,
    "training information": _with_training,
    "operator set of a vendor": _with_operator_set,
    "sequence as an input": _sequence,
    "sparse constant": _sparse,
    "operation of a vendor": lambda: model(
        helper.make_node("Relu", ["x"], ["y"], domain="com.microsoft")
    ),
    "unknown operation": lambda: model(helper.make_node("Evil", ["x"], ["y"])),
    "nested graph": lambda: model(relu(body=NESTED)),
    "nested graphs": lambda: model(relu(bodies=[NESTED, NESTED])),
    "if": lambda: model(
        helper.make_node("If", ["x"], ["y"], then_branch=NESTED, else_branch=NESTED)
    ),
    "loop": lambda: model(helper.make_node("Loop", ["x"], ["y"], body=NESTED)),
    "scan": lambda: model(helper.make_node("Scan", ["x"], ["y"], body=NESTED)),
    "random numbers": lambda: model(helper.make_node("RandomNormal", [], ["y"], shape=[2])),
    "a file name": lambda: model(relu(path="/etc/passwd")),
    "tensor as an attribute": lambda: model(
        helper.make_node("Constant", [], ["y"], value=constant())
    ),
    "text as a constant": lambda: model(
        relu(), constants=(helper.make_tensor("c", TensorProto.STRING, [1], [b"a"]),)
    ),
    "float64 as a constant": lambda: model(
        relu(), constants=(helper.make_tensor("c", TensorProto.DOUBLE, [1], [1.0]),)
    ),
    "constant with too little data": lambda: model(
        relu(), constants=(constant(raw_data=bytes(7)),)
    ),
    "constant without data": lambda: model(relu(), constants=(constant(raw_data=b""),)),
    "description": lambda: model(relu(), doc_string="x"),
    "metadata of a node": lambda: model(relu(doc_string="x")),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_refuses_a_graph_that_the_exporter_does_not_write(make: Callable[[], Any]) -> None:
    blob = make().SerializeToString()
    onnx.ModelProto.FromString(blob)  # a runtime reads it
    with pytest.raises(DecodeError, match=r"^task: "):
        check_graph(blob, "task")


def test_refuses_huge_and_negative_sizes() -> None:
    for dims in ([1 << 62, 4], [-1], [2] * 9, [1 << 40] * 8):
        made = constant()
        del made.dims[:]
        made.dims.extend(dims)
        with pytest.raises(DecodeError, match="constant"):
            check_graph(model(relu(), constants=(made,)).SerializeToString())


def _field(number: int, value: bytes) -> bytes:
    """Return a protobuf field of fewer than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value


@pytest.mark.parametrize("dims", [b"\x02\x03", b"\x06"])
def test_a_packed_shape_is_read_as_well(dims: bytes) -> None:
    for n_bytes in (23, 24):
        tensor = _field(1, dims) + b"\x10\x01" + _field(9, bytes(n_bytes))
        blob = _field(7, _field(5, tensor))
        found = onnx.ModelProto.FromString(blob).graph.initializer[0]
        assert math.prod(found.dims) == 6
        if n_bytes == 24:
            check_graph(blob)
        else:
            with pytest.raises(DecodeError, match="constant: must have 24 bytes, got 23"):
                check_graph(blob)


@pytest.mark.parametrize("blob", [b"\x0b", b"\x0e", b"\x0f", b"\x08" + b"\xff" * 9 + b"\x02"])
def test_refuses_groups_and_integers_that_are_too_long(blob: bytes) -> None:
    with pytest.raises(DecodeError, match="must be a serialised ONNX model"):
        check_graph(blob)


def test_says_which_operation_is_not_allowed() -> None:
    blob = model(helper.make_node("Loop", ["x"], ["y"])).SerializeToString()
    with pytest.raises(DecodeError) as caught:
        check_graph(blob, "cnn (train)")
    assert str(caught.value) == (
        "cnn (train): graph: node: the operation must be one that the exporter writes, got "
        "'Loop'; export the model with the coordinator of this version of Fairbed"
    )


def test_checks_each_occurrence_of_a_field_that_a_parser_merges() -> None:
    hostile = model(helper.make_node("Loop", ["x"], ["y"])).SerializeToString()
    for blob in (hostile + GRAPH, GRAPH + hostile):
        with pytest.raises(DecodeError, match="'Loop'"):
            check_graph(blob)


def test_refuses_bytes_of_other_formats() -> None:
    for blob in (
        b"\x80\x05K\x01.",
        b"PK\x03\x04",
        b"\x00\x00\x00\x00ORTM",
        b"\x0b\x0c",
        b"\xff" * 12,
    ):
        with pytest.raises(DecodeError):
            check_graph(blob)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_decode_error(blob: bytes) -> None:
    _parse(blob)


@given(st.integers(0, len(GRAPH) - 1), st.binary(min_size=1, max_size=6), st.integers(0, 6))
def test_a_changed_graph_is_refused_or_harmless(at: int, new: bytes, dropped: int) -> None:
    _parse(GRAPH[:at] + new + GRAPH[at + dropped :])


def _parse(blob: bytes) -> None:
    """Check a graph; if it is accepted, every parser must find in it what is allowed."""
    try:
        check_graph(blob)
    except DecodeError:
        return
    try:
        found = onnx.ModelProto.FromString(blob)
    except Exception:  # the parser's error; it refuses text that is not UTF-8
        return
    assert not found.functions
    assert not found.training_info
    assert {one.domain for one in found.opset_import} <= {""}
    for node in found.graph.node:
        assert node.op_type in OPERATIONS or node.op_type == ""
        assert node.domain == ""
        assert not any(a.HasField("g") or a.graphs or a.HasField("t") for a in node.attribute)
    for tensor in found.graph.initializer:
        assert tensor.data_location == TensorProto.DEFAULT
        assert not tensor.external_data
