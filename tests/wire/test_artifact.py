"""A task is decoded as encoded, and an invalid task is refused."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.artifact import (
    Artifact,
    ModuleSource,
    SelfCheck,
    TaskSpec,
    decode_artifact,
    encode_artifact,
    initial_vector,
)
from fairbed.wire.errors import DecodeError
from fairbed.wire.tensors import Layout, Tensor

LAYOUT = Layout(
    tensors=(
        Tensor(name="weight", shape=(3, 4), offset=0, init="uniform", init_bound=0.5),
        Tensor(name="bias", shape=(3,), offset=12),
        Tensor(name="norm", shape=(), offset=15, role="buffer", init="ones"),
    )
)
ARTIFACT = Artifact(
    spec=TaskSpec(
        name="softmax-4-3",
        model="softmax",
        layout=LAYOUT,
        x_shape=(4,),
        classes=3,
        opset=20,
        selfcheck=SelfCheck(seed=7, batch=5, loss=1.0986, gradient_l2=0.25),
    ),
    train=b"a graph",
    evaluate=b"another graph",
)
NAN, INF = float("nan"), float("inf")

MALFORMED = [
    (("spec", "format"), 2, "Invalid enum value 2 - at `$.spec.format`"),
    (("spec", "classes"), 0, "Expected `int` >= 1 - at `$.spec.classes`"),
    (("spec", "x_shape"), [4, 0], "Expected `int` >= 1 - at `$.spec.x_shape[1]`"),
    (("spec", "x_shape"), [1] * 9, "Expected `array` of length <= 8 - at `$.spec.x_shape`"),
    (("spec", "x_dtype"), "float64", "Invalid enum value 'float64' - at `$.spec.x_dtype`"),
    (
        ("spec", "x_dtype"),
        "int64",
        "x_classes must be positive for int64 x and 0 otherwise, got 0 - at `$.spec`",
    ),
    (
        ("spec", "selfcheck", "loss"),
        NAN,
        "Expected `float` >= 0.0 - at `$.spec.selfcheck.loss`",
    ),
    (
        ("spec", "selfcheck", "gradient_l2"),
        INF,
        "Expected `float` <= 1000000000000.0 - at `$.spec.selfcheck.gradient_l2`",
    ),
    (
        ("spec", "layout", "tensors"),
        [],
        "Expected `array` of length >= 1 - at `$.spec.layout.tensors`",
    ),
    (
        ("spec", "task"),
        "binary",
        "classes must be 2 for binary, got 3 - at `$.spec`",
    ),
    (("spec", "task"), "ranking", "Invalid enum value 'ranking' - at `$.spec.task`"),
    (("train",), "text", "Expected `bytes`, got `str` - at `$.train`"),
    (("labels",), ["oak"], "labels must be 3 different names, got 1, 1 different"),
    (("labels",), ["oak", "elm", "oak"], "labels must be 3 different names, got 3, 2 different"),
    (("labels",), ["oak", "elm", ""], "Expected `str` of length >= 1 - at `$.labels[2]`"),
    (("labels",), ["oak", "elm", 3], "Expected `str`, got `int` - at `$.labels[2]`"),
    (("author",), "unknown", "Object contains unknown field `author`"),
]


def test_a_decoded_task_equals_the_encoded_one() -> None:
    assert decode_artifact(encode_artifact(ARTIFACT)) == ARTIFACT


def test_classification_adds_nothing_to_the_bytes_and_other_kinds_name_themselves() -> None:
    fields = msgspec.msgpack.decode(encode_artifact(ARTIFACT))
    assert "task" not in fields["spec"]
    assert (ARTIFACT.spec.kind, ARTIFACT.spec.is_scored) == ("classification", False)
    spec = msgspec.structs.replace(ARTIFACT.spec, classes=1, task="regression")
    again = decode_artifact(encode_artifact(msgspec.structs.replace(ARTIFACT, spec=spec))).spec
    assert (again.kind, again.is_scored, again.y_dtype) == ("regression", True, "float32")
    assert again.evaluation_outputs == ["loss_sum", "scores"]


def test_reads_any_kind_of_buffer() -> None:
    blob = encode_artifact(ARTIFACT)
    assert decode_artifact(bytearray(blob)) == decode_artifact(memoryview(blob)) == ARTIFACT


def test_refuses_every_truncated_prefix() -> None:
    blob = encode_artifact(ARTIFACT)
    for length in range(len(blob)):
        with pytest.raises(DecodeError, match=r"^task: "):
            decode_artifact(blob[:length])


@pytest.mark.parametrize(("path", "value", "line"), MALFORMED)
def test_each_fault_has_its_one_line_message(path: tuple[str, ...], value: Any, line: str) -> None:
    fields: dict[str, Any] = msgspec.msgpack.decode(encode_artifact(ARTIFACT))
    at = fields
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(DecodeError) as caught:
        decode_artifact(msgspec.msgpack.encode(fields))
    assert str(caught.value) == f"task: {line}"


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_decode_error(blob: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_artifact(blob)


def test_the_initial_model_is_drawn_as_the_layout_defines() -> None:
    vector = initial_vector(ARTIFACT.spec, 1)
    assert 0.0 < np.abs(vector[:12]).max() <= 0.5
    assert vector[12:].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert initial_vector(ARTIFACT.spec, 1).tobytes() == vector.tobytes()
    assert initial_vector(ARTIFACT.spec, 2).tobytes() != vector.tobytes()


def test_a_task_has_either_graphs_or_a_module() -> None:
    module = ModuleSource(path="own.mod:Net", sha256=bytes(32))
    with pytest.raises(ValueError, match="train and evaluate must be empty with a module"):
        msgspec.structs.replace(ARTIFACT, module=module)
    assert (
        msgspec.structs.replace(ARTIFACT, train=b"", evaluate=b"", module=module).engine == "torch"
    )
