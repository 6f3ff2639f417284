"""Checks an ONNX graph before the runtime reads it: only what Fairbed's exporter writes is allowed.

The runtime can do far more than training needs: read files (external data), call code of other
domains, run functions, loops and nested graphs. `check_graph` reads the bytes as protobuf, in one
pass and without the package onnx, and refuses every field, operation and type that is not listed.
A repeated field is checked at each occurrence, so it does not matter which one a parser keeps.

A graph that passes still costs memory and time: the limits of the process bound those.

Source:
    https://protobuf.dev/programming-guides/encoding, and onnx.proto of ONNX 1.17 (field numbers).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from fairbed.wire.errors import DecodeError

_OPERATIONS = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast
    Ceil Clip Concat Conv ConvTranspose Cos Cosh CumSum Div Equal Erf Exp Expand Floor GRU Gather
    GatherElements GatherND Gelu Gemm Greater GreaterOrEqual HardSigmoid Identity LSTM
    LayerNormalization Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Min Mod Mul Neg Not Or Pad
    Pow Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Round
    ScatterElements ScatterND Shape Sigmoid Sign Sin Sinh Size Slice Softmax Split Sqrt Squeeze Sub
    Tan Tanh Tile TopK Transpose Unsqueeze Where Xor
"""
OPERATIONS = frozenset(_OPERATIONS.split())
"""Operations that the exporter writes; all compute one result from their inputs, and no more."""

_WORDS = ("add", "tanh")
WORDS = frozenset(word.encode() for word in _WORDS)
"""Values of attributes that are text: how `ScatterElements` and `ScatterND` join what they add,
and how `Gelu` is approximated."""

_ITEM_BYTES = {1: 4, 7: 8, 9: 1}
"""Bytes of an element by ONNX data type: float32, int64, bool."""

_GRAPH_FIELD = 7
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_TAG = (1 << 32) - 1
_MAX_DIM, _MAX_RANK = 1 << 40, 8

_COPIED_BYTES = 1 << 12
"""A message of this size is copied before it is read: a byte of `bytes` is read twice as fast."""

_Bytes: TypeAlias = "bytes | memoryview"
_Check: TypeAlias = Callable[["int | bytes | memoryview", str], None]
_Message: TypeAlias = Mapping[int, tuple[tuple[int, ...], _Check]]
"""Allowed fields of a message: their wire types, and the check of each value."""


def check_graph(graph: bytes, where: str = "graph") -> None:
    """Check a serialised ONNX model.

    Args:
        graph: The bytes.
        where: Begins the message of an error.

    Raises:
        DecodeError: It is not a model, or has something that Fairbed's exporter never writes.
    """
    data = memoryview(graph)
    _walk(data, _MODEL, where)
    graphs = [number for number, _, _ in _fields(data, where)].count(_GRAPH_FIELD)
    if graphs != 1:
        raise DecodeError(f"{where}: must be a serialised ONNX model, got {graphs} graphs")


def _walk(data: _Bytes, message: _Message, where: str) -> None:
    for number, wire_type, value in _fields(data, where):
        allowed = message.get(number)
        if allowed is None or wire_type not in allowed[0]:
            raise DecodeError(
                f"{where}: must have only fields that the exporter writes, got field {number} of "
                f"type {wire_type}; use a coordinator of this version of Fairbed"
            )
        allowed[1](value, where)


def _fields(data: _Bytes, where: str) -> Iterator[tuple[int, int, "int | _Bytes"]]:
    """Yield number, wire type and value of each field; most numbers have one byte."""
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _varint(data, at - 1, where)
        number, wire_type = tag >> 3, tag & 7
        if tag > _MAX_TAG or number == 0:
            raise DecodeError(f"{where}: must be a serialised ONNX model, got the tag {tag}")
        if wire_type in (_VARINT, _BYTES):
            value = data[at] if at < end else 128
            at += 1
            if value > 127:
                value, at = _varint(data, at - 1, where)
            if wire_type == _VARINT:
                yield number, wire_type, value
                continue
        elif wire_type in (_FIXED32, _FIXED64):
            value = 4 if wire_type == _FIXED32 else 8
        else:
            raise DecodeError(f"{where}: must be a serialised ONNX model, got type {wire_type}")
        if value > end - at:
            raise DecodeError(f"{where}: must be a serialised ONNX model, got a cut one")
        yield number, wire_type, data[at : at + value]
        at += value


def _varint(data: _Bytes, at: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise DecodeError(f"{where}: must be a serialised ONNX model, got a cut one")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 64:
                break
            return value, at
    raise DecodeError(f"{where}: must be a serialised ONNX model, got an integer above 64 bits")


def _anything(value: "int | _Bytes", where: str) -> None:
    """Accept a number, or a name."""


def _message(message: _Message, name: str) -> tuple[tuple[int, ...], _Check]:
    def check(value: "int | _Bytes", where: str) -> None:
        assert not isinstance(value, int)
        part = bytes(value) if len(value) <= _COPIED_BYTES else value
        _walk(part, message, f"{where}: {name}")

    return (_BYTES,), check


def _operation(value: "int | _Bytes", where: str) -> None:
    assert not isinstance(value, int)
    name = bytes(value[:60]).decode("utf-8", "replace")
    if len(value) > 60 or name not in OPERATIONS:
        raise DecodeError(
            f"{where}: the operation must be one that the exporter writes, got {name!r}; export "
            "the model with the coordinator of this version of Fairbed"
        )


def _no_domain(value: "int | _Bytes", where: str) -> None:
    assert not isinstance(value, int)
    if len(value):
        name = bytes(value[:60]).decode("utf-8", "replace")
        raise DecodeError(f"{where}: must be of the domain of ONNX, got {name!r}")


def _word(value: "int | _Bytes", where: str) -> None:
    assert not isinstance(value, int)
    if bytes(value[:60]) not in WORDS:
        got = bytes(value[:60]).decode("utf-8", "replace")
        raise DecodeError(f"{where}: must be one of {', '.join(_WORDS)}, got {got!r}")


def _element_type(value: "int | _Bytes", where: str) -> None:
    if value not in _ITEM_BYTES:
        raise DecodeError(f"{where}: elements must be float32, int64 or bool, got type {value!r}")


def _constant(value: "int | _Bytes", where: str) -> None:
    """Check a tensor inside the graph: its size must be that of its data."""
    assert not isinstance(value, int)
    where = f"{where}: constant"
    _walk(value, _TENSOR, where)
    dims, types, raw = list[int](), list[int](), list[_Bytes]()
    for number, _, part in _fields(value, where):
        if number == 1:
            dims += [part] if isinstance(part, int) else _numbers(part, where)
        elif number == 2 and isinstance(part, int):
            types.append(part)
        elif number == 9 and not isinstance(part, int):
            raw.append(part)
    is_plain = len(types) == len(raw) == 1 and len(dims) <= _MAX_RANK
    if not is_plain or any(dim > _MAX_DIM for dim in dims):
        raise DecodeError(f"{where}: must have one type, one shape and its data, got another form")
    wanted = math.prod(dims) * _ITEM_BYTES[types[0]]
    if len(raw[0]) != wanted:
        raise DecodeError(f"{where}: must have {wanted} bytes, got {len(raw[0])}")


def _numbers(packed: _Bytes, where: str) -> list[int]:
    found, at = list[int](), 0
    while at < len(packed):
        number, at = _varint(packed, at, where)
        found.append(number)
    return found


_NUMBER = ((_VARINT,), _anything)
_NUMBERS = ((_VARINT, _BYTES), _anything)
_FLOAT = ((_FIXED32,), _anything)
_FLOATS = ((_FIXED32, _BYTES), _anything)
_NAME = ((_BYTES,), _anything)
_TYPE = ((_VARINT,), _element_type)

_TENSOR: _Message = {1: _NUMBERS, 2: _TYPE, 8: _NAME, 9: _NAME}
"""dims, data_type, name, raw_data; not external_data, not strings."""
_DIM: _Message = {1: _NUMBER, 2: _NAME}
_SHAPE: _Message = {1: _message(_DIM, "size")}
_TENSOR_TYPE: _Message = {1: _TYPE, 2: _message(_SHAPE, "shape")}
_VALUE_TYPE: _Message = {1: _message(_TENSOR_TYPE, "tensor")}
"""Not sequence, map, optional or sparse."""
_VALUE: _Message = {1: _NAME, 2: _message(_VALUE_TYPE, "type")}
_ATTRIBUTE: _Message = {
    1: _NAME,
    2: _FLOAT,
    3: _NUMBER,
    4: ((_BYTES,), _word),
    7: _FLOATS,
    8: _NUMBERS,
    20: _NUMBER,
}
"""name, f, i, s, floats, ints, type; not graphs, tensors or lists of strings."""
_NODE: _Message = {
    1: _NAME,
    2: _NAME,
    3: _NAME,
    4: ((_BYTES,), _operation),
    5: _message(_ATTRIBUTE, "attribute"),
    7: ((_BYTES,), _no_domain),
}
_GRAPH: _Message = {
    1: _message(_NODE, "node"),
    2: _NAME,
    5: ((_BYTES,), _constant),
    11: _message(_VALUE, "input"),
    12: _message(_VALUE, "output"),
    13: _message(_VALUE, "value"),
}
_OPERATOR_SET: _Message = {1: ((_BYTES,), _no_domain), 2: _NUMBER}
_MODEL: _Message = {
    1: _NUMBER,
    2: _NAME,
    _GRAPH_FIELD: _message(_GRAPH, "graph"),
    8: _message(_OPERATOR_SET, "operator set"),
}
"""ir_version, producer_name, graph, opset_import; not functions, not training_info."""
