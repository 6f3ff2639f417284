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
    RandomMask,
    SelfCheck,
    TaskSpec,
    decode_artifact,
    draw_masks,
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
        "Expected `float` >= -1000000000000.0 - at `$.spec.selfcheck.loss`",
    ),
    (
        ("spec", "selfcheck", "gradient_l2"),
        INF,
        "Expected `float` <= 1000000000000.0 - at `$.spec.selfcheck.gradient_l2`",
    ),
    (
        ("spec", "layout", "tensors"),
        [],
        "spec.layout must have at least one tensor, got none",
    ),
    (
        ("spec", "task"),
        "binary",
        "classes must be 2 for binary, got 3 - at `$.spec`",
    ),
    (("spec", "task"), "ranking", "Invalid enum value 'ranking' - at `$.spec.task`"),
    (("spec", "random"), [], "Expected `array` of length >= 1 - at `$.spec.random`"),
    (
        ("spec", "random"),
        [{"shape": [4], "keep": 65537}],
        "Expected `int` <= 65536 - at `$.spec.random[0].keep`",
    ),
    (
        ("spec", "random"),
        [{"shape": [4097, 4097], "keep": 1}],
        "a mask must have at most 16777216 elements, got 16785409 - at `$.spec.random[0]`",
    ),
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


MASKS = (
    RandomMask(shape=(5,), keep=32768),
    RandomMask(shape=(2, 3), keep=52429),
    RandomMask(shape=(4,), keep=9000, is_per_example=False),
)


def test_masks_are_the_same_bits_on_every_machine() -> None:
    first, second, of_batch = draw_masks(MASKS, 11, 2, 2)
    assert first.astype(int).tolist() == [[1, 1, 1, 0, 1], [1, 1, 1, 1, 0]]
    assert second.astype(int).tolist() == [[[1, 1, 1], [1, 0, 1]], [[1, 1, 0], [1, 1, 1]]]
    assert of_batch.astype(int).tolist() == [0, 0, 0, 0]
    chances = np.random.Philox(key=[11, 2]).random_raw(3).astype("<u8").view("<u2")[:10]
    np.testing.assert_array_equal(first.ravel(), chances < 32768)


def test_masks_of_an_example_do_not_depend_on_the_size_of_the_mini_batch() -> None:
    few, many = draw_masks(MASKS, (1 << 63) - 1, 7, 3), draw_masks(MASKS, (1 << 63) - 1, 7, 40)
    for mask, one, other in zip(MASKS, few, many, strict=True):
        np.testing.assert_array_equal(one, other[:3] if mask.is_per_example else other)
    others = [draw_masks(MASKS, *key, 40)[0] for key in ((8, 7), ((1 << 63) - 1, 8))]
    assert all((other != many[0]).any() for other in others)


@pytest.mark.parametrize("keep", [0, 1, 6554, 58982, 65535, 65536])
def test_a_mask_keeps_the_declared_share(keep: int) -> None:
    """40,000 elements: five standard deviations are 0.0125."""
    [mask] = draw_masks([RandomMask(shape=(400,), keep=keep)], 3, 1, 100)
    assert mask.mean() == pytest.approx(keep / 65536, abs=0.0125 if 0 < keep < 65536 else 0.0)


def test_masks_are_a_part_of_a_task_that_has_some() -> None:
    assert "random" not in msgspec.msgpack.decode(encode_artifact(ARTIFACT))["spec"]
    spec = msgspec.structs.replace(ARTIFACT.spec, random=MASKS)
    again = decode_artifact(encode_artifact(msgspec.structs.replace(ARTIFACT, spec=spec))).spec
    assert again.masks == MASKS
    assert ARTIFACT.spec.masks == ()
